"""CreateTopics (key 19), versions 2-7: creates topics, or with validate_only says whether they could be.

Partitions and replication factor -1 are the broker's defaults (version 4, KIP-464). From version 5 on the answer has
all configs of the topic, from version 7 its id. Any replication factor from 1 on is accepted and reported as 1: Redis
replicates, not the broker. When the answer is sent every worker finds the topic.
"""

from __future__ import annotations

from collections import Counter

from korvet.domain import topic_config
from korvet.domain.topics import NewTopic, Topic
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.handler import Broker, Caller
from korvet.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

REQUEST = CreateTopicsRequest
REPORTED_REPLICATION_FACTOR = 1


def handle(request: CreateTopicsRequest, _caller: Caller, broker: Broker) -> CreateTopicsResponse:
    """Create each topic; one that cannot be does not keep the others from it."""
    times = Counter(topic.name for topic in request.topics)
    results = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        if times[topic.name] > 1:
            error = KafkaError(ErrorCode.INVALID_REQUEST, f"The request names topic '{topic.name}' twice.")
            results.append(_failed(topic.name, error))
        else:
            results.append(_create(topic, broker, validate_only=request.validate_only))
    return CreateTopicsResponse(topics=results)


def refuse(request: CreateTopicsRequest, _caller: Caller, error: KafkaError) -> CreateTopicsResponse:
    """Answer every topic with the error."""
    return CreateTopicsResponse(topics=[_failed(topic.name, error) for topic in request.topics])


def _create(topic: CreatableTopic, broker: Broker, *, validate_only: bool) -> CreatableTopicResult:
    try:
        made = broker.topics.create(_new_topic(topic, broker), validate_only=validate_only)
    except KafkaError as error:
        return _failed(topic.name, error)
    return _result(made, broker)


def _new_topic(topic: CreatableTopic, broker: Broker) -> NewTopic:
    partitions, assignment = topic.num_partitions, None
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            message = "Partitions and replication factor must be -1 where there are assignments."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        _check_assignments(topic.assignments, broker)
        partitions = len(topic.assignments)
        by_index = sorted(topic.assignments, key=lambda each: each.partition_index)
        assignment = tuple(tuple(each.broker_ids) for each in by_index)
    configs: dict[str, str | None] = {}
    for config in topic.configs:
        if config.name in configs:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} is given twice")
        configs[config.name] = config.value
    return NewTopic(
        name=topic.name,
        partitions=partitions,
        replication_factor=topic.replication_factor,
        configs=configs,
        assignment=assignment,
    )


def _check_assignments(assignments: list[CreatableReplicaAssignment], broker: Broker) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless partitions are 0, 1, 2, ... on brokers that exist, each named once."""
    brokers = {each.broker_id for each in broker.cluster.look().all}
    if sorted(each.partition_index for each in assignments) != list(range(len(assignments))):
        message = "The partitions of the assignments are not 0, 1, 2, ..."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    for each in assignments:
        ids = each.broker_ids
        if not ids or len(set(ids)) != len(ids) or not brokers.issuperset(ids):
            message = (
                f"Partition {each.partition_index} is assigned to brokers {ids}; there are {sorted(brokers)}"
            )
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _result(topic: Topic, broker: Broker) -> CreatableTopicResult:
    configs = [
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
        )
        for entry in topic_config.entries(topic.overrides, broker.live.layers)
    ]
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=REPORTED_REPLICATION_FACTOR,
        configs=configs,
    )


def _failed(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message or None)
