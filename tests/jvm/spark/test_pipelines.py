"""Pipelines on Spark with Delta Lake: what their tables hold, whatever is repeated, and what is refused."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from korvet.lake.source import LakeSource
from korvet.spark.pipelines.reset import PipelineReset
from korvet.spark.pipelines.runner import Pipeline, PipelineContext
from korvet.spark.pipelines.spec import PipelineError, load
from korvet.spark.pipelines.status import PipelineReporter
from tests.support.archives import Topics
from tests.support.batches import Record
from tests.support.spark_driver import Driver

pytestmark = pytest.mark.timeout(600)

MINUTE = 60_000
START = 1_700_000_000_000 // 3_600_000 * 3_600_000
"""The beginning of an hour, in ms."""


class Runs:
    """A pipeline's file, and runs of it in the driver until all is read."""

    def __init__(self, driver: Driver, topics: Topics, directory: Path) -> None:
        self._driver = driver
        self._topics = topics
        self.file = directory / "orders.toml"
        self.lake = Path(topics.lake)
        self.state = self.lake / "_pipelines" / "orders"

    def __call__(
        self,
        text: str,
        name: str = "orders",
        *,
        stopped: bool = False,
        before: Callable[[], object] = int,
        between: tuple[str, str] | None = None,
    ) -> str | None:
        """Run the pipeline, `stopped` at once; return why it is refused or fails, None if it does its work.

        `between` are the ends of a range. `before` is called in the driver when the pipeline has been found right, and
        has not begun.
        """
        text = text if "[trigger]" in text else f"{text}\n[trigger]\navailable_now = true\n"
        self.file.write_text(f'name = "{name}"\n{text}')
        return self._driver.run(
            run,
            source=self._topics.source,
            file=self.file,
            stopped=stopped,
            before=before,
            between=between,
        )

    def table(self, name: str = "orders") -> list[dict[str, Any]]:
        """Return the rows of a table, in any order."""
        result: list[dict[str, Any]] = DeltaTable(self.lake / "tables" / name).to_pyarrow_table().to_pylist()
        return result

    def version(self, name: str = "orders") -> int:
        return DeltaTable(self.lake / "tables" / name).version()

    def reset(
        self, to: str | dict[tuple[str, int], int]
    ) -> tuple[list[tuple[int, int | None, int]], list[str]]:
        """Reset the pipeline; return partition, offset before and after of each, and the notes."""
        return self._driver.run(reset, source=self._topics.source, file=self.file, to=to)

    def forget_last_batch(self, query: str = "main") -> None:
        """Let Spark repeat the last batch, as after a crash when it was written and before that was noted."""
        [commits] = self.state.glob(f"checkpoint*/{query}/commits")
        last = max(int(item.name) for item in commits.iterdir() if item.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    @contextmanager
    def left_behind(self, query: str, *tables: str) -> Iterator[None]:
        """Let a query and its tables be after this as they are now, as if it had done nothing meanwhile."""
        places = [self.state / "checkpoint" / query, *(self.lake / "tables" / name for name in tables)]
        for place in places:
            shutil.copytree(place, self.file.parent / "kept" / place.name)
        yield
        for place in places:
            shutil.rmtree(place)
            shutil.move(self.file.parent / "kept" / place.name, place)

    def offset(self, query: str) -> int:
        """Return how far a query has read the first partition."""
        offsets = self.state / "checkpoint" / query / "offsets"
        last = max(int(item.name) for item in offsets.iterdir() if item.name.isdigit())
        position = json.loads((offsets / str(last)).read_text().splitlines()[2])
        return int(position["topics"]["orders"]["offsets"]["0"])


def run(
    spark: SparkSession,
    /,
    source: LakeSource,
    file: Path,
    *,
    stopped: bool,
    before: Callable[[], object],
    between: tuple[str, str] | None,
) -> str | None:
    """Run in the driver."""
    event = threading.Event()
    if stopped:
        event.set()
    try:
        spec = load(file) if between is None else load(file).of_range(*between)
        with PipelineReporter(source, spec.name, file=str(file), stopped=threading.Event()) as reporter:
            pipeline = Pipeline(PipelineContext(spark, source, {"bootstrap.servers": "127.0.0.1:1"}), spec)
            before()
            pipeline.run(event, reporter)
    except PipelineError as error:
        return str(error)
    return None


def reset(
    spark: SparkSession, /, source: LakeSource, file: Path, to: str | dict[tuple[str, int], int]
) -> tuple[list[tuple[int, int | None, int]], list[str]]:
    """Reset in the driver."""
    planned = PipelineReset(spark, source, load(file), to)
    planned.execute()
    return [
        (partition.partition, partition.before, partition.after) for partition in planned.partitions
    ], planned.notes()


@pytest.fixture
def runs(delta: Driver, topics: Topics, tmp_path: Path) -> Runs:
    return Runs(delta, topics, tmp_path)


def order(number: int, amount: float | None, minute: int = 0) -> Record:
    """Return an order as JSON, or its deletion without an amount."""
    value = None if amount is None else json.dumps({"id": number, "amount": amount}).encode()
    return Record(value, b"%d" % number, START + minute * MINUTE)


SOURCE = """
[sources.orders]
topics = ["orders"]
{more}
[sources.orders.key]
format = "string"
[sources.orders.value]
format = "json"
schema = "id BIGINT, amount DOUBLE"
"""


def source(more: str = "") -> str:
    return SOURCE.format(more=more)


def target(**settings: object) -> str:
    values = {"type": "delta", "path": "tables/orders"} | settings
    return "\n[target]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())


def sql(text: str) -> str:
    return f"\n[transform]\nsql = {json.dumps(text)}"


UPSERT = (
    source()
    + sql("SELECT CAST(key AS BIGINT) id, value.amount, offset, value IS NULL gone FROM orders")
    + target(mode="merge", key=["id"], order_by=["offset"], delete_when="gone")
)


@pytest.mark.parametrize("batches", [(6,), (2, 2, 2), (1, 4, 1)], ids=str)
def test_one_table_comes_of_a_stream_however_it_is_cut_into_batches(
    runs: Runs, topics: Topics, batches: tuple[int, ...]
) -> None:
    [partition] = topics.make("orders", "batch").partitions
    stream = iter([order(1, 2.0), order(2, 1.0), order(1, 1.0), order(2, 3.0), order(1, 3.0), order(2, 2.0)])
    newest = (
        source()
        + sql("SELECT value.id, value.amount FROM orders")
        + target(mode="merge", key=["id"], order_by=["amount"])
    )
    for count in batches:
        topics.produce(partition, *itertools.islice(stream, count))
        assert runs(newest) is None
    assert {row["id"]: row["amount"] for row in runs.table()} == {1: 3.0, 2: 3.0}


def test_rows_are_merged_by_key_and_tombstones_delete(runs: Runs, topics: Topics) -> None:
    [first, second] = topics.make("orders", "batch", partitions=2).partitions
    topics.produce(first, order(1, 1.0), order(3, 3.0), order(1, 1.5), order(5, 5.0), order(5, None))
    topics.produce(second, order(2, 2.0), order(2, None), order(2, 2.5))
    assert runs(UPSERT) is None
    rows = {row["id"]: row["amount"] for row in runs.table()}
    assert rows == {1: 1.5, 2: 2.5, 3: 3.0}
    assert len(runs.table()) == len(rows)
    assert set(runs.table()[0]) == {"id", "amount", "offset"}
    topics.produce(first, order(3, None), order(1, 7.0), order(7, 1.0))
    assert runs(UPSERT) is None
    after = {row["id"]: row["amount"] for row in runs.table()}
    assert after == {1: 7.0, 2: 2.5, 7: 1.0}
    # Nothing new: nothing is written.
    version = runs.version()
    assert runs(UPSERT) is None
    assert runs.version() == version


APPEND = source() + sql("SELECT value.id, value.amount, partition, offset FROM orders") + target()
OVERWRITE = (
    source()
    + sql("SELECT value.id % 2 part, value.id, value.amount FROM orders")
    + target(mode="overwrite", replace="partitions", partition_by=["part"])
)


@pytest.mark.parametrize("pipeline", [APPEND, UPSERT, OVERWRITE], ids=["append", "merge", "overwrite"])
def test_a_batch_that_spark_repeats_changes_nothing(runs: Runs, topics: Topics, pipeline: str) -> None:
    [partition] = topics.make("orders", "batch").partitions
    for batch in ([order(1, 1.0), order(2, 2.0)], [order(1, 3.0), order(4, 4.0)]):
        topics.produce(partition, *batch)
        assert runs(pipeline) is None
    rows, version = sorted(map(str, runs.table())), runs.version()
    runs.forget_last_batch()
    assert runs(pipeline) is None
    assert sorted(map(str, runs.table())) == rows
    assert runs.version() == version
    assert (runs.state / "checkpoint/main/commits/1").exists()


def test_partitions_are_overwritten_as_a_whole(runs: Runs, topics: Topics) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, *(order(at, at) for at in range(6)))
    assert runs(OVERWRITE) is None
    topics.produce(partition, order(1, 9.0), order(11, 8.0))
    assert runs(OVERWRITE) is None
    assert sorted((row["id"], row["amount"]) for row in runs.table()) == [
        (0, 0.0),
        (1, 9.0),
        (2, 2.0),
        (4, 4.0),
        (11, 8.0),
    ]


