"""CreatePartitions (key 37), versions 0-3, flexible from 2. An administrator gives topics more partitions (KIP-195).

Version 1 is the same as version 0. 3 allows THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import boolean, int16, int32, string


class CreatePartitionsAssignment(Part, kw_only=True):
    broker_ids: list[int32]


class CreatePartitionsTopic(Part, kw_only=True):
    """A topic, and how many partitions it is to have in all. Assignments are for the new ones, in order, or null."""

    name: string
    count: int32
    assignments: list[CreatePartitionsAssignment] | None


class CreatePartitionsRequest(Message, kw_only=True):
    """Makes topics grow, or (validate_only) only says whether they could."""

    api = Api(key=37, versions=(0, 3), flexible=2)

    topics: list[CreatePartitionsTopic]
    timeout_ms: int32
    validate_only: boolean


class CreatePartitionsTopicResult(Part, kw_only=True):
    name: string
    error_code: int16 = 0
    error_message: string | None = None


class CreatePartitionsResponse(Response, kw_only=True):
    results: list[CreatePartitionsTopicResult] = []
