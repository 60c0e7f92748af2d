"""A share group for tests: members that report to workers as clients do, and time that passes."""

from __future__ import annotations

from typing import Any

from korvet.groups.consumer.types import MemberAnswer, MemberReport
from korvet.groups.listing import DescribedConsumerGroup
from korvet.groups.share.coordinator import ShareGroups
from tests.groups.consumer.support import NAME, Consumers
from tests.groups.consumer.support import Client as Consumer
from tests.support.domain import Domain


class Shares(Consumers):
    """One worker's view of the group, also as a group of other types."""

    def __init__(self, domain: Domain, raw: Any, **settings: Any) -> None:
        super().__init__(domain, raw, **settings)
        self.shares = ShareGroups(self.store.shares, self.context)

    def describe(self) -> DescribedConsumerGroup:
        [described] = self.admin.describe_share_groups([NAME])
        assert isinstance(described, DescribedConsumerGroup), described
        return described


class Client(Consumer):
    """A member, as a client sees itself; `at` is the worker that it is connected to."""

    at: Shares

    def ask(self, report: MemberReport) -> MemberAnswer:
        return self.at.shares.renew(report) or self.at.shares.heartbeat(report)

    def join(self, **fields: Any) -> MemberAnswer:
        """Join, or join again."""
        self.epoch, self.assigned = 0, frozenset()
        return self.send(**self.fields | fields)