LOSSY = source('on_error = "dead_letters"')


@pytest.mark.parametrize("way", ["continue", "reset"])
def test_a_pipeline_that_has_lost_records_goes_on_by_either_way_out(
    runs: Runs, topics: Topics, way: str
) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, order(0, 0.0), order(1, 1.0))
    assert runs(APPEND) is None
    topics.produce(partition, *(order(at, at) for at in range(2, 8)))
    topics.trim(partition, 5)
    for _ in range(2):
        refused = runs(APPEND) or ""
        assert "orders-0 holds offsets 5 to 7, not 2: records were deleted before they were read" in refused
        assert 'on_data_loss = "continue"' in refused
        assert "`korvet lake pipeline reset orders`" in refused
    if way == "reset":
        assert runs.reset("earliest") == ([(0, 2, 5)], [])
        topics.trim(partition, 6)
        # Also what is lost between a reset and the next run.
        assert "orders-0 holds offsets 6 to 7, not 5" in (runs(APPEND) or "")
        assert runs.reset("earliest") == ([(0, 5, 6)], [])
        assert runs(APPEND) is None
    else:
        assert runs(APPEND.replace("topics =", 'on_data_loss = "continue"\ntopics =')) is None
    rows = [0, 1, *range(5 if way == "continue" else 6, 8)]
    assert sorted(row["offset"] for row in runs.table()) == rows
    [status] = topics.stores.pipelines.read()
    assert status.lost_offsets() == {("orders", 0): 3 if way == "continue" else 0}
    runs.forget_last_batch()
    assert runs(APPEND) is None
    assert len(runs.table()) == len(rows)


