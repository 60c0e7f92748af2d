"""The differences between two brokers' answers, and those among them that expected.toml lists."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.differential.session import Exchange

EXPECTED = Path(__file__).with_name("expected.toml")
ABSENT = "<absent>"
_KEYS = (
    *(
        "ApiKey",
        "Key",
        "Name",
        "TopicName",
        "Topic",
        "TopicId",
        "GroupId",
        "Group",
        "TransactionalId",
        "ResourceName",
    ),
    *(
        "PartitionIndex",
        "Partition",
        "PartitionId",
        "Index",
        "BrokerId",
        "NodeId",
        "MemberId",
        "Feature",
        "User",
    ),
    *("ConfigName", "Mechanism", "FirstOffset", "ProducerId"),
)
"""Fields that identify an element of a list, best first."""
_COLUMNS = ("api", "request", "field", "kafka", "korvet")
_SHOWN = 4
_TEXT_MAX = 150


class Difference(NamedTuple):
    """A field in which two answers to a request differ; the field "" is the whole answer."""

    api: str
    version: int
    request: str
    field: str
    kafka: str
    korvet: str


class Expected(NamedTuple):
    """A row of expected.toml: texts, or lists of them, of which one must fit. `versions` are all if none is given.

    `*` in a text stands for anything, `!` before it for all but it. `fault`: Korvet is to be mended.
    """

    api: list[str]
    request: list[str]
    field: list[str]
    kafka: list[str]
    korvet: list[str]
    reason: str
    versions: str = ""
    fault: bool = False

    def matches(self, difference: Difference) -> bool:
        """Whether a difference is this one."""
        first, _, last = self.versions.partition("-")
        in_range = not first or int(first) <= difference.version <= int(last or first)
        return in_range and all(_matches(getattr(self, name), getattr(difference, name)) for name in _COLUMNS)


def _matches(patterns: Sequence[str], text: str) -> bool:
    def fits(pattern: str) -> bool:
        if pattern.startswith("!"):
            return not fits(pattern[1:])
        return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None

    return any(map(fits, patterns))


def expected() -> list[Expected]:
    """Return the rows of expected.toml."""
    rows: list[dict[str, Any]] = tomllib.loads(EXPECTED.read_text())["difference"]
    for row in rows:
        for name in _COLUMNS:
            text = row.get(name, "*")
            row[name] = [text] if isinstance(text, str) else text
    return [Expected(**row) for row in rows]


def differences_table() -> str:
    """Write the rows of expected.toml as a Markdown table."""

    def cell(texts: Sequence[str]) -> str:
        names = {"*": "any", "": "the answer"}
        return ", ".join(names.get(text, f"`{text}`") for text in texts)

    lines = [
        "| API | Requests | Field | Apache Kafka 4.2 | Korvet | Why |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in expected():
        api = ", ".join("any" if name == "*" else name for name in row.api) + f" {row.versions}".rstrip()
        cells = " | ".join(map(cell, (row.request, row.field, row.kafka, row.korvet)))
        lines.append(f"| {api} | {cells} | {row.reason}{' To be mended.' if row.fault else ''} |")
    return "\n".join(lines) + "\n"


def differences(kafka: Sequence[Exchange], korvet: Sequence[Exchange]) -> Iterator[Difference]:
    """Yield each field in which the answers to the same request differ; a request that one did not get is one too."""
    sides = [_numbered(exchanges) for exchanges in (kafka, korvet)]
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        request, api, version, _ = key
        answers = (side.get(key, "was not asked") for side in sides)
        for field, of_kafka, of_korvet in _fields_that_differ(*answers):
            yield Difference(api, version, request, field, of_kafka, of_korvet)


def _numbered(exchanges: Sequence[Exchange]) -> dict[tuple[str, str, int, int], dict[str, Any] | str]:
    seen = Counter[tuple[str, str, int]]()
    answers = {}
    for request, api, version, answer in exchanges:
        seen[request, api, version] += 1
        answers[request, api, version, seen[request, api, version]] = answer
    return answers


def _fields_that_differ(kafka: Any, korvet: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(kafka, str) or isinstance(korvet, str):
        if kafka != korvet:
            yield "", _summary(kafka), _summary(korvet)
        return
    sides = dict(_leaves(kafka)), dict(_leaves(korvet))
    missing = tuple(path for path in sides[0].keys() ^ sides[1].keys() if path.endswith("]"))
    for path in sorted(sides[0].keys() | sides[1].keys()):
        values = [side.get(path, ABSENT) for side in sides]
        is_in_missing = any(path.startswith(element) and path != element for element in missing)
        is_in_both = path.endswith("]") and ABSENT not in values
        if values[0] != values[1] and not is_in_missing and not is_in_both:
            yield re.sub(r"\[.*?\]", "", path), values[0], values[1]


def _summary(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    errors = {value for path, value in _leaves(answer) if path.endswith("ErrorCode")} - {"NONE"}
    return " ".join(["answers", *sorted(errors)])


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value with its path. Elements of a list are named by their key, or by their place in order."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        keys = [name for name in _KEYS if all(row.get(name) not in (None, "null") for row in value)]
        key = next(
            (name for name in keys if len({row[name] for row in value}) == len(value)), "".join(keys[:1])
        )
        seen = Counter[str]()
        for row in sorted(value, key=repr):
            name = str(row.get(key, "")).replace("]", ")")
            seen[name] += 1
            element = f"{path}[{name} {seen[name]}]"
            texts = ", ".join(f"{name}={part}" for name, part in row.items() if isinstance(part, str))
            yield element, texts[:_TEXT_MAX]
            yield from _leaves(row, element)
    else:
        yield path, str(value)[:_TEXT_MAX]


def report(unlisted: Iterable[Difference]) -> Iterator[str]:
    """Yield lines: differences by API and cause, with the requests and versions that have the same."""
    answers = defaultdict[tuple[str, int, str], set[tuple[str, str, str]]](set)
    for difference in unlisted:
        answers[difference[:3]].add(difference[3:])
    causes = defaultdict[tuple[str, tuple[tuple[str, str, str], ...]], dict[str, set[int]]](
        lambda: defaultdict(set)
    )
    for (api, version, request), fields in answers.items():
        causes[api, tuple(sorted(fields))][request].add(version)
    for (api, cause), requests in sorted(causes.items()):
        shown = [f"{request} {_ranges(versions)}" for request, versions in sorted(requests.items())]
        more = f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        yield f"{api}: {'; '.join(shown[:_SHOWN])}{more}"
        for field, kafka, korvet in cause[:_SHOWN]:
            yield f"    {field or 'answer'}: Kafka {kafka}, Korvet {korvet}"
        if len(cause) > _SHOWN:
            yield f"    and {len(cause) - _SHOWN} more fields"


def _ranges(versions: Iterable[int]) -> str:
    first, last = min(versions), max(versions)
    return f"v{first}" if first == last else f"v{first}-{last}"
