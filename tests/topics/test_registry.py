"""Topics: names, identity, and a registry that follows what others do to the same Redis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.redis.keys import Keys
from korvet.topics import registry
from korvet.topics import rows as topic_rows
from korvet.topics.registry import Topic, TopicRegistry, TopicSpec, id_text, new_id
from korvet.topics.store import TopicStore
from korvet.topics.types import Partition, PartitionRef, TopicRef, TopicRow
from tests.support.domain import Domain, domain
from tests.support.refusals import refusal


def retry(view: Domain, stale: Topic) -> None:
    """Have the registry look up a topic whose first partition the log did not know."""
    error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    view.topics.refresh_stale({0: error}, {0: stale.partitions[0]})


def test_ids_are_unique_and_print_as_kafkas_do() -> None:
    ids = {new_id() for _ in range(500)}
    assert len(ids) == 500
    assert {len(item) for item in ids} == {16}
    assert {len(id_text(item)) for item in ids} == {22}
    assert not any(id_text(item).startswith("-") for item in ids)


def test_a_registry_follows_creations_and_deletions_of_another(here: Domain, there: Domain) -> None:
    assert here.topics.list_all() == []
    made = there.topics.create(TopicSpec(name="orders", partitions=3))
    result = here.topics.get("orders")
    assert (result.id, len(result.partitions)) == (made.id, 3)
    assert here.topics.resolve(TopicRef("", made.id)) == result
    there.topics.delete([made])
    assert here.topics.get("orders") == result  # a cache, until it is refreshed
    here.topics.refresh()
    assert refusal(here.topics.get, "orders") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(here.topics.resolve, TopicRef("", made.id)) == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_changed_topic_is_returned_and_found_by_all(here: Domain, there: Domain) -> None:
    made = here.topics.create(TopicSpec(name="orders", partitions=2))
    assert there.topics.get("orders") == made

    def shorter(row: TopicRow) -> TopicRow:
        return replace(row, configs=row.configs | {"retention.ms": "5"}, assignment=[[1], [2]])

    changed = here.topics.alter(made, shorter)
    assert changed.overrides == {**made.overrides, "retention.ms": "5"}
    assert (changed.config.retention_ms, changed.assignment) == (5, [[1], [2]])
    assert here.topics.get("orders") == changed
    there.topics.refresh()
    assert there.topics.get("orders") == there.topics.resolve(TopicRef("", made.id)) == changed


def test_a_topic_is_made_though_very_many_others_were_made_since_this_registry_looked(
    here: Domain, there: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_rows, "CHANGES_MAX", 3)
    look, looks = here.topics.refresh, count()

    def look_and_be_overtaken() -> None:
        look()
        if next(looks) == 0:
            for number in range(9):
                there.topics.create(TopicSpec(name=f"t{number}"))

    monkeypatch.setattr(here.topics, "refresh", look_and_be_overtaken)
    made = here.topics.create(TopicSpec(name="a.b"))
    assert there.topics.get("a.b") == made
    assert next(looks) > 2


def test_a_topic_keeps_the_layout_it_was_made_with(redis_url: str, raw_redis: redis.Redis) -> None:
    with domain(redis_url, Settings(offset_sequence_bits=8)) as made:
        made.topics.create(TopicSpec(name="orders"))
    with domain(redis_url, Settings(offset_sequence_bits=12)) as later:
        assert later.topics.get("orders").config.id_bits == 8
    assert raw_redis.hlen("korvet:topics") == 1


def test_requests_that_only_validate_do_not_fill_the_memory(
    here: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "CONFIGS_MAX", 3)
    for size in range(1, 10):
        spec = TopicSpec(name="orders", configs={"max.message.bytes": str(size)})
        assert here.topics.create(spec, validate_only=True).config.max_message_bytes == size
    assert len(here.topics._configs) <= 3


@pytest.mark.parametrize("index", [-1, 2, 2**31 - 1, -(2**31)])
def test_a_partition_that_is_not_there_is_unknown(here: Domain, index: int) -> None:
    topic = here.topics.create(TopicSpec(name="orders", partitions=2))
    assert refusal(topic.partition, index) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_registry_of_an_emptied_redis_is_read_again(
    here: Domain, there: Domain, raw_redis: redis.Redis
) -> None:
    former = here.topics.create(TopicSpec(name="orders"))
    raw_redis.flushall()
    made = there.topics.create(TopicSpec(name="orders"))  # at the same epoch as the former one
    here.topics.refresh()
    assert here.topics.get("orders") == former
    retry(here, former)
    assert here.topics.get("orders") == made


def test_what_is_unknown_does_not_make_the_whole_registry_be_read(
    here: Domain, there: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = here.topics.create(TopicSpec(name="orders"))
    there.topics.delete([there.topics.get("orders")])
    there.topics.create(TopicSpec(name="orders"))
    monkeypatch.setattr(here.topics._store, "load", partial(pytest.fail, "all of it is read"))
    retry(here, former)
    for topic, partition in (("orders", 7), ("unknown", 0)):
        unknown = refusal(here.topics.partition, TopicRef(topic), partition)
        assert unknown == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(pytest.fail.Exception):
        here.topics.reload()


def test_the_log_is_not_asked_again_for_a_topic_that_was_deleted(here: Domain, there: Domain) -> None:
    here.topics.create(TopicSpec(name="orders"))
    there.topics.delete([there.topics.get("orders")])
    asked: list[int] = []

    def ask(partitions: Sequence[Partition]) -> list[KafkaError]:
        asked.append(len(partitions))
        return [KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for _ in partitions]

    refs = [PartitionRef(TopicRef("orders"), 0, None)]
    [answer] = here.topics.ask(refs, lambda _asked, _topic, partition: partition, ask)
    assert isinstance(answer, KafkaError)
    assert answer.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert asked == [1]


def test_a_config_in_redis_that_cannot_be_read_hides_no_topic(here: Domain, raw_redis: Any) -> None:
    here.topics.create(TopicSpec(name="orders"))
    row = json.loads(raw_redis.hget("korvet:topics", "orders"))
    row["configs"]["retention.ms"] = "soon"
    raw_redis.hset("korvet:topics", "orders", json.dumps(row))
    here.topics.reload()
    result = here.topics.get("orders")
    assert "retention.ms" not in result.overrides
    assert result.config.retention_ms == Settings().log_retention_ms


def test_only_those_partitions_are_made_that_are_asked_for(here: Domain) -> None:
    here.topics.create(TopicSpec(name="orders", partitions=1000))
    made: list[int] = []

    def make(*row: Any) -> Partition:
        made.append(row[1])
        return here.log.partition(*row)

    topics = TopicRegistry(TopicStore(here.redis, Keys("korvet")), Settings(), make)
    topics.refresh()
    partitions = topics.get("orders").partitions
    assert len(partitions) == 1000
    assert made == []
    assert partitions[7] is topics.partition(TopicRef("orders"), 7)[1]
    assert [partition.index for partition in partitions[998:]] == [998, 999]
    assert partitions[-1].index == 999
    assert made == [7, 998, 999]
