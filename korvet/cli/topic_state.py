"""`korvet topics state`: what Redis holds of a topic's partitions beside their records, unpacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.config import file_option, loader, running_redis, set_option
from korvet.cli.options import add_options, json_option, option
from korvet.cli.output import print_error, printable, printed_json
from korvet.cli.run import DONE, FAILED
from korvet.cli.tables import Column, cell, number, numbers, print_table, tabulate

if TYPE_CHECKING:
    from korvet.config.settings import Settings
    from korvet.doctor.logs import StoredLog

_LATEST_MS = 253_402_300_799_000
"""The last second that a date can name."""


def _time(ms: int) -> str:
    return datetime.fromtimestamp(min(ms, _LATEST_MS) / 1000, UTC).isoformat(timespec="milliseconds")


_PRODUCER = (
    number("id", title="Producer"),
    *numbers("epoch", "next_sequence"),
    Column("last_ms", title="Last batch or marker", text=_time),
    number("transaction"),
    number("first_offset", title="Open from"),
    Column(
        "batches",
        title="Batches (offset+records)",
        text=lambda batches: [f"{batch['base_offset']}+{batch['records']}" for batch in batches],
    ),
)


def _options(command: Any) -> Any:  # noqa: ANN401 - as click's decorators
    redis_url = option(
        "--redis-url URL", "Redis that has the topic; by default the embedded server of data.dir."
    )
    return add_options(command, file_option, redis_url, set_option, json_option)


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.argument("partition", metavar="[PARTITION]", required=False, type=click.IntRange(min=0))
@_options
def state(
    topic: str,
    partition: int | None,
    config_file: Path | None,
    redis_url: str | None,
    assignments: tuple[str, ...],
) -> int:
    """Print the state of a topic's partitions in Redis: the counters of the log, and its idempotent producers.

    It reads from Redis, not from a broker: give it the flags of `korvet serve` that name the Redis and the namespace.
    Times of records are in ms since 1970; -1: none. Exit code 1 if a state is malformed; stderr says which.
    """
    logs = _read(loader(config_file, assignments, {"redis_url": redis_url})().settings, topic, partition)
    from korvet.doctor.logs import as_object  # noqa: PLC0415 - other commands start without a client of Redis

    rows = list(map(as_object, logs))
    if not printed_json(rows):
        for row in rows:
            _print(row)
    problems = [text for row in rows for text in row["problems"]]
    for text in problems:
        print_error(text)
    return FAILED if problems else DONE


def _read(settings: Settings, topic: str, partition: int | None) -> list[StoredLog]:
    from korvet.doctor.logs import read_logs, read_rows  # noqa: PLC0415 - as above
    from korvet.redis.blocking import connected  # noqa: PLC0415 - as above
    from korvet.redis.keys import Keys  # noqa: PLC0415 - as above

    url = running_redis(settings, "the Redis")
    keys = Keys(settings.namespace)
    with connected(dataclasses.replace(settings, redis_url=url)) as masters:
        row = read_rows(masters.of(keys.topics), keys).get(topic)
        if row is None:
            raise click.ClickException(
                printable(f"topic {topic} is unknown in namespace {settings.namespace}")
            )
        if partition is not None and partition >= row.partitions:
            raise click.ClickException(printable(f"topic {topic} has {row.partitions} partitions"))
        logs = sorted(read_logs(masters, keys, [row]), key=lambda log: log.partition)
    return logs if partition is None else [logs[partition]]


def _print(row: Mapping[str, Any]) -> None:
    click.echo(printable(f"{row['topic']}:{row['partition']}  {row['state']}"))
    fields = {"entries": row["entries"], **(row["log"] or {}), **row["fields"]}
    print_table(("Field", "Value"), [(name, cell(value)) for name, value in fields.items()])
    tabulate(row["producers"], _PRODUCER, empty="no idempotent producers")
