"""Features in a real Redis: the level that counts, changes of it, and rows of others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from korvet.cluster.data_format import DataFormat
from korvet.cluster.features import FEED_MEMBER, SUPPORTED, Features, FeatureUpdate, SupportedLevels
from korvet.cluster.rows import CHANGES_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.types import FeatureUpgradeType
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow

KEYS = Keys("korvet")
NAME = "transaction.version"
METADATA, KRAFT, FORMAT = "metadata.version", "kraft.version", "korvet.format"
OTHERS = {"eligible.leader.replicas.version": 1, KRAFT: 1, METADATA: 29, FORMAT: 2} | dict.fromkeys(
    ("group.version", "share.version", "streams.version"), 1
)
"""What was not set, at its highest level."""
UPGRADE, SAFE, UNSAFE = (
    FeatureUpgradeType.UPGRADE,
    FeatureUpgradeType.SAFE_DOWNGRADE,
    FeatureUpgradeType.UNSAFE_DOWNGRADE,
)


def features_of(redis: Redis) -> Features:
    features = Features(redis, KEYS)
    features.refresh()
    return features


def test_a_cluster_on_which_nothing_was_set_has_the_highest_level(redis: Redis, raw_redis: Any) -> None:
    features = features_of(redis)
    assert (features.finalized[NAME], features.finalized, features.epoch) == (
        2,
        {**OTHERS, NAME: 2},
        0,
    )
    assert list(raw_redis.scan_iter()) == []


def test_a_change_counts_here_at_once_and_elsewhere_after_a_refresh(redis: Redis, raw_redis: Any) -> None:
    here, there = features_of(redis), features_of(redis)
    here.update({NAME: FeatureUpdate(1, SAFE)})
    assert (here.finalized[NAME], here.epoch) == (1, 1)
    assert there.finalized[NAME] == 2
    there.refresh()
    assert (there.finalized, there.epoch) == ({**OTHERS, NAME: 1}, 1)
    there.update({NAME: FeatureUpdate(0, UNSAFE)})
    here.refresh()
    assert (here.finalized[NAME], here.epoch) == (0, 2)
    here.update({NAME: FeatureUpdate(2, UPGRADE)})
    assert (here.finalized[NAME], here.epoch) == (2, 3)
    assert raw_redis.zscore(KEYS.topic_changes, FEED_MEMBER) == 3


def test_the_epoch_never_falls_though_topics_push_features_out_of_the_feed(
    redis: Redis, raw_redis: Any
) -> None:
    features = features_of(redis)
    features.update({NAME: FeatureUpdate(1, SAFE)})
    raw_redis.zadd(KEYS.topic_changes, {str(item): item for item in range(2, CHANGES_MAX + 3)})
    TopicStore(redis, KEYS).create(TopicRow(name="orders", id="id", partitions=1))
    assert raw_redis.zscore(KEYS.topic_changes, FEED_MEMBER) is None
    before = features.epoch
    features.refresh()
    assert features.epoch >= before
    assert features.finalized[NAME] == 1


@pytest.mark.parametrize(
    ("name", "level", "kind", "said"),
    [
        ("zk.version", 1, UPGRADE, "does not support this feature"),
        ("zk.version", 0, SAFE, "The update failed for all features .* Feature zk.version not found"),
        (METADATA, 30, UPGRADE, "only supports versions 7-29"),
        (METADATA, 0, UNSAFE, "only supports versions 7-29"),
        (METADATA, 28, UPGRADE, "without setting the upgrade type"),
        (METADATA, 22, SAFE, "Can't downgrade the version of this feature below 23"),
        (METADATA, 22, UNSAFE, "Can't downgrade the version of this feature below 23"),
        (KRAFT, 0, UNSAFE, "Can't downgrade the version of this feature below 1"),
        (FORMAT, 3, UPGRADE, "only supports versions 2-2"),
        (FORMAT, 0, SAFE, "only supports versions 2-2"),
        (NAME, 3, UPGRADE, "only supports versions 0-2"),
        (NAME, -1, UPGRADE, "cannot be less than 0"),
        (NAME, 0, UPGRADE, "without setting the upgrade type"),
        (NAME, 2, SAFE, "Can't downgrade to a newer version"),
        (NAME, 2, UNSAFE, "Can't downgrade to a newer version"),
        (NAME, 2, FeatureUpgradeType.UNKNOWN, "does not support the given upgrade type"),
        (NAME, 2, 4, "does not support the given upgrade type"),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_change_that_is_not_allowed_changes_nothing(
    redis: Redis, name: str, level: int, kind: int, said: str, *, validate_only: bool
) -> None:
    features = features_of(redis)
    features.update({NAME: FeatureUpdate(1, SAFE)})
    allowed = {NAME: FeatureUpdate(2, UPGRADE)} if name != NAME else {}
    with pytest.raises(KafkaError, match=said) as failed:
        features.update({**allowed, name: FeatureUpdate(level, kind)}, validate_only=validate_only)
    assert failed.value.code == ErrorCode.INVALID_UPDATE_VERSION
    features.refresh()
    assert (features.finalized[NAME], features.epoch) == (1, 1)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a version with format 3."""
    monkeypatch.setitem(SUPPORTED, FORMAT, SupportedLevels(2, 3, downgrade_lowest=3))
    monkeypatch.setattr("korvet.cluster.features.OWN", DataFormat("0.9.0", 3, 3, 3))


