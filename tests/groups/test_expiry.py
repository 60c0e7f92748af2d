"""What is forgotten of committed offsets, and when: Kafka's rules, on a real Redis whose times the tests move."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.config.sources import load
from korvet.errors import ErrorCode
from korvet.groups.expiry import ExpiredOffsets, OffsetExpiry
from korvet.groups.offsets import ANY_ROW, Commit, Committer, GroupVersion, OffsetStore
from korvet.protocol.types import TopicPartition
from korvet.redis.client import Redis
from korvet.server.keeper.keeper import Keeper
from tests.groups.support import KEYS, Group
from tests.support.log_bench import Bench
from tests.support.redis_requests import requests_of

DAY_MS = 86_400_000
NOTHING = ExpiredOffsets(0, 0)


class Offsets:
    """A group's offsets of one topic, and the expiry of those older than a day."""

    def __init__(self, redis: Redis, raw: Any, name: str = "billing{}") -> None:
        self.redis, self.raw, self.name = redis, raw, name
        self.bench = Bench(redis, raw, "batch")
        self.bench.append(b"v")
        self.group = Group(redis, raw, name)
        self.store = OffsetStore(redis, KEYS, mirror=True)
        self.key = KEYS.group_offsets(name)

    def commit(
        self, *offsets: int, generation: int = -1, member: str = "", retention_ms: int | None = None
    ) -> None:
        commits = [
            Commit(partition, offset, -1, "", retention_ms)
            for partition, offset in zip(self.bench.partitions, offsets, strict=False)
        ]
        assert not any(self.store.commit(Committer(self.name, generation, member), commits))
        self.store.flush()

    def grow_older(self, partition: int, ms: int) -> None:
        """Move the time of a commit back."""
        field = KEYS.stream(self.bench.topic, partition)
        row = json.loads(self.raw.hget(self.key, field))
        self.raw.hset(self.key, field, json.dumps(row | {"ms": row["ms"] - ms}))

    def empty_for(self, ms: int) -> None:
        """Move the time back at which the group lost its last member."""
        self.raw.hincrby(self.group.state, "since", -ms)

    def expire(self) -> ExpiredOffsets:
        expired, errors = OffsetExpiry(self.store, self.group.store, DAY_MS, DAY_MS).expire([self.name])
        assert errors == []
        return expired

    def left(self) -> set[int]:
        return {item.at.partition for item in self.store.stored(self.name)}

    def is_listed(self) -> bool:
        return self.raw.zscore(KEYS.groups, "billing%7B%7D") is not None


@pytest.fixture
def offsets(redis: Redis, raw_redis: Any) -> Offsets:
    return Offsets(redis, raw_redis)


def test_without_members_each_offset_has_its_own_time(offsets: Offsets) -> None:
    offsets.commit(1, 0, 0)
    offsets.grow_older(0, DAY_MS)
    offsets.grow_older(1, DAY_MS - 60_000)
    offsets.empty_for(DAY_MS)
    stream = KEYS.stream(offsets.bench.topic, 0)
    assert len(offsets.raw.xinfo_groups(stream)) == 1
    assert offsets.expire() == ExpiredOffsets(1, 0)
    assert offsets.left() == {1, 2}
    assert offsets.raw.xinfo_groups(stream) == []
    assert offsets.expire() == NOTHING


