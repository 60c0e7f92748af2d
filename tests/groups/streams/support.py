"""A streams group for tests: members that report to workers as Kafka Streams does, and time that passes."""

from __future__ import annotations

from typing import Any

from korvet.groups.streams.coordinator import DescribedStreamsGroup, StreamsGroups
from korvet.groups.streams.types import (
    GroupStatus,
    MemberTasks,
    StreamsAnswer,
    StreamsReport,
    StreamsTopology,
)
from tests.groups.consumer.support import NAME, REBALANCE_MS, Consumers
from tests.groups.streams.topologies import WORD_COUNT
from tests.support.domain import Domain

Shown = dict[str, list[int]]


class Application(Consumers):
    """One worker's view of the group, as one of streams."""

    def __init__(self, domain: Domain, raw: Any, **settings: Any) -> None:
        super().__init__(domain, raw, **{"group_streams_initial_rebalance_delay_ms": 0} | settings)
        self.streams = StreamsGroups(self.store.streams, self.context)

    def create_all(self, partitions: int = 3) -> None:
        for topic in ("lines", "by-word", "counts-changelog"):
            self.create(topic, partitions)

    def set_configs(self, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.configs.alter(NAME, lambda row: row | named)

    def state(self) -> str:
        return self.described().fields.state

    def described(self) -> DescribedStreamsGroup:
        [described] = self.streams.describe([NAME])
        assert isinstance(described, DescribedStreamsGroup), described
        return described


class Runner:
    """A member, as a client sees itself; `at` is the worker that it is connected to."""

    def __init__(
        self, at: Application, name: str, topology: StreamsTopology = WORD_COUNT, **fields: Any
    ) -> None:
        """`name` is its process and a thread of that: `p/a`."""
        self.at, self.member_id = at, name
        self.fields = {"topology": topology, "process_id": name.partition("/")[0], "tags": ()} | fields
        self.epoch, self.endpoints = 0, -1
        self.tasks = MemberTasks()
        self.must_report = False

    def send(self, **fields: Any) -> StreamsAnswer:
        """Send a heartbeat, and take what its answer says."""
        given: dict[str, Any] = {
            "group": NAME,
            "member_id": self.member_id,
            "epoch": self.epoch,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "endpoints": self.endpoints,
        }
        report = StreamsReport(**given | fields)
        answer = self.at.streams.renew(report) or self.at.streams.heartbeat(report)
        self.epoch, self.endpoints = answer.epoch, answer.endpoints
        if answer.tasks is not None:
            self.tasks, self.must_report = answer.tasks, True
        return answer

    def join(self, **fields: Any) -> StreamsAnswer:
        """Join, or join again."""
        self.epoch, self.endpoints, self.tasks = 0, -1, MemberTasks()
        return self.send(**{"rebalance_ms": REBALANCE_MS, "tasks": MemberTasks()} | self.fields | fields)

    def beat(self) -> StreamsAnswer:
        """Send a heartbeat as clients do: after each assignment it says that these are its tasks now."""
        reports, self.must_report = self.must_report, False
        return self.send(**({"tasks": self.tasks} if reports else {}))

    def leave(self, **fields: Any) -> StreamsAnswer:
        return self.send(epoch=-1, **fields)

    @property
    def active(self) -> Shown:
        """Its active tasks: the partitions of each subtopology."""
        return _shown(self.tasks, "active")

    @property
    def standby(self) -> Shown:
        return _shown(self.tasks, "standby")


def _shown(tasks: MemberTasks, role: str) -> Shown:
    result: Shown = {}
    for subtopology, partition in sorted(getattr(tasks, role)):
        result.setdefault(subtopology, []).append(partition)
    return result


def statuses(answer: StreamsAnswer) -> list[GroupStatus]:
    """Return what an answer says of the group, without the sentences."""
    return [status for status, _ in answer.statuses]


def settle(*runners: Runner) -> None:
    """Have all send heartbeats until nobody gets anything new."""
    for _ in range(20):
        before = [(runner.epoch, runner.tasks) for runner in runners]
        for runner in runners:
            runner.beat()
        if before == [(runner.epoch, runner.tasks) for runner in runners] and not any(
            runner.must_report for runner in runners
        ):
            return
    raise AssertionError("the members do not settle")
