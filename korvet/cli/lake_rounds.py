"""Commands of the lake that do their work once, or again and again: the flags, and the pause between two rounds."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import click

from korvet import logs
from korvet.errors import KafkaError, LakeError

_Command = TypeVar("_Command", bound=Callable[..., object])
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
