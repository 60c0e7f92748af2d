"""What consumers see of records that replicas of Redis do not have: by bytes, by two brokers on one master."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from korvet.protocol.types import SpecialTimestamp
from tests.support import redis_servers
from tests.support.batches import batch, values
from tests.support.broker import korvet_broker, korvet_cluster
from tests.support.processes import wait_until
from tests.support.redis_servers import Master
from tests.support.topic_client import Client, produce_request

NONE, LEADER, ALL = 0, 1, -1
FLAGS = ("--set", "redis.timeout.ms=3000")
BOTH = pytest.mark.parametrize("storage_format", ["record", "batch"])


@pytest.fixture
def master() -> Iterator[Master]:
    with redis_servers.master() as made:
        yield made


def shown(client: Client, offset: int = 0, wait_ms: int = 0) -> tuple[list[bytes | None], int]:
    """Return what a consumer at an offset sees, and the high watermark."""
    found = client.fetch("orders", offset, max_wait_ms=wait_ms)
    assert found.error_code == ErrorCode.NONE
    assert found.last_stable_offset == found.high_watermark >= found.log_start_offset
    return values(found.records), found.high_watermark


def shows(client: Client, wanted: list[bytes], offset: int = 0) -> bool:
    """Return whether a consumer at an offset sees these values, and no others."""
    return shown(client, offset, 500)[0] == wanted


def latest(client: Client, version: int = 7) -> tuple[int, int]:
    """Return the error and the offset for the latest one."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=SpecialTimestamp.LATEST)
    topics = [ListOffsetsTopic(name="orders", partitions=[asked])]
    [answer] = client.call(ListOffsetsRequest(replica_id=-1, topics=topics), version).topics
    [found] = answer.partitions
    return found.error_code, found.offset


def produced(client: Client, value: bytes, acks: int) -> int:
    code: int = client.produce("orders", batch(value), acks=acks).error_code
    return code


@BOTH
def test_consumers_of_every_broker_see_what_the_replica_has(
    tmp_path: Path, master: Master, storage_format: str
) -> None:
    with (
        korvet_cluster(tmp_path, master.url, "--set", "replicas=1", *FLAGS) as brokers,
        Client(brokers[0].address) as one,
        Client(brokers[1].address) as other,
    ):
        with master.replica():
            wait_until(lambda: created(one, storage_format), "the topic is confirmed")
            assert produced(one, b"held", ALL) == ErrorCode.NONE
            for each in (one, other):
                wait_until(partial(shows, each, [b"held"]), "it is shown")
            [[_, end], [_, same]] = shown(one), shown(other)
            assert end == same == latest(one)[1] == latest(other)[1]
            first = one.offset_at("orders", 0)
        one.send(produce_request("orders", batch(b"none"), acks=NONE), 8)
        assert produced(one, b"leader", LEADER) == ErrorCode.NONE
        # How many are in sync may be of a second ago.
        code = produced(one, b"all", ALL)
        assert code in (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_ENOUGH_REPLICAS)
        written = [
            b"none",
            b"leader",
            *([b"all"] if code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND else []),
        ]
        if storage_format == "record":
            master.client.xadd("korvet:orders:0", {"value": b"external"})
            written.append(b"external")
        assert master.client.xlen("korvet:orders:0") == 1 + len(written)
        for each in (one, other):
            assert shown(each) == ([b"held"], end)
            assert shown(each, end) == ([], end)
            assert latest(each) == (ErrorCode.NONE, end)
            assert each.offset_at("orders", 0) == first
            assert each.offset_at("orders", SpecialTimestamp.MAX_TIMESTAMP)[0] in (first[0], -1)
            # Where the log ends is no error to ask for; past it, it is.
            assert each.fetch("orders", end + 1).error_code == ErrorCode.NONE
            assert each.fetch("orders", 1 << 60).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        with master.replica():
            for each in (one, other):
                wait_until(partial(shows, each, written, end), "the rest is shown")
                assert shown(each)[1] == latest(each)[1] > end


def created(client: Client, storage_format: str) -> bool:
    """Create the topic, which a replica has to confirm."""
    try:
        client.create("orders", storage_format=storage_format)
    except AssertionError:
        return bool(client.described("orders").error_code == ErrorCode.NONE)
    return True


def test_a_worker_that_never_saw_a_replica_says_that_it_does_not_know(tmp_path: Path, master: Master) -> None:
    """A topic may want more than the broker does, and `latest` must not be the start of the log."""
    with (
        korvet_broker(tmp_path, "--redis-url", master.url, *FLAGS, workers=1) as broker,
        Client(broker.address) as client,
    ):
        client.create("orders", min_insync_replicas="2", storage_format="batch")
        assert latest(client) == (ErrorCode.NONE, 0)
        assert produced(client, b"leader", LEADER) == ErrorCode.NONE
        assert shown(client) == ([], 0)
        assert shown(client, 1) == ([], 0)
        assert latest(client) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert latest(client, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        asked = DeleteRecordsTopic(
            name="orders", partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)]
        )
        [answer] = client.call(DeleteRecordsRequest(topics=[asked], timeout_ms=1000), 1).topics
        assert answer.partitions[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        with master.replica():
            wait_until(lambda: shown(client, 0, 500) == ([b"leader"], 1), "it is shown")
            assert latest(client) == (ErrorCode.NONE, 1)


def test_a_fetch_that_waits_for_replicas_does_not_spin(tmp_path: Path, master: Master) -> None:
    # The keeper, which counts logs, reads them too.
    flags = (*FLAGS, "--set", "log.figures.interval.ms=600000")
    with (
        korvet_broker(tmp_path, "--redis-url", master.url, *flags, workers=1) as broker,
        Client(broker.address) as client,
    ):
        client.create("orders", min_insync_replicas="2")
        assert produced(client, b"leader", LEADER) == ErrorCode.NONE
        before = master.client.info("commandstats")["cmdstat_xrange"]["calls"]
        assert shown(client, wait_ms=1500)[0] == []
        # On arrival, when it listens, once a second (nobody announces what replicas have), and at its deadline.
        assert master.client.info("commandstats")["cmdstat_xrange"]["calls"] - before <= 4
        assert "cmdstat_wait" not in master.client.info("commandstats")
