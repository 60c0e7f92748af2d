"""The coordinator on a real Redis: what producers get, and what is in logs and groups then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY

from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.protocol.types import TopicPartition
from korvet.redis.keys import encode_group_id
from korvet.topics.registry import TopicSpec
from korvet.topics.types import TopicRef
from korvet.transactions.types import StoredTransaction, TransactionFilter
from tests.lua.support import memory_left
from tests.transactions.support import (
    ID,
    KEYS,
    LISTED,
    PARTITIONS,
    TIMEOUT_MS,
    TOPIC,
    Found,
    Process,
    committed,
)

OFFSET = 5
IDS = ("a", "100%", "{tag}", "a:b", "\x00\n\x7f", "\N{SNOWMAN}", "x" * 32_767, "0")


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(KafkaError) as error:
        yield
    assert error.value.code.name == code


def completed(result: str, reason: str) -> float:
    labels = {"result": result, "reason": reason}
    return REGISTRY.get_sample_value("korvet_transactions_completed_total", labels) or 0.0


@pytest.mark.parametrize("bumps", [False, True])
def test_a_producer_commits_and_aborts_and_goes_on(worker: Process, stored: Found, *, bumps: bool) -> None:
    committed_before, aborted_before = completed("commit", "client"), completed("abort", "client")
    by = worker.open()
    assert stored.open_partitions() == [0, 1]
    assert committed(worker) is None
    then = worker.end(by, commit=True, bumps_epoch=bumps)
    assert then == (by.producer_id, int(bumps))
    assert committed(worker) == OFFSET
    worker.produce(then, sequence=0 if bumps else 1)
    worker.commit_offset(then, 7)
    assert worker.end(then, commit=False, bumps_epoch=bumps) == (by.producer_id, 2 * int(bumps))
    assert committed(worker) == OFFSET
    assert [stored.markers(index) for index in range(PARTITIONS)] == [["commit", "abort"], ["commit"]]
    assert stored.open_partitions() == []
    assert completed("commit", "client") == committed_before + 1
    assert completed("abort", "client") == aborted_before + 1


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_while_memory_is_full(
    worker: Process, stored: Found, raw_redis: Any, *, commit: bool
) -> None:
    """Else readers would wait for its end, and retention too, which frees memory."""
    by = worker.open()
    with memory_left(raw_redis, -1):
        with refused("KAFKA_STORAGE_ERROR"):
            worker.produce(by, sequence=1)
        worker.end(by, commit=commit)
        assert stored.open_partitions() == []
    assert [stored.markers(index) for index in range(PARTITIONS)] == [["commit" if commit else "abort"]] * 2


def test_a_new_producer_aborts_what_the_one_before_has_left_and_fences_it(
    worker: Process, other: Process, stored: Found
) -> None:
    by, before = worker.open(), completed("abort", "fenced")
    then = other.init()
    assert then == (by.producer_id, by.epoch + 2)
    assert stored.markers(0) == ["abort"]
    assert stored.open_partitions() == []
    assert completed("abort", "fenced") == before + 1
    with refused("INVALID_PRODUCER_EPOCH"):
        worker.produce(by, verify_only=True, sequence=1)


def test_a_producer_may_have_a_timeout_up_to_the_longest(worker: Process, settings: Settings) -> None:
    longest = settings.transaction_max_timeout_ms
    for wrong in (0, -1, longest + 1, 2**31 - 1):
        with refused("INVALID_TRANSACTION_TIMEOUT"):
            worker.coordinator.init(ID, wrong)
    assert worker.coordinator.init(ID, longest).epoch == 0
    assert worker.coordinator.init(ID, 1).epoch == 1


@pytest.mark.parametrize("name", IDS)
def test_an_id_may_have_any_character_and_32_kib(worker: Process, stored: Found, name: str) -> None:
    by = worker.coordinator.init(name, TIMEOUT_MS)
    partition = worker.topics.partition(TopicRef(TOPIC), 1)[1]
    number = worker.coordinator.add(name, by, [partition])
    group = name[:30_000]
    assert worker.coordinator.add(name, by, groups=[group]) == number
    [described] = worker.coordinator.describe([name])
    assert isinstance(described, StoredTransaction)
    assert ([item.at for item in described.partitions], described.groups) == (
        [TopicPartition(TOPIC, 1)],
        [group],
    )
    assert worker.coordinator.list(TransactionFilter()) == [(name, by.producer_id, "Ongoing")]
    assert worker.coordinator.end(name, by, commit=True, bumps_epoch=False) == by
    assert stored.raw.zscore(LISTED, encode_group_id(name)) is not None


@contextmanager
def damaged(stored: Found) -> Iterator[None]:
    """Let no marker be written to the first partition."""
    state = KEYS.state(TOPIC, 0)
    aside = f"{state}:aside"
    stored.raw.rename(state, aside)
    stored.raw.set(state, "no state")
    yield
    stored.raw.delete(state)
    stored.raw.rename(aside, state)


def test_nothing_goes_on_while_a_transaction_cannot_be_completed(
    worker: Process, other: Process, stored: Found
) -> None:
    by = worker.open()
    partition = worker.topics.partition(TopicRef(TOPIC), 1)[1]
    worker.keep_on()
    with damaged(stored):
        for process in (worker, other):
            assert process.end(by, commit=True) == by, "it is decided"
        with refused("CONCURRENT_TRANSACTIONS"):
            other.init()
        for verify_only in (False, True):
            with refused("CONCURRENT_TRANSACTIONS"):
                other.coordinator.add(ID, by, [partition], verify_only=verify_only)
        worker.store.schedule.flush()
        stored.raw.zadd(LISTED, {ID: 1})
        worker.keep_on()
        assert stored.state() == "PrepareCommit"
    # The keeper's next turn completes it without being asked.
    worker.keep_on()
    assert stored.state() == "CompleteCommit"
    assert [stored.markers(index) for index in range(PARTITIONS)] == [["commit"]] * PARTITIONS
    assert committed(worker) == OFFSET


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_was_deleted_needs_no_marker(
    worker: Process, other: Process, stored: Found, *, again: bool
) -> None:
    by = worker.open()
    worker.topics.delete([worker.topics.get(TOPIC)])
    if again:
        worker.topics.create(TopicSpec(name=TOPIC, partitions=PARTITIONS))
    assert other.end(by, commit=True) == by
    assert stored.state() == "CompleteCommit"
    if again:
        assert stored.markers(0) == []


def test_a_transaction_that_is_past_its_timeout_is_aborted_by_the_keeper(
    worker: Process, other: Process, stored: Found
) -> None:
    other.keep_on()
    worker.open()
    worker.store.schedule.flush()
    due_ms = stored.raw.zscore(LISTED, ID)
    started_ms = int(stored.raw.hget(KEYS.transaction(ID), "started"))
    assert due_ms <= started_ms + TIMEOUT_MS
    other.keep_on()
    assert stored.state() == "Ongoing"
    stored.set(started=stored.now_ms() - TIMEOUT_MS)
    stored.raw.zadd(LISTED, {ID: stored.now_ms()})
    other.keep_on()
    assert stored.state() == "CompleteAbort"
    assert stored.markers(1) == ["abort"]
    assert committed(worker) is None


def test_an_id_without_transactions_expires_and_is_listed_no_more(
    worker: Process, other: Process, stored: Found, settings: Settings
) -> None:
    other.keep_on()
    worker.init()
    worker.store.schedule.flush()
    stored.set(changed=stored.now_ms() - settings.transactional_id_expiration_ms)
    stored.raw.zadd(LISTED, {ID: 1})
    other.keep_on()
    assert stored.state() is None
    assert not stored.is_listed()


def test_a_name_that_was_listed_for_an_id_that_is_to_be_created_stays_for_a_while(
    worker: Process, other: Process, stored: Found
) -> None:
    stored.raw.zadd(LISTED, {ID: stored.now_ms()})
    other.keep_on()
    assert stored.is_listed()
    assert worker.coordinator.list(TransactionFilter()) == []


def test_transactional_ids_are_described_and_listed(worker: Process, stored: Found) -> None:
    by = worker.open()
    idle = worker.coordinator.init("idle", TIMEOUT_MS)
    [empty] = worker.coordinator.describe(["idle"])
    assert isinstance(empty, StoredTransaction)
    assert (empty.state, empty.started_ms, empty.partitions) == ("Empty", -1, [])
    stored.raw.hset(KEYS.transaction("damaged"), "state", "Empty")
    stored.raw.zadd(LISTED, {"damaged": 1, "gone": 1})
    every = [("idle", idle.producer_id, "Empty"), (ID, by.producer_id, "Ongoing")]

    def names(**wanted: object) -> list[str]:
        listed = worker.coordinator.list(TransactionFilter(**wanted))  # type: ignore[arg-type]  # of any field
        return [topic.transactional_id for topic in listed]

    assert worker.coordinator.list(TransactionFilter()) == every
    assert names(states={"Ongoing", "PrepareAbort"}) == [ID]
    assert names(states={"Dead"}) == []
    assert names(producer_ids={idle.producer_id, 1}) == ["idle"]
    assert names(states={"Ongoing"}, duration_ms=60_000) == []
    stored.set(started=stored.now_ms() - 60_001)
    assert names(states={"Ongoing"}, duration_ms=60_000) == [ID]
