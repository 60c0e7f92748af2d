"""CreatePartitions (key 37), versions 0-3: adds partitions to topics, or validates that it could.

Each topic grows in one step and is answered by itself. The timeout is not used: when the response is sent every worker
finds the new partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, TopicApi
from korvet.handlers.registry import register
from korvet.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from korvet.topics.placement import with_partitions


def handle(request: CreatePartitionsRequest, _caller: Caller, api: TopicApi) -> CreatePartitionsResponse:
    """Add partitions to each topic; the failure of one leaves the others unaffected."""
    api.topics.refresh()
    live = {each.broker_id for each in api.cluster.refresh().all}
    times = Counter(topic.name for topic in request.topics)
    results = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        error = None
        if times[topic.name] > 1:
            error = KafkaError(ErrorCode.INVALID_REQUEST, f"The request names topic '{topic.name}' twice.")
        else:
            error = _grow(topic, live, api, validate_only=request.validate_only)
        results.append(_result(topic.name, error))
    return CreatePartitionsResponse(results=results)


def refuse(request: CreatePartitionsRequest, _caller: Caller, error: KafkaError) -> CreatePartitionsResponse:
    """Answer every topic with the error."""
    return CreatePartitionsResponse(results=[_result(topic.name, error) for topic in request.topics])


def _grow(
    asked: CreatePartitionsTopic, live: Collection[int], api: TopicApi, *, validate_only: bool
) -> KafkaError | None:
    """Return the reason for which it is refused, if it is."""
    topic = api.topics.get_cached(asked.name)
    if topic is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{asked.name}' does not exist.")
    brokers = None if asked.assignments is None else [each.broker_ids for each in asked.assignments]
    try:
        change = partial(with_partitions, count=asked.count, brokers=brokers, live=live)
        api.topics.add_partitions(topic, change, validate_only=validate_only)
    except KafkaError as error:
        return error
    return None


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name)
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message or None)


register(CreatePartitionsRequest, TopicApi, handle, refuse)
