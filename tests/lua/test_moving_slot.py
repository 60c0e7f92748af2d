"""Every script that removes: while its slot moves it does the same as before, or nothing.

Redis refuses a script a key of such a slot that the script has emptied itself, and what it wrote before stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from korvet.topics.entry_ids import DENSE
from tests.lua.broker.test_register import BROKERS, DAY_MS, put, register
from tests.lua.compaction.support import DirtyLog
from tests.lua.consumer.support import CONSUMER_KEYS, ConsumerGroup
from tests.lua.group.support import ASSIGNMENTS, CHANNEL, DEADLINES, GROUP, OFFSETS, WITH_ASSIGNMENTS, Group
from tests.lua.index.test_upkeep import FILL_HEAD, fill, rebase
from tests.lua.support import (
    ABORTED,
    CLEAN,
    INDEX,
    MOVING,
    OPEN,
    SHARE,
    SIDE_KEYS,
    STATE,
    STREAM,
    TOPIC_ID,
    BatchLog,
    Log,
    contents,
    now_ms,
    run,
)
from tests.lua.transaction.support import KEY as TRANSACTION
from tests.lua.transaction.support import Transaction
from tests.support.partition_state import change_log
from tests.support.redis_cluster import RedisCluster

pytestmark = pytest.mark.slow

Step = Callable[[], object]
SHARE_KEYS = (STREAM, STATE, SHARE)
KEEPER = ("{korvet:keeper}:lease", "{korvet:keeper}:fence")


@contextmanager
def moving(cluster: RedisCluster, key: str) -> Iterator[None]:
    """Let the slot of a key be on its way to another node, with all of its keys at the old one."""
    slot, to = key_slot(key.encode()), next(n for n in cluster.nodes if n is not cluster.node_of(key))
    source = cluster.begin_move(slot, to)
    try:
        yield
    finally:
        for node in (source, to):
            node.call("CLUSTER", "SETSLOT", slot, "STABLE")


def outcome(client: Any, step: Step) -> tuple[object, dict[bytes, bytes | None]]:
    """Return what a step answers, and all that the node holds then."""
    reply = step()
    keys = sorted(client.keys())
    return reply, dict(zip(keys, contents(client, keys), strict=True))


def indexed(client: Any, *rows: tuple[int, str]) -> Log:
    log = Log(client)
    log.change(next_offset=41, size_bytes=4000, records=40, largest=400)
    client.delete(INDEX)
    client.zadd(INDEX, {row: offset for offset, row in rows})
    return log


def rebase_the_only_row(client: Any) -> Step:
    log = indexed(client, (11, "10:1000:500:100"))
    return lambda: rebase(log)


def fill_all_rows_again(client: Any) -> Step:
    log = indexed(client, (11, "10:1000:500:100"), (21, "20:2000:500:100"))
    return lambda: fill(log, 15, "7:7:7:7", 30, "8:8:8:8")


def fill_a_first_step(client: Any) -> Step:
    log = indexed(client, (11, "10:1000:500:100"))
    return lambda: fill(log, 15, "7:7:7:7", head=(*FILL_HEAD[:5], "", *FILL_HEAD[6:]))


def fill_an_index_that_is_to_have_no_row(client: Any) -> Step:
    log = indexed(client, (11, "10:1000:500:100"))
    return lambda: fill(log, head=(*FILL_HEAD[:8], "5", "50"))


def second_pass(client: Any, start: int = 0) -> DirtyLog:
    """Begin a second pass, of a log whose only row is the one at the pass's end."""
    log = DirtyLog(client)
    log.begin("one", 21)
    log.write("one", 15, 20)
    log.switch("one", 21, kept=(2, 200, 200))
    log.begin("two", 41, known_end=21)
    log.write("two", 15, 40, which=1)
    client.zremrangebyscore(INDEX, "-inf", "(41")
    change_log(client, STATE, start=start)
    client.zadd(ABORTED, {"7:1": 5})
    return log


def switch_to_a_second_pass(client: Any, start: int = 0) -> Step:
    log = second_pass(client, start)
    return lambda: log.switch("two", 41, which=1, kept=(2, 200, 300))


