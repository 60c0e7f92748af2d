"""The sources of settings: the file, the environment, the command line; the later one wins.

What is wrong is one line with the name, the value, where it was given and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from korvet.config.definition import VARIABLE_PREFIX, ConfigDef, Value, quoted
from korvet.config.group_configs import LIMITS, TIMES
from korvet.config.listeners import (
    advertised_by_name,
    check_protocols,
    override_of_variable,
    split_override,
    wanted_listeners,
)
from korvet.config.settings import SETTINGS, Settings
from korvet.config.values import parse_connection_limits, read_password, without_secrets
from korvet.errors import ConfigError

DEFAULT = "default"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"

# Kubernetes describes services to containers in variables that begin with their names: one may be called korvet.
_IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"
_OF_A_SERVICE = re.compile(r"_(?:SERVICE_HOST|SERVICE_PORT|PORT)(?:_|$)")
_NO_LINKS = "; Kubernetes sets it for a service: let the pod have enableServiceLinks: false"

_NO_PEERS = "brokers of Korvet share Redis and do not connect to each other; leave it out"
_NO_STORE_PASSWORD = "PEM files have no such password; a key that is encrypted has ssl.key.password"  # noqa: S105 - a sentence
_NO_CLASSES = (
    "no Java class can be given: sasl.oauthbearer.* say how tokens are validated, sasl.plain.users.file and"
    " `korvet users` who may log in"
)
_NO_KERBEROS = "GSSAPI (Kerberos) is not supported: use SCRAM-SHA-512, PLAIN or OAUTHBEARER"
_MEANINGLESS = {
    "sasl.jaas.config": (
        "there is no JAAS here: users of PLAIN stand in the file of sasl.plain.users.file, those of SCRAM in Redis"
        " (`korvet users`), and OAUTHBEARER has sasl.oauthbearer.*"
    ),
    "sasl.server.callback.handler.class": _NO_CLASSES,
    "sasl.login.callback.handler.class": _NO_CLASSES,
    "sasl.login.class": _NO_CLASSES,
    "principal.builder.class": _NO_CLASSES,
    "sasl.kerberos.service.name": _NO_KERBEROS,
    "sasl.kerberos.principal.to.local.rules": _NO_KERBEROS,
    "inter.broker.listener.name": _NO_PEERS,
    "security.inter.broker.protocol": _NO_PEERS,
    "sasl.mechanism.inter.broker.protocol": _NO_PEERS,
    "control.plane.listener.name": _NO_PEERS,
    "controller.listener.names": _NO_PEERS,
    "ssl.keystore.password": _NO_STORE_PASSWORD,
    "ssl.truststore.password": _NO_STORE_PASSWORD,
}
"""Kafka's settings that an administrator may bring along, and why each has no meaning here."""


