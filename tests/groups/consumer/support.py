"""A group of the consumer protocol for tests: members that report to workers as clients do, and time that passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.groups.consumer.assignment import GroupsContext
from korvet.groups.consumer.classic_members import ClassicMembers
from korvet.groups.consumer.coordinator import ConsumerGroups
from korvet.groups.consumer.migration import Migration
from korvet.groups.consumer.subscriptions import names_of
from korvet.groups.consumer.types import MemberAnswer, MemberReport, Owned
from korvet.groups.listing import DescribedConsumerGroup, GroupAdmin, GroupList
from korvet.groups.membership import GroupCoordinator
from korvet.groups.offsets import OffsetStore
from korvet.groups.store import GroupStore
from korvet.topics.registry import TopicSpec, id_text
from tests.groups.support import KEYS
from tests.support.domain import Domain

NAME = "billing"
REBALANCE_MS = 60_000


class Consumers:
    """One worker's view of the group; all workers share `domain`'s Redis."""

    def __init__(self, domain: Domain, raw: Any, *, clock: Clock = CLOCK, **settings: Any) -> None:
        self.domain, self.raw, self.clock = domain, raw, clock
        self.settings = Settings(**settings)
        self.store = GroupStore(domain.redis, KEYS, size_max=self.settings.group_max_size, initial_delay_ms=0)
        self.offsets = OffsetStore(domain.redis, KEYS, mirror=False)
        migration = Migration(self.store, domain.topics, self.settings)
        self.configs = GroupConfigs(domain.redis, KEYS, self.settings)
        self.context = GroupsContext(domain.topics, self.configs, self.settings, domain.subscriptions, clock)
        self.groups = ConsumerGroups(self.store.consumers, self.context, migration)
        members = ClassicMembers(self.groups, migration, domain.topics)
        self.classic = GroupCoordinator(self.store, domain.subscriptions, self.settings, members, clock=clock)
        names = GroupList(domain.redis, KEYS)
        self.admin = GroupAdmin(self.store, names, self.offsets, domain.topics)

    def create(self, topic: str, partitions: int) -> None:
        self.domain.topics.create(TopicSpec(name=topic, partitions=partitions))

    def owned(self, topic: str, *indexes: int) -> Owned:
        """Return partitions of a topic by its id."""
        topic_id = id_text(self.domain.topics.get(topic).id)
        return frozenset((topic_id, index) for index in indexes)

    def named(self, owned: Iterable[tuple[str, int]] | None) -> dict[str, list[int]] | None:
        if owned is None:
            return None
        result: dict[str, list[int]] = {}
        for topic_id, index in sorted(owned):
            by_id = {id_text(item.id): item.name for item in self.domain.topics.list_cached()}
            result.setdefault(by_id[topic_id], []).append(index)
        return result

    def subscribed(self, members: Iterable[Any]) -> set[tuple[str, int]]:
        """Return the partitions of all topics that some member is subscribed to."""
        names = {name for member in members for name in names_of(member)}
        self.domain.topics.refresh()
        subscribed = (topic for topic in self.domain.topics.list_cached() if topic.name in names)
        return {(topic.name, index) for topic in subscribed for index in range(len(topic.partitions))}

    def describe(self) -> DescribedConsumerGroup:
        [described] = self.admin.describe_consumer_groups([NAME])
        assert isinstance(described, DescribedConsumerGroup), described
        return described

    def state(self) -> str:
        return self.describe().fields.state

    def advance(self) -> None:
        """Do what the keeper does."""
        self.store.advance(NAME)

    def let_pass(self, member: str, ms: float = float("inf")) -> None:
        """Let so much time pass for the deadline of a member, all of it by default, and have the keeper come by."""
        key = KEYS.group_deadlines(NAME)
        before = self.raw.zscore(key, member)
        assert before is not None
        self.raw.zadd(key, {member: max(before - ms, 1)})
        self.advance()

    def deadline_in_ms(self, member: str) -> float:
        """Return how long a member has from now on."""
        seconds, microseconds = self.raw.time()
        score = self.raw.zscore(KEYS.group_deadlines(NAME), member)
        return float(score - seconds * 1000 - microseconds // 1000)


class Client:
    """A member of the consumer protocol, as a client sees itself; `groups` is the worker that it is connected to."""

    def __init__(self, at: Consumers, member_id: str, *names: str, **fields: Any) -> None:
        self.at, self.member_id = at, member_id
        self.fields: dict[str, Any] = {"names": names} | fields
        self.is_visible: Callable[[str], bool] = lambda _name: True
        self.epoch = 0
        self.owned: Owned = frozenset()
        self.assigned: Owned = frozenset()
        self.must_report = False

    def send(self, **fields: Any) -> MemberAnswer:
        """Send a heartbeat, and take what its answer says."""
        given: dict[str, Any] = {
            "group": NAME,
            "member_id": self.member_id,
            "epoch": self.epoch,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "instance": self.fields.get("instance"),
        }
        answer = self.ask(MemberReport(**given | fields))
        self.epoch = answer.epoch
        if answer.assigned is not None:
            self.assigned, self.must_report = answer.assigned, True
        return answer

    def ask(self, report: MemberReport) -> MemberAnswer:
        return self.at.groups.renew(report) or self.at.groups.heartbeat(report, self.is_visible)

    def join(self, **fields: Any) -> MemberAnswer:
        """Join, or join again."""
        self.epoch, self.owned, self.assigned = 0, frozenset(), frozenset()
        answer = self.send(**{"rebalance_ms": REBALANCE_MS, "owned": frozenset(), **self.fields, **fields})
        self.owned = self.assigned
        return answer

    def beat(self) -> MemberAnswer:
        """Send a heartbeat as clients do: after each assignment it says that this is what it owns now."""
        reports, self.must_report = self.must_report, False
        self.owned = self.assigned
        return self.send(**({"owned": self.owned} if reports else {}))

    def leave(self, epoch: int = -1) -> MemberAnswer:
        return self.send(epoch=epoch)

    def has(self) -> dict[str, list[int]]:
        """Return the partitions that it may read."""
        return self.at.named(self.assigned) or {}


def settle(*clients: Client) -> None:
    """Have all send heartbeats until nobody gets anything new."""
    for _ in range(20):
        before = [(client.epoch, client.assigned) for client in clients]
        for client in clients:
            client.beat()
        after = [(client.epoch, client.assigned) for client in clients]
        if before == after and not any(client.must_report for client in clients):
            return
    raise AssertionError("the members do not settle")


def delete_topic(at: Consumers, topic: str) -> None:
    at.domain.topics.delete([at.domain.topics.get(topic)])


def grow_topic(at: Consumers, topic: str, partitions: int) -> None:
    at.domain.topics.add_partitions(
        at.domain.topics.get(topic), lambda row: msgspec.structs.replace(row, partitions=partitions)
    )