def switch_to_a_pass_of_nothing(client: Any) -> Step:
    return switch_to_a_second_pass(client, start=41)


def give_up_a_pass(client: Any) -> Step:
    second_pass(client)
    return lambda: run(client, "compaction/give_up", (STATE, *CLEAN), [TOPIC_ID, "two"])


def begin_a_pass(client: Any) -> Step:
    log = second_pass(client)
    return lambda: log.begin("three", 41, known_end=21)


def renumber_what_waits(client: Any) -> Step:
    log = Log(client)
    for sequence in (1, 5000, 5001):
        log.external(f"1-{sequence}", "v")
    while not client.exists(MOVING):
        log.renumber(limit=1)
    return log.settle


def trim_to_the_end(client: Any) -> Step:
    log = DirtyLog(client)
    client.xadd(CLEAN[0], {"value": "a"}, id="0-1")
    client.xadd(CLEAN[1], {"value": "a"}, id="0-1")
    client.zadd(ABORTED, {"7:1": 5})
    client.hset(STATE, "aborted", "5")
    args = [TOPIC_ID, 10, 41, -1, 100, 1 << 20]
    return lambda: run(log.client, "log/trim", (STREAM, STATE, INDEX, *CLEAN, ABORTED), args)


def release_the_lease(client: Any) -> Step:
    run(client, "keeper/lease", KEEPER, ["me", 60_000])
    return lambda: run(client, "keeper/lease", KEEPER, ["me", 0])


def group_of(client: Any, *members: str) -> Group:
    """Make a group of these members, with a committed offset."""
    group = Group(client)
    for member in members:
        group.join(new=member)
    client.hset(OFFSETS, STREAM, "{}")
    return group


def the_last_member_leaves(client: Any) -> Step:
    group = group_of(client, "a")
    return lambda: group.leave(("a", ""))


def the_last_session_ends(client: Any) -> Step:
    group = group_of(client, "a")
    client.zadd(DEADLINES, {"a": 1})
    return group.advance


def the_only_member_is_replaced(client: Any) -> Step:
    group = Group(client)
    group.join(new="a", instance="i")
    return lambda: group.join(new="b", instance="i")


def the_last_offset_is_forgotten(client: Any) -> Step:
    group_of(client, "a")
    state, generation = client.hmget(GROUP, "state", "generation")
    client.hset(GROUP, "since", "1")
    return lambda: run(client, "group/forget", WITH_ASSIGNMENTS, ["drop", state, generation, "1", STREAM, ""])


def delete_a_group(client: Any) -> Step:
    group_of(client, "a")
    client.hset(GROUP, "state", "Empty")
    return lambda: run(client, "group/delete", WITH_ASSIGNMENTS, ["g", STREAM])


def the_last_consumer_leaves(client: Any) -> Step:
    group = ConsumerGroup(client)
    group.update("a", 0)
    return lambda: group.leave(("a", "", -1))


def the_last_consumers_session_ends(client: Any) -> Step:
    group = ConsumerGroup(client)
    group.update("a", 0)
    client.zadd(DEADLINES, {"a": 1})
    return group.advance


def the_only_consumer_is_replaced(client: Any) -> Step:
    group = ConsumerGroup(client)
    group.update("a", 0, instance="i")
    return lambda: group.update("b", 0, instance="i", replaced="a")[0]


def a_consumer_joins_an_empty_classic_group(client: Any) -> Step:
    group_of(client, "a").leave(("a", ""))
    client.zadd(DEADLINES, {"pending": 1})
    return lambda: ConsumerGroup(client).update("b", 0, before="")[0]


def a_group_becomes_a_classic_one(client: Any) -> Step:
    group = ConsumerGroup(client)
    group.stable("a", protocols=("range",))
    return lambda: group.downgrade() > 0


def staged(client: Any, *, token: str) -> str:
    """Stage what the members of a classic group own; returns the group's revision."""
    group_of(client, "a")
    revision: str = client.hget(GROUP, "revision").decode()
    run(client, "consumer/stage", (GROUP, ASSIGNMENTS), [token, revision, 1, "o:id:0", "a"])
    return revision


