"""What a setting is: its type, default, range and purpose, and how its text is read, checked and written.

One ConfigDef stands for each setting of a broker (settings.py) and each config of a topic (topic_configs.py). Start-up,
`korvet config`, CreateTopics, DescribeConfigs, AlterConfigs and the tables of the documentation all read it.
"""

from __future__ import annotations

import math
import re
from dataclasses import Field, field
from typing import Any, TypeVar, get_args

import msgspec

from korvet.config import values
from korvet.config.documentation import DOCUMENTATION
from korvet.errors import ConfigError
from korvet.protocol.types import ConfigType

T = TypeVar("T")

Value = str | int | float | bool

VARIABLE_PREFIX = "KORVET_"
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

TEXT_BYTES_MAX = 32_767
"""Kafka's limit for a text on the wire: no response could carry a longer value, as a list with many appends may be."""

_REFUSED_CHARS_MAX = 80  # of a wrong value in an error: enough to recognise it

# Python reads more as a number than the clients that read a value back: 1_000, or the digits of other scripts.
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?")
_NAN = "NaN"  # as Java reads and writes it
_BOOLEANS = {"true": True, "false": False}
PythonType = type[str | int | float | bool]
_NUMERIC: dict[ConfigType, PythonType] = {
    ConfigType.BOOLEAN: bool,
    ConfigType.INT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
}


class ConfigDef(msgspec.Struct, frozen=True, eq=False):
    """One setting. `least` and `most` limit numbers; `choices`, or else `form`, limit texts."""

    doc: str
    least: int = 0
    most: float = INT32_MAX
    form: values.Form | None = None
    reload: bool = True
    """Whether SIGHUP applies a new value: it replaces the workers, not what the supervisor holds open."""
    dynamic: bool = False
    """Whether clients may alter it: a broker's while it runs (KIP-226), a topic's after its creation."""
    secret: bool = False
    per_listener: bool = False
    """Whether one listener may have another value, by `listener.name.<name>.<setting>`."""
    per_mechanism: bool = False
    """Whether one of its mechanisms may have another one, by `listener.name.<name>.<mechanism>.<setting>`."""
    choices: tuple[str, ...] = ()
    type: ConfigType = ConfigType.STRING
    name: str = ""
    default: Value = ""
    attribute: str = ""
    """Of Settings, that holds the value where nobody has altered it; "" if none does, and `default` counts."""
    inherits: str = ""
    """Name of the broker's setting that counts for a topic on which the config is not set."""

    @property
    def environment(self) -> str:
        return f"{VARIABLE_PREFIX}{self.attribute.upper()}"

    @property
    def python_type(self) -> PythonType:
        return _NUMERIC.get(self.type, str)

    @property
    def taken(self) -> tuple[str, ...]:
        return tuple(_BOOLEANS) if self.type is ConfigType.BOOLEAN else self.choices

    @property
    def allowed(self) -> str:
        if self.type is ConfigType.LIST and self.choices:
            return f"a list of {', '.join(self.choices)}, comma-separated"
        if self.type is ConfigType.BOOLEAN:
            return " or ".join(self.taken)
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = "number" if self.type is ConfigType.DOUBLE else "whole number"
        return f"a {kind} from {self.least} to {self.most}"

    def value(self, settings: object) -> Value:
        result: Value = getattr(settings, self.attribute) if self.attribute else self.default
        # A topic's range may be narrower: a negative log.retention.ms is its retention.ms of -1.
        return max(result, self.least) if type(result) is int else result

    def parse(self, text: str, origin: str = "") -> Value:
        """Read and check a value; raises ConfigError, which names `origin` as where the text comes from."""
        bare = text.strip()
        value: Value | None = text
        if self.type is ConfigType.BOOLEAN:
            value = _BOOLEANS.get(bare.lower())
        elif self.type is ConfigType.DOUBLE:
            value = float(bare) if bare == _NAN or _NUMBER.fullmatch(bare) else None
        elif self.python_type is int:
            value = int(bare) if _WHOLE_NUMBER.fullmatch(bare) else None
        elif self.choices and self.type is not ConfigType.LIST:
            value = bare
        if value is None:
            raise self.refusal(text, origin, self.allowed)
        return self.check(value, origin)

    def check(self, value: Value, origin: str = "") -> Value:
        """Return a value of the right type as it is kept; raises ConfigError out of range.

        A list is kept without blanks, and without what it names again if there are `choices`, as Kafka reads it.
        """
        allowed = ""
        if isinstance(value, str):
            allowed = self._text_allowed(value)
        elif not isinstance(value, bool):
            unknown = self.choices and self.format(value) not in self.choices
            # As in Kafka, NaN is within every range.
            allowed = self.allowed if unknown or value < self.least or value > self.most else ""
        if allowed:
            raise self.refusal(value, origin, allowed)
        if isinstance(value, str) and self.type is ConfigType.LIST:
            parts = values.listed(value)
            return ",".join(dict.fromkeys(parts) if self.choices else parts)
        return value

    def _text_allowed(self, text: str) -> str:
        """Return what is allowed in place of `text`, "" if `text` is."""
        if len(text.encode(errors="surrogatepass")) > TEXT_BYTES_MAX:
            return f"at most {TEXT_BYTES_MAX} bytes long"
        if self.choices:
            parts = values.listed(text) if self.type is ConfigType.LIST else [text]
            return "" if set(parts) <= set(self.choices) else self.allowed
        # What the system cannot decode arrives from the environment as lone surrogates. PEM has lines.
        if not (text.replace("\n", "") if self.form is values.pem else text).isprintable():
            return "a text without control characters"
        return "" if self.form is None else self.form(text)

    def format(self, value: Value) -> str:
        """Write a value as text that `parse` reads, without its secret part."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float) and math.isnan(value):
            return _NAN
        return self._masked(str(value)) if self.secret else str(value)

    def refusal(self, value: object, origin: str, allowed: str) -> ConfigError:
        """Return the error for a value that the setting cannot have, in Kafka's form."""
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        shown = quoted(self._masked(shown) if self.secret else shown)
        where = f" ({origin})" if origin else ""
        return ConfigError(
            f"Invalid value {shown} for configuration {self.name}{where}: it must be {allowed}"
        )

    def _masked(self, text: str) -> str:
        """Write a secret: a text of several parts without the secret one, and nothing of any other."""
        if self.form is values.storage_options:
            return values.without_option_secrets(text)
        return values.without_secrets(text) if self.name == "redis.url" else text and "***"