@pytest.mark.usefixtures("later")
def test_the_format_is_finalized_once_every_live_broker_has_it_and_never_lowered(
    redis: Redis, raw_redis: Any
) -> None:
    raw_redis.hset(KEYS.data_format, mapping={"version": "0.2.0", "format": 2, "reader": 2, "writer": 2})
    row = {"host": "a", "port": 1, "until": 2**52, "started": 1, "version": "0.2.0", "format": 2}
    raw_redis.hset(KEYS.brokers, "7", json.dumps(row))
    here, there = features_of(redis), features_of(redis)
    assert here.finalized[FORMAT] == 2
    raised, lowered = {FORMAT: FeatureUpdate(3, UPGRADE)}, {FORMAT: FeatureUpdate(2, UNSAFE)}
    for validate_only in (True, False):
        with pytest.raises(KafkaError, match=r"Broker 7 \(Korvet 0\.2\.0\) only supports versions up to 2"):
            here.update({**raised, NAME: FeatureUpdate(1, SAFE)}, validate_only=validate_only)
    assert (here.finalized[FORMAT], here.finalized[NAME]) == (2, 2)
    raw_redis.hset(KEYS.brokers, "7", json.dumps(row | {"version": "0.9.0", "format": 3}))
    here.update(raised, validate_only=True)
    assert features_of(redis).finalized[FORMAT] == 2
    here.update(raised)
    there.refresh()
    assert (here.finalized[FORMAT], there.finalized[FORMAT]) == (3, 3)
    assert raw_redis.hgetall(KEYS.data_format) == {
        b"version": b"0.9.0",
        **dict.fromkeys((b"format", b"reader", b"writer"), b"3"),
    }
    with pytest.raises(KafkaError, match="Can't downgrade the version of this feature below 3"):
        here.update(lowered)


def test_the_level_that_there_is_may_be_set_by_any_kind(redis: Redis) -> None:
    features = features_of(redis)
    for kind in (UPGRADE, SAFE, UNSAFE):
        same = {METADATA: FeatureUpdate(29, kind), KRAFT: FeatureUpdate(1, kind)}
        features.update({NAME: FeatureUpdate(2, kind), **same})
        assert (features.finalized, features.epoch) == ({**OTHERS, NAME: 2}, 1)


def test_what_is_only_validated_is_not_set(redis: Redis, raw_redis: Any) -> None:
    features = features_of(redis)
    features.update({NAME: FeatureUpdate(1, SAFE)}, validate_only=True)
    features.refresh()
    assert features.finalized[NAME] == 2
    assert list(raw_redis.scan_iter()) == []


def test_a_change_is_checked_against_what_another_worker_has_set(redis: Redis) -> None:
    here, there = features_of(redis), features_of(redis)
    there.update({NAME: FeatureUpdate(0, SAFE)})
    with pytest.raises(KafkaError, match="to a newer version"):
        here.update({NAME: FeatureUpdate(1, SAFE)})


def test_levels_of_a_later_version_stay_and_count_as_the_highest_here(redis: Redis, raw_redis: Any) -> None:
    later = {NAME: 3, "later.version": 1, METADATA: 40}
    raw_redis.hset(KEYS.features, "finalized", json.dumps(later))
    raw_redis.zadd(KEYS.topic_changes, {FEED_MEMBER: 5})
    features = features_of(redis)
    assert (features.finalized, features.epoch) == ({**OTHERS, NAME: 2}, 5)
    features.update({NAME: FeatureUpdate(1, SAFE)})
    assert json.loads(raw_redis.hget(KEYS.features, "finalized")) == {**later, NAME: 1}


def test_a_row_that_cannot_be_read_counts_as_none_and_can_be_replaced(redis: Redis, raw_redis: Any) -> None:
    raw_redis.hset(KEYS.features, "finalized", '{"transaction.version": "x"}')
    raw_redis.zadd(KEYS.topic_changes, {FEED_MEMBER: 1})
    features = features_of(redis)
    assert features.finalized[NAME] == 2
    features.update({NAME: FeatureUpdate(1, SAFE)})
    assert features.finalized[NAME] == 1
