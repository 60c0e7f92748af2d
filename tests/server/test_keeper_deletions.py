"""A deletion whose process is killed in the middle: the topic is gone, and a keeper clears away what is left."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offsets import Commit, CommittedOffsets, Committer, OffsetStore, OffsetToCommit
from korvet.protocol.types import TopicPartition
from korvet.redis.keys import Keys
from korvet.server.keeper.context import LeaseLostError
from korvet.server.keeper.keeper import Keeper
from korvet.server.keeper.log_tasks import finish_deletions
from korvet.topics import deletion as topic_deletion
from korvet.topics.registry import Topic, TopicSpec
from korvet.topics.types import PartitionRef, TopicRef
from tests.support.domain import Domain

PARTITIONS = 5
GROUPS = ("a", "b")

PROGRAM = """
import os, signal, sys
from korvet.topics import deletion as topic_deletion
from tests.support.domain import Domain, domain

topic_deletion._FENCED_PER_STEP = topic_deletion._CLEARED_PER_STEP = 2
topic_deletion._GROUPS_PER_STEP = 1

with domain(sys.argv[1]) as here:
    redis, left = here.redis, [int(sys.argv[2])]

    def dying(ask):
        def asked(*args):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return ask(*args)
        return asked

    topic = here.topics.get("orders")
    redis.scripts = dying(redis.scripts)
    here.topics.delete(topic)
"""
"""Deletes the topic and is killed before the call number `at` of a script; ends where there are no more."""


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, broker_id=7)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_deletion, "_CLEARED_PER_STEP", 2)


def commit(here: Domain, topic: Topic) -> None:
    for group in GROUPS:
        offsets(here).commit(Committer(group), [Commit(each, 1, 0, "") for each in topic.partitions])


def offsets(here: Domain) -> OffsetStore:
    return OffsetStore(here.redis, Keys("korvet"), mirror=True)


def made(here: Domain) -> Topic:
    """Return a topic with records in every partition, of which groups have committed offsets."""
    topic = here.topics.create(TopicSpec(name="orders", partitions=PARTITIONS))
    for index in range(PARTITIONS):
        here.append("orders", b"v", partition=index)
    commit(here, topic)
    return topic


def delete_and_die(url: str, at: int) -> int:
    """Return the exit code of a process that deletes the topic and dies, or does not come to that."""
    program = [sys.executable, "-c", PROGRAM, url, str(at)]
    ended = subprocess.run(program, check=False, capture_output=True, text=True)
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode


def acting(settings: Settings) -> Keeper:
    keeper = Keeper(settings)
    assert keeper.lease.renew()
    return keeper


def finish(keeper: Keeper) -> None:
    finish_deletions(keeper.context, lambda: None)


def check_gone(here: Domain, topic: Topic, *, is_fenced: bool = True) -> None:
    """Check that the topic is gone, and if its logs are fenced, that they and its committed offsets are too."""
    here.topics.refresh()
    with pytest.raises(KafkaError) as refused:
        here.topics.get("orders")
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as refused:
        here.topics.resolve(TopicRef("", topic.id))
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_ID
    if not is_fenced:
        return
    assert offsets(here).fetch("a", [TopicPartition("orders", 0)]) == [None]
    committed = CommittedOffsets(offsets(here), here.topics, Settings())
    [prevented] = committed.commit(
        Committer("a"), [PartitionRef(TopicRef("orders"), 0, OffsetToCommit(1, 0, ""))]
    )
    assert prevented is not None
    assert prevented.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_deletion_that_is_killed_at_any_step_is_finished_by_the_keeper_of_another_broker(
    here: Domain, redis_url: str, settings: Settings, raw_redis: Any
) -> None:
    kills = 0
    while True:
        topic = made(here)
        code = delete_and_die(redis_url, kills)
        if code == -9 and kills == 0:
            here.topics.refresh()
            assert here.topics.get("orders") == topic  # killed before anything was done
            here.topics.delete(topic)
        else:
            check_gone(here, topic, is_fenced=kills > 1)
        finish(acting(settings))
        check_gone(here, topic)
        assert not raw_redis.keys("*orders*")
        assert not raw_redis.hexists("korvet:topics", "orders")
        assert not raw_redis.exists(*(f"korvet:group:{group}:offsets" for group in GROUPS))
        raw_redis.flushall()
        here.topics.reload()
        if code == 0:
            break
        kills += 1
    assert kills > 8


def test_a_topic_re_created_before_the_keeper_came_is_empty(
    here: Domain, redis_url: str, settings: Settings, raw_redis: Any
) -> None:
    keeper = acting(settings)
    former = made(here)
    for at in (1, 3, 5, 7):
        assert delete_and_die(redis_url, at) == -9
        check_gone(here, former, is_fenced=at > 1)
        again = here.topics.create(TopicSpec(name="orders", partitions=PARTITIONS))
        assert again.id != former.id
        [found] = here.fetch(here.wanted("orders", PARTITIONS - 1))
        assert found.high_watermark == 0
        assert offsets(here).fetch_all("a") == {}
        for index in range(PARTITIONS):
            here.append("orders", b"new", partition=index)
        commit(here, again)
        before = {key: raw_redis.dump(key) for key in raw_redis.scan_iter("*orders*")}
        finish(keeper)
        assert {key: raw_redis.dump(key) for key in raw_redis.scan_iter("*orders*")} == before
        former = again


def test_a_round_of_the_keeper_does_it(
    here: Domain, redis_url: str, settings: Settings, raw_redis: Any
) -> None:
    made(here)
    assert delete_and_die(redis_url, 3) == -9
    keeper = acting(settings)
    assert raw_redis.keys("*korvet:orders:*")
    keeper.round()
    assert not raw_redis.keys("*korvet:orders:*")


def test_what_cannot_be_cleared_away_is_named_and_tried_again(
    here: Domain, settings: Settings, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bills", "orders"):
        here.topics.delete(here.topics.create(TopicSpec(name=name, partitions=PARTITIONS)), until=0)
    raw_redis.set("korvet:groups", "no list of groups")
    keeper = acting(settings)
    finish(keeper)
    assert [record.message for record in caplog.records] == ["cannot remove a deleted topic"] * 2
    assert not raw_redis.keys("*korvet:orders:*")
    assert raw_redis.hlen("korvet:topics") == 2
    raw_redis.delete("korvet:groups")
    finish(keeper)
    assert raw_redis.hlen("korvet:topics") == 0


def test_a_keeper_that_lost_its_lease_stops_before_the_next_step(
    here: Domain, settings: Settings, raw_redis: Any
) -> None:
    here.topics.delete(made(here), until=0)
    before = len(raw_redis.keys())
    keeper, left = acting(settings), [2]

    def check_lease() -> None:
        if left[0] == 0:
            raise LeaseLostError("another keeper acts")
        left[0] -= 1

    with pytest.raises(LeaseLostError):
        finish_deletions(keeper.context, check_lease)
    assert 0 < len(raw_redis.keys("*korvet:orders:*")) < before
