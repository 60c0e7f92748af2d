"""`korvet config` prints what a broker with the same flags would use, and where each value came from.

The flags that name settings are shared with the other commands that need a configuration: some settings have a flag of
their own, and `--set` reaches all of them.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

import click

from korvet.cli.options import Command, add_options, repeated_option
from korvet.cli.output import print_json, print_table
from korvet.config.definition import ConfigDef, Value
from korvet.config.dynamic import altered
from korvet.config.settings import SETTINGS
from korvet.config.sources import BrokerConfig, load
from korvet.errors import ConfigError
from korvet.protocol.types import ConfigType
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


file_option = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Settings in TOML."
)
set_option = repeated_option("--set", "assignments", metavar="NAME=VALUE", text="Any setting, by name")


def configuration_options(command: Command) -> Command:
    """Give a command the flags that `loader` takes."""
    flags = (
        click.option(flag, parameter(flag), metavar=metavar, help=SETTINGS[setting].doc)
        for flag, (setting, metavar) in FLAGS.items()
    )
    return add_options(command, file_option, *flags, set_option)


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
    return lambda: load(config_file, environ, overrides)


def parameter(flag: str) -> str:
    """Return the name under which click passes a flag."""
    return flag.removeprefix("--").replace("-", "_")


@click.command()
@configuration_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object: name -> value and origin.")
@click.option("--markdown", is_flag=True, hidden=True, help="All settings as the table of the documentation.")
def config(
    config_file: Path | None,
    assignments: tuple[str, ...],
    *,
    as_json: bool,
    markdown: bool,
    **flags: str | None,
) -> None:
    """Print the effective configuration with the origin of each value; passwords are masked.

    Values that clients have altered are read from Redis; a note on stderr says why if they cannot be.
    """
    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    if markdown:
        click.echo(markdown_table(SETTINGS.values()), nl=False)
        return
    configuration = _as_altered(loader(config_file, assignments, flags)())
    if as_json:
        print_json(_as_object(configuration))
    else:
        _print_table(configuration)


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
    return BrokerConfig(layers.settings, {**configuration.origins, **origins})


def markdown_table(table: Iterable[ConfigDef]) -> str:
    """Write the settings as a Markdown table, one line each."""
    lines = ["| Setting | Default | Altered by | What it is |", "| --- | --- | --- | --- |"]
    for each in table:
        texts = each.choices if each.type is ConfigType.STRING else ()
        choices = f" One of {', '.join(f'`{choice}`' for choice in texts)}." if texts else ""
        default = f"`{each.format(each.default)}`" if each.default != "" else ""
        lines.append(f"| `{each.name}` | {default} | {_altered_by(each)} | {each.doc}{choices} |")
    return "\n".join(lines) + "\n"


def _altered_by(definition: ConfigDef) -> str:
    """Return what applies a new value of a setting: clients may alter what is dynamic, at once and without SIGHUP."""
    if definition.dynamic:
        return "clients, SIGHUP" if definition.reload else "clients"
    return "SIGHUP" if definition.reload else "restart"


def _as_object(configuration: BrokerConfig) -> dict[str, dict[str, Value]]:
    return {
        each.name: {
            "value": each.format(value) if isinstance(value, str) else value,
            "origin": configuration.origins[each.name],
        }
        for each, value in _in_effect(configuration)
    }


def _print_table(configuration: BrokerConfig) -> None:
    cells = [
        (each.name, each.format(value), configuration.origins[each.name])
        for each, value in _in_effect(configuration)
    ]
    print_table(("Setting", "Value", "Origin"), cells)


def _in_effect(configuration: BrokerConfig) -> list[tuple[ConfigDef, Value]]:
    settings = configuration.settings
    every = [(each, each.value(settings)) for each in SETTINGS.values()]
    return every + settings.of_single_listeners()


@click.command("redis-acl")
@click.option("--user", metavar="NAME", default="korvet", show_default=True, help="Name of the user.")
@click.option(
    "--namespace",
    metavar="NAME",
    default=SETTINGS["namespace"].default,
    show_default=True,
    help="First part of every key: the setting namespace.",
)
@click.option(
    "--password-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="File with the password, - for standard input; its hash is printed.",
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
