"""Enforcement of the rights that handlers name (rights.py).

A request is checked rule by rule, before its handler is called. A rule about the whole request refuses it; a rule about
items removes the items without a right before the handler sees them, and the handler's `refuse` writes their part of
the response. So a client learns nothing about what it may not see, not even
whether it exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.registry import Answer, Caller, Handler, Reply, Services
from korvet.handlers.rights import ItemRule, RequestRule, Resource
from korvet.protocol.schema import Message
from korvet.security.authorizer import ALL_RIGHTS, refusal
from korvet.topics.registry import TopicRegistry


class _Refused(NamedTuple):
    """Items of a request that are refused: the request with these alone, why, and the field of their answers."""

    request: Message
    error: KafkaError
    answers: str


def call(handler: Handler, request: Any, caller: Caller, services: Services) -> Any:  # noqa: ANN401 - what `handle` returns
    """Call a handler with what of a request its principal has the rights to.

    Raises KafkaError for a request that is refused as a whole, StorageUnavailableError if the rights are not known.
    """
    rules = handler.rights
    if caller.rights is ALL_RIGHTS or not rules:
        return handler.handle(request, caller, services)
    caller.rights.check_fresh()
    refused: list[_Refused] = []
    for rule in rules:
        if isinstance(rule, RequestRule):
            resource = rule.on(request)
            if resource is not None and not caller.rights.allows(rule.operation, *resource):
                raise refusal(resource[0])
        elif isinstance(rule, ItemRule) and rule.versions[0] <= caller.version <= rule.versions[1]:
            request = _split(rule, request, caller, services.topics, refused)
    if not refused:
        return handler.handle(request, caller, services)
    answer = None
    if any(getattr(request, rule.items) for rule in rules if isinstance(rule, ItemRule)):
        answer = handler.handle(request, caller, services)
    return _merged(answer, handler, caller, refused)


def _split(
    rule: ItemRule, request: Message, caller: Caller, topics: TopicRegistry, refused: list[_Refused]
) -> Message:
    """Return the request without the items that are refused, which are added to `refused`."""
    items = getattr(request, rule.items)
    if not items or (rule.cluster is not None and caller.rights.allows_cluster(rule.cluster, log=False)):
        return request
    if _allows_all(rule, request, items, caller, topics):
        return request
    allowed = []
    denied: dict[ErrorCode, tuple[KafkaError, list[object]]] = {}
    for item, resource in _resources(rule, request, items, topics):
        if isinstance(resource, KafkaError):
            error = resource
        elif resource is None or caller.rights.allows(rule.operation, *resource):
            allowed.append(item)
            continue
        else:
            error = refusal(resource[0])
        denied.setdefault(error.code, (error, []))[1].append(item)
    if not denied:
        return request
    for error, items in denied.values():
        refused.append(_Refused(msgspec.structs.replace(request, **{rule.items: items}), error, rule.answers))
    return msgspec.structs.replace(request, **{rule.items: allowed})


def _allows_all(
    rule: ItemRule, request: object, items: Sequence[object], caller: Caller, topics: TopicRegistry
) -> bool:
    """Whether nothing is refused, as nearly always; else it is found out once more, and noted, what is."""
    operation, on, allows = rule.operation, rule.on, caller.rights.allows
    try:
        for item in items:
            resource = on(request, item, topics)
            if resource is not None and not allows(operation, resource[0], resource[1], log=False):
                return False
    except KafkaError:
        return False
    return True


def _resources(
    rule: ItemRule, request: Message, items: Sequence[object], topics: TopicRegistry
) -> Iterator[tuple[object, Resource | KafkaError | None]]:
    """Yield each item with its resource, or with why it has none; refresh the topics once if an id is unknown."""
    refreshed = False
    for item in items:  # a LongArray, which gives turns
        try:
            try:
                resource = rule.on(request, item, topics)
            except KafkaError:
                if refreshed:
                    raise
                refreshed = True
                topics.refresh()
                resource = rule.on(request, item, topics)
        except KafkaError as error:
            yield item, error.without_frames()
        else:
            yield item, resource


def _merged(answer: Answer | None, handler: Handler, caller: Caller, refused: Sequence[_Refused]) -> Answer:
    """Add to a response, if there is one, what the handler says about the items that were refused.

    Of that only the items count: an error at the top would be one of the whole request.
    """
    response: Any = answer.response if isinstance(answer, Reply) else answer
    for part in refused:
        said = handler.refuse(part.request, caller, part.error)
        before = [] if response is None else getattr(response, part.answers)
        response = type(said)() if response is None else response
        setattr(response, part.answers, [*before, *getattr(said, part.answers)])
    return answer._replace(response=response) if isinstance(answer, Reply) else response
