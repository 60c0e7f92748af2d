"""Streams groups as values: topologies, tasks, what members report, and what they are to know (KIP-1071).

A task is a partition of a subtopology. A group has one active task of each, and standby tasks, which follow its state
in other processes. Members own both as members of the consumer protocol own partitions, by pairs of an id and an index:

    "/SUBTOPOLOGY"            active: one member of the group has it
    "PROCESS/SUBTOPOLOGY"     standby: one member of that process has it

So the scripts under lua/consumer, which know nothing of tasks, keep each at one owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import msgspec

from korvet.groups.consumer.types import Owned, Report

Tasks: TypeAlias = frozenset[tuple[str, int]]
"""Tasks by subtopology and partition."""

NO_TASKS: Tasks = frozenset()


class GroupStatus(IntEnum):
    """What the members are to know of their group, with a sentence."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class InternalTopic(msgspec.Struct, frozen=True):
    """A topic that belongs to the application; 0 partitions, or replicas, are the broker's to choose."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


class Subtopology(msgspec.Struct, frozen=True):
    """A part of the application that is connected by topics with the others only."""

    id: str
    sources: tuple[str, ...]
    repartition_sinks: tuple[str, ...]
    repartition_sources: tuple[InternalTopic, ...]
    changelogs: tuple[InternalTopic, ...]
    copartitioned: tuple[tuple[str, ...], ...]
    """Source topics, repartition topics among them, that need the same number of partitions."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.sources, *(repartition_source.name for repartition_source in self.repartition_sources))


class StreamsTopology(msgspec.Struct, frozen=True):
    """What the members of a group run, as JSON: the subtopologies in the order of their ids."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @property
    def sources(self) -> set[str]:
        return {name for subtopology in self.subtopologies for name in subtopology.sources}

    @property
    def topics(self) -> set[str]:
        """All topics that the tasks read from or keep their state in."""
        changelogs = {topic.name for subtopology in self.subtopologies for topic in subtopology.changelogs}
        return {name for subtopology in self.subtopologies for name in subtopology.inputs} | changelogs


class ConfiguredTopology(NamedTuple):
    """A topology by the topics that there are: partitions of internal topics, and tasks.

    Without tasks it has a status, and why.
    """

    tasks: dict[str, int]
    """The number of tasks of each subtopology."""
    internal: dict[str, InternalTopic]
    missing: list[InternalTopic]
    status: GroupStatus | None = None
    detail: str = ""


class MemberTasks(NamedTuple):
    """The tasks of a member."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS

    def owned(self, process_id: str) -> Owned:
        """Return the pairs that stand for them; an empty process id is written as a space."""
        return frozenset(
            {(f"/{subtopology}", partition) for subtopology, partition in self.active}
            | {(f"{process_id or ' '}/{subtopology}", partition) for subtopology, partition in self.standby}
        )


def is_plain(name: str) -> bool:
    """Whether JSON writes a name as it is: scripts take the rows of what members own apart as text."""
    return msgspec.json.encode(name) == f'"{name}"'.encode()


def tasks_of(owned: Iterable[tuple[str, int]]) -> MemberTasks:
    active: set[tuple[str, int]] = set()
    standby: set[tuple[str, int]] = set()
    for pair_id, partition in owned:
        process_id, _, subtopology = pair_id.partition("/")
        (standby if process_id else active).add((subtopology, partition))
    return MemberTasks(frozenset(active), frozenset(standby))


class StreamsReport(Report, frozen=True, kw_only=True):
    """What a member of a streams group reports."""

    endpoints: int
    """The epoch of the endpoints that it knows of."""
    topology: StreamsTopology | None = None
    tasks: MemberTasks | None = None
    process_id: str | None = None
    endpoint: tuple[str, int] | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    asks_to_end: bool = False
    """Whether all members are to end."""

    @property
    def has_news(self) -> bool:
        """Whether it says more than that the member is still there."""
        said = (self.rack, self.rebalance_ms, self.topology, self.tasks, self.process_id, self.endpoint)
        return self.asks_to_end or any(item is not None for item in (*said, self.tags))


class EndpointTasks(NamedTuple):
    """An endpoint, and the partitions of which its process has active and standby tasks, by topic."""

    endpoint: tuple[str, int]
    active: dict[str, list[int]]
    standby: dict[str, list[int]]


class StreamsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is to know; `tasks` and `by_endpoint` are None if it knows them already."""

    member_id: str
    epoch: int
    heartbeat_ms: int = 0
    statuses: tuple[tuple[GroupStatus, str], ...] = ()
    tasks: MemberTasks | None = None
    endpoints: int = 0
    by_endpoint: list[EndpointTasks] | None = None
    missing: tuple[InternalTopic, ...] = ()
    """Internal topics that are to be created."""
