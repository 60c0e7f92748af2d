"""Groups whose members change from the classic to the consumer protocol and back, one by one (KIP-848)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import gevent
import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.embedded_protocol import encode_assignment, parse_assignment
from korvet.groups.types import CONSUMER, Joined, MemberIdRequiredError, SyncRequest
from tests.groups.consumer.support import NAME, Client, Consumers, settle
from tests.groups.support import KEYS, join_request, refused, sync_request
from tests.support.domain import domain
from tests.support.virtual_clock import VirtualClock

SECONDS_MAX = 60.0
EVERY = encode_assignment(1, {"orders": [0, 1, 2, 3]})
WITH_USER_DATA = EVERY.removesuffix(struct.pack(">i", -1)) + struct.pack(">i", 5) + b"tasks"


def subscription(*topics: str, owned: Mapping[str, list[int]] | None = None) -> bytes:
    """Return what a consumer of the classic protocol says, in version 1."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    parts = b"".join(
        struct.pack(">h", len(name)) + name.encode() + struct.pack(f">i{len(item)}i", len(item), *item)
        for name, item in (owned or {}).items()
    )
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, len(owned or {})) + parts


class ClassicClient:
    """A member of the classic protocol that rebalances as `CooperativeStickyAssignor` does: it keeps what it owns."""

    def __init__(self, at: Consumers, *topics: str, instance: str = "") -> None:
        self.at, self.topics, self.instance = at, topics, instance
        self.member_id, self.generation = "", -1
        self.owned: dict[str, list[int]] = {}
        self.assigned: dict[str, list[int]] = {}

    def request(self, **fields: Any) -> Any:
        protocols = (("range", subscription(*self.topics, owned=self.owned)),)
        given = {"protocols": protocols, "instance": self.instance} | fields
        return join_request(NAME, self.member_id, **given)

    def join(self, **fields: Any) -> Joined:
        """Join; waits for others where the group is a classic one."""
        joined = self.at.classic.join(self.request(**fields), lambda _topic: True)
        self.member_id, self.generation = joined.member_id, joined.generation
        return joined

    def sync(self, parts: Mapping[str, bytes] | None = None) -> dict[str, list[int]]:
        """Get the assignment, or bring all as the leader."""
        request: SyncRequest = sync_request(
            NAME, self.member_id, self.generation, parts or {}, instance=self.instance
        )
        synced = self.at.classic.sync(request)
        result: dict[str, list[int]] = {}
        assignment = parse_assignment(synced.assignment)
        for topic, index in assignment.partitions if assignment else ():
            result.setdefault(topic, []).append(index)
        self.assigned = self.owned = result
        return result

    def rejoin(self) -> dict[str, list[int]]:
        """Join and sync until there is no more to do, as a client does."""
        for _ in range(10):
            self.join()
            self.sync()
            if not self.must_join():
                return self.assigned
        raise AssertionError("it has to join again and again")

    def beat(self) -> None:
        self.at.classic.heartbeat(NAME, self.member_id, self.instance, self.generation)

    def must_join(self) -> bool:
        """Send a heartbeat, and tell whether its answer asks to join again."""
        try:
            self.beat()
        except KafkaError as error:
            if error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
                raise
            return True
        return False


def parked_join(member: ClassicClient) -> gevent.Greenlet[..., Joined]:
    """Join in a greenlet of its own; returns once the member waits for others."""
    assert isinstance(member.at.clock, VirtualClock)
    joining = member.at.clock.spawn(member.join)
    member.at.clock.run_until_idle()
    assert not joining.dead
    return joining


def classic_group(at: Consumers, count: int = 2) -> list[ClassicClient]:
    """Make a stable classic group of members with equal parts of `orders`."""
    members = [ClassicClient(at, "orders") for _ in range(count)]
    leader = members[0]
    leader.join()
    joining = [parked_join(member) for member in members[1:]]
    if joining:
        leader.join()
    gevent.joinall(joining, raise_error=True, timeout=SECONDS_MAX)
    parts = {
        item.member_id: encode_assignment(1, {"orders": list(range(place, 4, count))})
        for place, item in enumerate(members)
    }
    leader.sync(parts)
    for item in members:
        item.sync()
    return members


