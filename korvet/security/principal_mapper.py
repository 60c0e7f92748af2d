"""ssl.principal.mapping.rules: the name of a certificate's subject becomes the name of a user (KIP-371).

The first rule that matches the whole name counts. `RULE:PATTERN/REPLACEMENT/` may have `L` or `U` at its end, for lower
or upper case; DEFAULT takes the name as it is. Patterns and replacements are Java's, for Kafka's rules are to be
brought along: `$1` is a group, and a group that the pattern does not have is text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from korvet.errors import ConfigError

_RULE = re.compile(
    r"\s*(?:DEFAULT|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)|)\s*(?:,|$)"
)
_NAMED_GROUP = re.compile(r"(?<!\\)\(\?<(?=[A-Za-z])")
_REPLACEMENT = re.compile(
    r"\\(?P<literal>.)|\$(?P<number>[0-9]+)|\$\{(?P<name>[A-Za-z][A-Za-z0-9]*)\}", re.DOTALL
)


class PrincipalMapper:
    """The rules of one listener; raises ConfigError for one that is none."""

    def __init__(self, rules: str) -> None:
        self._rules: list[_MappingRule] = []
        at = 0
        while at < len(rules):
            result = _RULE.match(rules, at)
            if not result:
                raise ConfigError(f"ssl.principal.mapping.rules: Invalid rule: {rules[at:].strip()}")
            if result["pattern"] is not None:
                self._rules.append(_rule(result["pattern"], result["replacement"], result["case"]))
            elif "DEFAULT" in result[0]:
                self._rules.append(_DEFAULT)
            at = result.end()

    def user(self, name: str) -> str | None:
        """Return the user of a distinguished name; None if no rule matches it."""
        return next((user for rule in self._rules if (user := rule.user(name)) is not None), None)


class _MappingRule(NamedTuple):
    """A pattern, and what takes the place of a name that it matches: texts, and groups by their numbers."""

    expression: re.Pattern[str]
    replacement: list[str | int]
    case: str = ""

    def user(self, name: str) -> str | None:
        if not self.expression.fullmatch(name):
            return None
        user = self.expression.sub(self._expand, name)
        if self.case:
            return user.lower() if self.case == "L" else user.upper()
        return user

    def _expand(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)


_DEFAULT = _MappingRule(re.compile("(?s:.*)"), [0])


def _rule(pattern: str, replacement: str, case: str) -> _MappingRule:
    try:
        # The groups' numbers and names are all that Java writes otherwise.
        expression = re.compile(_NAMED_GROUP.sub("(?P<", pattern))
        return _MappingRule(expression, _parts(expression, replacement), case)
    except (re.error, KeyError) as error:
        raise ConfigError(
            f"ssl.principal.mapping.rules: Invalid rule: RULE:{pattern}/{replacement}/: {error}"
        ) from None


def _parts(expression: re.Pattern[str], replacement: str) -> list[str | int]:
    parts: list[str | int] = []
    at = 0
    for result in _REPLACEMENT.finditer(replacement):
        parts.append(replacement[at : result.start()])
        if result["literal"]:
            parts.append(result["literal"])
        elif result["name"]:
            parts.append(expression.groupindex[result["name"]])
        else:
            parts += _reference(result["number"], expression.groups)
        at = result.end()
    return [*parts, replacement[at:]]


def _reference(digits: str, groups: int) -> list[str | int]:
    """Return the group that is meant, by as many digits as there are groups for, and the rest as text."""
    for length in range(len(digits), 0, -1):
        if int(digits[:length]) <= groups:
            return [int(digits[:length]), digits[length:]]
    return [f"${digits}"]