def what_is_staged_is_staged_again(client: Any) -> Step:
    args = ["two", staged(client, token="one"), 1, "o:id:0", "a"]
    return lambda: run(client, "consumer/stage", (GROUP, ASSIGNMENTS), args)


def a_group_becomes_one_of_consumers(client: Any) -> Step:
    args = (CHANNEL, "one", staged(client, token="one"))
    client.hdel(ASSIGNMENTS, "o:id:0")
    return lambda: run(client, "consumer/upgrade", CONSUMER_KEYS, args)


def expire_a_transactional_id(client: Any) -> Step:
    transaction = Transaction(client)
    transaction.begin()
    return lambda: transaction.expire(0)


def create_over_a_former_topic(client: Any) -> Step:
    Log(client)
    client.xadd(STREAM, {"value": "a"}, id="0-1")
    for key in SIDE_KEYS:
        client.set(key, "x")
    keys = (STATE, *SIDE_KEYS, STREAM)
    return lambda: run(client, "partition/create", keys, ["id-2", 5, 10**15, "adopt"])


def clear_a_log(client: Any, state: Step) -> Step:
    """Fill a log and its side keys, and delete half of it."""
    for key in (STREAM, *CLEAN, MOVING):
        for number in range(1, 5):
            client.xadd(key, {"value": "a"}, id=f"0-{number}")
    client.set(INDEX, "x")
    state()
    return lambda: run(client, "topic/clear", (STATE, STREAM, *SIDE_KEYS), [TOPIC_ID, 8, 1 << 20, STREAM])


def clear_a_topic(client: Any) -> Step:
    client.hset(STATE, "topic", TOPIC_ID)
    return clear_a_log(client, lambda: change_log(client, STATE, size_bytes=100))


def clear_a_topic_with_a_state_that_is_none(client: Any) -> Step:
    return clear_a_log(client, lambda: client.set(STATE, "no hash"))


def a_part_of(client: Any, kind: str) -> list[Any]:
    """Let a share group have acquired the only record; returns the arguments of its scripts, from the first on."""
    log, offset = Log(client), (5 << 10) + 1
    log.external("5-1", "a")
    log.change(next_offset=offset + 1)
    client.hset(SHARE, "h:other", "ranges 0 0 0")
    of_part = [TOPIC_ID, "g", 10, "m", offset, kind, 5, "cut", 60_000, 5, 10]
    begin = [*of_part, offset, offset + 1, -1, 3, "", 1, offset, offset]
    assert len(run(client, "share/acquire", SHARE_KEYS, begin)) == 5
    return [*begin[:3], offset]


def without_time(client: Any, reply: Any) -> Any:
    """Drop from the header of the part when locks began last."""
    client.hset(SHARE, "h:g", client.hget(SHARE, "h:g").rpartition(b" ")[0])
    return reply


def acknowledge_the_last_range(client: Any) -> Step:
    *head, offset = a_part_of(client, "ranges")
    args = [*head, "m", STREAM, 60_000, 5, 10, "", offset, offset, 1]
    return lambda: without_time(client, run(client, "share/acknowledge", SHARE_KEYS, args))


def release_the_last_entry(client: Any) -> Step:
    *head, offset = a_part_of(client, "redis")
    args = [*head, "m", STREAM, 60_000, 1, 10, "session", offset, offset, 2]
    return lambda: without_time(client, run(client, "share/acknowledge", SHARE_KEYS, args))


def convert_a_part(client: Any) -> Step:
    a_part_of(client, "redis")
    converting = [TOPIC_ID, 10]
    # The end of a lock is a time too.
    return lambda: (
        without_time(client, run(client, "share/convert", SHARE_KEYS, converting))
        and client.hdel(SHARE, "r:g")
    )


def alter_a_part(client: Any) -> Step:
    head = a_part_of(client, "redis")[:3]
    return lambda: run(client, "share/alter", SHARE_KEYS, [*head, 0, "redis", 60_000])


def delete_the_last_part(client: Any) -> Step:
    head = a_part_of(client, "redis")[:3]
    client.hdel(SHARE, "h:other")
    return lambda: run(client, "share/delete", SHARE_KEYS, head)


