"""ElectLeaders (key 43), versions 0-2, flexible from 2. An administrator has leaders elected (KIP-183).

Version 1 can elect a replica that is not in sync too, and has an error of the whole (KIP-460).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.types import ElectionType
from korvet.protocol.wire import int8, int16, int32, string


class TopicPartitions(Part, kw_only=True):
    topic: string
    partitions: list[int32]


class ElectLeadersRequest(Message, kw_only=True):
    """Has leaders elected: of these partitions, or (null) of all."""

    api = Api(key=43, versions=(0, 2), flexible=2)

    election_type: Annotated[int8, since(1)] = ElectionType.PREFERRED
    topic_partitions: list[TopicPartitions] | None
    timeout_ms: int32 = 60_000


class PartitionResult(Part, kw_only=True):
    partition_id: int32
    error_code: int16 = 0
    error_message: string | None


class ReplicaElectionResult(Part, kw_only=True):
    topic: string
    partition_result: list[PartitionResult]


class ElectLeadersResponse(Response, kw_only=True):
    """The result for every partition of the request; of all partitions, for those that needed an election."""

    error_code: Annotated[int16, since(1)] = 0
    replica_election_results: list[ReplicaElectionResult] = []
