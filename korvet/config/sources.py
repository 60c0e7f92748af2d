"""Where values come from: the file, the environment, the command line; later wins.

Knows how each source writes a setting, and says what is wrong in one line with name, value, origin and what
is allowed. Not what a setting is for.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from korvet.config.listeners import advertised_by_name, wanted_listeners
from korvet.config.settings import VARIABLE_PREFIX, ConfigKey, Settings, Value, rows
from korvet.config.values import without_secrets
from korvet.errors import ConfigError

DEFAULT = "default"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"

# Kubernetes tells a container of the services beside it by variables that begin with their names: one may be korvet.
_IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"
_OF_A_SERVICE = re.compile(r"_(?:SERVICE_HOST|SERVICE_PORT|PORT)(?:_|$)")
_NO_LINKS = "; Kubernetes sets it for a service: let the pod have enableServiceLinks: false"

_VALUE_CHARS_MAX = 80  # of a wrong value in an error line: enough to recognise it
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?")
_BOOLEANS = {"true": True, "false": False}


class BrokerConfig(msgspec.Struct, frozen=True):
    """The settings, and for each name where its value came from.

    An origin is "default", "environment", "command line" or the configuration file's path as it was given.
    """

    settings: Settings
    origins: Mapping[str, str]


def load(config_file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> BrokerConfig:
    """Read the file if there is one, every KORVET_ variable, and the command line's values by name.

    Raises ConfigError, one line, for the first thing wrong.
    """
    by_name = {row.name: row for row in rows()}
    found: dict[str, tuple[Value, str]] = {}
    if config_file is not None:
        found |= {name: (value, str(config_file)) for name, value in _from_file(config_file, by_name)}
    found |= {name: (value, ENVIRONMENT) for name, value in _from_environment(environ)}
    found |= {name: (value, COMMAND_LINE) for name, value in _from_command_line(overrides, by_name)}
    given = {by_name[name].attribute: value for name, (value, _) in found.items()}
    origins = {name: found[name][1] if name in found else DEFAULT for name in by_name}
    settings = msgspec.convert(given, Settings)
    _check_listeners(settings, origins)
    if contradiction := contradiction_in(settings):
        raise ConfigError(contradiction.told(origins))
    return BrokerConfig(settings, origins)


def _check_listeners(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise ConfigError where listeners are given in both ways, or an address for one that is not there."""
    given = {row.name for row in rows() if origins[row.name] != DEFAULT and row.of(settings)}
    for short, named, instead in (
        ("listen", "listeners", "listeners"),
        ("advertised", "listeners", "advertised.listeners"),
        ("advertised", "advertised.listeners", "advertised.listeners"),
    ):
        if {short, named} <= given:
            raise ConfigError(
                f"{short} ({origins[short]}) is for a single listener without a name and does not go with {named}"
                f" ({origins[named]}): give {instead} alone"
            )
    advertised_by_name(wanted_listeners(settings.listeners, settings.listen), settings.advertised_listeners)


def _from_file(config_file: Path, by_name: Mapping[str, ConfigKey]) -> Iterator[tuple[str, Value]]:
    origin = str(config_file)
    try:
        document = tomllib.loads(config_file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {origin}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read the configuration file {origin}: it is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"cannot read the configuration file {origin}: {error}") from error
    for name, value in document.items():
        if isinstance(value, dict):
            raise _unquoted(_first_leaf(name, value), by_name, origin)
        if name not in by_name:
            raise ConfigError(f"unknown setting {_quoted(name)} ({origin}){_nearest(name, by_name)}")
        yield name, _typed(by_name[name], value, origin)


def _first_leaf(name: str, value: object) -> str:
    """Name the setting that a table stands for: unquoted `redis.url` is a table `redis` with a key `url`."""
    while isinstance(value, dict) and value:
        key, value = next(iter(value.items()))
        name = f"{name}.{key}"
    return without_secrets(name)


def _unquoted(path: str, known: Collection[str], origin: str) -> ConfigError:
    meant = [path] if path in known else _near(path, known)
    if not meant:
        return ConfigError(f"unknown setting {_quoted(path)} ({origin}){_nearest(path, known)}")
    quoted = " or ".join(f'"{name}" = ...' for name in meant)
    return ConfigError(
        f"{origin}: quote the whole name of a setting: write {quoted}, not {_escaped(path)} = ..."
    )


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Value]]:
    by_variable = {row.environment: row for row in rows()}
    for variable, text in environ.items():
        if not variable.startswith(VARIABLE_PREFIX):
            continue
        if variable not in by_variable:
            linked = _IN_KUBERNETES in environ and _OF_A_SERVICE.search(variable)
            advice = _NO_LINKS if linked else _nearest(variable, by_variable)
            raise ConfigError(f"unknown setting {variable} ({ENVIRONMENT}){advice}")
        row = by_variable[variable]
        yield row.name, parsed(row, text, ENVIRONMENT)


