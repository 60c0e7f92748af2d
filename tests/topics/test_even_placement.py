"""Topics with redis.placement=even: their partitions on the masters of a cluster, by slot tags in the topic's row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.groups.offsets import CommittedOffsets, Committer, OffsetStore, OffsetToCommit
from korvet.protocol.types import TopicPartition
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import listed
from korvet.topics import deletion as topic_deletion
from korvet.topics import store as topic_store
from korvet.topics.registry import Topic, TopicSpec, id_text
from korvet.topics.store import TopicStore
from korvet.topics.types import PartitionRef, TopicRef, TopicRow
from tests.support.domain import Domain, domain
from tests.support.redis_cluster import RedisCluster
from tests.support.refusals import value
from tests.topics.test_interrupted import end_claim, finish, interruptions

pytestmark = pytest.mark.slow

KEYS = Keys("korvet")
EVEN = {"redis.placement": "even"}
ORDERS = TopicRow(name="orders", id="id-1", partitions=5, configs=EVEN)


@pytest.fixture
def worker(redis_cluster: RedisCluster) -> Iterator[Domain]:
    with domain(redis_cluster.url) as made:
        yield made


@pytest.fixture
def store(redis_cluster: RedisCluster) -> Iterator[TopicStore]:
    redis = Redis(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=5000)
    yield TopicStore(redis, KEYS)
    redis.close()


def keys_of(cluster: RedisCluster) -> dict[str, set[str]]:
    """Return the keys of each master, but those of registry and groups."""
    return {
        node.address: {key.decode() for key in node.client.scan_iter() if b"orders" in key}
        for node in cluster.masters()
    }


def spread(cluster: RedisCluster, partitions: int) -> list[int]:
    """Return how many partitions each master has, by the states that are there, in order."""
    counts = [sum(key.endswith(":state") for key in keys) for keys in keys_of(cluster).values()]
    assert sum(counts) == partitions
    return sorted(counts)


def is_even(counts: list[int]) -> bool:
    return counts[-1] - counts[0] <= 1


def row_of(cluster: RedisCluster) -> Any:
    return cluster.node_of(KEYS.topics).call("HGET", KEYS.topics, "orders")


def add(worker: Domain, count: int) -> Topic:
    topic = worker.topics.get("orders")
    return worker.topics.add_partitions(topic, lambda row: replace(row, partitions=count))


@pytest.mark.parametrize("partitions", [1, 6, 7])
def test_the_partitions_spread_evenly_also_those_that_are_added(
    worker: Domain, redis_cluster: RedisCluster, partitions: int
) -> None:
    created = worker.topics.create(TopicSpec(name="orders", partitions=partitions, configs=EVEN))
    assert is_even(spread(redis_cluster, partitions))
    for index, partition in enumerate(created.partitions):
        assert partition.stream == partition.channel == f"korvet:orders:{index}:{{{partition.tag}}}"
        assert partition.state == f"{partition.stream}:state"
    grown = created
    for count in (partitions + 1, partitions + 8):
        grown = add(worker, count)
        assert grown.partitions[:partitions] == list(created.partitions)
        assert is_even(spread(redis_cluster, count))
    with domain(redis_cluster.url) as other:
        assert other.topics.get("orders").partitions == grown.partitions


def test_other_topics_keep_the_documented_names(worker: Domain, redis_cluster: RedisCluster) -> None:
    for name, configs in (("orders", {}), ("orders-named", {"redis.placement": "name"})):
        topic = worker.topics.create(TopicSpec(name=name, partitions=3, configs=configs))
        assert [partition.stream for partition in topic.partitions] == [
            f"korvet:{name}:{n}" for n in range(3)
        ]
        assert topic.overrides["redis.placement"] == "name"
    assert b"tags" not in row_of(redis_cluster)
    assert add(worker, 4).partitions[3].stream == "korvet:orders:3"


def test_the_setting_of_the_broker_counts_at_the_creation_alone(redis_cluster: RedisCluster) -> None:
    with domain(redis_cluster.url, Settings(redis_placement="even")) as made:
        topic = made.topics.create(TopicSpec(name="orders", partitions=3))
        named = made.topics.create(TopicSpec(name="named", configs={"redis.placement": "name"}))
        assert all(partition.tag for partition in topic.partitions)
        assert named.partitions[0].stream == "korvet:named:0"
    with domain(redis_cluster.url) as later:
        assert later.topics.get("orders").overrides["redis.placement"] == "even"
        assert is_even(spread(redis_cluster, 3))
        assert all(partition.tag for partition in add(later, 6).partitions)


@pytest.mark.embedded  # about one Redis
def test_without_a_cluster_the_names_are_the_documented_ones(here: Domain) -> None:
    topic = here.topics.create(TopicSpec(name="orders", partitions=2, configs=EVEN))
    assert topic.overrides["redis.placement"] == "even"
    grown = here.topics.add_partitions(topic, lambda row: replace(row, partitions=3))
    assert [partition.stream for partition in grown.partitions] == [f"korvet:orders:{n}" for n in range(3)]


def test_a_topic_of_a_cluster_grows_and_goes_on_one_redis(here: Domain, raw_redis: Any) -> None:
    """As after a restore: its partitions keep their names."""
    row = replace(ORDERS, id=id_text(bytes(15) + b"1"), partitions=2, tags="0aB1cD")
    text = here.topics._store._rows.create(row, 0)
    assert text is not None
    here.topics._store._finish_creation("orders", text)
    [first, second, third] = here.topics.add_partitions(
        here.topics.get("orders"), lambda result: replace(result, partitions=3)
    ).partitions
    assert (first.tag, second.tag) == ("0aB", "1cD")
    assert len(third.tag) == 3
    assert here.append("orders", b"x", partition=2) >= 0
    here.topics.delete([here.topics.get("orders")])
    assert not raw_redis.keys("*orders*")


def test_records_and_offsets_of_such_a_topic_are_kept_and_go_with_it(
    worker: Domain, redis_cluster: RedisCluster
) -> None:
    topic = worker.topics.create(TopicSpec(name="orders", partitions=6, configs=EVEN))
    offsets = OffsetStore(worker.redis, KEYS, mirror=True)
    committed = CommittedOffsets(offsets, worker.topics, Settings())
    places = [TopicPartition("orders", index) for index in range(6)]
    ends = []
    for index in range(6):
        ends.append(worker.append("orders", b"a", partition=index) + 1)
        [fetched] = worker.fetch(worker.wanted("orders", index))
        assert fetched.high_watermark == ends[index]
    refs = [
        PartitionRef(TopicRef("orders"), index, OffsetToCommit(end, -1, "")) for index, end in enumerate(ends)
    ]
    assert committed.commit(Committer("billing"), refs) == [None] * 6
    offsets.flush()

    def groups() -> list[int]:
        return [
            len(listed(partition.stream, worker.redis.call("XINFO", "GROUPS", partition.stream)))
            for partition in topic.partitions
        ]

    assert groups() == [1] * 6
    # A worker that does not know of the topic finds them by what is committed alone.
    asked = [("billing", place) for place in places]
    result = OffsetStore(worker.redis, KEYS, mirror=True).fetch(asked)
    assert result == list(value(offsets.fetch_all(["billing"])).values())
    assert [row and value([row]).offset for row in result] == ends
    assert all(item.counts for item in offsets.stored("billing"))
    # Offsets that are deleted, with a row that is known and with any, and then all of the group.
    [version] = offsets.versions(["billing"])
    rows = {item.at: item.row for item in offsets.stored("billing")[:1]} | {places[5]: b""}
    assert not isinstance(version, KafkaError)
    assert offsets.delete("billing", version, rows, delete_empty_group=False).offsets == len(rows)
    assert sum(groups()) == 6 - len(rows)
    offsets.delete_group("billing")
    assert sum(groups()) == 0
    # Offsets of a deleted topic do not count for a new one of the name.
    assert committed.commit(Committer("billing"), refs) == [None] * 6
    worker.topics.delete([topic])
    assert not any(keys_of(redis_cluster).values())
    worker.topics.create(TopicSpec(name="orders", partitions=6, configs=EVEN))
    assert committed.fetch(asked) == [None] * 6


def test_what_is_committed_for_a_former_topic_does_not_count(worker: Domain) -> None:
    """Neither if the new one has slot tags and the former none, nor the other way round."""
    offsets = OffsetStore(worker.redis, KEYS, mirror=False)
    committed = CommittedOffsets(offsets, worker.topics, Settings())
    at = TopicPartition("orders", 0)
    ref = PartitionRef(TopicRef("orders"), 0, OffsetToCommit(0, -1, ""))
    for configs in ({}, EVEN, EVEN, {}):
        topic = worker.topics.create(TopicSpec(name="orders", partitions=1, configs=configs))
        assert committed.fetch([("billing", at)]) == [None]
        assert offsets.fetch_all(["billing"]) == [{}]
        assert not any(item.counts for item in offsets.stored("billing"))
        assert committed.commit(Committer("billing"), [ref]) == [None]
        [row] = committed.fetch([("billing", at)])
        assert row is not None
        before = offsets.stored("billing")
        worker.topics.delete([topic])
        # As if the deletion had come to its end before this was committed.
        worker.redis.call("HSET", KEYS.group_offsets("billing"), KEYS.stream("orders", 0), before[0].row)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every step take two partitions."""
    monkeypatch.setattr(topic_store, "_CREATED_PER_STEP", 2)
    for item in ("_FENCED_PER_STEP", "_CLEARED_PER_STEP"):
        monkeypatch.setattr(topic_deletion, item, 2)