def test_a_pipeline_goes_on_where_it_was_reset_to_with_its_dead_letters(runs: Runs, topics: Topics) -> None:
    """Batches of the new checkpoint have the numbers of those before, and are others."""
    lossy = source('on_error = "dead_letters"\nmax_records_per_trigger = 3')
    lossy += sql("SELECT partition, offset FROM orders") + target()
    for partition in topics.make("orders", "batch", partitions=2).partitions:
        topics.produce(partition, *(order(at, at, minute=at) for at in range(4)), Record(b"?", None, START))
    assert runs(lossy) is None
    wanted, ends = Counter((part, at) for part in (0, 1) for at in range(5)), {0: 5, 1: 5}
    time = datetime.fromtimestamp((START + 2 * MINUTE) / 1000, UTC).isoformat()
    for to, starts in (
        ("earliest", {0: 0, 1: 0}),
        ({("orders", 0): 99, ("orders", 1): 3}, {0: 5, 1: 3}),
        (time, {0: 2, 1: 2}),
        ("latest", ends),
    ):
        result, notes = runs.reset(to)
        assert result == [(part, 5, starts[part]) for part in (0, 1)]
        assert len(notes) == (2 if starts != ends else 0)
        wanted.update((part, at) for part, start in starts.items() for at in range(start, 5))
        assert runs(lossy) is None
        if to == "earliest":
            # A crash after a batch of the new checkpoint, and before that was noted.
            for query in ("main", "dead_letters_orders"):
                runs.forget_last_batch(query)
            assert runs(lossy) is None
        rows = [*runs.table(), *runs.table("orders_dead_letters")]
        assert Counter((row["partition"], row["offset"]) for row in rows) == wanted
    with pytest.raises(PipelineError, match="orders reads no partition orders:2"):
        runs.reset({("orders", 2): 0})


