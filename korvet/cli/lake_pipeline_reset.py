"""`korvet lake pipeline reset`: sets where a stopped pipeline goes on."""

from __future__ import annotations

import re
import time
from pathlib import Path

import click
import msgspec

from korvet.cli.lake_options import LakeTarget, dry_run_option, with_lake
from korvet.cli.lake_pipeline import spark_of
from korvet.cli.lake_pipeline_control import may_run, opened_store
from korvet.cli.options import format_time, option, parse_time_of
from korvet.cli.output import printed_json
from korvet.cli.tables import as_objects, numbers, tabulate, texts
from korvet.cluster.pipelines import MAIN, PipelineStatus, PipelineStore, QueryPosition, QueryStatus
from korvet.errors import LakeError

_PLACES = ("earliest", "latest", "offsets", "time")
_PARTITION = (*texts("source", "topic"), *numbers("partition", "before", "after", "skipped", "again"))
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
    """Set where a pipeline goes on that does not run: its target and its table of dead letters together.

    Set the offsets from which a stopped pipeline continues.

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
        _refuse_running(next((row for row in rows if row.name == spec.name), None))
        lease = PipelineLease(store, spec.name)
        with spark_of(spec, "local[1]", target.source.lake) as session, lease:
            planned = PipelineReset(session, target.source, spec, to)
            if not dry_run:
                # The plan may have taken longer than a lease.
                lease.acquire()
                positions = planned.execute()
                _report(store, spec.name, positions)
    partitions, notes = as_objects(planned.partitions, _PARTITION), planned.notes()
    if printed_json({"name": spec.name, "executed": not dry_run, "partitions": partitions, "notes": notes}):
        return
    tabulate(planned.partitions, _PARTITION, empty="no partitions")
    for note in notes:
        click.echo(note)
    if dry_run:
        click.echo("Dry run: nothing is changed.")


def _refuse_running(row: PipelineStatus | None) -> None:
    if row is not None and may_run(row) and not row.process.has_ended:
        where = row.process
        raise LakeError(f"pipeline {row.name} runs: process {where.id} on {where.host}; stop it first")


def _report(store: PipelineStore, name: str, positions: dict[str, QueryPosition]) -> None:
    """Let the status and the lag of a pipeline begin at these positions."""
    queries = {MAIN: QueryStatus(positions=positions)}
    for row in store.read():
        if row.name == name:
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
