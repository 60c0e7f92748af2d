"""OffsetFetch (key 9), versions 1-10, flexible from 6. A consumer asks for the committed offsets of its group.

Version 2 may ask for all topics and has an error of the whole. 5 answers the leader epoch (KIP-320). 7 may insist on
offsets that no transaction is about to change (KIP-447). 8 asks for many groups (KIP-709). 9 says who asks, and 10
names topics by id (KIP-848).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import ZERO_UUID, boolean, int16, int32, int64, string, uuid


class OffsetFetchRequestTopics(Part, kw_only=True):
    name: Annotated[string, since(0, until=9, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(10, ignorable=True)] = ZERO_UUID
    partition_indexes: list[int32]


class OffsetFetchRequestGroup(Part, kw_only=True):
    """One group, and the topics asked for: null is all that it has committed offsets of."""

    group_id: string
    member_id: Annotated[string | None, since(9, ignorable=True)] = None
    member_epoch: Annotated[int32, since(9, ignorable=True)] = -1
    topics: list[OffsetFetchRequestTopics] | None


class OffsetFetchRequest(Message, kw_only=True):
    api = Api(key=9, versions=(1, 10), flexible=6)

    group_id: Annotated[string, since(0, until=7)] = ""
    topics: Annotated[list[OffsetFetchRequestTopics] | None, since(0, until=7, nullable=2)] = []
    groups: Annotated[list[OffsetFetchRequestGroup], since(8)] = []
    require_stable: Annotated[boolean, since(7)] = False


class OffsetFetchResponsePartitions(Part, kw_only=True):
    """One committed offset; -1 if there is none."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: Annotated[int32, since(5, ignorable=True)] = -1
    metadata: string | None
    error_code: int16 = 0


class OffsetFetchResponseTopics(Part, kw_only=True):
    name: Annotated[string, since(0, until=9, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(10, ignorable=True)] = ZERO_UUID
    partitions: list[OffsetFetchResponsePartitions]


class OffsetFetchResponseGroup(Part, kw_only=True):
    group_id: string
    topics: list[OffsetFetchResponseTopics]
    error_code: int16 = 0


class OffsetFetchResponse(Message, kw_only=True):
    """The offsets; before version 8 those of the one group lie in the response itself."""

    throttle_time_ms: Annotated[int32, since(3, ignorable=True)] = 0
    topics: Annotated[list[OffsetFetchResponseTopics], since(0, until=7)] = []
    error_code: Annotated[int16, since(2, until=7, ignorable=True)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], since(8)] = []