_IN_ORDER = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    *((least, f"group.{name}") for name, (least, _) in LIMITS.items() if least),
    *((f"group.{name}", most) for name, (_, most) in LIMITS.items() if most),
    *((f"group.{heartbeat}", f"group.{session}") for session, heartbeat in TIMES),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    # A request that is larger than all memory for requests could never be read.
    ("socket.request.max.bytes", "queued.max.request.bytes"),
    ("request.control.max.bytes", "queued.max.request.bytes"),
    ("memory.throttle.percent", "memory.refuse.percent"),
)
"""Settings of which the first may not be more than the second."""


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings, and for each name where its value came from, those of single listeners included.

    An origin is "default", "environment", "command line" or the configuration file's path as it was given.
    """

    settings: Settings
    origins: Mapping[str, str]
    sources: tuple[Path | None, Mapping[str, str], Mapping[str, str]] = dataclasses.field(repr=False)
    """The arguments of `load`, which may hold passwords."""

    def read_again(self) -> BrokerConfig:
        """Return what the same sources say now; the environment is that of the start. Raises ConfigError."""
        return load(*self.sources)


def load(config_file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> BrokerConfig:
    """Read the file if there is one, every KORVET_ variable, and the command line's values by name.

    Raises ConfigError, one line, for the first thing wrong.
    """
    result: dict[str, tuple[Value, str]] = {}
    if config_file is not None:
        result |= {name: (value, str(config_file)) for name, value in _from_file(config_file)}
    result |= {name: (value, ENVIRONMENT) for name, value in _from_environment(environ)}
    result |= {name: (value, COMMAND_LINE) for name, value in _from_command_line(overrides)}
    values: dict[str, object] = {
        SETTINGS[name].attribute: result[name][0] for name in result if name in SETTINGS
    }
    settings = msgspec.convert(values | {"overrides": _overrides(result)}, Settings)
    if settings.redis_password_file:
        redis_url = with_password(settings.redis_url, settings.redis_password_file)
        settings = dataclasses.replace(settings, redis_url=redis_url)
    origins = dict.fromkeys(SETTINGS, DEFAULT) | {name: origin for name, (_, origin) in result.items()}
    _check_listeners(settings, origins)
    check_together(settings, origins)
    return BrokerConfig(settings, origins, (config_file, environ, overrides))


def with_password(redis_url: str, password_file: str) -> str:
    """Return redis.url with the password of redis.password.file; raises ConfigError, which has neither."""
    name = f"redis.password.file = {password_file}"
    # Not by urlsplit, which takes no list of hosts with IPv6 addresses in it.
    scheme, _, rest = redis_url.partition("://")
    where = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, at, _ = where.rpartition("@")
    if not scheme or user.partition(":")[2]:
        raise ConfigError(f"{name}: redis.url has to be set, and to have no password of its own")
    password = quote(read_password(password_file, name), safe="")
    return f"{scheme}://{user.removesuffix(':')}:{password}@{rest.removeprefix(user + at)}"


def check_together(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise ConfigError if settings, each in its range, contradict each other; it names the origin of both."""
    for smaller, larger in _IN_ORDER:
        low, high = (int(SETTINGS[name].value(settings)) for name in (smaller, larger))
        if low > high:
            where = f"{origins[smaller]}, {origins[larger]}"
            raise ConfigError(f"{smaller} = {low} is more than {larger} = {high} ({where})")
    if settings.log_retention_ms == 0:
        name = "log.retention.ms"
        raise SETTINGS[name].refusal("0", origins[name], "negative, which is without limit, or 1 at least")
    overrides = parse_connection_limits(settings.max_connections_per_ip_overrides)
    if not settings.max_connections_per_ip and not any(overrides.values()):
        raise ConfigError(
            f"max.connections.per.ip = 0 ({origins['max.connections.per.ip']}) would shut out all addresses: "
            "max.connections.per.ip.overrides must allow one"
        )


