"""`korvet lake pipeline`: runs pipelines, which bring topics to tables by Structured Streaming.

`run` and `validate` are here; what asks for others, or starts and stops them, is in lake_pipeline_control.
"""

from __future__ import annotations

import signal
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.lake_options import LakeTarget, started_spark, with_lake
from korvet.cli.options import ClusterCommand, ClusterTarget, option
from korvet.cli.output import printed_json
from korvet.cli.run import CommandGroup

if TYPE_CHECKING:
    from korvet.lake.table import Lake
    from korvet.spark.pipelines.spec import PipelineSpec


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Run pipelines: topics decoded, transformed by SQL or Python, and written to tables, each record exactly once."""


file_argument = click.argument("file", type=click.Path(path_type=Path))
master_option = option(
    "--master URL", "Spark's master; by default that of the file, or all cores, local[*,4]."
)
from_option = option("--from PLACE", "Read only a range, from here on; by default earliest.", name="first")
to_option = option("--to PLACE", "Read only a range, up to here; by default latest.", name="last")


def load_range(file: Path, first: str | None, last: str | None) -> PipelineSpec:
    """Return the pipeline of a file, which reads a range if `first` or `last` is given; raises PipelineError."""
    from korvet.spark.pipelines.spec import load  # noqa: PLC0415 - other commands start without Spark

    spec = load(file)
    if first is None and last is None:
        return spec
    return spec.of_range(first or "earliest", last or "latest")


@pipeline.command(cls=ClusterCommand)
@file_argument
@master_option
@from_option
@to_option
@with_lake
def run(
    target: LakeTarget,
    cluster: ClusterTarget,
    file: Path,
    master: str | None,
    first: str | None,
    last: str | None,
) -> int:
    """Run the pipeline of a file until it is ended, or with trigger.available_now until all is read.

    It may be killed at any time: started again it continues where it was, and no row is lost or written twice. With
    --from or --to it reads a range, by a checkpoint of its own, and ends: each PLACE is earliest, latest, a time of
    ISO 8601, or offsets such as {"orders": {"0": 23}}. The brokers are for a target that is a topic. Exit code 1 if it
    fails; then the status has the reason too.
    """
    from korvet.spark.pipelines.runner import Pipeline, PipelineContext  # noqa: PLC0415 - other commands start without Spark
    from korvet.spark.pipelines.spec import PipelineError  # noqa: PLC0415 - the same
    from korvet.spark.pipelines.state import location  # noqa: PLC0415 - the same
    from korvet.spark.pipelines.status import PipelineReporter  # noqa: PLC0415 - the same

    spec = load_range(file, first, last)
    tables = [location(target.source.lake.path, path) for path in spec.table_paths]
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with (
        PipelineReporter(
            target.source, spec.name, file=str(file.absolute()), tables=tables, stopped=stopped
        ) as reporter,
        spark_of(spec, master, target.source.lake) as session,
    ):
        Pipeline(PipelineContext(session, target.source, _brokers(cluster)), spec).run(stopped, reporter)
        if reporter.is_lost:
            raise PipelineError(f"pipeline {spec.name} runs elsewhere now")
        completed = not stopped.is_set()
        reporter.stopped(completed=completed)
    # One that was to read all there is has not done its work.
    return 128 + signal.SIGTERM if spec.trigger.available_now and not completed else 0


@pipeline.command(cls=ClusterCommand)
@file_argument
@master_option
@with_lake
def validate(target: LakeTarget, cluster: ClusterTarget, file: Path, master: str | None) -> None:
    """Check a pipeline's file, its transformation, and what its target and its checkpoints say to it; run nothing.

    Prints the columns of the result.
    """
    from korvet.spark.pipelines.runner import Pipeline, PipelineContext  # noqa: PLC0415 - other commands start without Spark
    from korvet.spark.pipelines.spec import load  # noqa: PLC0415 - the same

    spec = load(file)
    with spark_of(spec, master, target.source.lake) as session:
        context = PipelineContext(session, target.source, _brokers(cluster))
        schema = Pipeline(context, spec).schema
    columns = {field.name: field.dataType.simpleString() for field in schema}
    if not printed_json({"name": spec.name, "columns": columns}):
        for name, kind in columns.items():
            click.echo(f"{name} {kind}")


def spark_of(spec: PipelineSpec, master: str | None, lake: Lake) -> AbstractContextManager[Any]:
    """Give a session for a pipeline, with the packages that it needs."""
    from korvet.spark.pipelines.packages import configs  # noqa: PLC0415 - other commands start without Spark

    master = master or spec.spark.master
    return started_spark(f"korvet pipeline {spec.name}", master, configs(spec, master, lake))


def _brokers(cluster: ClusterTarget) -> dict[str, str]:
    """Return the options by which the format `korvet` writes to brokers."""
    security = cluster.security
    configs = {
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        **security.configs,
    }
    return {
        "bootstrap.servers": cluster.bootstrap_server,
        **{f"kafka.{name}": value for name, value in configs.items() if value},
    }