@pytest.fixture
def classic(at: Consumers) -> ClassicClient:
    [member] = classic_group(at, 1)
    assert member.assigned == {"orders": [0, 1, 2, 3]}
    return member


def settled(new: list[Client], old: list[ClassicClient]) -> None:
    """Have all do what they are asked to until nobody is asked any more."""
    for _ in range(20):
        before = [(item.epoch, item.assigned) for item in new]
        for item in new:
            item.beat()
            item.beat()
        moved = False
        for member in old:
            if member.must_join():
                moved = True
                member.join()
                member.sync()
        if not moved and before == [(item.epoch, item.owned) for item in new]:
            return
    raise AssertionError("the members do not settle")


def test_a_classic_group_changes_its_protocol_with_the_first_member_of_the_other_one(
    at: Consumers, classic: ClassicClient
) -> None:
    generation = classic.generation
    new = Client(at, "new", "orders")
    assert new.join().epoch == generation + 1
    assert new.has() == {}, "the classic member has not revoked anything yet"
    assert at.describe().fields.state == "Reconciling"
    assert {member.member_id: member.is_classic for member in at.describe().members} == {
        classic.member_id: True,
        "new": False,
    }
    settled([new], [classic])
    assert len(classic.assigned["orders"]) == len(new.has()["orders"]) == 2
    assert sorted(classic.assigned["orders"] + new.has()["orders"]) == [0, 1, 2, 3]
    assert at.describe().fields.state == "Stable"


def test_a_classic_member_that_waits_for_others_joins_the_changed_group(
    at: Consumers, classic: ClassicClient
) -> None:
    late = ClassicClient(at, "orders")
    with pytest.raises(MemberIdRequiredError) as asked:
        late.join(require_known_member_id=True)
    late.member_id = asked.value.member_id
    joining = parked_join(late)
    new = Client(at, "new", "orders")
    new.join()
    refused("REBALANCE_IN_PROGRESS", lambda: joining.get(timeout=SECONDS_MAX))
    late.join()
    late.sync()
    settled([new], [classic, late])
    every = classic.assigned["orders"] + late.assigned.get("orders", []) + new.has()["orders"]
    assert sorted(every) == [0, 1, 2, 3]


def test_a_member_gets_an_id_first_as_in_a_classic_group(at: Consumers) -> None:
    Client(at, "new", "orders").join()
    old = ClassicClient(at, "orders")
    with pytest.raises(MemberIdRequiredError) as asked:
        old.join(require_known_member_id=True)
    old.member_id = asked.value.member_id
    joined = old.join(require_known_member_id=True)
    assert (joined.member_id, joined.protocol_type, joined.protocol, joined.leader, joined.members) == (
        *(old.member_id, CONSUMER, "range"),
        *("", ()),
    )
    assert old.sync() == {}


def test_what_is_wrong_with_a_classic_member_is_said_as_kafka_does(
    at: Consumers, classic: ClassicClient
) -> None:
    new = Client(at, "new", "orders")
    new.join()
    settled([new], [classic])
    stranger = ClassicClient(at, "orders")
    refused("INCONSISTENT_GROUP_PROTOCOL", lambda: stranger.join(protocol_type="connect"))
    refused("INCONSISTENT_GROUP_PROTOCOL", lambda: stranger.join(protocols=(("other", b""),)))
    refused("UNKNOWN_MEMBER_ID", lambda: at.classic.heartbeat(NAME, "nobody", "", 1))
    refused("UNKNOWN_MEMBER_ID", lambda: at.classic.heartbeat(NAME, "new", "", new.epoch))
    refused("ILLEGAL_GENERATION", lambda: at.classic.heartbeat(NAME, classic.member_id, "", 1))
    refused("ILLEGAL_GENERATION", lambda: at.classic.sync(sync_request(NAME, classic.member_id, 1, {})))
    request = sync_request(NAME, classic.member_id, classic.generation, {}, protocol="other")
    refused("INCONSISTENT_GROUP_PROTOCOL", lambda: at.classic.sync(request))
    assert at.classic.leave(NAME, [("nobody", ""), ("", "i1")]) == [25, 25]


