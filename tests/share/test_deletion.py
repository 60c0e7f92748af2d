"""korvet/share/offsets.py: a share group's parts of all partitions go, and those of others stay."""

from __future__ import annotations

from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.log.index import IndexStore
from korvet.share.offsets import ShareGroupOffsets
from korvet.share.store import SharePartitions
from korvet.share.types import Begin
from korvet.topics.registry import TopicSpec
from tests.groups.support import KEYS, Group
from tests.share.support import POLICY
from tests.support.domain import domain


def test_the_parts_of_a_group_are_deleted_in_every_topic(redis_url: str) -> None:
    with domain(redis_url) as made, domain(redis_url) as other:
        store = SharePartitions(made.redis)
        configs = GroupConfigs(made.redis, KEYS, Settings())
        shares = Group(made.redis, None, "mine").store.shares
        offsets = ShareGroupOffsets(store, shares, IndexStore(made.redis), other.topics, configs)
        offsets.delete_all("there are no topics")
        for topic, storage_format in (("queue", "record"), ("log", "batch")):
            made.topics.create(
                TopicSpec(name=topic, partitions=2, configs={"storage.format": storage_format})
            )
        partitions = [
            partition for topic in ("queue", "log") for partition in made.topics.get(topic).partitions
        ]
        asks = [
            Begin(partition, group, 0, partition.format == "record", POLICY)
            for group in ("mine", "another")
            for partition in partitions[:3]
        ]
        assert None not in store.begin(asks)
        offsets.delete_all("mine")
        assert store.offsets("mine", partitions) == [None] * 4
        kept = store.offsets("another", partitions)
        assert [kept_file is None for kept_file in kept] == [False, False, False, True]