def _from_command_line(
    overrides: Mapping[str, str], by_name: Mapping[str, ConfigKey]
) -> Iterator[tuple[str, Value]]:
    for name, text in overrides.items():
        if name not in by_name:
            raise ConfigError(f"unknown setting {_quoted(name)} ({COMMAND_LINE}){_nearest(name, by_name)}")
        yield name, parsed(by_name[name], text, COMMAND_LINE)


def _nearest(name: str, known: Collection[str]) -> str:
    near = _near(name, known)
    return f"; did you mean {' or '.join(near)}?" if near else "; `korvet config` lists all settings"


def _near(name: str, known: Collection[str]) -> list[str]:
    """Return the known names that `name` may stand for: those it begins, else the one most like it, if any is."""
    if begun := [other for other in known if other.startswith((f"{name}.", f"{name}_"))]:
        return begun
    # What all variables begin with makes none of them more alike.
    bare = {other.removeprefix(VARIABLE_PREFIX): other for other in known}
    near = difflib.get_close_matches(name.removeprefix(VARIABLE_PREFIX), bare, n=1)
    return [bare[other] for other in near]


def parsed(row: ConfigKey, text: str, origin: str) -> Value:
    """Read a value that was given as text, and check it; raises ConfigError. `origin` is named in what that says."""
    value: Value = text
    if row.kind is bool:
        if text.lower() not in _BOOLEANS:
            raise _refused(row, text, origin, row.allowed)
        value = _BOOLEANS[text.lower()]
    elif row.kind is int:
        if not _WHOLE_NUMBER.fullmatch(text.strip()):
            raise _refused(row, text, origin, row.allowed)
        value = int(text)
    elif row.kind is float:
        if not _NUMBER.fullmatch(text.strip()):
            raise _refused(row, text, origin, row.allowed)
        value = float(text)
    return _checked(row, value, origin)


def _typed(row: ConfigKey, value: object, origin: str) -> Value:
    """Take a value that has a type already, and check it."""
    # bool is a subclass of int in Python, but `true` is no number.
    if isinstance(value, str | int | float) and type(value) is row.kind:
        return _checked(row, value, origin)
    if row.kind is float and type(value) is int:
        return _checked(row, float(value), origin)
    raise _refused(row, value, origin, "a text in quotes" if row.kind is str else row.allowed)


def _checked(row: ConfigKey, value: Value, origin: str) -> Value:
    allowed = ""
    if isinstance(value, str):
        # What the system cannot decode arrives from the environment as lone surrogates.
        if not value.isprintable():
            allowed = "a text without control characters"
        elif row.choices:
            allowed = "" if value in row.choices else row.allowed
        elif row.about.form is not None:
            allowed = row.about.form(value)
    elif not isinstance(value, bool) and not row.about.least <= value <= row.about.most:
        allowed = row.allowed
    if allowed:
        raise _refused(row, value, origin, allowed)
    return value


def _refused(row: ConfigKey, value: object, origin: str, allowed: str) -> ConfigError:
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    if row.about.secret:
        shown = row.masked(shown)
    return ConfigError(f"{row.name} = {_quoted(shown)} ({origin}) is not allowed: it has to be {allowed}")


def _quoted(text: str) -> str:
    """Write a text so that it stays one short line whatever is in it."""
    return ascii(text if len(text) <= _VALUE_CHARS_MAX else text[:_VALUE_CHARS_MAX] + "...")


def _escaped(text: str) -> str:
    """Write it as `_quoted` does, without the quotes."""
    return _quoted(text)[1:-1]


class Contradiction(msgspec.Struct, frozen=True):
    """Two settings, each in order, the first of which must not be more than the second and is."""

    smaller: str
    larger: str
    values: tuple[int, int]

    def told(self, origins: Mapping[str, str]) -> str:
        """Say it in one line; `origins` tells where each setting's value came from."""
        low, high = self.values
        where = ", ".join(origins[name] for name in (self.smaller, self.larger))
        return f"{self.smaller} = {low} is more than {self.larger} = {high} ({where})"


def contradiction_in(settings: Settings) -> Contradiction | None:
    """Return what no single setting shows; None where all go together."""
    pairs = (
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
        ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
        # A request that is larger than all memory for requests could never be read.
        ("socket.request.max.bytes", "queued.max.request.bytes"),
        ("request.control.max.bytes", "queued.max.request.bytes"),
        ("memory.throttle.percent", "memory.refuse.percent"),
    )
    by_name = {row.name: row for row in rows()}
    for smaller, larger in pairs:
        low, high = (by_name[name].of(settings) for name in (smaller, larger))
        if isinstance(low, int) and isinstance(high, int) and low > high:
            return Contradiction(smaller, larger, (low, high))
    return None