def test_records_that_do_not_decode_are_kept_apart_or_end_the_run(runs: Runs, topics: Topics) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(
        partition, order(1, 1.0), Record(b"{bad", b"k", START), order(2, 2.0), Record(None, b"t", 0)
    )
    strict = source() + target(path="tables/strict")
    assert "orders-0@1" in (runs(strict) or "")
    for path in sorted(runs.state.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    lossy = LOSSY + sql("SELECT value.id FROM orders WHERE value IS NOT NULL") + target()
    assert runs(lossy) is None
    assert sorted(row["id"] for row in runs.table()) == [1, 2]
    [dead] = runs.table("orders_dead_letters")
    at = datetime.fromtimestamp(START / 1000, UTC)
    assert dead.pop("error")
    assert dead == {
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "timestamp": at,
        "key": b"k",
        "value": b"{bad",
    }
    # The same after a crash between the table and the checkpoint.
    runs.forget_last_batch("dead_letters_orders")
    topics.produce(partition, Record(b"[", b"k", START))
    assert runs(lossy) is None
    assert sorted(row["offset"] for row in runs.table("orders_dead_letters")) == [1, 4]


HOURLY = (
    source('watermark = ["timestamp", "10 minutes"]')
    + sql(
        "SELECT window.start hour, count(*) orders, sum(value.amount) amount FROM orders"
        " GROUP BY window(timestamp, '1 hour')"
    )
    + target(mode="merge", key=["hour"])
)


def hour(number: int) -> datetime:
    return datetime.fromtimestamp(START / 1000 + number * 3600, UTC)


def test_an_aggregate_is_continued_by_the_next_run(runs: Runs, topics: Topics) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, order(1, 1.0), order(2, 2.0, minute=59), order(3, 3.0, minute=61))
    assert runs(HOURLY) is None
    topics.produce(partition, order(4, 4.0, minute=62), order(5, 5.0, minute=58))
    assert runs(HOURLY) is None
    assert sorted((row["hour"], row["orders"], row["amount"]) for row in runs.table()) == [
        (hour(0), 3, 8.0),
        (hour(1), 2, 7.0),
    ]
    rows = sorted(map(str, runs.table()))
    refused = runs(HOURLY.replace("'1 hour'", "'2 hours'")) or ""
    assert "keeps state" in refused
    assert "`korvet lake pipeline reset orders`" in refused
    runs.forget_last_batch()
    assert runs(HOURLY) is None
    assert sorted(map(str, runs.table())) == rows


def test_dead_letters_that_are_declared_later_begin_where_the_pipeline_did_or_at_what_is_left(
    runs: Runs, topics: Topics
) -> None:
    """With "latest" of its own, their query would begin after the record that had ended the one before."""
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, order(1, 1.0), Record(b"before", None, START))
    latest = APPEND.replace('topics = ["orders"]', 'topics = ["orders"]\nstarting = "latest"')
    assert runs(latest) is None
    topics.produce(partition, order(2, 2.0), order(3, 3.0))
    assert runs(latest) is None
    topics.trim(partition, 3)
    topics.produce(partition, Record(b"?", None, START), order(4, 4.0))
    assert "orders-0@4" in (runs(latest) or "")
    assert runs(latest.replace("starting =", 'on_error = "dead_letters"\nstarting =')) is None
    assert sorted(row["id"] for row in runs.table()) == [2, 3, 4]
    assert [row["offset"] for row in runs.table("orders_dead_letters")] == [4]