CASES: dict[str, list[Callable[[Any], Step]]] = {
    STREAM: [
        *(rebase_the_only_row, fill_all_rows_again, fill_a_first_step, fill_an_index_that_is_to_have_no_row),
        *(switch_to_a_second_pass, switch_to_a_pass_of_nothing, give_up_a_pass, begin_a_pass),
        *(renumber_what_waits, trim_to_the_end),
        *(acknowledge_the_last_range, release_the_last_entry, convert_a_part, alter_a_part),
        *(delete_the_last_part, create_over_a_former_topic),
        *(clear_a_topic, clear_a_topic_with_a_state_that_is_none),
    ],
    OFFSETS: [
        *(the_last_member_leaves, the_last_session_ends, the_only_member_is_replaced),
        *(the_last_offset_is_forgotten, delete_a_group),
        *(the_last_consumer_leaves, the_last_consumers_session_ends, the_only_consumer_is_replaced),
        *(a_consumer_joins_an_empty_classic_group, a_group_becomes_a_classic_one),
        *(what_is_staged_is_staged_again, a_group_becomes_one_of_consumers),
    ],
    KEEPER[0]: [release_the_lease],
    TRANSACTION: [expire_a_transactional_id],
}


@pytest.mark.parametrize(("key", "prepare"), [(key, item) for key in CASES for item in CASES[key]])
def test_a_script_does_the_same_while_its_slot_moves_or_nothing(
    redis_cluster: RedisCluster, key: str, prepare: Callable[[Any], Step]
) -> None:
    client = redis_cluster.node_of(key).client
    expected = outcome(client, prepare(client))
    redis_cluster.empty()
    step = prepare(client)
    before = outcome(client, lambda: None)[1]
    with moving(redis_cluster, key):
        try:
            result = outcome(client, step)
        except redis.exceptions.TryAgainError:
            assert outcome(client, lambda: None)[1] == before
        else:
            assert result == expected


def test_a_broker_is_registered_while_the_slot_moves(redis_cluster: RedisCluster) -> None:
    client = redis_cluster.node_of(BROKERS).client
    register(client, 7)  # all keys are there: the script begins
    client.hdel(BROKERS, 7)
    put(client, 0, now_ms(client) - DAY_MS - 1000)
    with moving(redis_cluster, BROKERS):
        assert register(client, -1) == 0
    put(client, 5, now_ms(client) - DAY_MS - 1000)
    with moving(redis_cluster, BROKERS):
        assert register(client, -1) == 0
    assert client.hkeys(BROKERS) == [b"0"]


@pytest.mark.parametrize("log_of", [Log, partial(Log, bits=DENSE), BatchLog])
def test_a_partition_takes_its_first_records_while_its_slot_moves(
    redis_cluster: RedisCluster, log_of: Callable[[Any], Log]
) -> None:
    log = log_of(redis_cluster.node_of(STREAM).client)
    with moving(redis_cluster, STREAM):
        log.appended("a", producer=7)
        log.external("*", "external")
        log.appended("b", producer=7, sequence=1)
    assert log.values() == (["a", "b"] if isinstance(log, BatchLog) else ["a", "external", "b"])


@pytest.mark.parametrize("log_of", [Log, BatchLog])
def test_the_only_open_transaction_ends_while_the_slot_moves(
    redis_cluster: RedisCluster, log_of: Callable[[Any], Log]
) -> None:
    client = redis_cluster.node_of(STREAM).client
    log = log_of(client)
    client.zadd(ABORTED, {"6:0": 0})  # all keys are there: the script begins
    first = log.appended("a", producer=7, transaction="t5")
    with moving(redis_cluster, STREAM):
        at = log.appended("marker", producer=7, sequence=-1, transaction="a5")
        with pytest.raises(redis.exceptions.TryAgainError):
            log.append("b", producer=7, sequence=1, transaction="t6")
    assert client.exists(OPEN) == 0
    assert client.zrange(ABORTED, 0, -1) == [b"6:0", f"7:{first}:{at + 1}".encode()]
    assert log.values() == ["a", "marker"]
    assert (log.next(), "open" in log.state()) == (at + 1, False)
