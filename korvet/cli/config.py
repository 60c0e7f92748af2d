"""`korvet config` prints what a broker with the same flags would use, and where each value came from.

The flags that name settings are shared with the other commands that need a configuration: some settings have a flag of
their own, and `--set` reaches all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import click

from korvet.cli.options import add_options, option, repeated
from korvet.cli.output import json_flag, printed_json
from korvet.cli.tables import print_table
from korvet.config import sources
from korvet.config.dynamic import altered
from korvet.config.settings import SETTINGS, Settings
from korvet.config.sources import BrokerConfig
from korvet.errors import ConfigError
from korvet.redis.permissions import user_line

_NAME_CHARS = set(f"{string.ascii_letters}{string.digits}._-")

Loader = Callable[[], BrokerConfig]

# Flag -> (setting, what stands for its value in the help text).
FLAGS = {
    "--listen": ("listen", "HOST:PORT"),
    "--advertised": ("advertised", "HOST:PORT"),
    "--redis-url": ("redis.url", "URL"),
    "--data-dir": ("data.dir", "DIR"),
    "--workers": ("workers", "N"),
    "--broker-id": ("broker.id", "N"),
    "--ops-listen": ("ops.listen", "HOST:PORT"),
}


file_option = option("--config FILE", "Settings in TOML.", click.Path(path_type=Path), name="config_file")
set_option = repeated("--set NAME=VALUE", "Any setting, by name", name="assignments")


def with_configuration(command: Callable[..., object]) -> Callable[..., object]:
    """Give a command the flags that name settings; its first argument reads the configuration."""

    @functools.wraps(command)
    def run(config_file: Path | None, assignments: tuple[str, ...], **given: Any) -> object:  # noqa: ANN401 - the command's own flags
        flags = {name: given.pop(name) for name in map(parameter, FLAGS)}
        return command(loader(config_file, assignments, flags), **given)

    flags = (option(f"{flag} {metavar}", SETTINGS[setting].doc) for flag, (setting, metavar) in FLAGS.items())
    return add_options(run, file_option, *flags, set_option)


def loader(config_file: Path | None, assignments: tuple[str, ...], flags: Mapping[str, str | None]) -> Loader:
    """Return a function that reads the configuration from all sources; raises ConfigError, as that function does.

    `flags` are the values that click read for the flags of FLAGS. Each call reads the file again; environment and
    command line are those of the start of the process.
    """
    given = {setting: flags.get(parameter(flag)) for flag, (setting, _) in FLAGS.items()}
    overrides = {setting: value for setting, value in given.items() if value is not None}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if not equals:
            raise click.UsageError(
                f"--set takes NAME=VALUE, for instance --set num.partitions=4, not {name!r}"
            )
        if given.get(name) is not None:
            raise ConfigError(f"{name} is given twice: by its own flag and by --set")
        overrides[name] = value
    environ = dict(os.environ)
    return lambda: sources.load(config_file, environ, overrides)


def running_redis(settings: Settings, what: str) -> str:
    """Return the URL of a broker's Redis, or of its embedded server; a UsageError asks for `what` if none runs."""
    from korvet.redis.url import running_url  # noqa: PLC0415 - other commands start without it

    directory = Path(settings.data_dir)
    url = settings.redis_url or running_url(directory)
    if url is None:
        path = directory.expanduser().absolute()
        raise click.UsageError(f"give {what}: --redis-url; no embedded server runs on {path} (data.dir)")
    return url


def parameter(flag: str) -> str:
    """Return the name under which click passes a flag."""
    return flag.removeprefix("--").replace("-", "_")


@click.command()
@with_configuration
@json_flag("One JSON object: name -> value and origin.")
def config(load: Loader) -> None:
    """Print the effective configuration with the origin of each value; passwords are masked.

    Values that clients have altered are read from Redis; a note on stderr says why if they cannot be.
    """
    configuration = _as_altered(load())
    settings, origins = configuration.settings, configuration.origins
    values = [(definition, definition.value(settings)) for definition in SETTINGS.values()]
    values += settings.of_single_listeners()
    if not printed_json(
        {
            definition.name: {
                "value": definition.format(value) if isinstance(value, str) else value,
                "origin": origins[definition.name],
            }
            for definition, value in values
        }
    ):
        rows = [
            (definition.name, definition.format(value), origins[definition.name])
            for definition, value in values
        ]
        print_table(("Setting", "Value", "Origin"), rows)


def _as_altered(configuration: BrokerConfig) -> BrokerConfig:
    """Return the configuration with the values that clients have altered, as Redis has them."""
    from korvet.server.supervisor.redis_check import altered_layers  # noqa: PLC0415 - other commands start without it

    settings = configuration.settings
    try:
        layers = altered_layers(settings)
    except ConfigError as error:
        click.echo(f"Values that clients have altered are not shown: {error}", err=True)
        return configuration
    if layers is None:
        if (directory := Path(settings.data_dir).expanduser()).exists():
            reason = f"the embedded server of {directory} does not run"
            click.echo(f"Values that clients have altered are not shown: {reason}", err=True)
        return configuration
    origins = {name: f"clients ({layer})" for name, layer in altered(layers).items()}
    origins = {**configuration.origins, **origins}
    return dataclasses.replace(configuration, settings=layers.settings, origins=origins)


@click.command("redis-acl")
@option("--user NAME", "Name of the user.", default="korvet")
@option(
    "--namespace NAME",
    "First part of every key: the setting namespace.",
    default=SETTINGS["namespace"].default,
)
@option(
    "--password-file FILE",
    "File with the password, - for standard input; its hash is printed.",
    click.File(encoding="utf-8"),
)
def redis_acl(user: str, namespace: str, password_file: IO[str] | None) -> None:
    """Print a user for Redis that may do just what Korvet does, as a line of an aclfile.

    What follows the word `user` is what ACL SETUSER takes. Without a password nobody can log in as the user yet.
    """
    for text in (user, namespace):
        if not text or set(text) - _NAME_CHARS:
            raise click.UsageError(f"{text!r} is not a name of letters, digits, '.', '_' and '-'")
    password = password_file.read().strip() if password_file else None
    if password == "":
        raise click.UsageError("--password-file is empty")
    click.echo(user_line(user, namespace, password))
