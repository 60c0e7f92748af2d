"""DescribeShareGroupOffsets (key 90), versions 0-1, flexible from 0. Where share groups begin in partitions.

Version 1 says how many records a group has not finished with (KIP-1226).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import int16, int32, int64, string, uuid


class DescribeShareGroupOffsetsRequestTopic(Part, kw_only=True):
    topic_name: string
    partitions: list[int32]


class DescribeShareGroupOffsetsRequestGroup(Part, kw_only=True):
    """A group, and which of its partitions are asked for; null: all that it has."""

    group_id: string
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None


class DescribeShareGroupOffsetsRequest(Message, kw_only=True):
    api = Api(key=90, versions=(0, 1), flexible=0)

    groups: list[DescribeShareGroupOffsetsRequestGroup]


class DescribeShareGroupOffsetsResponsePartition(Part, kw_only=True):
    """Where the group begins, -1 if it has not been there; its lag, -1 if that is not known."""

    partition_index: int32
    start_offset: int64
    leader_epoch: int32
    lag: Annotated[int64, since(1, ignorable=True)] = -1
    error_code: int16 = 0
    error_message: string | None = None


class DescribeShareGroupOffsetsResponseTopic(Part, kw_only=True):
    topic_name: string
    topic_id: uuid
    partitions: list[DescribeShareGroupOffsetsResponsePartition]


class DescribeShareGroupOffsetsResponseGroup(Part, kw_only=True):
    group_id: string
    topics: list[DescribeShareGroupOffsetsResponseTopic]
    error_code: int16 = 0
    error_message: string | None = None


class DescribeShareGroupOffsetsResponse(Response, kw_only=True):
    groups: list[DescribeShareGroupOffsetsResponseGroup]
