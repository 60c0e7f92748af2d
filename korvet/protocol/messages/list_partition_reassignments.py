"""ListPartitionReassignments (key 46), versions 0-0, flexible from 0. An administrator asks which partitions move.

Since KIP-455.
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, ResponseWithCode
from korvet.protocol.wire import int32, string


class ListPartitionReassignmentsTopics(Part, kw_only=True):
    name: string
    partition_indexes: list[int32]


class ListPartitionReassignmentsRequest(Message, kw_only=True):
    """Asks for moves under way: of these partitions, or (null) of all."""

    api = Api(key=46, versions=(0, 0), flexible=0)

    timeout_ms: int32 = 60_000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Part, kw_only=True):
    """A moving partition: its present brokers, the added ones and the removed ones."""

    partition_index: int32
    replicas: list[int32]
    adding_replicas: list[int32]
    removing_replicas: list[int32]


class OngoingTopicReassignment(Part, kw_only=True):
    name: string
    partitions: list[OngoingPartitionReassignment]


class ListPartitionReassignmentsResponse(ResponseWithCode, kw_only=True):
    """The moving partitions only."""

    error_message: string | None
    topics: list[OngoingTopicReassignment] = []
