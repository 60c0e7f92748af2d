"""`korvet reload`: has a running broker of this machine replace its processes, and tells how that went."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from korvet.cli.run import DONE, FAILED

if TYPE_CHECKING:
    from korvet.server.run_file import RunState

_PAUSE_SECONDS = 0.05


@click.command()
@click.option(
    "--pid", type=click.IntRange(min=1), metavar="PID", help="Which one, where several brokers run."
)
@click.option("--upgrade", is_flag=True, help="Let it become the version that is installed now.")
def reload(pid: int | None, *, upgrade: bool) -> int:
    """Have a broker of this machine read its configuration again and replace its workers, while it serves clients.

    Waits for the end and exits with 1 where something went wrong; the broker then goes on as it was. With --upgrade
    it also becomes the version of Korvet that is installed where it was started from, and that one must first show
    that it can start. The same as SIGHUP and SIGUSR2.
    """
    directory, before = _found(pid)
    before = _idle(directory, before)
    try:
        os.kill(before.pid, signal.SIGUSR2 if upgrade else signal.SIGHUP)
    except OSError as error:
        raise click.ClickException(f"process {before.pid} takes no signal: {error.strerror}") from None
    while True:
        now = _now(directory, before)
        if now.changes > before.changes and not now.busy:
            break
        time.sleep(_PAUSE_SECONDS)
    if not now.good:
        click.echo(f"Error: {now.said}", err=True)
        return FAILED
    version = f"version {now.version}" if now.version == before.version else f"now version {now.version}"
    notes = f"; {now.said}" if now.said else ""
    click.echo(f"the workers of {now.listen} are replaced, {version}{notes}")
    return DONE


def _found(pid: int | None) -> tuple[Path, RunState]:
    """Return the broker that is meant and where it tells of itself; raises ClickException unless it is one."""
    from korvet.server import run_file  # noqa: PLC0415 - other commands start without it

    running = run_file.running()
    found = [each for each in running.items() if pid in (None, each[1].pid)]
    if not found:
        which = "" if pid is None else f" with process id {pid}"
        raise click.ClickException(f"no broker{which} runs on this machine that this user could reload")
    if len(found) > 1:
        those = ", ".join(f"--pid {state.pid} ({state.listen})" for _, state in found)
        raise click.UsageError(f"several brokers run here, give one of {those}")
    return found[0]


def _idle(directory: Path, state: RunState) -> RunState:
    """Wait until a change that is under way has ended: its outcome is not that of the one to come."""
    while state.busy:
        time.sleep(_PAUSE_SECONDS)
        state = _now(directory, state)
    return state


def _now(directory: Path, before: RunState) -> RunState:
    from korvet.server import run_file  # noqa: PLC0415 - other commands start without it

    now = run_file.read(directory)
    if now is None or now.pid != before.pid:
        raise click.ClickException(f"the broker, process {before.pid}, has ended: see its log")
    return now
