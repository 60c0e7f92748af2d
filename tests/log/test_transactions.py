"""Transactions in the log of a partition: records and markers."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode, StorageUnavailableError
from korvet.log.appends import Marker
from korvet.log.markers import MarkerWriter
from korvet.log.replication import Replicas
from korvet.log.types import Appended
from korvet.redis.keys import Keys
from korvet.topics.types import Partition
from tests.support.domain import domain
from tests.support.log_bench import Bench, code_of
from tests.support.partition_state import producers_of
from tests.support.proxy import Proxy

NUMBER = 1_700_000_000_000


def appended(outcome: object) -> Appended:
    assert isinstance(outcome, Appended), outcome
    return outcome


def opening(bench: Bench, producer: int, partition: Partition | None = None) -> Any:
    return bench.made(
        b"%d" % producer,
        producer=producer,
        epoch=0,
        sequence=0,
        number=NUMBER,
        partition=partition,
    )


def writer(bench: Bench) -> MarkerWriter:
    keys = Keys("korvet")
    replicas = Replicas(lambda: bench.redis, bench.redis, keys, replicas=0, timeout_ms=5000)
    return MarkerWriter(bench.logs, replicas)


def marker(
    bench: Bench,
    producer: int = 7,
    *,
    epoch: int = 0,
    number: int = NUMBER,
    index: int = 0,
    commit: bool = False,
) -> Marker:
    return Marker(bench.at(index), producer, epoch, number, commit)


def opened(bench: Bench, index: int = 0) -> dict[str, int]:
    """Return the first offset of each open transaction, as the row of its producer has it."""
    rows = producers_of(bench.raw, bench.at(index).state)
    names = bench.raw.zrange(bench.at(index).open_transactions, 0, -1)
    return {name.decode(): rows[int(name)].first_offset for name in names}


def aborted(bench: Bench, index: int = 0) -> list[str]:
    """Return producer and first offset of each aborted transaction."""
    rows = bench.raw.zrange(bench.at(index).aborted, 0, -1)
    return [row.decode().rpartition(":")[0] for row in rows]


def test_a_missing_script_is_sent_again_with_its_keys(bench: Bench) -> None:
    bench.append(b"first")
    bench.raw.script_flush()
    base = appended(bench.logs.append([opening(bench, 7)])[0]).base_offset
    assert opened(bench) == {"7": base}
    bench.raw.script_flush()
    assert writer(bench).write([marker(bench)]) == [None]
    assert opened(bench) == {}


def test_markers_are_written_to_all_partitions_once(bench: Bench) -> None:
    for producer, index in ((7, 0), (7, 1), (8, 1)):
        appended(bench.logs.append([opening(bench, producer, bench.at(index))])[0])
    markers = [marker(bench, index=0), marker(bench, index=1, commit=True), marker(bench, 8, index=1)]
    for _ in range(2):
        assert writer(bench).write(markers) == [None] * 3
        assert [opened(bench, index) for index in (0, 1)] == [{}, {}]
        assert [bench.raw.xlen(bench.at(index).stream) for index in (0, 1)] == [2, 4]
    assert bench.raw.exists(bench.at(0).aborted) == 1
    [of_other] = aborted(bench, 1)
    assert of_other.startswith("8:")


def test_what_needs_no_marker_any_more_is_reported(bench: Bench) -> None:
    appended(bench.logs.append([opening(bench, 7)])[0])
    assert writer(bench).write([marker(bench, epoch=2)]) == [None]
    gone = Marker(bench.at(0, topic_id="another"), 7, 0, NUMBER, commit=True)
    fenced, deleted = writer(bench).write([marker(bench, epoch=1, number=NUMBER + 1), gone])
    assert code_of(fenced) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(deleted) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert writer(bench).write([]) == []


def test_a_marker_whose_reply_is_lost_is_written_again_and_counts_once(bench: Bench, network: Proxy) -> None:
    appended(bench.logs.append([opening(bench, 7)])[0])
    with domain(network.url) as far:
        appended(far.log.append([bench.made(b"x", partition=bench.at(1))])[0])
        network.cut_after_to_client = network.bytes_to_client
        assert MarkerWriter(far.log, far.replicas).write([marker(bench)]) == [None]
    assert network.connections == 2
    assert opened(bench) == {}
    assert bench.raw.xlen(bench.partition.stream) == 2


def test_markers_that_cannot_be_written_are_reported(bench: Bench) -> None:
    appended(bench.logs.append([opening(bench, 7)])[0])
    bench.raw.config_set("min-replicas-to-write", 1)
    try:
        [failed] = writer(bench).write([marker(bench)])
    finally:
        bench.raw.config_set("min-replicas-to-write", 0)
    assert isinstance(failed, StorageUnavailableError)
    assert opened(bench).keys() == {"7"}
