"""lua/consumer: what each script writes of a group of the consumer protocol, and when it writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.consumer.support import CONSUMER_KEYS, SESSION_MS, ConsumerGroup, owner
from tests.lua.group.support import ASSIGNMENTS, CHANNEL, DEADLINES, GROUP, MEMBERS, Group, row
from tests.lua.support import announced, memory_left, refused, run, unchanged


@pytest.fixture
def group(raw_redis: Any) -> ConsumerGroup:
    """Give a group that is not there yet."""
    return ConsumerGroup(raw_redis)


def test_the_first_member_creates_the_group_once_it_is_listed(group: ConsumerGroup) -> None:
    with unchanged(group.client):
        unlisted, now_ms = group.update("a", 0, listed_ms=0)
    assert unlisted == b"UNLISTED"
    with announced(group.client, CHANNEL, b"1 Assigning"):
        done, due, epoch, epoch_row = group.update("a", 0, listed_ms=now_ms)
    assert (done, epoch, epoch_row) == (1, 1, group.read("e:a"))
    assert due == group.client.zscore(DEADLINES, "a")
    assert group.field("type") == "consumer"
    assert (group.field("size"), group.field("classic")) == ("1", "0")


def test_a_member_that_has_its_target_is_counted_and_the_state_follows(group: ConsumerGroup) -> None:
    group.update("a", 0)
    assert group.claim() == [1, 1, 0, 0]
    assert group.assign(1, {"a": [0]}) == 1
    assert (group.field("state"), group.field("assigner")) == ("Reconciling", None)
    group.update("a", 0, epoch=1, bumps=False)
    assert (group.field("state"), group.field("stable")) == ("Stable", "1")
    assert group.heartbeat("a", 1) == 1
    group.update("b", epoch=0)
    assert group.field("state") == "Assigning"
    assert group.heartbeat("a", 1) == 0
    group.claim()
    group.assign(2, {"a": [0], "b": []})
    assert (group.field("state"), group.field("stable")) == ("Reconciling", "0")


def test_a_member_that_an_outage_made_late_goes_on(group: ConsumerGroup) -> None:
    group.stable("a")
    group.client.zadd(DEADLINES, {"a": group.now_ms() - 500})
    assert group.heartbeat("a", 1) == 1
    assert group.client.zscore(DEADLINES, "a") > group.now_ms()


def test_what_has_changed_since_it_was_read_is_not_written(group: ConsumerGroup) -> None:
    group.stable("a", "b")
    with unchanged(group.client):
        assert group.update("a", 0, before="other")[:2] == [0, -1]
        assert group.update("a", 0, assignment_epoch=1)[:2] == [0, -1]
        assert group.update("new", 0)[:2] == [0, -1], "somebody owns it"
        assert group.update("gone", before="any")[:2] == [0, -1]
    assert group.update("new", 5)[0] == 1


def test_an_instance_id_is_that_of_one_member(group: ConsumerGroup) -> None:
    group.update("a", 0, instance="i")
    with unchanged(group.client):
        assert group.update("b", instance="i")[:2] == [0, -1]
    group.client.hset(MEMBERS, "i:j", "gone")
    assert group.update("b", instance="j")[0] == 1


def test_a_partition_is_free_once_it_is_released_and_only_by_its_owner(group: ConsumerGroup) -> None:
    group.stable("a", "b")
    group.update("b", 1, released=[0], bumps=False, epoch=2)
    assert group.owned("a") == [0]
    group.update("a", released=[0], bumps=False, epoch=2)
    assert group.update("b", 0, 1, bumps=False, epoch=2)[0] == 1
    assert (group.owned("a"), group.owned("b")) == ([], [0, 1])


def test_a_full_group_takes_no_more_but_another_one_in_a_members_place(group: ConsumerGroup) -> None:
    group.update("a", 0, instance="i")
    with refused(group.client, "GROUP_MAX_SIZE_REACHED group g has 1 members already"):
        group.update("b", size_max=1)
    group.claim()
    group.assign(1, {"a": [0, 1]})
    assert group.update("b", 0, epoch=0, instance="i", replaced="a", bumps=False, size_max=1)[0] == 1
    assert group.owned("b") == [0]
    assert group.client.hget(MEMBERS, "i:i") == b"b"
    assert group.client.hget(ASSIGNMENTS, "t:b") == b'{"id": [0, 1]}'
    assert {hkey.decode() for hkey in group.client.hkeys(MEMBERS)} == {"m:b", "e:b", "i:i"}
    assert (group.field("size"), group.client.zscore(DEADLINES, "a")) == ("1", None)


def test_a_time_to_act_is_the_deadline_if_it_is_before_the_sessions_end(group: ConsumerGroup) -> None:
    def left_ms() -> float:
        score: float = group.client.zscore(DEADLINES, "a")
        return score - group.now_ms()

    group.update("a", 0, by_ms=5_000)
    assert left_ms() <= 5_000
    group.update("a", 0, by_ms="")
    assert left_ms() <= 5_000
    group.update("a", 0, by_ms=0)
    assert 40_000 < left_ms() <= SESSION_MS


@pytest.mark.parametrize("by_ms", [1, 3_600_000])
def test_a_group_that_is_resumed_gives_a_member_its_rebalance_timeout_again(
    group: ConsumerGroup, by_ms: int
) -> None:
    group.update("a", 0, by_ms=by_ms)
    group.client.hset(MEMBERS, "m:a", row(rebalance_ms=5_000))
    run(group.client, "group/resume", CONSUMER_KEYS, (CHANNEL,))
    act_by = int(json.loads(group.read("e:a"))["by"])
    assert 0 < act_by - group.now_ms() <= 5_000
    assert group.client.zscore(DEADLINES, "a") == act_by, "not the end of its longer session"
    group.update("a", 0, by_ms="")
    assert group.client.zscore(DEADLINES, "a") == act_by


def test_only_one_has_the_claim_and_it_ends(group: ConsumerGroup) -> None:
    group.update("a", 0)
    assert group.claim("one") == [1, 1, 0, 0]
    granted, *epochs, left_ms = group.claim("two")
    assert (granted, *epochs) == (0, 1, 0)
    assert 0 < left_ms <= 60_000
    with announced(group.client, CHANNEL, b"1 Assigning"):
        assert group.claim("one", lease_ms=0) == [0, 1, 0, 0]
    assert group.claim("two") == [1, 1, 0, 0]
    with unchanged(group.client):
        assert group.claim("one", lease_ms=0) == [0, 1, 0, 0]
    with unchanged(group.client):
        assert group.assign(1, {"a": [0]}, by="one") == 0
    assert group.assign(1, {"a": [0]}, by="two", last=0) == 1
    assert group.field("assignment_epoch") == "0"
    assert group.assign(1, {"gone": [1]}, by="two") == 1
    assert group.field("assignment_epoch") == "1"
    assert not group.client.hexists(ASSIGNMENTS, "t:gone")
    assert group.claim("two") == [0, 1, 1, 0]


def test_a_claim_of_before_the_clock_was_set_back_has_ended(group: ConsumerGroup) -> None:
    group.update("a", 0)
    assert group.claim("one", lease_ms=90_000)[0] == 1
    assert group.claim("two", lease_ms=60_000) == [1, 1, 0, 0]


def test_an_epoch_begins_for_other_topics_once(group: ConsumerGroup) -> None:
    group.stable("a")
    args = (CHANNEL, "consumer", 1, "digest", "matched now")
    assert run(group.client, "consumer/bump", CONSUMER_KEYS, args) == 1
    assert (group.field("generation"), group.field("state")) == ("2", "Assigning")
    assert group.field("subscriptions") == "matched now"
    with unchanged(group.client):
        assert run(group.client, "consumer/bump", CONSUMER_KEYS, args) == 0
        assert run(group.client, "consumer/bump", CONSUMER_KEYS, (CHANNEL, "consumer", 2, "other", "{}")) == 0


def test_members_leave_at_once_and_begin_one_epoch(group: ConsumerGroup) -> None:
    group.stable("a", "b", "c")
    assert group.leave(("a", "", -1), ("a", "", -1), ("x", "", -1), ("b", "", -1)) == [
        *(1, 0),
        *(b"NONE", b"UNKNOWN_MEMBER_ID", b"UNKNOWN_MEMBER_ID", b"NONE"),
    ]
    assert (group.field("generation"), group.owned("a"), group.owned("c")) == ("4", [], [2])


def test_who_leaves_is_named_by_its_id_or_its_instance_which_must_be_its_own(group: ConsumerGroup) -> None:
    group.update("a", 0, instance="i")
    group.update("b", 1, protocols=("range",))
    unknown, fenced = b"UNKNOWN_MEMBER_ID", b"FENCED_INSTANCE_ID"
    assert group.leave(("b", "i", -1), ("a", "other", -1), ("b", "", -1)) == [1, 0, fenced, unknown, b"NONE"]
    assert group.leave(("", "i", -1)) == [0, 0, b"NONE"]


def test_many_late_members_are_removed_some_at_a_time(group: ConsumerGroup) -> None:
    for number in range(150):
        group.update(f"m{number}", number)
    group.client.zadd(DEADLINES, {f"m{number}": 1 for number in range(150)})
    assert group.advance() == 1
    assert group.field("size") == "50"
    assert group.advance() == -1
    assert group.field("state") == "Empty"
    assert not group.client.exists(MEMBERS, DEADLINES, ASSIGNMENTS)


def test_late_members_with_many_partitions_are_removed_a_few_at_a_time(group: ConsumerGroup) -> None:
    for number in range(5):
        group.update(f"m{number}", *range(800 * number, 800 * (number + 1)))
    group.client.zadd(DEADLINES, {f"m{number}": number + 1 for number in range(5)})
    assert group.advance() == 0
    assert (group.field("size"), group.field("generation")) == ("5", "5")
    assert (len(group.owned("m0")), len(group.owned("m1"))) == (300, 800)
    # With what is left of it 800 are freed, 500 of the next one.
    assert group.advance() == 0
    assert (group.field("size"), group.field("generation")) == ("4", "6")
    assert (group.owned("m0"), len(group.owned("m1"))) == ([], 300)
    while group.advance() == 0:
        pass
    assert (group.field("size"), group.field("generation")) == ("0", "10")
    assert not group.client.exists(MEMBERS, DEADLINES, ASSIGNMENTS)


def test_a_member_with_many_partitions_leaves_by_steps_and_is_none_from_the_first(
    group: ConsumerGroup,
) -> None:
    group.stable("a", "b", protocols=("range",))
    group.update("a", *range(2, 1202), epoch=2, bumps=False, protocols=("range",))
    assert group.leave(("a", "", -1), ("b", "", -1)) == [2, 2, b"AGAIN", b"AGAIN"]
    assert (len(group.owned("a")), group.field("state")) == (700 + 1, "Reconciling")
    with unchanged(group.client):
        with pytest.raises(redis.ResponseError, match="FENCED_MEMBER_EPOCH"):
            group.heartbeat("a", 2)
        assert group.update("a", 2, before=b"", epoch=2)[0] == 0
        assert group.downgrade() == -1
    # The time for it to go is over whatever happens.
    run(group.client, "group/resume", CONSUMER_KEYS, (CHANNEL,))
    assert group.client.zscore(DEADLINES, "a") == 0
    assert group.leave(("a", "", -1)) == [2, 2, b"AGAIN"]
    assert group.advance() > 0
    assert (group.field("size"), group.field("generation")) == ("1", "3")


def test_a_static_member_that_revokes_many_partitions_is_away_by_steps(group: ConsumerGroup) -> None:
    group.update("a", *range(1202), instance="i", phase="unrevoked")
    row = f'{{"assigned":{{"id":[0,1]}},"revoking":{{"id":{json.dumps(list(range(2, 1202)))}}}}}'
    group.client.hset(ASSIGNMENTS, "c:a", row.replace(", ", ","))
    for left in (702, 202):
        assert group.leave(("a", "i", -2)) == [1, 0, b"AGAIN"]
        assert (len(group.owned("a")), group.read("e:a").startswith(b'{"epoch":0,')) == (left, True)
    assert group.leave(("a", "i", -2)) == [1, 0, b"NONE"]
    assert (group.owned("a"), group.read("e:a").startswith(b'{"epoch":-2,')) == ([0, 1], True)
    assert group.client.hget(ASSIGNMENTS, "c:a") == b'{"assigned":{"id":[0,1]},"revoking":{}}'


def test_a_group_of_classic_members_becomes_a_classic_group_of_their_latest_epoch(
    group: ConsumerGroup,
) -> None:
    group.stable("a", "b", protocols=("range",))
    assert group.downgrade() > group.now_ms()
    classic = Group(group.client)
    assert classic.state() == "PreparingRebalance"
    assert group.field("type") is None
    with pytest.raises(redis.ResponseError, match="REBALANCE_IN_PROGRESS"):
        classic.heartbeat("a", 2)
    assert classic.join("a")[0] == b"WAIT"
    assert classic.join("b")[0] == b"JOINED"
    assert not group.client.exists(ASSIGNMENTS)
    with unchanged(group.client):
        assert group.downgrade() == -1


def test_a_group_becomes_a_stable_classic_one_only_as_it_was_read(group: ConsumerGroup) -> None:
    group.stable("a", "b", protocols=("range",))
    with unchanged(group.client):
        assert group.downgrade("1", "range", "a", "x", "b", "y") == -1
        assert group.downgrade("2", "range", "a", "x", "c", "y") == -1
    assert group.downgrade("2", "range", "a", "x", "b", "y") > group.now_ms()
    classic = Group(group.client)
    assert (classic.state(), classic.heartbeat("a", 2)) == ("Stable", 1)
    assert classic.sync("b", 2)[-1] == b"y"


def test_a_group_with_a_member_of_the_consumer_protocol_stays_one(group: ConsumerGroup) -> None:
    group.stable("a", protocols=("range",))
    group.update("b", 5)
    with unchanged(group.client):
        assert group.downgrade() == -1


def stage(group: ConsumerGroup, token: str, *fields: str, first: int = 1, revision: str = "") -> int:
    revision = revision or group.field("revision") or ""
    given = (token, revision, first, *fields)
    reply: int = run(group.client, "consumer/stage", (GROUP, ASSIGNMENTS), given)
    return reply


def upgrade(group: ConsumerGroup, token: str, revision: str = "") -> int:
    given = (CHANNEL, token, revision or group.field("revision") or "")
    reply: int = run(group.client, "consumer/upgrade", CONSUMER_KEYS, given)
    return reply


def test_a_classic_group_is_upgraded_only_as_it_was_read(group: ConsumerGroup) -> None:
    classic = Group(group.client)
    generation = classic.stable("a", "b")
    with pytest.raises(redis.ResponseError, match="MEMBER_ID_REQUIRED"):
        classic.join(new="pending", require_known_member_id=True)
    before = group.field("revision") or ""
    assert stage(group, "one", owner(0), "a") == 1
    assert stage(group, "two", owner(0), "a") == 1
    with unchanged(group.client):
        assert stage(group, "one", owner(1), "a", first=0) == 0
        assert upgrade(group, "one") == 0
        assert upgrade(group, "two", "0") == 0
    assert upgrade(group, "two", before) == 1
    assert (group.field("type"), group.field("state"), group.field("classic")) == ("consumer", "Stable", "2")
    assert group.field("assignment_epoch") == str(generation)
    fields = {hkey.decode() for hkey in group.client.hkeys(MEMBERS)}
    assert fields == {f"{kind}:{name}" for kind in "mpe" for name in "ab"}
    assert (group.owned("a"), group.client.hexists(ASSIGNMENTS, "token")) == ([0], False)
    assert group.client.zscore(DEADLINES, "pending") is None
    with unchanged(group.client):
        assert upgrade(group, "two", before) == 0
        assert stage(group, "two", owner(1), "a", revision=before) == 0
    with pytest.raises(redis.ResponseError, match="GROUP_ID_NOT_FOUND"):
        classic.heartbeat("a", generation)
    with pytest.raises(redis.ResponseError, match="GROUP_ID_NOT_FOUND"):
        classic.join("a")
    with pytest.raises(redis.ResponseError, match="REBALANCE_IN_PROGRESS"):
        classic.look("sync", "a", generation)


def test_what_was_staged_before_the_group_changed_to_and_fro_is_of_no_use(group: ConsumerGroup) -> None:
    Group(group.client).stable("a", "b")
    before = group.field("revision") or ""
    stage(group, "one", owner(0), "a")
    assert upgrade(group, "one", before) == 1
    assert group.downgrade() > 0
    with unchanged(group.client):
        assert stage(group, "two", owner(0), "a", revision=before) == 0
        assert upgrade(group, "two", before) == 0
    assert stage(group, "two", owner(0), "a") == 1
    assert upgrade(group, "two") == 1


DAMAGES: dict[str, Callable[[Any], object]] = {
    "row": lambda client: client.hset(MEMBERS, "m:b", "garbage"),
    "epoch row": lambda client: client.hset(MEMBERS, "e:b", '{"epoch":x}'),
    "half a member": lambda client: client.hdel(MEMBERS, "e:b"),
    "protocols": lambda client: client.hset(
        MEMBERS, "m:b", row("range").replace('["range"]', '["range",[]]')
    ),
    "votes": lambda client: client.hset(GROUP, "s:range", "many"),
    "assignment": lambda client: client.hset(ASSIGNMENTS, "c:b", '{"assigned":5}'),
    "partitions": lambda client: client.hset(
        ASSIGNMENTS, "c:b", '{"assigned":{"id":[0],"x":5},"revoking":{}}'
    ),
    "partition": lambda client: client.hset(ASSIGNMENTS, "c:b", '{"assigned":{"id":["x"]},"revoking":{}}'),
    "epoch": lambda client: client.hset(GROUP, "assignment_epoch", "x"),
    "count": lambda client: client.hset(GROUP, "size", "many"),
    "members": lambda client: client.set(MEMBERS, "text"),
    "deadlines": lambda client: client.set(DEADLINES, "text"),
    "assignments": lambda client: client.set(ASSIGNMENTS, "text"),
    "group": lambda client: client.set(GROUP, "text"),
}


STEPS: dict[str, Callable[[ConsumerGroup, int], object]] = {
    "leave": lambda group, _seen: group.leave(("a", "", -1), ("b", "", -1), ("c", "", -1)),
    "be back": lambda group, _seen: group.leave(("a", "i", -2), ("b", "", -1)),
    "advance": lambda group, _seen: group.advance(),
    "update": lambda group, seen: group.update("b", 1, epoch=3, assignment_epoch=seen),
    "replace": lambda group, seen: group.update("d", 1, epoch=3, replaced="b", assignment_epoch=seen),
    "take a place": lambda group, seen: group.update("c", 1, epoch=3, replaced="b", assignment_epoch=seen),
    "downgrade": lambda group, _seen: group.downgrade(),
    "bump": lambda group, _seen: run(
        group.client, "consumer/bump", CONSUMER_KEYS, (CHANNEL, "consumer", 3, "digest", "{}")
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("step", STEPS)
def test_a_script_does_its_work_or_names_what_is_damaged_and_writes_nothing(
    group: ConsumerGroup, step: str, damage: str
) -> None:
    group.stable("a", "b", "c", protocols=("range",))
    group.client.hset(MEMBERS, "i:i", "a")
    if step == "advance":
        group.client.zadd(DEADLINES, {"a": 1, "b": 2, "c": 3})
    assignment_epoch = 3
    DAMAGES[damage](group.client)
    before = {key: group.client.dump(key) for key in CONSUMER_KEYS}
    try:
        STEPS[step](group, assignment_epoch)
    except redis.ResponseError as error:
        assert str(error).startswith(("KAFKA_STORAGE_ERROR ", "WRONGTYPE ")), error  # noqa: PT017 - or it is none
        assert {key: group.client.dump(key) for key in CONSUMER_KEYS} == before


def test_where_memory_is_full_a_member_stays_and_nobody_joins(group: ConsumerGroup) -> None:
    group.stable("a", "b")
    with memory_left(group.client, -1):
        with unchanged(group.client), pytest.raises(redis.OutOfMemoryError):
            group.update("c", 2)
        assert group.heartbeat("a", 2) == 1
        group.leave(("b", "", -1))
        assert group.assign(3, {"a": [0, 1]}) == 0
        assert group.claim()[0] == 1
        assert group.assign(3, {"a": [0, 1]}) == 1
    assert group.field("state") == "Reconciling"
