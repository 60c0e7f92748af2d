"""Creation, growth and deletion that are interrupted between any two steps, repeated, late, or at the same time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
import pytest
from msgspec.structs import replace

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics import deletion as topic_deletion
from korvet.topics import store as topic_store
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from tests.support.killed_redis import KilledRedis
from tests.support.partition_state import change_log, log_of
from tests.support.proxy import until
from tests.support.refusals import refusal
from tests.topics.test_deletion import commit, committed, fill, left, of_partitions

KEYS = Keys("korvet")
ORDERS = TopicRow(name="orders", id="id-1", partitions=5, configs={"storage.format": "record"})
WIDER = replace(ORDERS, partitions=9)
AGAIN = replace(ORDERS, id="id-2")
CALLS_MAX = 100
MADE = (KEYS.stream, KEYS.state, KEYS.index)
"""What a partition has from its creation on."""


class StoppedError(StorageUnavailableError):
    """The process is gone, or Redis is for it."""


@pytest.fixture
def store(redis: Redis) -> TopicStore:
    return TopicStore(redis, KEYS)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every step take two partitions, or one group."""
    monkeypatch.setattr(topic_store, "_CREATED_PER_STEP", 2)
    for item in ("_FENCED_PER_STEP", "_CLEARED_PER_STEP"):
        monkeypatch.setattr(topic_deletion, item, 2)
    monkeypatch.setattr(topic_deletion, "_GROUPS_PER_STEP", 1)
    monkeypatch.setattr(topic_deletion, "_FIELDS_PER_STEP", 9)


def interruptions(url: str, act: Callable[[TopicStore], object], *, sent: bool) -> Iterator[int]:
    """Have `act` done by a process that ends at its first call, by another that ends at its second, and so on.

    Yields after each; it is over when one has done all of it.
    """
    for calls in range(1, CALLS_MAX):
        redis = KilledRedis(url, calls, StoppedError("gone"), sent=sent)
        try:
            act(TopicStore(redis, KEYS))
        except StoppedError:
            yield calls
        else:
            assert calls > 3
            return
        finally:
            redis.close()
    raise AssertionError(f"not done after {CALLS_MAX} calls")


def end_claim(redis: Any) -> None:
    """Have the claim on the topic end now, by all clocks; `redis` is a client or a node of a cluster."""
    run = getattr(redis, "execute_command", None) or redis.call
    text = run("HGET", KEYS.topics, "orders")
    if text is not None:
        run("HSET", KEYS.topics, "orders", re.sub(rb'"claim_until":\d+', b'"claim_until":1', text))


def visible(store: TopicStore, redis: Any) -> TopicRow | None:
    """Return the topic as clients find it, and check that all of its partitions are there."""
    row = store.load().rows.get("orders")
    if row is None or row.state != "live":
        return None
    for index in range(row.partitions):
        assert redis.hget(KEYS.state("orders", index), "topic") == row.id.encode()
    return replace(row, growing=0, claim=0, claim_until=0)


def finish(store: TopicStore, redis: Any) -> None:
    """Do what the keeper does in the end."""
    end_claim(redis)
    for row in store.load().rows.values():
        if row.state == "creating":
            assert store.finish_creation(row)
    for row in store.load().rows.values():
        if row.state == "deleting":
            list(store.deletion.steps(row))


def dumped(redis: Any) -> dict[bytes, bytes]:
    return {key: redis.dump(key) for key in redis.scan_iter()}


@pytest.mark.parametrize("sent", [False, True])
def test_a_creation_that_is_interrupted_is_completed(
    store: TopicStore, redis_url: str, raw_redis: Any, *, sent: bool
) -> None:
    seen = set()
    for _ in interruptions(redis_url, lambda doomed: doomed.create(ORDERS), sent=sent):
        result = visible(store, raw_redis)
        assert result in (None, ORDERS)
        written = store.load().rows.get("orders")
        seen.add(written.state if written else None)
        if written is not None:
            with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
                store.create(AGAIN)
            finish(store, raw_redis)
            assert visible(store, raw_redis) == store.load().rows["orders"] == ORDERS
            made = {name("orders", index).encode() for name in MADE for index in range(5)}
            assert left(raw_redis, ORDERS) == made | {b"registry"}
        raw_redis.flushall()
    assert seen == ({"creating", "live"} if sent else {None, "creating"})


def test_a_creation_is_completed_by_one_process_alone(
    store: TopicStore, redis_url: str, raw_redis: Any
) -> None:
    with pytest.raises(StoppedError):
        TopicStore(KilledRedis(redis_url, 2, StoppedError("gone"), sent=False), KEYS).create(ORDERS)
    [creating] = store.load().rows.values()
    assert not store.finish_creation(creating), "the claim of its creator has not ended"
    end_claim(raw_redis)
    [creating] = store.load().rows.values()
    done = [gevent.spawn(store.finish_creation, creating) for _ in range(5)]
    assert sorted(item.get(timeout=30) for item in done) == [False] * 4 + [True]
    assert visible(store, raw_redis) == ORDERS


