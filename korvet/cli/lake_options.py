"""The flags and the manners of the commands of the lake: where log and tables are, and what failed.

Knows settings and that errors become one line on stderr; nothing of what is done with the lake. Nothing of Arrow, Delta
or Spark is imported before a command does its work.

Commands of the lake that do their work once, or again and again: the flags, and the pause between two rounds.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from korvet import logs
from korvet.cli.config import FLAGS, loader
from korvet.cli.output import printable
from korvet.config.values import key_values
from korvet.errors import KafkaError, LakeError

if TYPE_CHECKING:
    from korvet.lake.source import LakeSource

_Command = TypeVar("_Command", bound=Callable[..., object])
PACKAGES = {"deltalake", "numpy", "pandas", "py4j", "pyarrow", "pyspark"}
"""What the extra korvet[lake] brings."""


class Lake(NamedTuple):
    """What a command works on: the log, the tables' place with what its object store needs, and the topics named."""

    source: LakeSource
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
    from korvet.lake.source import LakeSource  # noqa: PLC0415 - other commands start without it

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
    return Lake(LakeSource.of(settings, url), uri, options, tuple(topics))


def _embedded(directory: Path) -> str:
    from korvet.redis.embedded_socket import running_url  # noqa: PLC0415 - only where no URL is given

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
        raise click.ClickException(printable(str(error))) from error


_log = logs.Log(__name__)


def rounds_options(command: _Command) -> _Command:
    """Give a command the flags that `rounds` takes, and --dry-run."""
    options = (
        click.option("--once", is_flag=True, help="Do what there is to do now, and end: the default."),
        click.option(
            "--interval",
            metavar="SECONDS",
            type=click.FloatRange(min=0, min_open=True),
            help="Do it for ever, again each so many seconds.",
        ),
        click.option("--dry-run", is_flag=True, help="Only tell what would be done."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def rounds(work: Callable[[], int], interval: float | None, *, once: bool, dry_run: bool) -> int:
    """Do `work` and return its exit code, or with an interval do it until the process is told to end.

    A round that fails is logged then, and the next one tries again. Raises UsageError for flags that exclude each
    other, and without an interval what `work` raises.
    """
    if interval is None:
        return work()
    if once or dry_run:
        raise click.UsageError("--interval excludes --once and --dry-run")
    # Killing it harms nothing; this lets Spark clear away its files first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        began = time.monotonic()
        try:
            work()
            sys.stdout.flush()
        except (KafkaError, LakeError) as error:
            _log.error("a round failed", reason=error)
        time.sleep(max(began + interval - time.monotonic(), 0))
