"""CreatePartitions (key 37), versions 0-3: adds partitions to topics, or validates that it could.

Each topic grows in one step and is answered by itself. The timeout is not used: when the response is sent every worker
finds the new partitions.
"""

from __future__ import annotations

from functools import partial

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import each_done, each_named_once, error_code, error_message
from korvet.handlers.context import Caller, TopicApi
from korvet.handlers.registry import register
from korvet.protocol.messages import create_partitions as wire
from korvet.topics.placement import with_partitions


def handle(
    request: wire.CreatePartitionsRequest, _caller: Caller, api: TopicApi
) -> wire.CreatePartitionsResponse:
    """Add partitions to each topic; the failure of one leaves the others unaffected."""
    api.topics.refresh()
    live = {each.broker_id for each in api.cluster.refresh().all}

    def grow(asked: wire.CreatePartitionsTopic) -> wire.CreatePartitionsTopicResult:
        topic = api.topics.get_cached(asked.name)
        if topic is None:
            message = f"Topic '{asked.name}' does not exist."
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        brokers = None if asked.assignments is None else [each.broker_ids for each in asked.assignments]
        change = partial(with_partitions, count=asked.count, brokers=brokers, live=live)
        api.topics.add_partitions(topic, change, validate_only=request.validate_only)
        return _result(asked, None)

    return wire.CreatePartitionsResponse(results=each_done(each_named_once(request.topics), grow, _result))


def refuse(
    request: wire.CreatePartitionsRequest, _caller: Caller, error: KafkaError
) -> wire.CreatePartitionsResponse:
    """Answer every topic with the error."""
    return wire.CreatePartitionsResponse(results=[_result(topic, error) for topic in request.topics])


def _result(topic: wire.CreatePartitionsTopic, error: KafkaError | None) -> wire.CreatePartitionsTopicResult:
    return wire.CreatePartitionsTopicResult(
        name=topic.name, error_code=error_code(error), error_message=error_message(error)
    )


register(wire.CreatePartitionsRequest, TopicApi, handle, refuse, unconfirmed=ErrorCode.REQUEST_TIMED_OUT)
