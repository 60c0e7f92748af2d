"""CreateTopics (key 19), versions 2-7: creates topics, or validates that it could.

Partitions and replication factor -1 are the broker's defaults (version 4, KIP-464). From version 5 on the response has
all configs of the topic, if the caller may describe them, from version 7 its id. Any replication factor from 1 on is
accepted and reported as 1, since Redis replicates and not the broker; if brokers are assigned it is their number. When
the response is sent every worker finds the topic. Half of the timeout is for removing first what is left of a deleted
topic of that name.

Errors: INVALID_CONFIG, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST,
INVALID_TOPIC_EXCEPTION, POLICY_VIOLATION, REQUEST_TIMED_OUT, THROTTLING_QUOTA_EXCEEDED, TOPIC_ALREADY_EXISTS.
"""

from __future__ import annotations

from korvet.config.described import inherited_entries, with_overrides
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.audit import topics_changed
from korvet.handlers.common import each_named_once, error_fields, work_until
from korvet.handlers.registry import Caller, Reply, Services, register
from korvet.handlers.rights import CREATE, DESCRIBE_CONFIGS, TOPIC, by_handler, on_topics
from korvet.protocol.messages import create_topics as wire
from korvet.topics.placement import new_assignment, replication_factor
from korvet.topics.registry import Topic, TopicSpec
from korvet.topics.types import KAFKA_TOPICS

QUOTA_ERROR_VERSION_FIRST = 6
"""A request over the quota of controller mutations is refused from here on, and older ones are only throttled."""


def handle(request: wire.CreateTopicsRequest, caller: Caller, services: Services) -> Reply:
    """Create each topic; the failure of one leaves the others unaffected, unless together they are too many."""
    until = work_until(request.timeout_ms, services.clock.monotonic())
    services.topics.check_total(len(topic.assignments) or topic.num_partitions for topic in request.topics)
    mutations = caller.mutations(services.quotas, QUOTA_ERROR_VERSION_FIRST)

    def create(topic: wire.CreatableTopic) -> wire.CreatableTopicResult:
        # First, as in Kafka: that a topic exists already is reported before anything else that is wrong.
        if topic.name in KAFKA_TOPICS and services.topics.is_reserved(topic.name):
            message = f"Topic '{topic.name}' already exists (topic.reserved.names)."
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, message)
        services.topics.check_available(topic.name)
        new = _new_topic(topic, services)
        if not request.validate_only:
            mutations.take(new.partitions if new.partitions > 0 else services.live.settings.num_partitions)
        created = services.topics.create(new, validate_only=request.validate_only, until=until)
        if not caller.may(DESCRIBE_CONFIGS, topic.name, log=False):
            return wire.CreatableTopicResult(
                name=created.name,
                topic_id=created.id,
                error_message=None,
                topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            )
        return _result(created, services)

    response = wire.CreateTopicsResponse(topics=each_named_once(request.topics, create, _failed))
    return Reply(response, mutations.throttle_ms)


def _new_topic(topic: wire.CreatableTopic, services: Services) -> TopicSpec:
    partitions, assignment = topic.num_partitions, None
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            message = "Partitions and replication factor must be -1 if there are assignments."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        live = {broker.broker_id for broker in services.cluster.refresh().all}
        given = [(assigned.partition_index, assigned.broker_ids) for assigned in topic.assignments]
        assignment = new_assignment(topic.name, given, live)
        partitions = len(assignment)
    return TopicSpec(
        name=topic.name,
        partitions=partitions,
        replication_factor=topic.replication_factor,
        configs={config.name: config.value for config in topic.configs},  # as in Kafka the last value counts
        assignment=assignment,
    )


def _result(topic: Topic, services: Services) -> wire.CreatableTopicResult:
    configs = [
        wire.CreatableTopicConfigs(
            name=entry.definition.name,
            value=entry.value,
            read_only=not entry.definition.dynamic,
            config_source=entry.source,
            is_sensitive=entry.definition.secret,
        )
        for entry in with_overrides(inherited_entries(services.live.layers), topic.overrides, topic.named)
    ]
    return wire.CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=replication_factor(topic.assignment, 0),
        configs=configs,
    )


def _failed(topic: wire.CreatableTopic, error: KafkaError) -> wire.CreatableTopicResult:
    return wire.CreatableTopicResult(name=topic.name, **error_fields(error))


register(
    handle,
    lambda request, _caller, error: wire.CreateTopicsResponse(
        topics=[_failed(topic, error) for topic in request.topics]
    ),
    rights=[on_topics(CREATE, cluster=CREATE), by_handler((DESCRIBE_CONFIGS, TOPIC))],
    changes=lambda _request, response: topics_changed(response.topics),
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
