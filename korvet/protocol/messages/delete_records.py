"""DeleteRecords (key 21), versions 0-2, flexible from 2. An administrator deletes the oldest records of partitions.

Version 1 is the same as version 0, and so is 2 but for its encoding.
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import int16, int32, int64, string


class DeleteRecordsPartition(Part, kw_only=True):
    """A partition and the offset before which everything is to go; -1 is the high watermark."""

    partition_index: int32
    offset: int64


class DeleteRecordsTopic(Part, kw_only=True):
    name: string
    partitions: list[DeleteRecordsPartition]


class DeleteRecordsRequest(Message, kw_only=True):
    api = Api(key=21, versions=(0, 2), flexible=2)

    topics: list[DeleteRecordsTopic]
    timeout_ms: int32


class DeleteRecordsPartitionResult(Part, kw_only=True):
    """What became of one partition: the lowest offset it has from now on, -1 beside an error."""

    partition_index: int32
    low_watermark: int64
    error_code: int16


class DeleteRecordsTopicResult(Part, kw_only=True):
    name: string
    partitions: list[DeleteRecordsPartitionResult]


class DeleteRecordsResponse(Response, kw_only=True):
    topics: list[DeleteRecordsTopicResult] = []
