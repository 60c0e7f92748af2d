"""korvet/spark/exactly_once.py: rows that tasks stage, and a driver writes through a real broker, once."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage

from korvet.admin.producer import IdempotentProducer, TransactionalProducer
from korvet.errors import LakeError
from korvet.spark.options import sink_options
from korvet.spark.sink import BatchSink
from tests.support.broker import Broker
from tests.support.docs import PAGES
from tests.support.kill_points import commit_batch, killed, surround
from tests.support.reading import read_to_end
from tests.support.tutorial import section_of

TASKS = 3
ROWS = 300
"""Of a batch, in all of its tasks."""

BATCH = "korvet.admin.producer:IdempotentProducer send"
RENEWAL = "korvet.admin.producer:TransactionalProducer _renew"
"""The first renewal of a commit takes the transactional id over, and the second one ends the transaction."""


@pytest.fixture
def options(broker: Broker, topic: str, tmp_path: Path) -> dict[str, str]:
    """Give the options of a batch."""
    return {
        "bootstrap.servers": broker.bootstrap,
        "topic": topic,
        "exactly.once": "true",
        "txnAppId": topic,
        "txnVersion": "5",
        "staging.path": str(tmp_path / "staging"),
    }


def seen(broker: Broker, topic: str, isolation: str = "read_committed") -> Counter[int]:
    """Return the values that a consumer finds, and how often."""
    result = read_to_end(broker.bootstrap, topic, 3, isolation)
    return Counter(int(item.value or b"") for some in result for item in some)


def staged(options: dict[str, str], rows: Sequence[int] = range(ROWS)) -> list[WriterCommitMessage | None]:
    """Stage numbers as tasks do, each with rows of both partitions."""
    result: list[WriterCommitMessage | None] = []
    for task in range(TASKS):
        mine = rows[task::TASKS]
        columns = {
            "value": pa.array(map(str, mine)),
            "partition": pa.array([at % 2 for at in range(len(mine))], pa.int32()),
        }
        result.append(BatchSink(sink_options(options)).write(iter([pa.record_batch(columns)])))
    return result


def files(options: dict[str, str]) -> list[Path]:
    """Return what is staged."""
    return [item for item in Path(options["staging.path"]).rglob("*") if item.is_file()]


@pytest.mark.parametrize(
    "point",
    [
        f"before {RENEWAL} 1",
        f"after {RENEWAL} 1",
        f"before {BATCH} 2",
        f"after {BATCH} 3",
        f"before {RENEWAL} 2",
        f"after {RENEWAL} 2",
    ],
)
def test_a_driver_that_is_killed_anywhere_loses_and_repeats_nothing(
    broker: Broker, topic: str, options: dict[str, str], tmp_path: Path, point: str
) -> None:
    tasks = tmp_path / "tasks"
    tasks.write_bytes(pickle.dumps(staged(options)))
    killed(commit_batch, point, json.dumps(options), str(tasks))
    is_committed = point == f"after {RENEWAL} 2"
    assert seen(broker, topic) == (Counter(range(ROWS)) if is_committed else Counter())
    if BATCH in point:
        assert seen(broker, topic, "read_uncommitted")
    # Spark repeats the batch: its rows may be divided in another way.
    BatchSink(sink_options(options)).commit(staged(options, range(ROWS)[::-1]))
    assert seen(broker, topic) == Counter(range(ROWS))
    assert not files(options)
    following = options | {"txnVersion": "6"}
    BatchSink(sink_options(following)).commit(staged(following, range(ROWS, 2 * ROWS)))
    assert seen(broker, topic) == Counter(range(2 * ROWS))


@pytest.mark.parametrize(
    ("of", "point", "is_refused"),
    [
        # One that has not looked yet finds that all is written.
        ((TransactionalProducer, "_renew"), "after 1", False),
        ((IdempotentProducer, "send"), "after 1", True),
        ((TransactionalProducer, "_renew"), "before 2", True),
    ],
)
def test_a_driver_that_another_one_has_replaced_writes_nothing_more(
    broker: Broker,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of: tuple[type, str],
    point: str,
    *,
    is_refused: bool,
) -> None:
    # Files of its own, for those of the batch are deleted with it.
    mine = options | {"staging.path": str(tmp_path / "other")}
    former, later = staged(options), staged(mine)

    owner, name = of
    when, number = point.split()
    calls = itertools.count(1)

    def replaced() -> None:
        if next(calls) == int(number):
            monkeypatch.undo()
            BatchSink(sink_options(mine)).commit(later)

    monkeypatch.setattr(owner, name, vars(owner)[name])
    surround(owner, name, **{when: replaced})
    with contextlib.ExitStack() as refused:
        if is_refused:
            refused.enter_context(pytest.raises(LakeError, match="was taken over by another driver"))
        BatchSink(sink_options(options)).commit(former)
    assert seen(broker, options["topic"]) == Counter(range(ROWS))


def test_what_was_followed_by_more_is_refused_and_not_left_out(
    broker: Broker, topic: str, options: dict[str, str]
) -> None:
    for version in ("5", "7"):
        given = options | {"txnVersion": version}
        BatchSink(sink_options(given)).commit(staged(given))
    with pytest.raises(LakeError, match="has written number 7 already, and 5 is older"):
        BatchSink(sink_options(options)).commit(staged(options))
    assert seen(broker, topic) == Counter([*range(ROWS)] * 2)


def test_a_file_that_was_damaged_is_not_written_and_nothing_of_the_others(
    broker: Broker, topic: str, options: dict[str, str]
) -> None:
    tasks = staged(options)
    last = files(options)[-1]
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    with pytest.raises(LakeError, match=r"was damaged: .*CRC"):
        BatchSink(sink_options(options)).commit(tasks)
    assert not seen(broker, topic)
    BatchSink(sink_options(options)).abort([*tasks, None])
    assert not files(options)
    BatchSink(sink_options(options)).commit(staged(options))
    assert seen(broker, topic) == Counter(range(ROWS))


def test_a_task_that_fails_leaves_no_file(options: dict[str, str]) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        # So many that a part of them is staged before the failure.
        yield pa.record_batch({"value": pa.array(["x" * 5_000_000])})
        raise ZeroDivisionError

    # Often enough that the sender has not begun when a task fails.
    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            BatchSink(sink_options(options)).write(rows())
        assert not files(options)


def test_wrong_options_are_one_clear_error_each(options: dict[str, str]) -> None:
    def wrong(*, streaming: bool = False, **given: str) -> str:
        changed = options | {name.replace("_", "."): value for name, value in given.items()}
        with pytest.raises(ValueError, match=r".") as raised:
            sink_options(changed, streaming=streaming)
        return str(raised.value)

    assert wrong(txnVersion="x").startswith("a batch is written exactly once with txnAppId, a name of")
    assert wrong(txnAppId="../x").startswith("a batch is written exactly once with txnAppId")
    assert wrong(txnAppId="").startswith("a batch is written exactly once with txnAppId")
    assert wrong(streaming=True).startswith("txnAppId and txnVersion are for batches")
    assert wrong(staging_path="").startswith("the option staging.path is required")
    assert wrong(exactly_once="yes") == "exactly.once: 'yes' is neither true nor false"
    stream = {name: value for name, value in options.items() if not name.startswith(("txn", "staging"))}
    result = sink_options(stream | {"checkpointLocation": "file:/data/query/"}, streaming=True)
    assert result.exactly_once is not None
    assert result.exactly_once.staging.path == "/data/query/korvet-staging"


def examples() -> list[str]:
    """Return the code of the page, in its order."""
    section = section_of(PAGES["docs/lake/spark.md"], "Exactly once")
    return [
        textwrap.dedent(item)
        for item in re.findall(r"(?:^(?: {4}.*)?\n)+(?=\S)", section, re.MULTILINE)
        if item.strip()
    ]


def run_example(
    spark: SparkSession, code: str, source: Path, options: dict[str, str], replaced: dict[str, Path]
) -> None:
    """Run what a reader would, with these paths, until all rows of the source are written."""
    for name, path in replaced.items():
        assert name in code
        code = code.replace(name, str(path))
    result: dict[str, Any] = {
        "bills": spark.readStream.schema("value STRING").parquet(str(source)),
        "options": {name: options[name] for name in ("bootstrap.servers", "topic")},
    }
    exec(code, result)  # noqa: S102 - as said
    query = result["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def test_batches_that_spark_repeats_are_written_once(
    spark: SparkSession, broker: Broker, topic: str, options: dict[str, str], tmp_path: Path
) -> None:
    for place, example in enumerate(examples()):
        source, checkpoint = tmp_path / f"in-{place}", tmp_path / f"checkpoint-{place}"
        replaced = {"/data/checkpoints/bills": checkpoint}
        if "/data/staging" in example:
            replaced["/data/staging"] = checkpoint / "korvet-staging"
        for at in range(2):
            first = (2 * place + at) * ROWS
            rows = spark.range(first, first + ROWS, numPartitions=1).selectExpr("cast(id as string) value")
            rows.write.mode("append").parquet(str(source))
            run_example(spark, example, source, options, replaced)
            # As if the driver had been killed before Spark noted that the batch is written.
            checkpoint.joinpath("commits", str(at)).unlink()
            checkpoint.joinpath("commits", f".{at}.crc").unlink()
            run_example(spark, example, source, options, replaced)
        assert not [item for item in checkpoint.joinpath("korvet-staging").rglob("*") if item.is_file()]
    assert seen(broker, topic) == Counter(range(4 * ROWS))


def test_a_batch_is_written_as_a_whole_or_not_at_all(
    spark: SparkSession, broker: Broker, topic: str, options: dict[str, str]
) -> None:
    failing = spark.range(ROWS, numPartitions=2).selectExpr(
        "cast(id as string) value", f"if(id = {ROWS - 1}, 7, 0) partition"
    )
    with pytest.raises(PySparkException, match="there is no partition"):
        failing.write.format("korvet").options(**options).mode("append").save()
    assert not seen(broker, topic, "read_uncommitted")
    assert not files(options)
