"""`korvet lake pipeline` list and status: what pipelines report. start and stop: those of this machine.

reset: sets where a stopped one goes on.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from korvet.cli.lake_options import LakeTarget, dry_run_option, with_lake
from korvet.cli.lake_pipeline import (
    file_argument,
    from_option,
    load_range,
    master_option,
    spark_of,
    to_option,
)
from korvet.cli.options import ClusterCommand, format_time, option, parse_time_of
from korvet.cli.output import print_error, printable, printed_json, waiting
from korvet.cli.run import FAILED
from korvet.cli.tables import (
    Column,
    as_objects,
    cell,
    number,
    numbers,
    print_result,
    print_table,
    tabulate,
    texts,
)
from korvet.cluster.pipelines import MAIN, PipelineStatus, PipelineStore, QueryPosition, QueryStatus
from korvet.errors import KafkaError, LakeError

_POLL_S = 0.1
_SECONDS = click.FloatRange(min=0, min_open=True)
_EMPTY = "no pipelines"
_LOG_DIR, _WAIT = "--log-dir", "--wait"
_LISTED = (
    Column("name", title="Pipeline"),
    Column("state"),
    Column("since", lambda pipeline: format_time(pipeline.since_ms)),
    Column("host", "process.host"),
    number("process", "process.id"),
    number("restarts"),
    *texts("file", "log"),
)


@contextlib.contextmanager
def opened_store(target: LakeTarget) -> Iterator[PipelineStore]:
    """Give the store of what pipelines report."""
    with target.source.opened() as stores:
        yield stores.pipelines


def _name_of(text: str) -> str:
    """Return the name of a pipeline that is given by it, or by its file. Raises PipelineError."""
    if not Path(text).is_file():
        return text
    from korvet.spark.pipelines.spec import load  # noqa: PLC0415 - the same

    return load(Path(text)).name


def _known(store: PipelineStore, name: str) -> PipelineStatus | None:
    return {status.name: status for status in store.read()}.get(name)


def _row(store: PipelineStore, name: str) -> PipelineStatus:
    """Return a pipeline by its name; raises LakeError if there is none."""
    status = _known(store, name)
    if status is None:
        raise LakeError(f"there is no pipeline {name}: none of that name has run")
    return status


@click.command("list")
@with_lake
def list_pipelines(target: LakeTarget) -> None:
    """List the pipelines that have run: state, process, file and log."""
    with opened_store(target) as store:
        print_result(store.read(), _LISTED, empty=_EMPTY)


_STATUS = (
    *("Pipeline", "State", "Since s", "Lag", "Lag s", "Records", "Records/s", "Last batch s", "Polled s"),
    *("Dead letters", "Lost", "Restarts", "Process"),
)


@click.command("status")
@click.argument("pipelines", metavar="[NAME|FILE]...", nargs=-1)
@with_lake
def pipeline_status(target: LakeTarget, pipelines: tuple[str, ...]) -> int:
    """Show how pipelines get on; all that have run, or those named.

    "Lag" counts the records that a pipeline has not read yet, archived or not; "Lag s" is the age of the first of them
    by its timestamp. "Records/s" is the speed of the last batch with records, and "Last batch s" the time since its
    end. "Polled s" is the time since it last ended a batch, or looked for records and found none: it grows while a
    batch is under way, and if the pipeline hangs. "Lost" counts offsets that were deleted before the pipeline read
    them (`on_data_loss = "continue"`); --json has them by partition. Lines below the table name the fields of records
    that the pipeline's schema lacks, and the expectations that records do not meet. A pipeline is `completed` if it had
    read all there was, and `lost` if its process has not renewed its lease for 30
    seconds. Exit code 1 if one has failed or is lost; its last error is a line on stderr.
    """
    with opened_store(target) as store:
        statuses = [_row(store, _name_of(pipeline)) for pipeline in pipelines] if pipelines else store.read()
    lags = _lags(target, statuses)
    if not printed_json([_as_json(status, *lag) for status, lag in zip(statuses, lags, strict=True)]):
        cells = [_cells(status, *lag) for status, lag in zip(statuses, lags, strict=True)]
        print_table(_STATUS, cells, numbers=_STATUS[2:-1], empty=_EMPTY)
        for row in statuses:
            for fields, count in row.unread_fields.items():
                click.echo(printable(f"{row.name}: fields not read: sources.{fields}: {count} records"))
            for expected, count in row.unmet.items():
                click.echo(printable(f"{row.name}: not as expected: sources.{expected}: {count} records"))
    broken = [status for status in statuses if status.state in ("failed", "lost")]
    for status in broken:
        place = f" (log: {status.log})" if status.log else ""
        reason = (
            status.error if status.state == "failed" else _LOST.format(status.process.id, status.process.host)
        )
        print_error(f"{status.name}: {reason}{place}")
    return FAILED if broken else 0


_LOST = "process {} on {} ended without saying why, or cannot reach Redis"

_Lag = tuple[int | None, int | None]
"""Records, and the age (ms) of the first; None if that is not known."""


def _lags(target: LakeTarget, statuses: list[PipelineStatus]) -> list[_Lag]:
    from korvet.spark.pipelines.status import lag_of  # noqa: PLC0415 - other commands start without Delta

    lags: list[_Lag] = []
    with target.source.opened() as stores:
        for status in statuses:
            try:
                lags.append(lag_of(stores, status))
            except (KafkaError, LakeError) as error:
                print_error(f"{status.name}: its lag is not known: {error}")
                lags.append((None, None))
    return lags


def _as_json(status: PipelineStatus, lag_records: int | None, lag_ms: int | None) -> dict[str, Any]:
    process = status.process
    more = {"lag_records": lag_records, "lag_ms": lag_ms, "host": process.host, "process": process.id}
    fields: dict[str, Any] = msgspec.to_builtins(status, str_keys=True)
    del fields["holder"]
    return fields | more


def _cells(status: PipelineStatus, lag_records: int | None, lag_ms: int | None) -> tuple[str, ...]:
    now_ms, batch = time.time_ns() // 1_000_000, status.last_batch
    return (
        status.name,
        status.state,
        f"{max(now_ms - status.since_ms, 0) // 1000}",
        cell(lag_records),
        cell(None if lag_ms is None else f"{lag_ms / 1000:.1f}"),
        str(status.records),
        cell(None if batch.ended_ms is None else f"{batch.records_per_second:.1f}"),
        *(
            cell(None if time_ms is None else max(now_ms - time_ms, 0) // 1000)
            for time_ms in (batch.ended_ms, status.polled_ms)
        ),
        str(status.dead_letters),
        str(sum(status.lost_offsets().values())),
        str(status.restarts),
        f"{status.process.id} on {status.process.host}",
    )


class _WithArguments(ClusterCommand):
    """A command that knows its arguments as they were given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[__name__] = list(args)
        return super().parse_args(ctx, args)


