"""A deletion whose process has ended in the middle: the topic is gone, and a keeper clears away what is left."""

from __future__ import annotations

from itertools import islice
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
from korvet.topics.registry import Topic, TopicSpec, id_text
from korvet.topics.types import PartitionRef, TopicRef
from tests.support.domain import Domain

PARTITIONS = 5
GROUPS = ("a", "b")


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


def delete_some(here: Domain, topic: Topic, steps: int) -> None:
    """Delete a topic as a process does that ends after some steps."""
    list(islice(here.topics._store.deletion.delete(topic.name, id_text(topic.id)), steps))
    here.topics.refresh()


def acting(settings: Settings) -> Keeper:
    keeper = Keeper(settings)
    assert keeper.lease.renew()
    return keeper


def finish(keeper: Keeper) -> None:
    finish_deletions(keeper.context, lambda: None)


def check_gone(here: Domain, topic: Topic) -> None:
    """Check that the topic is gone, with its logs and its committed offsets."""
    with pytest.raises(KafkaError) as refused:
        here.topics.get("orders")
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as refused:
        here.topics.resolve(TopicRef("", topic.id))
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_ID
    assert offsets(here).fetch("a", [TopicPartition("orders", 0)]) == [None]
    committed = CommittedOffsets(offsets(here), here.topics, Settings())
    [prevented] = committed.commit(
        Committer("a"), [PartitionRef(TopicRef("orders"), 0, OffsetToCommit(1, 0, ""))]
    )
    assert prevented is not None
    assert prevented.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_re_created_before_the_keeper_came_is_empty(
    here: Domain, settings: Settings, raw_redis: Any
) -> None:
    keeper = acting(settings)
    former = made(here)
    for steps in range(1, 5):
        delete_some(here, former, steps)
        check_gone(here, former)
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


def test_a_round_of_the_keeper_does_it(here: Domain, settings: Settings, raw_redis: Any) -> None:
    delete_some(here, made(here), 1)
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
