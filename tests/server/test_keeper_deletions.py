"""A deletion whose process has ended in the middle: a keeper clears away what is left."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.groups.offsets import Commit, Committer, OffsetStore
from korvet.redis.keys import Keys
from korvet.server.keeper.context import LeaseLostError
from korvet.server.keeper.keeper import Keeper
from korvet.server.keeper.log_tasks import finish_deletions
from korvet.topics import deletion as topic_deletion
from korvet.topics.registry import Topic, TopicSpec
from tests.support.domain import Domain

PARTITIONS = 5


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_deletion, "_CLEARED_PER_STEP", 2)


def made(here: Domain) -> Topic:
    """Return a topic with records in every partition, of which groups have committed offsets."""
    topic = here.topics.create(TopicSpec(name="orders", partitions=PARTITIONS))
    for index in range(PARTITIONS):
        here.append("orders", b"v", partition=index)
    store = OffsetStore(here.redis, Keys("korvet"), mirror=True)
    for group in ("a", "b"):
        store.commit(Committer(group), [Commit(each, 1, 0, "") for each in topic.partitions])
    return topic


def acting(settings: Settings) -> Keeper:
    keeper = Keeper(settings)
    assert keeper.lease.renew()
    return keeper


def finish(keeper: Keeper) -> None:
    finish_deletions(keeper.context, lambda: None)


def test_a_round_of_the_keeper_does_it(here: Domain, settings: Settings, raw_redis: Any) -> None:
    here.topics.delete(made(here), until=0)
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
