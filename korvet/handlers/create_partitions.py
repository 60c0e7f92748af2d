"""CreatePartitions (key 37), versions 0-3: adds partitions to topics, or validates that it could.

Clients find the new partitions of a topic all at once, and each topic is answered by itself. When the response is sent
every worker finds the new partitions. Of the timeout it counts only that there is one.

Errors: INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST, REQUEST_TIMED_OUT, THROTTLING_QUOTA_EXCEEDED,
UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from functools import partial

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.audit import topics_changed
from korvet.handlers.common import each_named_once, error_fields, require_time
from korvet.handlers.registry import Caller, Reply, Services, register
from korvet.handlers.rights import ALTER, on_topics
from korvet.protocol.messages import create_partitions as wire
from korvet.topics.placement import with_partitions

QUOTA_ERROR_VERSION_FIRST = 3
"""A request over the quota of controller mutations is refused from here on, and older ones are only throttled."""


def handle(request: wire.CreatePartitionsRequest, caller: Caller, services: Services) -> Reply:
    """Add partitions to each topic; the failure of one leaves the others unaffected."""
    require_time(request.timeout_ms)
    services.topics.refresh()
    mutations = caller.mutations(services.quotas, QUOTA_ERROR_VERSION_FIRST)
    live = {broker.broker_id for broker in services.cluster.refresh().all}

    def grow(asked: wire.CreatePartitionsTopic) -> wire.CreatePartitionsTopicResult:
        topic = services.topics.get_cached(asked.name)
        if topic is None:
            message = f"Topic '{asked.name}' does not exist."
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        if not request.validate_only and asked.count > len(topic.partitions):
            mutations.take(asked.count - len(topic.partitions))
        brokers = (
            None if asked.assignments is None else [assignment.broker_ids for assignment in asked.assignments]
        )
        change = partial(with_partitions, count=asked.count, brokers=brokers, live=live)
        services.topics.add_partitions(topic, change, validate_only=request.validate_only)
        return _result(asked, None)

    results = each_named_once(request.topics, grow, _result)
    response = wire.CreatePartitionsResponse(results=results)
    return Reply(response, mutations.throttle_ms)


def _result(topic: wire.CreatePartitionsTopic, error: KafkaError | None) -> wire.CreatePartitionsTopicResult:
    return wire.CreatePartitionsTopicResult(name=topic.name, **error_fields(error))


register(
    handle,
    lambda request, _caller, error: wire.CreatePartitionsResponse(
        results=[_result(topic, error) for topic in request.topics]
    ),
    rights=[on_topics(ALTER, answers="results")],
    changes=lambda _request, response: topics_changed(response.results),
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