def test_very_many_offsets_go_in_steps(offsets: Offsets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.groups.offsets.DELETED_PER_STEP", 1)
    offsets.commit(1, 0, 0)
    for partition in range(3):
        offsets.grow_older(partition, DAY_MS)
    offsets.empty_for(DAY_MS)
    requests = requests_of(offsets.redis)
    assert offsets.expire() == ExpiredOffsets(3, 1)
    assert requests.count(("group/forget", 1)) == 3
    assert not offsets.is_listed()


def test_what_is_left_stays_where_the_group_changes_between_two_steps(
    offsets: Offsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.groups.offsets.DELETED_PER_STEP", 1)
    offsets.commit(1, 0, 0)
    [version] = offsets.store.versions([offsets.name])
    assert isinstance(version, GroupVersion)
    rows = {TopicPartition(offsets.bench.topic, partition): ANY_ROW for partition in range(3)}
    scripts = offsets.bench.redis.scripts

    def joined_meanwhile(calls: Any) -> Any:
        replies = scripts(calls)
        offsets.raw.hset(offsets.group.state, "generation", "7")
        return replies

    monkeypatch.setattr(offsets.bench.redis, "scripts", joined_meanwhile)
    assert offsets.store.delete(offsets.name, version, rows, delete_empty_group=True) == (False, 1, False)
    assert offsets.left() == {1, 2}


def test_a_group_that_had_members_keeps_all_until_these_are_gone_for_so_long(offsets: Offsets) -> None:
    generation = offsets.group.stable("m1")
    offsets.commit(1, 0, generation=generation, member="m1")
    for partition in (0, 1):
        offsets.grow_older(partition, 10 * DAY_MS)
    offsets.empty_for(10 * DAY_MS)
    assert offsets.expire() == NOTHING
    offsets.group.leave(("m1", ""))
    assert offsets.expire() == NOTHING
    offsets.empty_for(DAY_MS - 60_000)
    assert offsets.expire() == NOTHING
    offsets.empty_for(60_000)
    assert offsets.expire() == ExpiredOffsets(2, 1)
    assert not offsets.is_listed()


@pytest.mark.parametrize("with_members", [False, True])
def test_an_offset_is_kept_for_as_long_as_its_client_has_said(
    offsets: Offsets, *, with_members: bool
) -> None:
    if with_members:
        generation = offsets.group.stable("m1")
        offsets.commit(1, generation=generation, member="m1", retention_ms=5 * DAY_MS)
        offsets.group.leave(("m1", ""))
        offsets.empty_for(5 * DAY_MS)
    else:
        offsets.commit(1, retention_ms=5 * DAY_MS)
    offsets.grow_older(0, 5 * DAY_MS - 60_000)
    assert offsets.expire() == NOTHING
    offsets.grow_older(0, 60_000)
    assert offsets.expire() == ExpiredOffsets(1, 1)


def subscribed(*topics: bytes) -> tuple[tuple[str, bytes], ...]:
    names = b"".join(struct.pack(">h", len(name)) + name for name in topics)
    return (("range", struct.pack(">hi", 0, len(topics)) + names),)


@pytest.mark.parametrize(
    ("protocols", "kind", "left"),
    [
        (subscribed(b"others"), "consumer", {1}),
        (subscribed(b"others", b"orders"), "consumer", {0, 1}),
        ((("range", b"\0\0\0\0\0\1\0\6other"),), "consumer", {0, 1}),
        (subscribed(b"others"), "connect", {0, 1}),
    ],
)
def test_a_stable_group_loses_what_no_member_is_subscribed_to(
    offsets: Offsets, protocols: Any, kind: str, left: set[int]
) -> None:
    generation = offsets.group.stable("m1", protocols=protocols, protocol_type=kind)
    offsets.commit(1, 0, generation=generation, member="m1")
    offsets.grow_older(0, DAY_MS)
    offsets.expire()
    assert offsets.left() == left
    # In a rebalance nobody knows what members will be subscribed to.
    offsets.grow_older(1, DAY_MS)
    offsets.group.waits(new="m2", protocols=protocols, protocol_type=kind)
    assert offsets.expire() == NOTHING


def test_what_was_committed_after_the_last_member_left_has_its_time(offsets: Offsets) -> None:
    generation = offsets.group.stable("m1")
    offsets.commit(1, 0, generation=generation, member="m1")
    offsets.group.leave(("m1", ""))
    offsets.empty_for(2 * DAY_MS)
    offsets.grow_older(1, 2 * DAY_MS)
    assert offsets.expire() == ExpiredOffsets(1, 0)
    assert offsets.left() == {0}


def test_an_empty_group_without_offsets_goes_but_for_who_is_about_to_join(offsets: Offsets) -> None:
    offsets.group.stable("m1")
    assert offsets.expire() == NOTHING
    offsets.group.leave(("m1", ""))
    offsets.raw.zadd(offsets.group.deadlines, {"pending": 1})
    assert offsets.expire() == NOTHING
    offsets.raw.zrem(offsets.group.deadlines, "pending")
    assert offsets.expire() == ExpiredOffsets(0, 1)
    assert not offsets.is_listed()


def test_rows_of_a_topic_that_is_gone_go_from_any_group(offsets: Offsets) -> None:
    generation = offsets.group.stable("m1")
    offsets.commit(1, 1, 1, generation=generation, member="m1")
    offsets.raw.delete(offsets.bench.partitions[1].state)
    offsets.raw.hset(offsets.bench.partitions[2].state, "topic", "another")
    assert offsets.expire() == ExpiredOffsets(2, 0)
    assert offsets.left() == {0}
    assert offsets.group.summary() == ("Stable", generation, {"m1"})


def test_a_row_that_nobody_can_read_stays_for_who_asks(offsets: Offsets) -> None:
    offsets.commit(1, 0)
    offsets.grow_older(1, DAY_MS)
    offsets.raw.hset(offsets.key, KEYS.stream(offsets.bench.topic, 0), "no row")
    assert offsets.expire() == ExpiredOffsets(1, 0)
    assert offsets.raw.hlen(offsets.key) == 1


def test_a_group_that_cannot_be_read_keeps_the_others_from_nothing(offsets: Offsets) -> None:
    offsets.commit(1)
    offsets.grow_older(0, DAY_MS)
    offsets.raw.set(KEYS.group_offsets("damaged"), "x")
    expired, errors = OffsetExpiry(offsets.store, offsets.group.store, DAY_MS, DAY_MS).expire(
        ["damaged", offsets.name]
    )
    assert expired == ExpiredOffsets(1, 1)
    assert [error.code for error in errors] == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_the_keeper_looks_at_every_group(offsets: Offsets, redis_url: str) -> None:
    offsets.commit(1)
    offsets.grow_older(0, DAY_MS)
    given = {"redis.url": redis_url, "offsets.retention.minutes": "1440"}
    settings: Settings = load(None, {}, given).settings
    keeper = Keeper(settings)
    assert keeper.lease.renew()
    keeper.round()
    keeper.context.close()
    assert not offsets.is_listed()
    assert offsets.left() == set()