def test_a_classic_member_that_does_not_join_again_in_time_is_removed(
    at: Consumers, classic: ClassicClient
) -> None:
    new = Client(at, "new", "orders")
    new.join()
    assert classic.must_join()
    at.let_pass(classic.member_id)
    settle(new)
    assert new.has() == {"orders": [0, 1, 2, 3]}
    refused("UNKNOWN_MEMBER_ID", classic.beat)


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions(at: Consumers) -> None:
    old = ClassicClient(at, "orders", instance="i1")
    old.join()
    old.sync({old.member_id: EVERY})
    new = Client(at, "new", "orders", instance="i1")
    new.join()
    assert new.has() == {"orders": [0, 1, 2, 3]}
    assert [member.member_id for member in at.describe().members] == ["new"]
    refused("FENCED_INSTANCE_ID", old.beat)
    # And back: it is the only member of its protocol, so the group is a classic one again, without a rebalance.
    other = ClassicClient(at, "orders", instance="i2")
    other.join()
    settle(new)
    owned = other.rejoin()
    settle(new)
    back = ClassicClient(at, "orders", instance="i1")
    joined = back.join()
    assert (joined.leader, joined.generation) == ("", other.generation)
    [listed] = at.admin.list_groups([], [])
    assert (listed.kind, listed.state) == ("classic", "Stable")
    assert (back.sync(), other.sync()) == ({"orders": [0, 1]}, owned)
    assert [back.must_join(), other.must_join()] == [False, False]
    refused("GROUP_ID_NOT_FOUND", lambda: new.send(epoch=new.epoch))


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_the_policy_says_which_way_a_group_may_change(
    redis_url: str, raw_redis: Any, policy: str, *, upgrades: bool, downgrades: bool
) -> None:
    with domain(redis_url) as made:
        at = Consumers(made, raw_redis, group_consumer_migration_policy=policy)
        at.create("orders", 4)
        [old] = classic_group(at, 1)
        new = Client(at, "new", "orders")
        if upgrades:
            new.join()
        else:
            error = refused("GROUP_ID_NOT_FOUND", new.join)
            assert "online upgrade is disabled" in error.message
        at.classic.leave(NAME, [(old.member_id, "")])
        new.join()
        old = ClassicClient(at, "orders")
        old.join()
        old.sync()
        new.leave()
        [listed] = at.admin.list_groups([], [])
        assert listed.kind == ("classic" if downgrades else "consumer")


def joined_alone(
    at: Consumers, *, assignor: str = "range", kind: str = CONSUMER, assignment: bytes = EVERY
) -> ClassicClient:
    """Give the one member of a classic group, with this assignment."""
    member = ClassicClient(at, "orders")
    member.join(protocol_type=kind, protocols=((assignor, subscription("orders")),))
    member.sync({member.member_id: assignment})
    return member


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"kind": "connect"}, "does not use the consumer embedded protocol"),
        ({"assignment": b"\0"}, "malformed"),
        (
            {"assignor": "tasks", "assignment": WITH_USER_DATA},
            "because an unsupported custom assignor is in use",
        ),
    ],
)
def test_a_classic_group_that_cannot_be_upgraded_stays_as_it_is(
    at: Consumers, group: dict[str, Any], message: str
) -> None:
    member = joined_alone(at, **group)
    assert message in refused("GROUP_ID_NOT_FOUND", Client(at, "new", "orders").join).message
    member.beat()
    assert at.admin.list_groups([], [])[0].kind == "classic"


def test_a_group_may_be_upgraded_whatever_user_data_an_assignor_of_kafkas_adds(at: Consumers) -> None:
    joined_alone(at, assignor="cooperative-sticky", assignment=WITH_USER_DATA)
    new = Client(at, "new", "orders")
    new.join()
    assert new.has() == {}, "the classic member owns them all"
    assert at.admin.list_groups([], [])[0].kind == "consumer"


