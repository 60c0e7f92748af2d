"""CreateTopics (key 19), versions 2-7, flexible from 5. An administrator creates topics.

Versions 0 and 1 are gone since Kafka 4.0. Version 4 lets the broker choose partitions and replicas (-1) (KIP-464). 5
answers the configuration that the topic got (KIP-525). 6 allows THROTTLING_QUOTA_EXCEEDED (KIP-599). 7 answers the
topic's id (KIP-516).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import ZERO_UUID, boolean, int8, int16, int32, string, uuid


class CreatableReplicaAssignment(Part, kw_only=True):
    """The brokers that one partition is to lie on, the preferred leader first."""

    partition_index: int32
    broker_ids: list[int32]


class CreatableTopicConfig(Part, kw_only=True):
    """A topic setting; null means the broker's default."""

    name: string
    value: string | None


class CreatableTopic(Part, kw_only=True):
    """A topic to create: with -1 for both numbers if the assignments or the broker's defaults decide."""

    name: string
    num_partitions: int32
    replication_factor: int16
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Message, kw_only=True):
    """Creates topics, or (validate_only) only says whether they could be."""

    api = Api(key=19, versions=(2, 7), flexible=5)

    topics: list[CreatableTopic]
    timeout_ms: int32 = 60_000
    validate_only: boolean = False


class CreatableTopicConfigs(Part, kw_only=True):
    """A setting of the new topic; config_source says where its value comes from (KIP-226)."""

    name: string
    value: string | None
    read_only: boolean
    config_source: int8 = -1
    is_sensitive: boolean


class CreatableTopicResult(Part, kw_only=True):
    name: string
    topic_id: Annotated[uuid, since(7, ignorable=True)] = ZERO_UUID
    error_code: int16 = 0
    error_message: string | None
    # Why there are no configs, if the caller may not see them.
    topic_config_error_code: Annotated[int16, since(5, tag=0, ignorable=True)] = 0
    num_partitions: Annotated[int32, since(5, ignorable=True)] = -1
    replication_factor: Annotated[int16, since(5, ignorable=True)] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, since(5, ignorable=True)] = []


class CreateTopicsResponse(Response, kw_only=True):
    topics: list[CreatableTopicResult] = []
