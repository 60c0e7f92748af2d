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
from korvet.cli.output import print_error
from korvet.cli.run import DONE, FAILED
from korvet.cli.tables import Column, print_result
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
    from korvet.server.supervisor.supervisor import Supervisor  # noqa: PLC0415 -- only this command needs a broker

    return Supervisor(configuration).run()


@click.command()
@option("--pid PID", "Process id of the broker, if several run on this machine.", click.IntRange(min=1))
def reload(pid: int | None) -> int:
    """Have a broker of this machine read its configuration again and replace its workers, while it serves clients.

    Waits for the end and exits with 1 if something went wrong; the broker then goes on as it was. The same as SIGHUP.
    """
    directory, running = _broker(pid)
    # The outcome of a reload that is under way is not that of the one to come.
    before = _settled(directory, running, running.reloads)
    try:
        os.kill(before.pid, signal.SIGHUP)
    except OSError as error:
        raise click.ClickException(f"process {before.pid} takes no signal: {error.strerror}") from None
    now = _settled(directory, before, before.reloads + 1)
    if not now.succeeded:
        print_error(now.message)
        return FAILED
    notes = f"; {now.message}" if now.message else ""
    click.echo(f"the workers of {now.listen} are replaced, version {now.version}{notes}")
    return DONE


def _broker(pid: int | None) -> tuple[Path, RunState]:
    """Return the directory and the state of the broker that is meant; raises ClickException unless it is one."""
    from korvet.server.supervisor import run_state  # noqa: PLC0415 - other commands start without it

    brokers = [(path, state) for path, state in run_state.running().items() if pid in (None, state.pid)]
    if not brokers:
        process = "" if pid is None else f" with process id {pid}"
        raise click.ClickException(f"no broker{process} runs on this machine that this user could reload")
    if len(brokers) > 1:
        flags = ", ".join(f"--pid {state.pid} ({state.listen})" for _, state in brokers)
        raise click.UsageError(f"several brokers run here, give one of {flags}")
    return brokers[0]


def _settled(directory: Path, state: RunState, reloads: int) -> RunState:
    """Wait until a broker has ended this number of reloads, and none is under way; a ClickException if it ends."""
    from korvet.server.supervisor import run_state  # noqa: PLC0415 - other commands start without it

    pid = state.pid
    while state.busy or state.reloads < reloads:
        time.sleep(_PAUSE_SECONDS)
        now = run_state.read(directory)
        if now is None or now.pid != pid:
            raise click.ClickException(f"the broker, process {pid}, has ended: see its log")
        state = now
    return state


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
    from korvet.server.finding import Level  # noqa: PLC0415 - other commands start without it

    order = (Level.ERROR, Level.WARNING, Level.OK)
    findings = sorted(examine(configuration, _lake_problem), key=lambda finding: order.index(finding.level))
    print_result(findings, _FINDING, shown=("level", "check", "finding", "advice"))
    return FAILED if any(finding.level is Level.ERROR for finding in findings) else DONE


def _lake_problem(settings: Settings) -> str:
    from korvet.lake.table import Lake  # noqa: PLC0415 - only where there is a lake

    return Lake.of(settings.lake_path, settings.lake_storage_options).write_problem()