TEXT_AMOUNT = b'{"id": 2, "amount": "much"}'
"""By LOSSY's schema this is a dead letter, by that of texts it is an order."""

TEXTS = ("amount DOUBLE", "amount STRING")


@pytest.mark.parametrize("behind", ["main", "dead_letters_orders"])
def test_a_pipeline_that_is_stopped_lets_its_queries_read_the_same(
    runs: Runs, topics: Topics, behind: str
) -> None:
    [partition] = topics.make("orders", "batch").partitions
    slow = LOSSY.replace("topics =", "max_records_per_trigger = 1\ntopics =")
    slow += sql("SELECT value.id FROM orders") + target()
    topics.produce(partition, order(1, 1.0))
    assert runs(slow) is None
    with runs.left_behind(behind, "orders" if behind == "main" else "orders_dead_letters"):
        topics.produce(partition, *(Record(TEXT_AMOUNT, b"2", START) for _ in range(2)), order(4, 4.0))
        assert runs(slow) is None
    # Else a record between them, which decodes by one way alone, would be in neither table.
    refused = runs(slow.replace(*TEXTS)) or ""
    assert "decoded in another way, and the queries main and dead_letters_orders" in refused
    assert not (runs.state / "schemas").exists()
    topics.produce(partition, order(5, 5.0), order(6, 6.0))
    # Each begins one batch, of one record.
    assert runs(slow + '\n[trigger]\ninterval = "1h"', stopped=True) is None
    assert 4 <= runs.offset("main") == runs.offset("dead_letters_orders") < 6
    assert sorted(row["offset"] for row in runs.table("orders_dead_letters")) == [1, 2]
    # So a change is taken, though there is more to read.
    assert runs(slow.replace(*TEXTS)) is None
    assert sorted(row["id"] for row in runs.table()) == [1, 4, 5, 6]
    assert sorted(row["offset"] for row in runs.table("orders_dead_letters")) == [1, 2]


def test_duplicates_are_left_out_across_runs_and_bad_records_too(runs: Runs, topics: Topics) -> None:
    """Python, and a plan that keeps state."""
    [partition] = topics.make("orders", "batch").partitions
    (runs.file.parent / "unique.py").write_text(
        "from pyspark.sql.functions import udf\n"
        "RATE = 2\n"
        "def doubled(amount):\n    return amount * RATE\n"
        "def transform(orders):\n"
        "    unique = orders.select('value.*', 'timestamp').dropDuplicatesWithinWatermark(['id'])\n"
        "    return unique.select('id', udf(doubled, 'double')('amount').alias('amount'))\n"
    )
    unique = (
        source('on_error = "dead_letters"\nwatermark = ["timestamp", "1 hour"]')
        + '\n[transform]\npython = "unique.py"'
        + target()
    )
    topics.produce(partition, order(1, 1.0), Record(b"?", b"", START), order(1, 1.0), order(2, 2.0))
    assert runs(unique) is None
    topics.produce(partition, order(2, 2.0), order(3, 3.0))
    assert runs(unique) is None
    assert sorted((row["id"], row["amount"]) for row in runs.table()) == [(1, 2.0), (2, 4.0), (3, 6.0)]
    assert [row["offset"] for row in runs.table("orders_dead_letters")] == [1]


def test_two_topics_are_joined(runs: Runs, topics: Topics) -> None:
    [orders] = topics.make("orders", "batch").partitions
    [payments] = topics.make("payments", "record", number=1).partitions
    joined = (
        source('watermark = ["timestamp", "10 minutes"]')
        + """
        [sources.payments]
        topics = ["payments"]
        watermark = ["timestamp", "10 minutes"]
        [sources.payments.value]
        format = "string"
        """
        + sql(
            "SELECT o.value.id, o.value.amount, p.value paid FROM orders o JOIN payments p"
            " ON o.value.id = CAST(p.value AS BIGINT)"
            " AND p.timestamp BETWEEN o.timestamp AND o.timestamp + INTERVAL 1 HOUR"
        )
        + target()
    )
    topics.produce(orders, order(1, 1.0), order(2, 2.0))
    topics.produce(payments, Record(b"1", None, START + MINUTE))
    assert runs(joined) is None
    topics.produce(payments, Record(b"2", None, START + MINUTE))
    assert runs(joined) is None
    assert sorted((row["id"], row["paid"]) for row in runs.table()) == [(1, "1"), (2, "2")]


