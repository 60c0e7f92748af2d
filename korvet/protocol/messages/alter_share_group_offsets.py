"""AlterShareGroupOffsets (key 91), versions 0-0, flexible from 0. Moves the start of a share group without members."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, ResponseWithMessage
from korvet.protocol.wire import int16, int32, int64, string, uuid


class AlterShareGroupOffsetsRequestPartition(Part, kw_only=True):
    partition_index: int32
    start_offset: int64


class AlterShareGroupOffsetsRequestTopic(Part, kw_only=True):
    topic_name: string
    partitions: list[AlterShareGroupOffsetsRequestPartition]


class AlterShareGroupOffsetsRequest(Message, kw_only=True):
    api = Api(key=91, versions=(0, 0), flexible=0)

    group_id: string
    topics: list[AlterShareGroupOffsetsRequestTopic]


class AlterShareGroupOffsetsResponsePartition(Part, kw_only=True):
    partition_index: int32
    error_code: int16 = 0
    error_message: string | None = None


class AlterShareGroupOffsetsResponseTopic(Part, kw_only=True):
    topic_name: string
    topic_id: uuid
    partitions: list[AlterShareGroupOffsetsResponsePartition]


class AlterShareGroupOffsetsResponse(ResponseWithMessage, kw_only=True):
    """The result for every partition of the request, or the error of the group and no topics."""

    responses: list[AlterShareGroupOffsetsResponseTopic] = []
