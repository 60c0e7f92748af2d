"""What the commands of the lake share: the flags for log and tables, errors, and repeated rounds.

Nothing of Arrow, Delta or Spark is imported before a command does its work: `korvet[lake]` may not be installed.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from korvet import extras, logs
from korvet.cli.config import file_option, loader, running_redis, set_option
from korvet.cli.options import Command, add_options, json_option, option, repeated
from korvet.cli.output import printable, waiting
from korvet.errors import KafkaError, LakeError
from korvet.spark import is_submitted

if TYPE_CHECKING:
    from korvet.lake.source import LakeSource


class LakeTarget(NamedTuple):
    """What a command works on: log and tables, and the named topics."""

    source: LakeSource
    topics: tuple[str, ...]


def with_topics(command: Callable[..., object]) -> Callable[..., object]:
    """Give a command the flags of `with_lake`, and --topic."""
    return with_lake(repeated("--topic NAME", "Only this topic", name="topics")(command))


def with_lake(command: Callable[..., object]) -> Callable[..., object]:
    """Give a command the flags for log and tables, and --json; the target is its first argument.

    An error of log, tables or Spark ends it with one line.
    """

    @functools.wraps(command)
    def run(
        config_file: Path | None,
        redis_url: str | None,
        lake: str | None,
        assignments: tuple[str, ...],
        topics: tuple[str, ...] = (),
        **given: Any,  # noqa: ANN401 - the command's own flags
    ) -> object:
        with lake_errors():
            from korvet.lake.source import LakeSource  # noqa: PLC0415 - other commands start without Delta

        if lake is not None:
            assignments = (*assignments, f"lake.path={lake}")
        settings = loader(config_file, assignments, {"redis_url": redis_url})().settings
        if not settings.lake_path:
            raise click.UsageError("give the location of the tables: --lake, or the setting lake.path")
        logs.configure(settings, "lake")
        url = running_redis(settings, "the location of the log")
        target = LakeTarget(LakeSource.of(settings, url), topics)
        with lake_errors():
            return command(target, **given)

    return add_options(
        run,
        file_option,
        option("--redis-url URL", "Redis that has the log; by default the embedded server of data.dir."),
        option("--lake URI", "Directory or object store of the tables; by default lake.path."),
        set_option,
        json_option,
    )


@contextlib.contextmanager
def lake_errors() -> Iterator[None]:
    """End the command with one line and exit code 1 on an error of log, tables or Spark."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in extras.LAKE:
            raise
        message = f"{package} is not installed: run `{extras.lake_command(package)}`"
        raise click.ClickException(message) from error
    except (KafkaError, LakeError, ValueError) as error:
        raise click.ClickException(printable(str(error))) from error


_log = logs.Log(__name__)


@contextlib.contextmanager
def started_spark(
    name: str, master: str | None, configs: Mapping[str, str] | None = None, *, only_schedules: bool = False
) -> Iterator[Any]:
    """Give a SparkSession as `session` does, whose start may take minutes on a busy machine. Raises SparkError."""
    from korvet.spark.session import session  # noqa: PLC0415 - other commands start without Spark

    with contextlib.ExitStack() as stack:
        with waiting_for_spark("starting Spark"):
            running = session(name, master=master, configs=configs, only_schedules=only_schedules)
            spark = stack.enter_context(running)
        yield spark


def waiting_for_spark(what: str) -> contextlib.AbstractContextManager[None]:
    """Say what takes long, and for how long: not by spark-submit, which writes stderr on stdout."""
    return contextlib.nullcontext() if is_submitted() else waiting(what)


dry_run_option = option("--dry-run", "Only show what would be done.")


def rounds_options(command: Command) -> Command:
    """Give a command the flags that `rounds` takes, and --dry-run."""
    return add_options(
        command,
        option("--once", "Do the work that there is now, and end: the default."),
        option(
            "--interval SECONDS",
            "Repeat it every SECONDS until the process is ended.",
            click.FloatRange(min=0, min_open=True),
        ),
        dry_run_option,
    )


def rounds(work: Callable[[], int], interval: float | None, *, once: bool, dry_run: bool) -> int:
    """Do `work` and return its exit code, or with an interval repeat it until the process is ended.

    With an interval a round that fails is logged, and the next one tries again; without, its error is raised. Raises
    UsageError for flags that exclude each other.
    """
    if interval is None:
        return work()
    if once or dry_run:
        raise click.UsageError("--interval excludes --once and --dry-run")
    # A kill harms nothing; this lets Spark remove its files first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        began = time.monotonic()
        try:
            work()
            sys.stdout.flush()
        except (KafkaError, LakeError) as error:
            _log.error("a round failed", reason=error)
        time.sleep(max(began + interval - time.monotonic(), 0))
