"""Offsets that transactions commit, on a real server: what consumers see before and after, and Redis groups."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.groups.expiry import OffsetExpiry
from korvet.groups.offsets import (
    CommittedOffsets,
    Committer,
    OffsetStore,
    OffsetToCommit,
    ProducerTransaction,
)
from korvet.protocol.types import TopicPartition
from korvet.topics.registry import TopicSpec
from korvet.topics.types import PartitionRef, TopicRef
from tests.groups.support import KEYS, Group
from tests.support.domain import Domain
from tests.support.refusals import value

NAME = "billing{}"
BY = Committer(NAME)
PRODUCER, EPOCH = 2**62, 3


class Worker:
    """One worker's view of the offsets of a topic."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.store = OffsetStore(domain.redis, KEYS, mirror=True)
        self.committed = CommittedOffsets(self.store, domain.topics, Settings())

    def commit_transaction(
        self, number: int, *offsets: int, metadata: str = "", by: Committer = BY, producer: int = PRODUCER
    ) -> list[ErrorCode | None]:
        refs = self.refs(*offsets, metadata=metadata)
        outcomes = self.committed.commit(by, refs, 0, ProducerTransaction(producer, EPOCH, number))
        return [None if error is None else error.code for error in outcomes]

    def finish(self, number: int, *, commit: bool = True) -> None:
        self.committed.finish(NAME, ProducerTransaction(PRODUCER, EPOCH, number), commit=commit)
        self.store.flush()

    def refs(self, *offsets: int, metadata: str = "") -> list[PartitionRef[OffsetToCommit]]:
        return [
            PartitionRef(TopicRef("orders"), index, OffsetToCommit(offset, 4, metadata))
            for index, offset in enumerate(offsets)
        ]

    def offsets(self) -> dict[int, int]:
        return {at.partition: row.offset for at, row in value(self.store.fetch_all([NAME])).items()}

    def unstable(self) -> set[int]:
        return {at.partition for at in value(self.store.unstable([NAME]))}

    def expire(self, ms: int = 0) -> tuple[int, int]:
        group = Group(self.domain.redis, None, NAME)
        expired, errors = OffsetExpiry(self.store, group.store, ms, ms).expire([NAME])
        assert errors == []
        return expired.offsets, expired.groups


@pytest.fixture
def worker(here: Domain) -> Worker:
    here.topics.create(TopicSpec(name="orders", partitions=3))
    return Worker(here)


def redis_groups(raw: Any, partition: int = 0) -> list[tuple[bytes, bytes]]:
    stream = KEYS.stream("orders", partition)
    return [
        (xinfo_group["name"], xinfo_group["last-delivered-id"]) for xinfo_group in raw.xinfo_groups(stream)
    ]


def test_offsets_count_once_their_transaction_is_committed(worker: Worker, raw_redis: Any) -> None:
    assert worker.commit_transaction(7, 5, 6, metadata="a note") == [None, None]
    assert worker.offsets() == {}
    assert worker.unstable() == {0, 1}
    assert raw_redis.zscore(KEYS.groups, "billing%7B%7D") is not None
    worker.finish(7)
    assert worker.offsets() == {0: 5, 1: 6}
    assert worker.unstable() == set()
    row = value(worker.committed.fetch([(NAME, TopicPartition("orders", 0))]))
    assert row is not None
    assert (row.epoch, row.metadata) == (4, "a note")


def test_each_partition_has_its_own_error(worker: Worker) -> None:
    too_large = worker.refs(5, 6, 7, 8)
    too_large[1] = PartitionRef(TopicRef("orders"), 1, OffsetToCommit(6, -1, "x" * 5000))
    outcomes = worker.committed.commit(BY, too_large, 0, ProducerTransaction(PRODUCER, EPOCH, 7))
    assert [error and error.code for error in outcomes] == [
        None,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert worker.unstable() == {0, 2}


def test_a_redis_group_moves_when_the_transaction_is_committed(worker: Worker, raw_redis: Any) -> None:
    worker.domain.append("orders", b"v")
    worker.commit_transaction(7, 1)
    worker.store.flush()
    assert redis_groups(raw_redis) == []
    worker.finish(7)
    [(name, last_id)] = redis_groups(raw_redis)
    assert name == NAME.encode()
    assert last_id == b"0-0"


def test_a_topic_that_was_created_again_takes_no_offset_of_the_former_one(
    worker: Worker, there: Domain
) -> None:
    worker.commit_transaction(7, 5)
    there.topics.refresh()
    there.topics.delete([there.topics.get("orders")])
    there.topics.create(TopicSpec(name="orders", partitions=3))
    worker.finish(7)
    assert worker.offsets() == {}
