"""What Metadata tells of a cluster: its brokers, and the partitions of topics with their leaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import msgspec

from korvet.admin.connection import Address
from korvet.admin.errors import BrokerError, error_of
from korvet.errors import ErrorCode
from korvet.protocol.messages.metadata import MetadataResponse


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class Topology(msgspec.Struct, frozen=True):
    """A cluster at one moment. `failed` are the topics that could not be told, each with the reason.

    `controller` is the broker that takes changes; None where there is none now.
    """

    brokers: dict[int, Address]
    partitions: dict[str, list[int]]
    leaders: dict[TopicPartition, Address]
    failed: dict[str, BrokerError]
    controller: int | None = None
    cluster_id: str | None = None

    def leader(self, wanted: TopicPartition) -> Address | BrokerError:
        """Return the leader of a partition, or why there is none now."""
        if wanted.topic in self.failed:
            return self.failed[wanted.topic]
        if wanted.partition not in self.partitions.get(wanted.topic, ()):
            return error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {wanted}")
        leader = self.leaders.get(wanted)
        return leader or error_of(ErrorCode.LEADER_NOT_AVAILABLE, f"{wanted} has no leader")


def by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
    """Yield topics by name, each with those partitions that are its own."""
    for topic, some in groupby(sorted(partitions), key=lambda each: each.topic):
        yield topic, list(some)


def topology_of(response: MetadataResponse) -> Topology:
    """Read a response of any version."""
    brokers = {each.node_id: Address(each.host, each.port) for each in response.brokers}
    partitions: dict[str, list[int]] = {}
    leaders: dict[TopicPartition, Address] = {}
    failed: dict[str, BrokerError] = {}
    for topic in response.topics:
        name = topic.name or ""
        error = BrokerError.of(topic.error_code, f"topic {name}")
        if error is not None:
            failed[name] = error
            continue
        partitions[name] = sorted(each.partition_index for each in topic.partitions)
        for each in topic.partitions:
            if each.leader_id in brokers:
                leaders[TopicPartition(name, each.partition_index)] = brokers[each.leader_id]
    controller = response.controller_id if response.controller_id in brokers else None
    return Topology(brokers, partitions, leaders, failed, controller, response.cluster_id)
