"""A share group for tests: members that report to workers as clients do, and time that passes."""

from __future__ import annotations

from typing import Any

from korvet.cluster.group_configs import GroupConfigs
from korvet.groups.consumer.types import MemberAnswer, MemberReport, Owned
from korvet.groups.listing import DescribedConsumerGroup
from korvet.groups.share.coordinator import ShareGroups
from tests.groups.consumer.support import NAME, Consumers
from tests.groups.support import KEYS
from tests.support.domain import Domain


class Shares(Consumers):
    """One worker's view of the group, also as a group of other types."""

    def __init__(self, domain: Domain, raw: Any, **settings: Any) -> None:
        super().__init__(domain, raw, **settings)
        self.configs = GroupConfigs(domain.redis, KEYS, self.settings)
        self.shares = ShareGroups(
            self.store.shares, domain.topics, self.configs, self.settings, domain.subscriptions
        )

    def describe(self) -> DescribedConsumerGroup:
        """Return the group as administrators see it."""
        [described] = self.admin.describe_share_groups([NAME])
        assert isinstance(described, DescribedConsumerGroup), described
        return described


class Client:
    """A member, as a client sees itself; `at` is the worker that it is connected to."""

    def __init__(self, at: Shares, member_id: str, *names: str) -> None:
        self.at, self.member_id, self.names = at, member_id, names
        self.epoch = 0
        self.assigned: Owned = frozenset()

    def send(self, **fields: Any) -> MemberAnswer:
        """Send a heartbeat, and take what its answer says."""
        given: dict[str, Any] = {
            "group": NAME,
            "member_id": self.member_id,
            "epoch": self.epoch,
            "client_id": "client",
            "client_host": "/127.0.0.1",
        }
        report = MemberReport(**given | fields)
        answer = self.at.shares.renew(report) or self.at.shares.heartbeat(report)
        self.epoch = answer.epoch
        if answer.assigned is not None:
            self.assigned = answer.assigned
        return answer

    def join(self, **fields: Any) -> MemberAnswer:
        """Join, or join again."""
        self.epoch, self.assigned = 0, frozenset()
        return self.send(**{"names": self.names} | fields)

    def leave(self) -> MemberAnswer:
        """Leave the group."""
        return self.send(epoch=-1)

    def has(self) -> dict[str, list[int]]:
        """Return the partitions that it may read."""
        return self.at.named(self.assigned) or {}
