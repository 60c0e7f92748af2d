"""The flags and the manners of the commands of the lake: where log and tables are, and what failed.

Knows settings and that errors become one line on stderr; nothing of what is done with the lake. Nothing of Arrow, Delta
or Spark is imported before a command does its work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from korvet import logs
from korvet.cli.bootstrap import shown
from korvet.cli.options import FLAGS, loader
from korvet.config.values import key_values
from korvet.errors import KafkaError, LakeError

if TYPE_CHECKING:
    from korvet.lake.source import Source

_Command = TypeVar("_Command", bound=Callable[..., object])
PACKAGES = {"deltalake", "numpy", "pandas", "py4j", "pyarrow", "pyspark"}
"""What the extra korvet[lake] brings."""


class Lake(NamedTuple):
    """What a command works on: the log, the tables' place with what its object store needs, and the topics named."""

    source: Source
    uri: str
    storage_options: dict[str, str] | None
    topics: tuple[str, ...]


def lake_options(command: _Command) -> _Command:
    """Give a command the flags that `lake_of` takes, and --json."""
    return place_options(
        click.option(
            "--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; may be repeated."
        )(command)
    )


def place_options(command: _Command) -> _Command:
    """Give a command the same flags but --topic."""
    options = (
        click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Settings in TOML.",
        ),
        click.option(
            "--redis-url", metavar="URL", help="Where the log is; by default the embedded server of data.dir."
        ),
        click.option(
            "--lake", metavar="URI", help="Where the tables are: a directory or an object store; lake.path."
        ),
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="NAME=VALUE",
            help="Any setting, by name; may be repeated.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def lake_of(
    config_file: Path | None,
    redis_url: str | None,
    lake: str | None,
    assignments: tuple[str, ...],
    topics: tuple[str, ...] = (),
) -> Lake:
    """Return what the flags of `lake_options` say, and let log lines go to stderr; raises UsageError, ConfigError."""
    from korvet.lake.source import Source  # noqa: PLC0415 - other commands start without it

    flags: dict[str, str | None] = dict.fromkeys(
        (flag.removeprefix("--").replace("-", "_") for flag in FLAGS), None
    )
    if lake is not None:
        assignments = (*assignments, f"lake.path={lake}")
    settings = loader(config_file, assignments, flags | {"redis_url": redis_url})().settings
    if not settings.lake_path:
        raise click.UsageError("say where the tables are: --lake, or the setting lake.path")
    logs.configure(settings, "lake")
    uri = settings.lake_path
    if "://" not in uri:
        # A task may run in another directory.
        uri = str(Path(uri).expanduser().absolute())
    url = settings.redis_url or _embedded(Path(settings.data_dir))
    options = key_values(settings.lake_storage_options) or None
    return Lake(Source.of(settings, url), uri, options, tuple(topics))


def _embedded(directory: Path) -> str:
    from korvet.storage.embedded_socket import running_url  # noqa: PLC0415 - only where no URL is given

    url = running_url(directory)
    if url is None:
        where = directory.expanduser().absolute()
        raise click.UsageError(
            f"say where the log is: --redis-url; no embedded server runs on {where} (data.dir)"
        )
    return url


@contextlib.contextmanager
def failures_of_lake_told() -> Iterator[None]:
    """Let what fails with log, tables or Spark end the command with one line and exit code 1."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in PACKAGES:
            raise
        message = f"{package} is not installed: the lake needs `pip install 'korvet[lake]'`"
        raise click.ClickException(message) from error
    except (KafkaError, LakeError, ValueError) as error:
        raise click.ClickException(shown(str(error))) from error
