"""The flags that name settings, shared by the commands that need a configuration.

Knows which settings have a flag of their own, and that `--set` reaches all of them; not what values mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from korvet.config import Configuration, load, rows
from korvet.errors import ConfigError

Loader = Callable[[], Configuration]
_Command = TypeVar("_Command", bound=Callable[..., object])

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


def configuration_options(command: _Command) -> _Command:
    """Give a command the flags of the configuration; `loader` makes of them what reads the configuration."""
    about = {row.name: row.about.doc for row in rows()}
    command = click.option(
        "--set",
        "assignments",
        metavar="NAME=VALUE",
        multiple=True,
        help="Any setting, by name; may be repeated.",
    )(command)
    for flag, (setting, metavar) in reversed(FLAGS.items()):
        command = click.option(flag, _parameter(flag), metavar=metavar, help=about[setting])(command)
    file = click.Path(path_type=Path)
    return click.option("--config", "config_file", type=file, metavar="FILE", help="Settings in TOML.")(
        command
    )


def loader(config_file: Path | None, assignments: tuple[str, ...], flags: Mapping[str, str | None]) -> Loader:
    """Return what reads the configuration from all sources, now and at each reload; raises ConfigError.

    `flags` are the values that click read for the flags of FLAGS. The file is read anew at each call;
    environment and command line are what they were when the process began.
    """
    overrides: dict[str, str] = {}
    for flag, (setting, _) in FLAGS.items():
        value = flags[_parameter(flag)]
        if value is not None:
            overrides[setting] = value
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if not equals:
            raise click.UsageError(
                f"--set takes NAME=VALUE, for instance --set num.partitions=4, not {name!r}"
            )
        if any(
            name == setting and flags[_parameter(flag)] is not None for flag, (setting, _) in FLAGS.items()
        ):
            raise ConfigError(f"{name} is given twice: by its own flag and by --set")
        overrides[name] = value
    environ = dict(os.environ)
    return lambda: load(config_file, environ, overrides)


def _parameter(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