def quoted(text: str) -> str:
    """Write a text so that it stays one short line with any content."""
    return ascii(text if len(text) <= _REFUSED_CHARS_MAX else text[:_REFUSED_CHARS_MAX] + "...")


_TYPES = {bool: ConfigType.BOOLEAN, float: ConfigType.DOUBLE, int: ConfigType.INT}


def definition_of(item: Field[Value], hint: type) -> ConfigDef:
    described: ConfigDef = item.metadata["config"]
    config_type = _TYPES.get(hint, described.type)
    if config_type is ConfigType.INT and described.most > INT32_MAX:
        config_type = ConfigType.LONG
    name = item.name.replace("_", ".")
    return msgspec.structs.replace(
        described,
        doc=DOCUMENTATION[name],
        name=name,
        attribute=item.name,
        default=item.default,
        choices=get_args(hint) or described.choices,
        type=ConfigType.PASSWORD if described.secret else config_type,
    )


def setting(default: T, least: int = 0, most: int = INT32_MAX, **more: Any) -> T:
    """Describe a setting of which SIGHUP applies a new value."""
    return field(default=default, metadata={"config": ConfigDef("", least, most, **more)})


def fixed(default: T, least: int = 0, most: int = INT32_MAX, **more: Any) -> T:
    """Describe a setting that is read once, when the supervisor starts."""
    return setting(default, least, most, reload=False, **more)


def dynamic(default: T, least: int = 0, most: int = INT32_MAX, **more: Any) -> T:
    """Describe a setting that clients may alter while brokers run."""
    return setting(default, least, most, dynamic=True, **more)


def of_listener(default: T, least: int = 0, most: int = INT32_MAX, **more: Any) -> T:
    """Describe a setting that one listener may have otherwise, by `listener.name.<name>.<setting>`."""
    return setting(default, least, most, per_listener=True, **more)


def of_mechanism(default: T, least: int = 0, most: int = INT32_MAX, **more: Any) -> T:
    """Describe a setting that one mechanism of a listener may have otherwise too."""
    return of_listener(default, least, most, per_mechanism=True, **more)
