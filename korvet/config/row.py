"""One row of the table of settings, as those read it who load, print, document or alter a setting.

Knows what may be said of a setting; not which settings there are (settings.py).
"""

from __future__ import annotations

import msgspec

from korvet.config import listeners, values

Value = str | int | float | bool

VARIABLE_PREFIX = "KORVET_"
_LISTS = (
    *(values.cleanup_policies, values.format_patterns, values.log_levels),
    *(listeners.listeners_or_none, listeners.advertised_listeners_or_none),
)
INT32_MAX = 2**31 - 1


class About(msgspec.Struct, frozen=True):
    """What a row says besides type and default: `least` and `most` are for numbers, `form` for texts."""

    doc: str
    least: int = 0
    most: int = INT32_MAX
    form: values.Form | None = None
    reload: bool = True
    """Whether SIGHUP applies a new value: it replaces the workers, not what the supervisor holds open."""
    dynamic: bool = False
    """Whether clients may alter it while brokers run, for one broker or for all of the cluster (KIP-226)."""
    secret: bool = False


class Row(msgspec.Struct, frozen=True):
    """One setting of the table, as those read it who load, print or document it."""

    name: str
    attribute: str
    kind: type[str | int | float | bool]
    default: Value
    choices: tuple[str, ...]
    about: About

    @property
    def environment(self) -> str:
        """Name of its environment variable."""
        return f"{VARIABLE_PREFIX}{self.attribute.upper()}"

    @property
    def allowed(self) -> str:
        """What values it may have, in words; forms of text tell it themselves."""
        if self.choices:
            return f"one of {', '.join(self.choices)}" if len(self.choices) > 1 else self.choices[0]
        if self.kind is bool:
            return "true or false"
        if self.kind is float:
            return f"a number from {self.about.least} to {self.about.most}"
        return f"a whole number from {self.about.least} to {self.about.most}"

    @property
    def is_list(self) -> bool:
        """Whether its text is a list with commas between."""
        return self.about.form in _LISTS

    def of(self, settings: object) -> Value:
        """Return its value in `settings`."""
        value: Value = getattr(settings, self.attribute)
        return value

    def shown(self, value: Value) -> str:
        """Write a value of it as text, as it would be given again, without its secret part."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return self.masked(str(value)) if self.about.secret else str(value)

    def masked(self, text: str) -> str:
        """Return a text that is meant to be its value, and holds a secret, without that."""
        mask = (
            values.without_option_secrets
            if self.about.form is values.storage_options
            else values.without_secrets
        )
        return mask(text)
