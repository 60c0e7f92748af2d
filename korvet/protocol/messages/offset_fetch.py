"""OffsetFetch (key 9), versions 1-10, flexible from 6. A consumer asks for the committed offsets of its group.

Version 2 may ask for all topics and has an error of the whole. 5 answers the leader epoch (KIP-320). 7 may insist on
offsets that no transaction is about to change (KIP-447). 8 asks for many groups (KIP-709). 9 says who asks, and 10
names topics by id (KIP-848).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import ZERO_UUID, boolean, int16, int32, int64, string, uuid


class OffsetFetchRequestTopic(Part, kw_only=True):
    """Partitions of one topic, before version 8."""

    name: Annotated[string, since(0, until=7)]
    partition_indexes: Annotated[list[int32], since(0, until=7)]


class OffsetFetchRequestTopics(Part, kw_only=True):
    """Partitions of one topic, by name or (version 10) by id."""

    name: Annotated[string, since(8, until=9, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(10, ignorable=True)] = ZERO_UUID
    partition_indexes: Annotated[list[int32], since(8)]


class OffsetFetchRequestGroup(Part, kw_only=True):
    """One group, and the topics asked for: null is all that it has committed offsets of."""

    group_id: Annotated[string, since(8)]
    member_id: Annotated[string | None, since(9, ignorable=True)] = None
    member_epoch: Annotated[int32, since(9, ignorable=True)] = -1
    topics: Annotated[list[OffsetFetchRequestTopics] | None, since(8)]


class OffsetFetchRequest(Message, kw_only=True):
    """Asks for committed offsets; before version 8 of one group."""

    api = Api(key=9, versions=(1, 10), flexible=6)

    group_id: Annotated[string, since(0, until=7)] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, since(0, until=7, nullable=2)] = []
    groups: Annotated[list[OffsetFetchRequestGroup], since(8)] = []
    require_stable: Annotated[boolean, since(7)] = False


class OffsetFetchResponsePartition(Part, kw_only=True):
    """One committed offset, before version 8; -1 if there is none."""

    partition_index: Annotated[int32, since(0, until=7)]
    committed_offset: Annotated[int64, since(0, until=7)]
    committed_leader_epoch: Annotated[int32, since(5, until=7, ignorable=True)] = -1
    metadata: Annotated[string | None, since(0, until=7)]
    error_code: Annotated[int16, since(0, until=7)] = 0


class OffsetFetchResponseTopic(Part, kw_only=True):
    """The partitions of one topic, before version 8."""

    name: Annotated[string, since(0, until=7)]
    partitions: Annotated[list[OffsetFetchResponsePartition], since(0, until=7)]


class OffsetFetchResponsePartitions(Part, kw_only=True):
    """One committed offset; -1 if there is none."""

    partition_index: Annotated[int32, since(8)]
    committed_offset: Annotated[int64, since(8)]
    committed_leader_epoch: Annotated[int32, since(8, ignorable=True)] = -1
    metadata: Annotated[string | None, since(8)]
    error_code: Annotated[int16, since(8)] = 0


class OffsetFetchResponseTopics(Part, kw_only=True):
    """The partitions of one topic, named as the request named it."""

    name: Annotated[string, since(8, until=9, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(10, ignorable=True)] = ZERO_UUID
    partitions: Annotated[list[OffsetFetchResponsePartitions], since(8)]


class OffsetFetchResponseGroup(Part, kw_only=True):
    """The offsets of one group."""

    group_id: Annotated[string, since(8)]
    topics: Annotated[list[OffsetFetchResponseTopics], since(8)]
    error_code: Annotated[int16, since(8)] = 0


class OffsetFetchResponse(Message, kw_only=True):
    """The offsets; before version 8 those of the one group lie in the response itself."""

    api = OffsetFetchRequest.api

    throttle_time_ms: Annotated[int32, since(3, ignorable=True)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], since(0, until=7)] = []
    error_code: Annotated[int16, since(2, until=7, ignorable=True)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], since(8)] = []