def finished(store: TopicStore, cluster: RedisCluster) -> TopicRow | None:
    """Do what the keeper does in the end, and return the topic."""
    finish(store, cluster.node_of(KEYS.topics))
    return store.load().rows.get("orders")


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("sent", [False, True])
def test_a_creation_that_is_interrupted_is_completed_with_the_tags_of_its_claim(
    store: TopicStore, redis_cluster: RedisCluster, *, sent: bool
) -> None:
    for _ in interruptions(redis_cluster.url, lambda doomed: doomed.create(ORDERS), sent=sent):
        claimed = store.load().rows.get("orders")
        if claimed is not None:
            live = finished(store, redis_cluster)
            assert live == replace(ORDERS, tags=claimed.tags)
            assert len({live.tag(index) for index in range(5)} - {""}) > 1
            assert is_even(spread(redis_cluster, 5))
            list(store.deletion.delete({"orders": "id-1"})[1])
        assert not any(keys_of(redis_cluster).values())
        redis_cluster.empty()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("count", [9, 6, 11, 0])
def test_a_growth_that_is_interrupted_goes_on_with_its_tags_or_leaves_nothing(
    store: TopicStore, redis_cluster: RedisCluster, count: int, *, sent: bool
) -> None:
    def grow(of: TopicStore, to: int) -> TopicRow:
        return of.add_partitions("orders", "id-1", lambda row: replace(row, partitions=to))

    store.create(ORDERS)
    for _ in interruptions(redis_cluster.url, lambda doomed: grow(doomed, 9), sent=sent):
        end_claim(redis_cluster.node_of(KEYS.topics))
        before = store.load().rows["orders"]
        if count:
            grown = grow(store, count)
            assert grown.tags.startswith(before.tags)
            assert grown.partitions == max(count, before.partitions)
            existing = [KEYS.state("orders", n, grown.tag(n)) for n in range(grown.partitions)]
            for key in existing:
                assert redis_cluster.node_of(key).call("HGET", key, "topic") == b"id-1"
        list(store.deletion.delete({"orders": "id-1"})[1])
        assert not any(keys_of(redis_cluster).values())
        redis_cluster.empty()
        store.create(ORDERS)


def test_a_row_of_ten_thousand_partitions_is_short(store: TopicStore, redis_cluster: RedisCluster) -> None:
    store.create(replace(ORDERS, partitions=10_000))
    assert len(row_of(redis_cluster)) < 31_000
    assert is_even(spread(redis_cluster, 10_000))


def test_counts_are_those_of_the_masters_as_they_are(store: TopicStore, redis_cluster: RedisCluster) -> None:
    store.create(replace(ORDERS, partitions=300))
    row = store.load().rows["orders"]
    owners = Counter(redis_cluster.node_of(KEYS.stream("orders", n, row.tag(n))).address for n in range(300))
    assert set(owners.values()) == {100}
    # Many slots: what moves with some of them is some of the partitions, not all of a master's.
    assert len({row.tag(n) for n in range(300)}) > 250