def test_what_a_checkpoint_can_carry_may_change(runs: Runs, topics: Topics) -> None:
    [partition] = topics.make("orders", "batch").partitions
    [other] = topics.make("others", "batch", number=1).partitions
    topics.produce(partition, order(1, 1.0))
    topics.produce(other, order(10, 10.0))
    assert runs(HOURLY) is None
    # The delay of a watermark, and one more topic.
    changed = HOURLY.replace('["orders"]', '["others", "orders"]').replace("10 minutes", "20 minutes")
    assert runs(changed) is None
    assert [(row["orders"], row["amount"]) for row in runs.table()] == [(2, 11.0)]


def test_records_that_are_not_as_expected_are_kept_apart_counted_or_end_the_run(
    runs: Runs, topics: Topics
) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, order(1, 1.0), order(2, -2.0), order(3, 300.0), order(4, None))
    expect = 'expect = {"value.amount >= 0" = "dead_letters", "value.amount < 100" = "count"}'
    expecting = source(expect) + sql("SELECT value.id FROM orders WHERE value IS NOT NULL") + target()
    assert runs(expecting) is None
    assert sorted(row["id"] for row in runs.table()) == [1, 3]
    [dead] = runs.table("orders_dead_letters")
    assert (dead["offset"], dead["error"]) == (1, "expected value.amount >= 0")
    [status] = topics.stores.pipelines.read()
    assert status.unmet == {"orders: value.amount >= 0": 1, "orders: value.amount < 100": 1}
    topics.produce(partition, order(5, -5.0))
    assert runs(expecting.replace('"dead_letters"', '"fail"')) == "orders-0@4: expected value.amount >= 0"


def test_a_range_is_read_once_beside_the_pipeline_whose_checkpoint_stays(runs: Runs, topics: Topics) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, *(order(number, 1.0, minute=number) for number in range(4)))
    latest = APPEND.replace("topics =", 'starting = "latest"\ntopics =')
    assert runs(latest) is None
    kept = {path: path.read_bytes() for path in runs.state.rglob("*") if path.is_file()}
    first, last = (datetime.fromtimestamp(START / 1000 + 60 * minute, UTC).isoformat() for minute in (1, 3))
    for _ in range(2):
        assert runs(latest, between=(first, last)) is None
        assert sorted(row["id"] for row in runs.table()) == [1, 2]
        topics.produce(partition, order(4, 4.0, minute=2))
    assert {path: path.read_bytes() for path in runs.state.rglob("*") if path.is_file()} == kept
    assert runs(latest) is None
    assert sorted(row["id"] for row in runs.table()) == [1, 2, 4, 4]


def test_parquet_has_each_row_once(runs: Runs, topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    parquet = (
        LOSSY
        + sql("SELECT value.id, value.id % 2 part FROM orders")
        + target(type="parquet", path="files", partition_by=["part"])
        + '\n[dead_letters]\npath = "tables/lost"'
    )
    topics.produce(partition, order(1, 1.0), order(2, 2.0), Record(b"?", None, START))
    assert runs(parquet) is None
    topics.produce(partition, order(3, 3.0))
    assert runs(parquet) is None
    runs.forget_last_batch()
    assert runs(parquet) is None
    assert runs._driver.run(parquet_ids, path=str(runs.lake / "files")) == [1, 2, 3]
    assert [row["offset"] for row in runs.table("lost")] == [2]
    # Spark would leave out the batches of a new checkpoint, for their numbers are there.
    topics.produce(partition, order(4, 4.0))
    assert "has files of another checkpoint" in (runs(parquet, "others") or "")


def parquet_ids(spark: SparkSession, /, path: str) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(path).collect())
