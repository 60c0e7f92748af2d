"""Redis groups that show commits, moved a little later and gone with the offsets; and the topic ids of offsets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.errors import StorageUnavailableError
from korvet.groups import deferred
from korvet.groups.offsets import Commit, CommittedOffsets, Committer, OffsetStore, OffsetToCommit
from korvet.protocol.types import TopicPartition
from korvet.topics.registry import TopicSpec
from korvet.topics.types import PartitionRef, TopicRef
from tests.groups.stores import NAME, Stores
from tests.groups.support import KEYS
from tests.support.domain import Domain
from tests.support.log_bench import TOPIC_ID
from tests.support.redis_requests import around_requests, requests_of
from tests.support.refusals import value
from tests.support.virtual_clock import VirtualClock


def test_many_commits_move_a_redis_group_once_to_the_last_soon(worker: Stores, clock: VirtualClock) -> None:
    worker.commit(0)
    worker.store.flush()
    for offset in range(100):
        worker.commit(offset)
    requests = requests_of(worker.redis)
    clock.advance(deferred.DELAY_S)
    assert worker.redis_groups() == [(b"billing", b"0-99")]
    worker.store.flush()
    assert requests == [("commands", 1)]


def test_no_more_positions_wait_than_there_is_room_for(
    worker: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred, "GATHERED_MAX", 2)
    for n in range(5):
        at = Commit(worker.bench.partition, n, -1, "")
        assert worker.store.commit(Committer(f"group-{n}"), [at]) == [None]
    assert len(worker.redis_groups()) == 4


def test_a_position_that_comes_late_makes_no_redis_group_of_what_was_forgotten(
    worker: Stores, other: Stores
) -> None:
    worker.commit()
    other.forget_all()
    worker.store.flush()
    assert worker.redis_groups() == []


def test_a_position_that_comes_between_two_steps_of_a_deletion_leaves_no_redis_group(
    worker: Stores, other: Stores
) -> None:
    for at in range(50):
        worker.commit()
        left = itertools.count(at, -1)
        came: list[bool] = []

        def late(begin: Any, *args: Any, left: Any = left, came: list[bool] = came) -> Any:
            if next(left) == 0:
                worker.store.flush()
                came.append(True)
            return begin(*args)

        with around_requests(other.redis, late):
            other.store.delete_group(NAME)
            worker.store.flush()
        assert worker.redis_groups() == []
        if not came:
            break
    assert at > 4


def test_without_mirror_nothing_waits_and_nothing_is_destroyed(worker: Stores) -> None:
    worker.raw.xgroup_create(worker.stream, NAME, "0-1")
    hidden = OffsetStore(worker.redis, KEYS, mirror=False)
    assert hidden.commit(Committer(NAME), [Commit(worker.bench.partition, 1, -1, "")]) == [None]
    hidden.flush()
    hidden.delete_group(NAME)
    assert worker.redis_groups() == [(b"billing", b"0-1")]


def test_where_the_node_of_a_partition_is_away_the_id_of_the_registry_counts(
    worker: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster its reply is an error in its place."""
    worker.commit(5)
    pipeline = worker.redis.pipeline

    def state_is_away(commands: Sequence[Any], **options: Any) -> list[Any]:
        replies: list[Any] = pipeline(commands, **options)
        away = [command[0] == "HGET" and command[1].endswith(":state") for command in commands]
        return [
            StorageUnavailableError("away") if gone else reply
            for gone, reply in zip(away, replies, strict=True)
        ]

    monkeypatch.setattr(worker.redis, "pipeline", state_is_away)
    at = TopicPartition("orders", 0)
    for known, offset in ((TOPIC_ID, 5), ("another", None)):
        row = value(worker.store.fetch([(NAME, at)], {"orders": known}))
        result = value(worker.store.fetch_all([NAME], {"orders": known}))
        assert (row and row.offset) == offset
        assert (at in result) == (offset is not None)
    with pytest.raises(StorageUnavailableError):
        value(worker.store.fetch([(NAME, at)]))
    # What cannot be read does not show that the topic was deleted.
    assert [item.counts for item in worker.store.stored(NAME)] == [True]


def test_a_worker_that_does_not_know_of_a_re_creation_replaces_no_offset_of_the_new_topic(
    here: Domain, there: Domain
) -> None:
    """Nor does it keep an offset of the old one."""
    topic = here.topics.create(TopicSpec(name="orders", partitions=1))
    there.topics.refresh()
    workers = [
        CommittedOffsets(OffsetStore(item.redis, KEYS, mirror=False), item.topics, Settings())
        for item in (here, there)
    ]

    def commit(at: CommittedOffsets, offset: int) -> None:
        ref = PartitionRef(TopicRef("orders"), 0, OffsetToCommit(offset, -1, ""))
        assert at.commit(Committer(NAME), [ref]) == [None]

    commit(workers[1], 4)
    here.topics.delete([topic])
    here.topics.create(TopicSpec(name="orders", partitions=1))
    commit(workers[0], 5)
    commit(workers[1], 6)
    for worker in workers:
        row = value(worker.fetch([(NAME, TopicPartition("orders", 0))]))
        assert row is not None
        assert row.offset == 6
    # An offset of the old topic that nobody has deleted yet.
    stale = OffsetStore(here.redis, KEYS, mirror=False)
    old = Commit(here.log.partition("orders", 0, "old", 10, "batch"), 9, -1, "")
    assert stale.commit(Committer(NAME), [old], replaces=True) == [None]
    commit(workers[0], 7)
    row = value(workers[0].fetch([(NAME, TopicPartition("orders", 0))]))
    assert row is not None
    assert row.offset == 7
