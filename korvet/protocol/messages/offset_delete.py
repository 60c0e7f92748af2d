"""OffsetDelete (key 47), versions 0-0, none flexible. An administrator has a group forget offsets (KIP-496)."""

from __future__ import annotations

from korvet.protocol.parts import TopicErrors
from korvet.protocol.schema import Api, Message, Part
from korvet.protocol.wire import int16, int32, string


class OffsetDeleteRequestPartition(Part, kw_only=True):
    partition_index: int32


class OffsetDeleteRequestTopic(Part, kw_only=True):
    name: string
    partitions: list[OffsetDeleteRequestPartition]


class OffsetDeleteRequest(Message, kw_only=True):
    api = Api(key=47, versions=(0, 0))

    group_id: string
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponse(Message, kw_only=True):
    """The result for every partition of the request, or the error of the group and no partitions."""

    error_code: int16 = 0
    throttle_time_ms: int32 = 0
    topics: list[TopicErrors] = []