def test_a_creator_that_was_too_slow_creates_nothing_more(
    store: TopicStore, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps come late: when another has completed the creation, and after the topic has gone and come again."""
    late: list[Callable[[], object]] = []
    create_some = store._create_some

    def at_once(row: TopicRow, indexes: Sequence[int]) -> list[int]:
        late.append(lambda: create_some(row, indexes))
        return create_some(row, indexes)

    monkeypatch.setattr(store, "_create_some", at_once)

    def come_late() -> None:
        before = dumped(raw_redis)
        for item in late:
            assert refusal(item) == ErrorCode.REQUEST_TIMED_OUT
        assert dumped(raw_redis) == before

    monkeypatch.setattr("korvet.topics.rows.CLAIM_MS", -1)
    assert refusal(store.create, ORDERS) == ErrorCode.REQUEST_TIMED_OUT
    monkeypatch.undo()
    ended = raw_redis.time()
    until(lambda: raw_redis.time() > ended)  # the claim is over for each step that comes now
    assert late
    come_late()
    finish(store, raw_redis)
    assert visible(store, raw_redis) == ORDERS
    come_late()
    list(store.deletion.delete({"orders": "id-1"})[1])
    come_late()
    store.create(AGAIN)
    come_late()


@pytest.mark.parametrize("act", ["create", "grow"])
def test_steps_of_a_former_topic_that_come_within_their_claim_leave_the_new_one_alone(
    store: TopicStore, raw_redis: Any, act: str
) -> None:
    """Another process has deleted the topic while one was creating its partitions."""
    if act == "create":
        text = store._rows.create(replace(ORDERS, state="creating"), 0)
        assert text is not None
        former = store._decoded("orders", text)
        assert former is not None
        assert store.deletion.mark(former, text)
        finish(store, raw_redis)
    else:
        store.create(ORDERS)
        claimed = store._rows.claim(store._live("orders", "id-1")[1], replace(ORDERS, growing=9))
        assert isinstance(claimed, bytes)
        former = store._decoded("orders", claimed)
        assert former is not None
        list(store.deletion.delete({"orders": "id-1"})[1])
    assert left(raw_redis, WIDER) == set()
    again = replace(AGAIN, partitions=9)
    store.create(again)
    fill(raw_redis, again)
    before = dumped(raw_redis)
    assert min(store._create_some(former, range(9))) > former.claim
    assert dumped(raw_redis) == before
    # What it leaves if no topic of that name is there is replaced by the next one.
    list(store.deletion.delete({"orders": "id-2"})[1])
    store._create_some(former, range(9))
    assert visible(store, raw_redis) is None
    store.create(replace(again, id="id-3"))
    assert visible(store, raw_redis) == replace(again, id="id-3")


def test_a_registry_that_has_lost_its_epochs_creates_over_what_it_has_forgotten(
    store: TopicStore, raw_redis: Any
) -> None:
    for _ in range(3):
        store.create(ORDERS)
        list(store.deletion.delete({"orders": "id-1"})[1])
    store.create(ORDERS)
    raw_redis.delete(KEYS.topics, KEYS.topic_changes)
    store.create(AGAIN)
    assert visible(store, raw_redis) == store.load().rows["orders"] == AGAIN


def test_a_topic_of_a_version_without_claims_grows_and_goes(store: TopicStore, raw_redis: Any) -> None:
    text = (
        '{"id":"id-1","partitions":5,"configs":{"storage.format":"record"},"assignment":null,"state":"live"}'
    )
    raw_redis.hset(KEYS.topics, "orders", text)
    for index in range(6):  # the last one of a former topic
        topic_id = "id-0" if index == 5 else "id-1"
        raw_redis.hset(KEYS.state("orders", index), "topic", topic_id)
        change_log(raw_redis, KEYS.state("orders", index), next_offset=7)
    assert visible(store, raw_redis) == ORDERS
    assert grow(store) == WIDER
    assert visible(store, raw_redis) == WIDER
    ends = [log_of(raw_redis, KEYS.state("orders", index)).next_offset for index in (4, 5)]
    assert ends == [7, 0]
    list(store.deletion.delete({"orders": "id-1"})[1])
    assert left(raw_redis, WIDER) == set()


def grow(store: TopicStore) -> TopicRow:
    return store.add_partitions("orders", "id-1", lambda row: replace(row, partitions=9))


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("then", ["grow", "less", "delete"])
def test_a_growth_that_is_interrupted_has_not_begun_for_clients(
    store: TopicStore, redis_url: str, raw_redis: Any, then: str, *, sent: bool
) -> None:
    store.create(ORDERS)
    outcomes = set()
    for _ in interruptions(redis_url, grow, sent=sent):
        fill(raw_redis, ORDERS)
        result = visible(store, raw_redis)
        assert result is not None
        assert result in (ORDERS, WIDER)
        outcomes.add(result.partitions)
        end_claim(raw_redis)
        if then == "grow":
            assert grow(store) == visible(store, raw_redis) == WIDER
        elif then == "less" and result == ORDERS:
            six = store.add_partitions("orders", "id-1", lambda row: replace(row, partitions=6))
            assert six.partitions == 6
            assert visible(store, raw_redis) == replace(ORDERS, partitions=6)
        assert raw_redis.xlen(KEYS.stream("orders", 4)) == 1
        list(store.deletion.delete({"orders": "id-1"})[1])
        assert left(raw_redis, WIDER) == set()
        raw_redis.flushall()
        store.create(ORDERS)
    assert outcomes == ({5, 9} if sent else {5})


def before_the_last_step(store: TopicStore, act: Callable[[], object]) -> None:
    """Have `act` done just before the last step of a growth."""
    create_some = store._create_some

    def after_act(row: TopicRow, indexes: Sequence[int]) -> list[int]:
        if 8 in indexes:
            act()
        return create_some(row, indexes)

    store.__dict__["_create_some"] = after_act


def test_configs_that_change_during_a_growth_are_kept(store: TopicStore, raw_redis: Any) -> None:
    store.create(ORDERS)
    before_the_last_step(
        store,
        lambda: store.alter("orders", "id-1", lambda row: replace(row, configs=row.configs | {"a": "b"})),
    )
    grown = replace(WIDER, configs=ORDERS.configs | {"a": "b"})
    assert grow(store) == visible(store, raw_redis) == grown
    assert store.load().rows["orders"] == grown


def test_a_topic_that_is_deleted_while_it_grows_leaves_nothing(store: TopicStore, raw_redis: Any) -> None:
    store.create(ORDERS)
    before_the_last_step(store, lambda: list(store.deletion.delete({"orders": "id-1"})[1]))
    assert refusal(grow, store) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert left(raw_redis, WIDER) == set()


BATCHES = replace(ORDERS, configs={"storage.format": "batch"})


def test_a_topic_over_a_stream_that_cannot_be_its_log_is_not_created(
    store: TopicStore, redis_url: str, raw_redis: Any
) -> None:
    raw_redis.xadd(KEYS.stream("orders", 3), {"value": "of somebody else"})
    before = raw_redis.dump(KEYS.stream("orders", 3))
    assert refusal(store.create, BATCHES) == ErrorCode.INVALID_CONFIG
    stream = {KEYS.stream("orders", 3).encode()}
    assert left(raw_redis, ORDERS) == stream
    states = set()
    for _ in interruptions(redis_url, _create_refused, sent=True):
        assert visible(store, raw_redis) is None
        end_claim(raw_redis)
        for row in store.load().rows.values():
            states.add(row.state)
            if row.state == "creating":
                with pytest.raises(KafkaError, match="INVALID_CONFIG"):
                    store.finish_creation(row)
        finish(store, raw_redis)
        assert left(raw_redis, ORDERS) == stream
    assert states == {"creating", "deleting"}
    assert raw_redis.dump(KEYS.stream("orders", 3)) == before
    raw_redis.delete(KEYS.stream("orders", 3))
    store.create(BATCHES)
    assert visible(store, raw_redis) == BATCHES


def _create_refused(store: TopicStore) -> None:
    try:
        store.create(BATCHES)
    except KafkaError as error:
        if error.code != ErrorCode.INVALID_CONFIG:
            raise
        if isinstance(store._redis, KilledRedis) and store._redis.calls_left <= 0:
            raise StoppedError("gone during what follows a refusal") from None


def test_a_growth_over_a_stream_that_cannot_be_a_log_adds_nothing(store: TopicStore, raw_redis: Any) -> None:
    store.create(BATCHES)
    raw_redis.xadd(KEYS.stream("orders", 8), {"value": "of somebody else"})
    for _ in range(2):  # others need not wait for the end of a claim
        assert refusal(grow, store) == ErrorCode.INVALID_CONFIG
        assert visible(store, raw_redis) == BATCHES
    raw_redis.delete(KEYS.stream("orders", 8))
    grow(store)
    assert visible(store, raw_redis) == replace(BATCHES, partitions=9)
    assert store.load().rows["orders"].growing == 0


@pytest.mark.parametrize("sent", [False, True])
def test_a_deletion_that_is_interrupted_is_completed(
    store: TopicStore, redis_url: str, raw_redis: Any, *, sent: bool
) -> None:
    def create() -> None:
        raw_redis.flushall()
        store.create(ORDERS)
        fill(raw_redis, ORDERS)
        commit(raw_redis, "group", ORDERS)

    create()
    for _ in interruptions(
        redis_url, lambda doomed: list(doomed.deletion.delete({"orders": "id-1"})[1]), sent=sent
    ):
        if visible(store, raw_redis) is not None:
            assert left(raw_redis, ORDERS) == of_partitions(ORDERS) | {b"registry"}
        else:
            finish(store, raw_redis)
            assert left(raw_redis, ORDERS) == set()
            assert not committed(raw_redis, "group")
            store.create(AGAIN)
            assert visible(store, raw_redis) == AGAIN
        create()
