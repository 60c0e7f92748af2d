"""Groups against a model of Kafka's rules in memory: random joins, syncs, heartbeats, leaves and time that passes."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from korvet.errors import KafkaError
from korvet.groups.types import Joined, Synced, Waiting
from korvet.redis.client import Redis
from tests.groups.support import Group, refused

INSTANCES = ("", "", "x", "y")
DATA = (b"one", b"two")
PICK = st.integers(0, 5)


class Member:
    """A member as Kafka has it; `parked` is what it waits in: "join", "sync" or nothing."""

    def __init__(self, name: str, instance: str, data: bytes) -> None:
        self.name, self.instance, self.data = name, instance, data
        self.parked = ""
        self.synced = False
        self.part = b""


class Model:
    """One group in memory, without an initial delay; `pending` are ids that have not joined yet (KIP-394)."""

    def __init__(self) -> None:
        self.state, self.generation, self.leader = "Empty", 0, ""
        self.members: dict[str, Member] = {}
        self.pending: set[str] = set()
        self.first = False

    def prepare(self) -> None:
        if self.state == "CompletingRebalance":
            for member in self.members.values():
                member.parked, member.part = "", b""
        self.first = self.state == "Empty"
        self.state = "PreparingRebalance"

    def complete(self) -> None:
        for member in list(self.members.values()):
            if member.parked != "join" and not member.instance:
                self.drop(member.name)
        if self.members and not any(member.parked for member in self.members.values()):
            return
        self.generation += 1
        if not self.members:
            self.state, self.leader = "Empty", ""
            return
        self.state = "CompletingRebalance"
        if self.leader not in self.members or not self.members[self.leader].parked:
            self.leader = ""  # any member that joined: the test takes over the choice
        for member in self.members.values():
            member.parked, member.synced, member.part = "", False, b""

    def complete_if_all_joined(self) -> None:
        all_here = not self.pending and all(member.parked == "join" for member in self.members.values())
        if self.state == "PreparingRebalance" and (self.first or not self.members or all_here):
            self.complete()

    def drop(self, name: str) -> None:
        del self.members[name]
        if self.leader == name:
            self.leader = ""

    def remove(self, *names: str) -> None:
        for name in names:
            self.drop(name)
        if names:
            if self.state in {"Stable", "CompletingRebalance"}:
                self.prepare()
            self.complete_if_all_joined()

    def join(self, member: Member) -> None:
        if self.state != "PreparingRebalance":
            self.prepare()
        member.parked = "join"
        self.complete_if_all_joined()


class GroupMachine(RuleBasedStateMachine):
    """Does the same to the group in Redis and to the model."""

    redis: Redis
    raw: Any

    @initialize()
    def begin(self) -> None:
        self.raw.flushall()
        self.group = Group(self.redis, self.raw)
        self.model = Model()
        self.count = 0

    def pick(self, number: int) -> Member | None:
        names = sorted(self.model.members)
        return self.model.members[names[number % len(names)]] if names else None

    def joined(self, outcome: Joined | Waiting, member: Member) -> None:
        model = self.model
        if not model.leader and model.members:
            model.leader = self.group.raw.hget(self.group.state, "leader").decode()
            if model.state != "PreparingRebalance":
                assert model.leader in model.members
        assert isinstance(outcome, Waiting) == (model.state == "PreparingRebalance"), (outcome, model.state)
        if isinstance(outcome, Joined):
            assert (outcome.generation, outcome.leader) == (model.generation, model.leader)
            received = {item.member_id: item.metadata for item in outcome.members}
            everyone = {item.name: item.data for item in model.members.values()}
            assert received == (everyone if member.name == model.leader else {})

    @rule(instance=st.sampled_from(INSTANCES), data=st.sampled_from(DATA))
    def restart_instance(self, instance: str, data: bytes) -> None:
        model = self.model
        self.count += 1
        member = Member(f"m{self.count:03}", instance, data)
        old = next((item for item in model.members.values() if instance and item.instance == instance), None)
        outcome = self.group.ask(new=member.name, instance=instance, protocols=(("range", data),))
        if old is not None:
            led = model.leader == old.name
            model.drop(old.name)
            member.part = old.part
            model.leader = member.name if led else model.leader
        model.members[member.name] = member
        if old is not None and model.state == "Stable":
            member.synced = True
        else:
            if old is None:  # a restarted one leads where it did before, and only there
                model.leader = model.leader or member.name
            model.join(member)
        self.joined(outcome, member)

    def pick_pending(self, number: int) -> str | None:
        names = sorted(self.model.pending)
        return names[number % len(names)] if names else None

    @rule()
    def ask_for_an_id(self) -> None:
        self.count += 1
        name = f"m{self.count:03}"
        refused("MEMBER_ID_REQUIRED", lambda: self.group.ask(new=name, require_known_member_id=True))
        self.model.pending.add(name)

    @rule(number=PICK, data=st.sampled_from(DATA))
    def join_with_the_id(self, number: int, data: bytes) -> None:
        name, model = self.pick_pending(number), self.model
        if name is None:
            return
        member = Member(name, "", data)
        outcome = self.group.ask(name, require_known_member_id=True, protocols=(("range", data),))
        model.pending.remove(name)
        model.members[name] = member
        model.leader = model.leader or name
        model.join(member)
        self.joined(outcome, member)

    @rule(number=PICK, leaves=st.booleans())
    def never_join_with_the_id(self, number: int, *, leaves: bool) -> None:
        name, model = self.pick_pending(number), self.model
        if name is None:
            return
        model.pending.remove(name)
        if leaves:
            assert self.group.leave((name, "")) == ["NONE"]
        else:
            self.group.time_is_up_for(name)
            self.group.advance()
        model.complete_if_all_joined()

    @rule(number=PICK, data=st.sampled_from(DATA))
    def join_again(self, number: int, data: bytes) -> None:
        member, model = self.pick(number), self.model
        if member is None:
            return
        outcome = self.group.ask(member.name, instance=member.instance, protocols=(("range", data),))
        same, member.data = member.data == data, data
        if same and (
            model.state == "CompletingRebalance" or (model.state == "Stable" and model.leader != member.name)
        ):
            member.parked = ""
        else:
            model.join(member)
        self.joined(outcome, member)

    @rule(number=PICK, ahead=st.sampled_from([0, 0, 0, 1]))
    def sync(self, number: int, ahead: int) -> None:
        member, model = self.pick(number), self.model
        if member is None:
            return
        parts = {name: f"{name} {model.generation}".encode() for name in model.members}
        given = parts if member.name == model.leader else {}
        outcome: Synced | Waiting | None = None
        refused = ""
        try:
            outcome = self.group.sync(
                member.name, model.generation + ahead, member.instance, None, None, **given
            )
        except KafkaError as error:
            refused = error.code.name
        if refused:
            assert refused == ("ILLEGAL_GENERATION" if ahead else "REBALANCE_IN_PROGRESS")
            assert ahead or model.state == "PreparingRebalance"
            return
        assert not ahead
        assert model.state in {"CompletingRebalance", "Stable"}
        member.synced = True
        if model.state == "CompletingRebalance" and member.name == model.leader:
            model.state = "Stable"
            for item in model.members.values():
                item.part, item.parked = parts[item.name], ""
        elif model.state == "CompletingRebalance":
            member.parked = "sync"
            assert isinstance(outcome, Waiting)
            return
        assert isinstance(outcome, Synced)
        assert outcome.assignment == member.part

    @rule(number=PICK, ahead=st.sampled_from([0, 0, 1]))
    def heartbeat(self, number: int, ahead: int) -> None:
        member, model = self.pick(number), self.model
        if member is None:
            return
        expected = "REBALANCE_IN_PROGRESS" if model.state == "PreparingRebalance" else ""
        try:
            self.group.heartbeat(member.name, model.generation + ahead, member.instance)
            result = ""
        except KafkaError as error:
            result = error.code.name
        assert result == ("ILLEGAL_GENERATION" if ahead else expected)

    @rule(number=PICK)
    def leave(self, number: int) -> None:
        member = self.pick(number)
        if member is not None:
            assert self.group.leave((member.name, member.instance)) == ["NONE"]
            self.model.remove(member.name)

    @rule(number=PICK)
    def session_ends(self, number: int) -> None:
        member = self.pick(number)
        if member is not None and not member.parked:
            self.group.time_is_up_for(member.name)
            self.group.advance()
            self.model.remove(member.name)

    @rule()
    def phase_ends(self) -> None:
        model = self.model
        if int(self.raw.hget(self.group.state, "deadline") or 0) == 0:
            return
        self.group.phase_is_over()
        self.group.advance()
        if model.state == "PreparingRebalance":
            model.complete()
        else:
            model.remove(*[member.name for member in model.members.values() if not member.synced])

    @invariant()
    def redis_says_the_same(self) -> None:
        model = self.model
        described = self.group.described()
        assert (described.state if self.count else "Empty", described.generation) == (
            model.state,
            model.generation,
        )
        assert {member.member_id: member.instance for member in described.members} == {
            member.name: member.instance for member in model.members.values()
        }
        leader = (self.raw.hget(self.group.state, "leader") or b"").decode()
        if not model.leader:
            model.leader = leader
        assert leader == model.leader
        parked = {name.decode() for name in self.raw.zrangebyscore(self.group.deadlines, "+inf", "+inf")}
        assert parked == {member.name for member in model.members.values() if member.parked}
        assert self.raw.zcard(self.group.deadlines) == len(model.members) + len(model.pending)
        assert int(self.raw.hget(self.group.state, "size") or 0) == len(model.members)
        counted = int(self.raw.hget(self.group.state, "s:range") or 0)
        assert counted == len(model.members)
        first = self.raw.zrange(self.group.deadlines, 0, 0, withscores=True)
        self.group.store.schedule.flush()
        assert not first or self.raw.zscore("korvet:groups", "billing") <= first[0][1]


def test_groups_behave_as_the_model(redis: Redis, raw_redis: Any) -> None:
    made: Any = type("Machine", (GroupMachine,), {"redis": redis, "raw": raw_redis})
    run_state_machine_as_test(
        made,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
