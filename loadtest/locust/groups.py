"""Members of consumer groups: they join, read, commit, and leave after a while to join again.

Knows the consumer's client. Each leave and join makes all members of the group join again, as deployments do.
"""

from __future__ import annotations

import itertools
import random
import time

from confluent_kafka import Consumer, KafkaError, KafkaException
from locust import task
from locust.env import Environment

from loadtest.locust import records, topics
from loadtest.locust.consumers import config, take
from loadtest.locust.operations import COMMIT, COMMIT_REFUSED, GROUP_TAIL, JOIN, LEAVE
from loadtest.locust.user import KafkaUser

_COMMIT_SECONDS = 1.0
_STAY_SECONDS = (20.0, 40.0)
_JOIN_SECONDS_MAX = 60.0
# The answer to a member whose group is rebalancing: it commits again with its next generation.
_TOO_LATE = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
}


class GroupUser(KafkaUser):
    """A member of one of the groups, subscribed to all topics."""

    _numbers = itertools.count()

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        names = topics.group_names(self.options)
        self._group_id = names[next(self._numbers) % len(names)]
        self._operations = {each.name: GROUP_TAIL.to(each.format) for each in topics.planned(self.options)}
        self._leave_at = self._commit_at = 0.0
        self._assigned = False
        self._uncommitted = False

    def on_start(self) -> None:
        """Become a member: from subscribing until the first assignment is there."""
        self._assigned = self._uncommitted = False
        # A member hears of a rebalance with its next heartbeat, so joins take as long as those are apart.
        more: dict[str, str | float] = {"heartbeat.interval.ms": 500, "auto.offset.reset": "latest"}
        self._consumer = Consumer(self.client_config(**config(self._group_id, **more)))
        with self.measured(JOIN):
            self.blocking(self._join)
        now = time.monotonic()
        self._leave_at, self._commit_at = now + random.uniform(*_STAY_SECONDS), now + _COMMIT_SECONDS

    def _join(self) -> None:
        self._consumer.subscribe(list(self._operations), on_assign=self._on_assign)
        deadline = time.monotonic() + _JOIN_SECONDS_MAX
        while not self._assigned:
            if time.monotonic() > deadline:
                raise KafkaException(f"no assignment in {_JOIN_SECONDS_MAX:.0f} s")
            # Nothing can come before the assignment; what came with it would be lost to the statistics only.
            self._consumer.poll(0.1)

    def _on_assign(self, *_: object) -> None:
        self._assigned = True

    @task
    def read(self) -> None:
        """Take what has come; commit once a second; leave and join again after a while."""
        try:
            messages, now_ns = self.blocking(take, self._consumer)
        except KafkaException as error:
            self.report(next(iter(self._operations.values())), 0, error=error)
            return
        for message in messages:
            if (stamp := records.parse(message.value())) is not None:
                operation = self._operations[str(message.topic())]
                self.report(operation, (now_ns - stamp.sent_ns) / 1e9, len(message))
        self._uncommitted = self._uncommitted or bool(messages)
        now = time.monotonic()
        if self._uncommitted and now >= self._commit_at:
            self._commit_at = now + _COMMIT_SECONDS
            self._uncommitted = False
            self._commit()
        if now >= self._leave_at:
            self._leave()
            self.on_start()

    def _commit(self) -> None:
        began = time.perf_counter()
        try:
            self.blocking(self._consumer.commit, asynchronous=False)
        except KafkaException as error:
            took, code = time.perf_counter() - began, error.args[0].code()
            if code in _TOO_LATE:
                self.report(COMMIT_REFUSED, took)
            elif code != KafkaError._NO_OFFSET:  # noqa: SLF001 - so the client spells its own errors
                self.report(COMMIT, took, error=error)
            # Otherwise the partitions were taken away since the records came: the broker was not asked.
        else:
            self.report(COMMIT, time.perf_counter() - began)

    def _leave(self) -> None:
        with self.measured(LEAVE):
            self.blocking(self._consumer.close)

    def on_stop(self) -> None:
        """Leave."""
        self._leave()
        super().on_stop()
