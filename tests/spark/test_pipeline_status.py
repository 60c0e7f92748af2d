"""korvet/spark/pipelines/status.py: reports of the process that runs a pipeline, its lease, and its unread records.

Other processes that run the pipeline are real ones.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from korvet.cluster.pipelines import (
    LEASE_MS,
    LostOffsets,
    PipelineProcess,
    PipelineStatus,
    PipelineStore,
    QueryPosition,
    QueryStatus,
)
from korvet.lake.source import LakeSource
from korvet.redis.keys import Keys
from korvet.spark.pipelines.listener import ProgressListener
from korvet.spark.pipelines.spec import PipelineError
from korvet.spark.pipelines.status import PipelineReporter, lag_of
from tests.support.archives import FORMATS, Format, Topics, archive, trim
from tests.support.batches import Record
from tests.support.pipelines import pipeline_process
from tests.support.processes import wait_until

FIRST_MS = 1_700_000_000_000
LEASE = Keys("korvet").pipeline_lease("sales")


@pytest.fixture
def source(redis_url: str) -> LakeSource:
    return LakeSource(redis_url=redis_url)


@pytest.fixture
def store(source: LakeSource) -> Iterator[PipelineStore]:
    with source.opened() as stores:
        yield stores.pipelines


def reporter(source: LakeSource, lost: threading.Event | None = None) -> PipelineReporter:
    return PipelineReporter(source, "sales", file="/sales.toml", stopped=lost or threading.Event())


def row(store: PipelineStore) -> PipelineStatus:
    [result] = store.read()
    return result


def comes(store: PipelineStore, state: str) -> PipelineStatus:
    """Return the row once it has a state: it is written by a thread."""
    wait_until(lambda: row(store).state == state, f"the pipeline is {state}")
    return row(store)


def event(batch: int, count: int, *, lost: int = 0, **offsets: int) -> dict[str, Any]:
    """Return what is used of a StreamingQueryProgress, in the form of its JSON."""
    end: dict[str, Any] = {"topics": {"orders": {"id": "i", "offsets": offsets}}}
    if lost:
        end["lost"] = {"orders": {"0": {"count": lost, "first": 10, "end": 10 + lost}}}
    before = {"topics": {"orders": {"id": "h", "offsets": {}}, "bills": {"id": "j", "offsets": {}}}}
    return {
        "batchId": batch,
        "numInputRows": count,
        "timestamp": "2026-11-27T01:00:00.000Z",
        "durationMs": {"triggerExecution": 2500},
        "processedRowsPerSecond": count / 2.5,
        "sources": [{"startOffset": json.dumps(before), "endOffset": json.dumps(end)}],
    }


def test_a_pipeline_reports_what_it_does(
    source: LakeSource, store: PipelineStore, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with reporter(source) as of:
        begun = row(store)
        assert (begun.state, begun.file, begun.restarts) == ("starting", "/sales.toml", 0)
        assert begun.process == PipelineProcess.own()
        assert raw_redis.get(LEASE).decode() == begun.holder
        of.started(["main"])
        assert comes(store, "running").started_ms == begun.started_ms
        of.progress("main", event(0, 5, **{"0": 7, "1": 4}))
        of.progress("main", event(1, 3, **{"0": 8, "1": 6}))
        of.progress("main", event(2, 0, lost=4, **{"0": 9, "1": 6}))
        of.dead_letters(2)
        wait_until(lambda: row(store).dead_letters == 2, "it is written")
        result = row(store)
        assert result.records == 8
        # The last batch that read something; positions are those of now.
        assert result.last_batch == QueryStatus(
            batch=1,
            ended_ms=1_795_741_202_500,
            polled_ms=1_795_741_202_500,
            records=3,
            duration_ms=2500,
            records_per_second=1.2,
            positions={"orders": QueryPosition("i", {0: 9, 1: 6})},
            lost={"orders": {0: LostOffsets(4, 10, 14)}},
        )
        assert result.lost_offsets() == {("orders", 0): 4, ("orders", 1): 0}
        # A topic that is slow leaves the last batch as it was; a pipeline that hangs does not look for records.
        of.idle("main", "2026-11-27T01:05:00.000Z")
        wait_until(lambda: row(store).polled_ms == 1_795_741_500_000, "it is written")
        assert row(store).last_batch.ended_ms == 1_795_741_202_500
    assert row(store).state == "stopped"
    assert not raw_redis.exists(LEASE)
    lines = {record.getMessage(): vars(record)["korvet_fields"] for record in caplog.records}
    where = {"pipeline": "sales", "query": "main", "topic": "orders"}
    assert lines["a topic was deleted: it is not read any more"] == where | {"topic": "bills"}
    assert lines["a topic was re-created: it is read from its start"] == where | {"id": "i"}
    lost = where | {"partition": 0, "from": 10, "to": 14}
    assert lines["offsets were lost before they were read"] == lost


def test_the_end_of_a_context_is_that_of_the_pipeline(source: LakeSource, store: PipelineStore) -> None:
    with contextlib.suppress(SystemExit), reporter(source) as of:
        of.started([])
        sys.exit(0)
    assert (row(store).state, row(store).error) == ("stopped", None)
    with contextlib.suppress(OSError), reporter(source):
        raise OSError("the disk is full")
    assert (row(store).state, row(store).error, row(store).restarts) == ("failed", "the disk is full", 0)
    with reporter(source) as of:
        of.stopped(completed=True)
    # What went wrong last stays.
    assert (row(store).state, row(store).error, row(store).restarts) == ("completed", "the disk is full", 1)
    with reporter(source):
        assert row(store).restarts == 1


def test_what_was_counted_stays_and_queries_that_are_gone_do_not(
    source: LakeSource, store: PipelineStore, caplog: pytest.LogCaptureFixture
) -> None:
    fields = "schema id 3: Order.amount"
    unread = {"observedMetrics": {"unread a.value": {fields: 2, "schema id 4: x": 0}, "more": {"rows": 1}}}
    unread["observedMetrics"]["unmet a"] = {"value > 0": 1, "value < 9": 0}
    with reporter(source) as of:
        of.started(["main", "other"])
        of.progress("main", event(0, 5) | unread)
        of.progress("other", event(0, 1) | unread)
        of.dead_letters(4)
    with reporter(source) as of:
        of.started(["main"])
        of.progress("main", event(1, 2) | unread)
    # Another query reads the same records again.
    assert (row(store).records, row(store).dead_letters) == (7, 4)
    assert row(store).unmet == {"a: value > 0": 2}
    assert row(store).unread_fields == {f"a.value: {fields}": 4}
    assert caplog.text.count("fields of records are not read") == 1
    assert list(row(store).queries) == ["main"]


def test_fields_that_records_name_are_counted_by_the_most_frequent_sets(
    source: LakeSource, store: PipelineStore
) -> None:
    def unread(records: int, **counts: int) -> dict[str, Any]:
        items = [{"item": fields, "count": count} for fields, count in counts.items()]
        metric = {"records": records, "fields": [{"count": 3}, *items]}
        return {"observedMetrics": {"unread a.value": {"unknown": metric}}}

    with reporter(source) as of:
        of.started(["main"])
        # Three have none, and five others than the named ones.
        of.progress("main", event(0, 10) | unread(10, x=2))
        of.progress("main", event(1, 10) | unread(160, x=1, **{f"f{number}": 1 for number in range(150)}))
    counts = row(store).unread_fields
    assert (counts["a.value: x"], counts["a.value: other fields"]) == (3, 5 + 52 + 6)
    assert len(counts) == 100


def test_a_pipeline_runs_once_and_again_as_soon_as_its_process_was_killed(
    source: LakeSource, store: PipelineStore, raw_redis: Any
) -> None:
    with pipeline_process(source, "sales") as process:
        holder = comes(store, "running").process
        assert holder.id == process.pid
        with pytest.raises(PipelineError) as refused, reporter(source):
            pass
        assert str(refused.value) == f"pipeline sales runs already: process {process.pid} on {holder.host}"
        assert row(store).process == holder
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Its lease goes on, and nothing but this machine knows better.
        assert (raw_redis.exists(LEASE), row(store).state) == (1, "running")
        with reporter(source):
            assert (row(store).restarts, row(store).process) == (1, PipelineProcess.own())


def test_of_a_process_on_another_machine_only_the_lease_is_known(
    source: LakeSource, store: PipelineStore, raw_redis: Any
) -> None:
    assert store.lease("sales").acquire("east/1/another-boot:1/1", LEASE_MS)
    with pytest.raises(PipelineError, match="runs already: process 1 on east"), reporter(source):
        pass
    assert store.read() == []
    raw_redis.delete(LEASE)
    with reporter(source):
        assert row(store).state == "starting"


def test_who_has_lost_the_lease_is_notified_and_writes_no_more(
    source: LakeSource, store: PipelineStore, raw_redis: Any
) -> None:
    lost = threading.Event()
    with reporter(source, lost) as of:
        raw_redis.set(LEASE, "east/1/another-boot:1/1")
        of.started([])
        assert lost.wait(30)
    assert row(store).state == "lost"
    assert b'"state":"starting"' in raw_redis.hget("korvet:pipelines", "sales")
    assert raw_redis.get(LEASE) == b"east/1/another-boot:1/1"


def test_what_redis_did_not_take_is_written_when_it_takes_it(
    source: LakeSource, store: PipelineStore, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with reporter(source) as of:
        raw_redis.config_set("maxmemory", "1")
        try:
            of.started([])
            wait_until(lambda: "is not written" in caplog.text, "it is refused")
            assert row(store).state == "starting"
        finally:
            raw_redis.config_set("maxmemory", "0")
        comes(store, "running")


@pytest.fixture(params=FORMATS)
def storage_format(request: pytest.FixtureRequest) -> Format:
    result: Format = request.param
    return result


def streamed(frame: DataFrame, directory: Path) -> dict[str, Any]:
    """Run a stream until it has read all there is; returns its last progress."""
    query = frame.writeStream.format("noop").option("checkpointLocation", str(directory))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination(120)
    [progress] = [item for item in running.recentProgress if item.numInputRows]
    result: dict[str, Any] = json.loads(progress.json)
    return result


def test_a_lag_is_what_a_real_stream_has_not_read_in_both_tiers(
    spark: SparkSession, topics: Topics, storage_format: Format, tmp_path: Path
) -> None:
    topic = topics.make("orders", storage_format, partitions=2)
    first, _ = topic.partitions
    topics.produce(first, *(Record(b"v", b"k", FIRST_MS + at) for at in range(3)))
    store = topics.stores.pipelines
    with reporter(topics.source) as of:
        options = {"redis.url": topics.source.redis_url, "lake": topics.lake, "topic": "orders"}
        frame = spark.readStream.format("korvet").options(**options, startingOffsets="earliest").load()
        of.progress("main", streamed(frame, tmp_path / "checkpoint"))
        wait_until(lambda: row(store).records == 3, "it is written")
        status = row(store)
    assert status.positions()["orders"].offsets.keys() == {0, 1}
    assert lag_of(topics.stores, status) == (0, 0)
    archive(topics)
    # Of these one is in the lake only, one in both tiers, and the others in Redis.
    topics.produce(first, Record(b"v", b"k", FIRST_MS))
    archive(topics)
    trim(topics, first)
    topics.produce(first, Record(b"v", b"k", FIRST_MS + 1000))
    archive(topics)
    topics.produce(first, Record(b"v", b"k", FIRST_MS + 2000))
    topics.produce(topic.partitions[1], Record(b"v", b"k", FIRST_MS + 3000))
    assert topics.bounds(first).local_start > status.positions()["orders"].offsets[0]
    before_ms = _now_ms()
    lag = lag_of(topics.stores, status)
    assert lag.records == 4
    assert before_ms <= FIRST_MS + lag.age_ms <= _now_ms()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_topics_that_are_gone_or_others_by_now_have_no_lag(topics: Topics, storage_format: Format) -> None:
    topic = topics.make("orders", storage_format, number=1)
    topics.produce(topic.partitions[0], b"1")
    for name, known in (("orders", "the id of another"), ("gone", topic.id)):
        queries = {"main": QueryStatus(positions={name: QueryPosition(known, {0: 0})})}
        status = PipelineStatus(
            name="a", state="stopped", since_ms=1, started_ms=1, holder="", queries=queries
        )
        assert lag_of(topics.stores, status) == (0, 0)


def test_a_query_that_finds_nothing_to_read_says_so(
    spark: SparkSession, source: LakeSource, store: PipelineStore, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n')
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    with reporter(source) as of:
        failed_attempts = Counter(main=3, dead_letters_orders=1)
        listener = ProgressListener(of, failed_attempts)
        spark.streams.addListener(listener)
        rows = spark.readStream.schema("a INT").json(str(tmp_path))
        query = rows.writeStream.format("noop").queryName("main").trigger(processingTime="100 milliseconds")
        running = query.option("checkpointLocation", str(tmp_path / "_checkpoint")).start()
        try:
            wait_until(
                lambda: (row(store).polled_ms or 0) > (row(store).last_batch.ended_ms or 2**60),
                "it looks for records, and finds none",
                120,
            )
        finally:
            running.stop()
            spark.streams.removeListener(listener)
            spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    # Batches of another query say nothing of one that fails.
    assert failed_attempts == Counter(dead_letters_orders=1)