@click.command(cls=_WithArguments)
@file_argument
@option(
    f"{_LOG_DIR} DIRECTORY",
    "Its log is appended to NAME.log there.",
    click.Path(file_okay=False, path_type=Path),
    name="directory",
    default=Path("pipeline-logs"),
)
@option(
    f"{_WAIT} SECONDS", "How long to wait until its queries run.", _SECONDS, name="seconds_max", default=600.0
)
@master_option
@from_option
@to_option
@with_lake
def start(
    target: LakeTarget,
    file: Path,
    directory: Path,
    seconds_max: float,
    first: str | None,
    last: str | None,
    **_of_run: Any,  # noqa: ANN401 - the flags of run
) -> None:
    """Run a pipeline by a process of its own, which goes on in the background; returns once its queries run.

    The process gets the flags that are given here. It is not started again when it fails, or when the machine starts:
    a service manager does that. It goes on if its queries do not run in time; the exit code is 1 then.
    """
    name = load_range(file, first, last).name
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{name}.log"
    with opened_store(target) as store, log.open("ab") as lines:
        _refuse_running(store, name)
        at = lines.tell()
        process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-m", "korvet", "lake", "pipeline", "run", *_flags_of_run()],
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=lines,
            start_new_session=True,
        )
        with waiting("starting Spark"):
            begun = _await_begin(store, name, process, seconds_max)
    if begun is None and process.poll() is None:
        raise LakeError(
            f"pipeline {name} has not started within {seconds_max:g} s: process {process.pid} goes on (log: {log})"
        )
    if begun is None:
        raise LakeError(
            f"pipeline {name} did not start: {_last_line(log, at) or 'it says nothing'} (log: {log})"
        )
    if not printed_json({"name": name, "state": begun.state, "process": process.pid, "log": str(log)}):
        what = "started" if begun.is_active else begun.state
        click.echo(printable(f"{what} {name}: process {process.pid}, log {log}"))


