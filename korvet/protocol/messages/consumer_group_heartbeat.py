"""ConsumerGroupHeartbeat (key 68), versions 0-1, flexible from 0. A member joins, stays or leaves a group (KIP-848).

A field that is null, or -1, has not changed since the last heartbeat. Version 1 adds regular expressions, and has the
client choose its member id (KIP-1082).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, ResponseWithMessage, since
from korvet.protocol.wire import int32, string, uuid


class TopicPartitions(Part, kw_only=True):
    topic_id: uuid
    partitions: list[int32]


class ConsumerGroupHeartbeatRequest(Message, kw_only=True):
    """Member epoch 0 joins, -1 leaves, and -2 leaves for a while as a static member.

    `topic_partitions` are those that the member owns.
    """

    api = Api(key=68, versions=(0, 1), flexible=0)

    group_id: string
    member_id: string
    member_epoch: int32
    instance_id: string | None = None
    rack_id: string | None = None
    rebalance_timeout_ms: int32 = -1
    subscribed_topic_names: list[string] | None = None
    subscribed_topic_regex: Annotated[string | None, since(1)] = None
    server_assignor: string | None = None
    topic_partitions: list[TopicPartitions] | None = None


class Assignment(Part, kw_only=True):
    topic_partitions: list[TopicPartitions]


class ConsumerGroupHeartbeatResponse(ResponseWithMessage, kw_only=True):
    """The assignment is null if it has not changed."""

    member_id: string | None = None
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    assignment: Assignment | None = None
