"""DeleteTopics (key 20), versions 1-6: deletes topics, records and all.

A topic is gone when it is answered. Of a large one keys may be left: the keeper removes those that were not removed
within half of the request's timeout.

Version 6 names topics or gives ids. Deletion can be forbidden by delete.topic.enable; clients older than version 3 do
not know that code and get INVALID_REQUEST, as from Kafka.

Errors: INVALID_REQUEST, REQUEST_TIMED_OUT, THROTTLING_QUOTA_EXCEEDED, TOPIC_DELETION_DISABLED, UNKNOWN_TOPIC_ID,
UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.audit import topics_changed
from korvet.handlers.common import each_done, error_fields, work_until
from korvet.handlers.registry import Caller, Reply, Services, register
from korvet.handlers.rights import DELETE, DESCRIBE, TOPIC, ItemRule, Resource, ResourceOfItem, topic_of_id
from korvet.protocol.messages import delete_topics as wire
from korvet.protocol.types import AclOperation
from korvet.protocol.wire import ZERO_UUID
from korvet.topics.registry import Topic, TopicRegistry
from korvet.topics.types import TopicRef
from korvet.turns import in_parts, in_turns

DELETION_DISABLED_VERSION_FIRST = 3
TOPICS_AT_ONCE = 100
"""Topics that are deleted together: their rows are some 20 KB of a script's arguments."""

QUOTA_ERROR_VERSION_FIRST = 5
"""A request over the quota of controller mutations is refused from here on, and older ones are only throttled."""

_Given: TypeAlias = tuple[str | None, bytes]
"""A topic as it is given in a request: by its name with the zero id, by its id without a name, or (refused) by both."""


def handle(request: wire.DeleteTopicsRequest, caller: Caller, services: Services) -> Reply:
    """Delete each topic; the failure of one leaves the others unaffected."""
    until = work_until(request.timeout_ms, services.clock.monotonic())
    if not services.live.settings.delete_topic_enable:
        code_known = caller.version >= DELETION_DISABLED_VERSION_FIRST
        code = ErrorCode.TOPIC_DELETION_DISABLED if code_known else ErrorCode.INVALID_REQUEST
        raise KafkaError(code, "Topic deletion is disabled (delete.topic.enable).")
    # A topic that this worker knows may have been created again meanwhile: the new one must be deleted.
    services.topics.refresh()
    given = _joined(Counter((state.name, state.topic_id) for state in _states(request)), services)
    mutations = caller.mutations(services.quotas, QUOTA_ERROR_VERSION_FIRST)
    topics: dict[_Given, Topic] = {}

    def take(named: _Given) -> KafkaError | None:
        if given[named] > 1:
            return KafkaError(ErrorCode.INVALID_REQUEST, "The topic is named twice.")
        try:
            topic = _find(*named, services)
            mutations.take(len(topic.partitions))
        except KafkaError as error:
            return error.without_frames()
        topics[named] = topic
        return None

    def delete_all() -> Iterator[tuple[_Given, KafkaError | None]]:
        for part in in_parts(list(given), TOPICS_AT_ONCE):
            errors = {named: take(named) for named in part}
            taken = [named for named, error in errors.items() if error is None]
            errors |= zip(
                taken, services.topics.delete([topics[named] for named in taken], until), strict=True
            )
            yield from errors.items()

    def result(outcome: tuple[_Given, KafkaError | None]) -> wire.DeletableTopicResult:
        named, error = outcome
        if error is not None:
            raise error
        return wire.DeletableTopicResult(name=topics[named].name, topic_id=topics[named].id)

    results = each_done(delete_all(), result, lambda outcome, error: _failed(outcome[0], error))
    response = wire.DeleteTopicsResponse(responses=results)
    return Reply(response, mutations.throttle_ms)


def _states(request: wire.DeleteTopicsRequest) -> list[wire.DeleteTopicState]:
    return request.topics or [wire.DeleteTopicState(name=name) for name in request.topic_names]


def _joined(given: Counter[_Given], services: Services) -> Counter[_Given]:
    """Return topics with one entry for one that is given by its name, and again by its id, as in Kafka."""
    for name, topic_id in in_turns(list(given)):
        topic = services.topics.get_cached(name) if name is not None and topic_id == ZERO_UUID else None
        if topic is not None and given.pop((None, topic.id), 0):
            del given[name, topic_id]
            given[name, topic.id] = 1
    return given


def _find(name: str | None, topic_id: bytes, services: Services) -> Topic:
    if name is None:
        if topic_id == ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither a name nor an id is given.")
        return services.topics.resolve(TopicRef("", topic_id))
    if topic_id != ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A topic is given by its name or by its id, not by both.")
    try:
        return services.topics.get(name)
    except KafkaError as error:
        raise KafkaError(error.code, f"Topic '{name}' does not exist") from None


def _failed(given: _Given, error: KafkaError) -> wire.DeletableTopicResult:
    name, topic_id = given
    return wire.DeletableTopicResult(name=name, topic_id=topic_id, **error_fields(error))


def _named(topic: wire.DeleteTopicState | str) -> str | None:
    return topic if isinstance(topic, str) else topic.name


def _resource(request: object, topic: wire.DeleteTopicState | str, topics: TopicRegistry) -> Resource | None:
    name = _named(topic)
    return topic_of_id(request, topic, topics) if name is None else (TOPIC, name)


def _known_resource(
    _request: object, topic: wire.DeleteTopicState | str, topics: TopicRegistry
) -> Resource | None:
    """Return the resource of a topic that is there; raises KafkaError for another one, which is refused as unknown."""
    name = _named(topic)
    return None if name is None else (TOPIC, topics.known(TopicRef(name)).name)


def _rule(operation: AclOperation, items: str, on: ResourceOfItem) -> ItemRule:
    return ItemRule(operation, (TOPIC,), items, "responses", on, DELETE)


register(
    handle,
    lambda request, _caller, error: wire.DeleteTopicsResponse(
        responses=[_failed((state.name, state.topic_id), error) for state in _states(request)]
    ),
    # Whether a name exists is said to a caller that may describe it.
    rights=[
        _rule(DESCRIBE, "topics", _resource),
        _rule(DESCRIBE, "topic_names", _resource),
        _rule(DELETE, "topics", _known_resource),
        _rule(DELETE, "topic_names", _known_resource),
        _rule(DELETE, "topics", _resource),
    ],
    changes=lambda _request, response: topics_changed(response.responses),
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