def _flags_of_run() -> list[str]:
    """Return what this command was given, without its own flags."""
    given = iter(click.get_current_context().meta[__name__])
    flags = []
    for argument in given:
        if argument in (_LOG_DIR, _WAIT):
            next(given)
        elif not argument.startswith((f"{_LOG_DIR}=", f"{_WAIT}=")):
            flags.append(argument)
    return flags


def _last_line(log: Path, at: int) -> str:
    """Return the last line that came into a log after an offset."""
    with log.open("rb") as file:
        file.seek(at)
        lines = [line.strip() for line in file.read().decode(errors="backslashreplace").splitlines()]
    return next((line.removeprefix("Error: ") for line in reversed(lines) if line), "")


def _refuse_running(store: PipelineStore, name: str) -> None:
    running = _known(store, name)
    if running is not None and running.is_active and not running.process.has_ended:
        where = running.process
        raise LakeError(f"pipeline {name} runs already: process {where.id} on {where.host}")


def _await_begin(
    store: PipelineStore, name: str, process: subprocess.Popen[bytes], seconds_max: float
) -> PipelineStatus | None:
    """Return a pipeline once its queries run, or have ended well; None if its process ended otherwise or time is up."""
    for _ in _polls(seconds_max):
        ended = process.poll()
        for status in store.read():
            is_own = status.name == name and status.process.is_here and status.process.id == process.pid
            if is_own and (status.state == "running" or (ended == 0 and not status.is_active)):
                return status
        if ended is not None:
            break
    return None


@click.command()
@click.argument("pipeline", metavar="NAME|FILE")
@option("--timeout SECONDS", "How long to wait for its end.", _SECONDS, default=120.0)
@option("--forget", "Remove it from the list, too, whether it runs or not.")
@with_lake
def stop(target: LakeTarget, pipeline: str, timeout: float, *, forget: bool) -> None:
    """Stop a pipeline that runs on this machine, after the batch that is under way, and wait for its end.

    Its checkpoint and its tables stay: when it is started again, it continues where it was.
    """
    with opened_store(target) as store:
        status = _row(store, _name_of(pipeline))
        runs = may_run(status)
        if runs:
            _end(store, status, timeout)
        elif not forget:
            raise LakeError(f"pipeline {status.name} does not run: it is {status.state}")
        after = _row(store, status.name)
        if forget:
            store.forget(status.name)
    if runs and after.state == "failed":
        raise LakeError(f"pipeline {status.name} failed at its end: {after.error}")
    if printed_json({"name": status.name, "state": after.state, "forgotten": forget}):
        return
    if runs:
        click.echo(printable(f"stopped {status.name}"))
    if forget:
        click.echo(printable(f"removed {status.name} from the list"))


def may_run(status: PipelineStatus) -> bool:
    """Return whether the process of a pipeline may run: one that cannot reach Redis has lost its lease only."""
    process = status.process
    return status.is_active or (status.state == "lost" and process.is_here and not process.has_ended)