def _check_listeners(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise ConfigError if listeners are given in both forms, or an advertised address has no listener."""
    given = {name for name, item in SETTINGS.items() if origins[name] != DEFAULT and item.value(settings)}
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
    listeners = wanted_listeners(settings.listeners, settings.listen)
    advertised_by_name(listeners, settings.advertised_listeners)
    check_protocols(listeners, settings.listener_security_protocol_map, settings.overrides)


def _overrides(result: Mapping[str, tuple[Value, str]]) -> dict[str, dict[str, Value]]:
    """Return what single listeners have for themselves, by their names and by attributes of Settings."""
    overrides: dict[str, dict[str, Value]] = {}
    for name, (value, _) in result.items():
        if name not in SETTINGS and (override := split_override(name)):
            overrides.setdefault(override[0], {})[SETTINGS[override[1]].attribute] = value
    return overrides


def _definition(name: str, origin: str) -> ConfigDef | None:
    """Return the definition of a setting, of a single listener too; None if there is none."""
    override = split_override(name)
    if (bare := override[1] if override else name) in _MEANINGLESS:
        raise ConfigError(f"{name} ({origin}): {_MEANINGLESS[bare]}")
    definition = SETTINGS.get(bare)
    if definition is not None and override:
        if not definition.per_listener:
            raise ConfigError(f"{name} ({origin}): {bare} cannot differ between listeners")
        if "." in override[0] and not definition.per_mechanism:
            raise ConfigError(f"{name} ({origin}): {bare} cannot differ between mechanisms")
    return definition and msgspec.structs.replace(definition, name=name)


def _from_file(config_file: Path) -> Iterator[tuple[str, Value]]:
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
            raise _unquoted(_first_leaf(name, value), origin)
        definition = _definition(name, origin)
        if definition is None:
            raise _unknown(quoted(name), name, SETTINGS, origin)
        yield name, _typed(definition, value, origin)


def _typed(definition: ConfigDef, value: object, origin: str) -> Value:
    """Check a value that has a type already."""
    if definition.python_type is float and type(value) is int:
        value = float(value)
    # bool is a subclass of int in Python, but `true` is no number.
    if isinstance(value, str | int | float) and type(value) is definition.python_type:
        return definition.check(value, origin)
    text = definition.python_type is str
    raise definition.refusal(value, origin, "a text in quotes" if text else definition.allowed)


def _first_leaf(name: str, value: object) -> str:
    """Name the setting that a table stands for: unquoted `redis.url` is a table `redis` with a key `url`."""
    while isinstance(value, dict) and value:
        key, value = next(iter(value.items()))
        name = f"{name}.{key}"
    return without_secrets(name)


def _unquoted(name: str, origin: str) -> ConfigError:
    meant = [name] if name in SETTINGS else _near(name, SETTINGS)
    if not meant:
        return _unknown(quoted(name), name, SETTINGS, origin)
    right = " or ".join(f'"{item}" = ...' for item in meant)
    wrong = quoted(name)[1:-1]
    return ConfigError(f"{origin}: quote the whole name of a setting: write {right}, not {wrong} = ...")


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Value]]:
    by_variable = {item.environment: item for item in SETTINGS.values()}
    of_listeners = [item.attribute for item in SETTINGS.values() if item.per_listener]
    for variable, text in environ.items():
        if not variable.startswith(VARIABLE_PREFIX):
            continue
        name = override_of_variable(variable, of_listeners)
        definition = by_variable.get(variable) or (_definition(name, ENVIRONMENT) if name else None)
        if definition is None:
            of_a_service = _IN_KUBERNETES in environ and _OF_A_SERVICE.search(variable)
            advice = _NO_LINKS if of_a_service else ""
            raise _unknown(variable, variable, by_variable, ENVIRONMENT, advice)
        yield definition.name, definition.parse(text, ENVIRONMENT)


def _from_command_line(overrides: Mapping[str, str]) -> Iterator[tuple[str, Value]]:
    for name, text in overrides.items():
        definition = _definition(name, COMMAND_LINE)
        if definition is None:
            raise _unknown(quoted(name), name, SETTINGS, COMMAND_LINE)
        yield name, definition.parse(text, COMMAND_LINE)


def _unknown(shown: str, name: str, names: Collection[str], origin: str, advice: str = "") -> ConfigError:
    near = _near(name, names)
    nearest = f"; did you mean {' or '.join(near)}?" if near else "; `korvet config` lists all settings"
    return ConfigError(f"unknown setting {shown} ({origin}){advice or nearest}")


def _near(name: str, names: Collection[str]) -> list[str]:
    """Return the names that `name` may stand for: those it begins, else the one most like it, if any is."""
    if begun := [other for other in names if other.startswith((f"{name}.", f"{name}_"))]:
        return begun
    # What all variables begin with makes none of them more alike.
    bare = {other.removeprefix(VARIABLE_PREFIX): other for other in names}
    near = difflib.get_close_matches(name.removeprefix(VARIABLE_PREFIX), bare, n=1)
    return [bare[other] for other in near]