def test_a_group_that_changes_back_while_a_member_joins_keeps_what_the_others_own(
    at: Consumers, other: Consumers, classic: ClassicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade, beats = at.groups._migration.upgrade, [classic]

    def upgraded(*args: Any) -> None:
        upgrade(*args)
        if beats:
            refused("REBALANCE_IN_PROGRESS", beats.pop().beat)
            assert other.admin.list_groups([], [])[0].kind == "classic"

    monkeypatch.setattr(at.groups._migration, "upgrade", upgraded)
    new = Client(at, "new", "orders")
    new.join()
    assert not beats
    assert new.has() == {}, "the classic member has not revoked anything yet"
    settled([new], [classic])
    assert len(new.assigned) == len(classic.assigned["orders"]) == 2


def test_a_group_that_waits_for_its_leaders_assignments_is_upgraded_with_the_last_ones(
    at: Consumers, classic: ClassicClient
) -> None:
    late = ClassicClient(at, "orders")
    joining = parked_join(late)
    classic.join()
    joining.get(timeout=SECONDS_MAX)
    assert at.admin.list_groups([], [])[0].state == "CompletingRebalance"
    new = Client(at, "new", "orders")
    new.join()
    assert new.has() == {}, "the classic member still reads all partitions"
    settled([new], [classic, late])
    every = classic.assigned["orders"] + late.assigned["orders"] + new.has()["orders"]
    assert sorted(every) == [0, 1, 2, 3]


def test_a_consumer_that_is_refused_leaves_a_classic_group_as_it_is(redis_url: str, raw_redis: Any) -> None:
    with domain(redis_url) as made:
        at = Consumers(made, raw_redis, group_consumer_max_size=1)
        at.create("orders", 4)
        [old] = classic_group(at, 1)
        refused("INVALID_REGULAR_EXPRESSION", Client(at, "new", names=None, regex="(").join)
        refused("GROUP_MAX_SIZE_REACHED", Client(at, "new", "orders").join)
        [listed] = at.admin.list_groups([], [])
        assert (listed.kind, listed.state) == ("classic", "Stable")
        old.beat()


def test_a_consumer_takes_the_place_of_a_static_member_in_a_full_classic_group(
    redis_url: str, raw_redis: Any
) -> None:
    with domain(redis_url) as made:
        at = Consumers(made, raw_redis, group_consumer_max_size=1)
        at.create("orders", 4)
        old = ClassicClient(at, "orders", instance="i1")
        old.join()
        old.sync({old.member_id: EVERY})
        new = Client(at, "new", "orders", instance="i1")
        new.join()
        assert new.has() == {"orders": [0, 1, 2, 3]}


def just_before(monkeypatch: pytest.MonkeyPatch, at: Consumers, name: str, act: Callable[[], Any]) -> None:
    """Have something happen once, just before a worker calls this method of its store."""
    call, acts = getattr(at.store.consumers, name), [act]

    def called(*args: Any) -> Any:
        if acts:
            acts.pop()()
        return call(*args)

    monkeypatch.setattr(at.store.consumers, name, called)


@pytest.mark.parametrize("method", ["update", "claim", "owners"])
@pytest.mark.parametrize("instance", ["", "i1"])
def test_a_classic_member_joins_while_the_last_consumer_leaves(
    at: Consumers, other: Consumers, monkeypatch: pytest.MonkeyPatch, method: str, instance: str
) -> None:
    new = Client(at, "new", "orders")
    new.join()
    just_before(monkeypatch, other, method, new.leave)
    old = ClassicClient(other, "orders", instance=instance)
    joined = old.join()
    assert (joined.leader, joined.generation) == (old.member_id, old.generation)
    group = at.raw.hgetall(KEYS.group_state(NAME))
    assert (group[b"state"], group[b"size"], group[b"s:range"]) == (b"CompletingRebalance", b"1", b"1")
    assert at.raw.zrange(KEYS.group_deadlines(NAME), 0, -1) == [old.member_id.encode()]
    assert old.sync({old.member_id: encode_assignment(1, {"orders": [0]})}) == {"orders": [0]}
    assert at.classic.leave(NAME, [(old.member_id, "")]) == [ErrorCode.NONE]
    assert at.raw.hget(KEYS.group_state(NAME), "state") == b"Empty"


def test_a_classic_member_leaves_while_the_last_consumer_leaves(
    at: Consumers, other: Consumers, classic: ClassicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Client(at, "new", "orders")
    new.join()
    just_before(monkeypatch, other, "leave", new.leave)
    assert other.classic.leave(NAME, [(classic.member_id, "")]) == [ErrorCode.NONE]
    [listed] = at.admin.list_groups([], [])
    assert (listed.kind, listed.state) == ("classic", "Empty")