def _end(store: PipelineStore, status: PipelineStatus, seconds_max: float) -> None:
    """End the process of a pipeline in order; raises LakeError if it is not here, or does not end."""
    process = status.process
    if not process.is_here:
        raise LakeError(
            f"pipeline {status.name} runs on {process.host}, as process {process.id}: stop it there"
        )
    try:
        os.kill(process.id, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise LakeError(
            f"process {process.id} of pipeline {status.name} is another user's: stop it as that user"
        ) from error
    with waiting("stopping the pipeline"):
        if not any(process.has_ended for _ in _polls(seconds_max)):
            raise LakeError(
                f"process {process.id} of pipeline {status.name} has not ended within {seconds_max:g} s"
            )
    # One that was killed, or was starting, has said nothing.
    after = _row(store, status.name)
    if after.holder == status.holder and after.state not in ("stopped", "completed", "failed"):
        store.write(msgspec.structs.replace(after, state="stopped", since_ms=time.time_ns() // 1_000_000))
        store.lease(status.name).release(status.holder)


def _polls(seconds_max: float) -> Iterator[None]:
    """Yield at once and then at each moment to look again, until the time is over."""
    end = time.monotonic() + seconds_max
    yield
    while time.monotonic() <= end:
        time.sleep(_POLL_S)
        yield


_PLACES = ("earliest", "latest", "offsets", "time")
_RESET = (*texts("source", "topic"), *numbers("partition", "before", "after", "skipped", "again"))
_OFFSET = re.compile(r"([^:=,]+):([0-9]{1,9})=([0-9]{1,18})")


@click.command()
@click.argument("pipeline", metavar="NAME|FILE")
@option(
    "--from",
    "Where to continue: at the first records, at the end, at --offsets, or at --time.",
    click.Choice(_PLACES),
    name="place",
    required=True,
)
@option(
    "--offsets TOPIC:PARTITION=OFFSET,...",
    "Offsets of some partitions; others keep theirs. An offset outside the log becomes the nearest one inside.",
)
@option(
    "--time TIME",
    "The first record at or after a time, as ISO 8601; UTC without a zone. The end if there is none.",
    name="moment",
)
@dry_run_option
@with_lake
def reset(
    target: LakeTarget, pipeline: str, place: str, offsets: str | None, moment: str | None, *, dry_run: bool
) -> None:
    """Set the offsets from which a stopped pipeline continues.

    Its tables stay as they are: rows that are read again are written again, unless the target merges by key. The state
    of aggregates, joins and deduplication begins empty.
    """
    to = _to(place, offsets, moment)
    from korvet.spark.pipelines.reset import PipelineReset  # noqa: PLC0415 - other commands start without Spark
    from korvet.spark.pipelines.spec import load  # noqa: PLC0415 - the same
    from korvet.spark.pipelines.status import PipelineLease  # noqa: PLC0415 - the same

    with opened_store(target) as store:
        rows = store.read()
        spec = load(_file(pipeline, {row.name: row.file for row in rows}))
        if spec.name != pipeline and any(row.name == pipeline for row in rows):
            raise LakeError(
                f"pipeline {pipeline}: its file is that of {spec.name}, whose range it has read: run another"
            )
        _refuse_reset(_known(store, spec.name))
        lease = PipelineLease(store, spec.name)
        with spark_of(spec, "local[1]", target.source.lake) as session, lease:
            planned = PipelineReset(session, target.source, spec, to)
            if not dry_run:
                # The plan may have taken longer than a lease.
                lease.acquire()
                positions = planned.execute()
                _report(store, spec.name, positions)
    partitions, notes = as_objects(planned.partitions, _RESET), planned.notes()
    if printed_json({"name": spec.name, "executed": not dry_run, "partitions": partitions, "notes": notes}):
        return
    tabulate(planned.partitions, _RESET, empty="no partitions")
    for note in notes:
        click.echo(note)
    if dry_run:
        click.echo("Dry run: nothing is changed.")


def _refuse_reset(row: PipelineStatus | None) -> None:
    if row is not None and may_run(row) and not row.process.has_ended:
        where = row.process
        raise LakeError(f"pipeline {row.name} runs: process {where.id} on {where.host}; stop it first")


def _report(store: PipelineStore, name: str, positions: dict[str, QueryPosition]) -> None:
    """Let the status and the lag of a pipeline begin at these positions."""
    row, queries = _known(store, name), {MAIN: QueryStatus(positions=positions)}
    if row is not None:
        now_ms = time.time_ns() // 1_000_000
        store.write(msgspec.structs.replace(row, state="stopped", since_ms=now_ms, queries=queries))


def _file(pipeline: str, files: dict[str, str]) -> Path:
    """Return the file of a pipeline that is given by it, or by its name; raises LakeError."""
    file = Path(files.get(pipeline, pipeline))
    if not file.is_file():
        known = f"its file {file} is not here" if pipeline in files else "none of that name has run"
        raise LakeError(f"pipeline {pipeline}: {known}; give its file in place of its name")
    return file


def _to(place: str, offsets: str | None, moment: str | None) -> str | dict[tuple[str, int], int]:
    """Return where to go on; raises UsageError unless --from has just the flag that it needs."""
    for name, value in (("offsets", offsets), ("time", moment)):
        if (place == name) != (value is not None):
            raise click.UsageError(f"--from {name} and --{name} need each other")
    if moment is not None:
        return format_time(parse_time_of("--time", moment))
    if offsets is None:
        return place
    targets: dict[tuple[str, int], int] = {}
    for text in offsets.split(","):
        parsed = _OFFSET.fullmatch(text.strip())
        if parsed is None:
            raise click.UsageError(f"--offsets takes orders:0=23,orders:1=42, not {text!r}")
        key = parsed[1], int(parsed[2])
        if key in targets:
            raise click.UsageError(f"--offsets names {key[0]}:{key[1]} twice")
        targets[key] = int(parsed[3])
    return targets
