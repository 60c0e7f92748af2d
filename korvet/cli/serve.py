"""The commands of a broker's machine: `korvet serve`, `korvet reload` and `korvet doctor`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from korvet.cli.config import Loader, with_configuration
from korvet.cli.options import json_option, option
from korvet.cli.output import Column, print_result
from korvet.cli.run import DONE, FAILED
from korvet.config.settings import Settings

if TYPE_CHECKING:
    from korvet.server.supervisor.run_state import RunState

_PAUSE_SECONDS = 0.05
_FINDING = (
    Column("check", "what"),
    Column("level"),
    Column("finding", "said"),
    Column("advice", title="What to change"),
)


@click.command()
@with_configuration
def serve(load: Loader) -> int:
    """Start a broker: workers that serve Kafka clients, on your Redis or on an embedded one.

    SIGTERM and Ctrl-C drain and stop it; SIGHUP reads the configuration again and replaces the workers: see
    korvet reload.
    """
    configuration = load()
    from korvet.server.supervisor import supervisor  # noqa: PLC0415 -- only this command needs the broker's modules

    return supervisor.run(configuration, reload=load)


@click.command()
@option("--pid PID", "Process id of the broker, if several run on this machine.", click.IntRange(min=1))
def reload(pid: int | None) -> int:
    """Have a broker of this machine read its configuration again and replace its workers, while it serves clients.

    Waits for the end and exits with 1 if something went wrong; the broker then goes on as it was. The same as SIGHUP.
    """
    directory, before = _found(pid)
    before = _idle(directory, before)
    try:
        os.kill(before.pid, signal.SIGHUP)
    except OSError as error:
        raise click.ClickException(f"process {before.pid} takes no signal: {error.strerror}") from None
    while True:
        now = _now(directory, before)
        if now.reloads > before.reloads and not now.busy:
            break
        time.sleep(_PAUSE_SECONDS)
    if not now.succeeded:
        click.echo(f"Error: {now.message}", err=True)
        return FAILED
    notes = f"; {now.message}" if now.message else ""
    click.echo(f"the workers of {now.listen} are replaced, version {now.version}{notes}")
    return DONE


def _found(pid: int | None) -> tuple[Path, RunState]:
    """Return the directory and the state of the broker that is meant; raises ClickException unless it is one."""
    from korvet.server.supervisor import run_state  # noqa: PLC0415 - other commands start without it

    running = run_state.running()
    found = [each for each in running.items() if pid in (None, each[1].pid)]
    if not found:
        which = "" if pid is None else f" with process id {pid}"
        raise click.ClickException(f"no broker{which} runs on this machine that this user could reload")
    if len(found) > 1:
        those = ", ".join(f"--pid {state.pid} ({state.listen})" for _, state in found)
        raise click.UsageError(f"several brokers run here, give one of {those}")
    return found[0]


def _idle(directory: Path, state: RunState) -> RunState:
    """Wait until a reload that is under way has ended: its outcome is not that of the one to come."""
    while state.busy:
        time.sleep(_PAUSE_SECONDS)
        state = _now(directory, state)
    return state


def _now(directory: Path, before: RunState) -> RunState:
    from korvet.server.supervisor import run_state  # noqa: PLC0415 - other commands start without it

    now = run_state.read(directory)
    if now is None or now.pid != before.pid:
        raise click.ClickException(f"the broker, process {before.pid}, has ended: see its log")
    return now


@click.command()
@with_configuration
@json_option
def doctor(load: Loader) -> int:
    """Examine Redis, the machine, addresses and settings of a broker that runs here, or is about to start.

    Give it the flags and the environment of `korvet serve`, and run it as the same user. Every finding that is not ok
    says what to change. Exit code 1 if a finding is an error: it keeps the broker from starting, or loses records.
    """
    configuration = load()
    from korvet.doctor import examine  # noqa: PLC0415 - other commands start without it
    from korvet.doctor.finding import Level  # noqa: PLC0415 - other commands start without it

    order = (Level.ERROR, Level.WARNING, Level.OK)
    findings = sorted(examine(configuration, _lake_problem), key=lambda finding: order.index(finding.level))
    print_result(findings, _FINDING, shown=("level", "check", "finding", "advice"))
    return FAILED if any(finding.level is Level.ERROR for finding in findings) else DONE


def _lake_problem(settings: Settings) -> str:
    from korvet.lake.table import Lake  # noqa: PLC0415 - only where there is a lake

    return Lake.of(settings.lake_path, settings.lake_storage_options).write_problem()
