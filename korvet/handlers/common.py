"""What several handlers need: deadlines, answers to errors, and results of items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypedDict, TypeVar

import msgspec

from korvet.errors import ErrorCode, KafkaError, LeaseEndedError, StorageUnavailableError
from korvet.handlers.registry import Caller
from korvet.protocol.parts import PartitionError, TopicErrors
from korvet.protocol.schema import Message
from korvet.protocol.types import AclOperation, AclResourceType
from korvet.security.authorizer import ALL_RIGHTS, refusal
from korvet.topics.registry import TopicRegistry, unknown_id
from korvet.topics.types import TopicRef
from korvet.turns import in_turns


class _NamedTopic(Protocol):
    name: str


N = TypeVar("N", bound=_NamedTopic)
R = TypeVar("R", bound=Message)
Item = TypeVar("Item")
Result = TypeVar("Result")


def require_time(timeout_ms: int) -> None:
    """Raise KafkaError REQUEST_TIMED_OUT if a request leaves no time for it, as Apache Kafka's controller does."""
    if timeout_ms <= 0:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the request has a timeout of {timeout_ms} ms")


def work_until(timeout_ms: int, now: float) -> float:
    """Return when to stop working at a request with that timeout; it began at `now` (monotonic seconds).

    A client counts the same time from when it sends, and gives up exactly then: half of it is for the way. Raises as
    `require_time`.
    """
    require_time(timeout_ms)
    return now + timeout_ms / 1000 / 2


def error_code(error: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code


def error_message(error: KafkaError | None) -> str | None:
    """Return the message of an error, None if there is no error or it has none."""
    return None if error is None else error.message or None


class ErrorFields(TypedDict):
    """Two fields that most results have."""

    error_code: ErrorCode
    error_message: str | None


def error_fields(error: KafkaError | None, *, of_group: bool = False) -> ErrorFields:
    """Return the fields of an error, or of none; `of_group`: the code is that of a request about a group."""
    code = group_error_code(error) if of_group else error_code(error)
    return {"error_code": code, "error_message": error_message(error)}


def group_error_code(error: KafkaError | None) -> ErrorCode:
    """Return the code that a request about a group is answered with.

    Consumers take KAFKA_STORAGE_ERROR for the end of their group. COORDINATOR_NOT_AVAILABLE is what Kafka answers if a
    group's state cannot be reached: every client finds the coordinator again, and retries.
    """
    unavailable = isinstance(error, StorageUnavailableError)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if unavailable else error_code(error)


def transaction_error_code(error: KafkaError, *, knows_fenced: bool) -> ErrorCode:
    """Return the code that a request about a transaction is answered with.

    A version that does not know PRODUCER_FENCED gets INVALID_PRODUCER_EPOCH, which means the same there (KIP-588).
    """
    if error.code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return group_error_code(error)


def require_group_id(group: str) -> None:
    """Raise KafkaError INVALID_GROUP_ID for an empty id."""
    if not group:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id must not be empty")


def refuse_whole(
    response: type[R], *, of_group: bool = False, **others: object
) -> Callable[[Any, Caller, KafkaError], R]:
    """Return what answers with an error of the whole request: code, message if `response` has one, and `others`.

    `of_group`: the code is that of a request about a group.
    """
    make: Callable[..., R] = response
    has_message = any(field.name == "error_message" for field in msgspec.structs.fields(response))

    def refuse(_request: Message, _caller: Caller, error: KafkaError) -> R:
        message = {"error_message": error_message(error)} if has_message else {}
        code = group_error_code(error) if of_group else error.code
        return make(error_code=code, **message, **others)

    return refuse


def refuse_transaction(
    response: type[R], fenced_since: int, **others: object
) -> Callable[[Any, Caller, KafkaError], R]:
    """Return what answers with an error of a transaction; versions from `fenced_since` on know PRODUCER_FENCED."""
    make: Callable[..., R] = response

    def refuse(_request: Message, caller: Caller, error: KafkaError) -> R:
        code = transaction_error_code(error, knows_fenced=caller.version >= fenced_since)
        return make(error_code=code, **others)

    return refuse


def topic_errors(
    topics: Iterable[tuple[str, Iterable[int]]], codes: Iterator[ErrorCode]
) -> list[TopicErrors]:
    """Return the results for partitions of topics, each topic by its name; `codes` are theirs in order."""
    return [
        TopicErrors(
            name=name,
            partitions=[PartitionError(partition_index=index, error_code=next(codes)) for index in indexes],
        )
        for name, indexes in topics
    ]


def each_named_once(
    topics: Sequence[N], do: Callable[[N], Result], failed: Callable[[N, KafkaError], Result]
) -> list[Result]:
    """Return `each_done` of topics; one that the request names more often is answered once, with INVALID_REQUEST."""
    times = Counter(topic.name for topic in topics)

    def do_once(topic: N) -> Result:
        if times[topic.name] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request names topic '{topic.name}' twice.")
        return do(topic)

    return each_done({topic.name: topic for topic in topics}.values(), do_once, failed)


def each_done(
    items: Iterable[Item], do: Callable[[Item], Result], failed: Callable[[Item, KafkaError], Result]
) -> list[Result]:
    """Return what `do` returns for each item, or `failed` for one for which it raises KafkaError.

    Raises LeaseEndedError while nothing of the request can be done yet, for it is then handled once more.
    """
    results: list[Result] = []
    is_any_done = False
    for item in items:
        try:
            results.append(do(item))
            is_any_done = True
        except KafkaError as error:
            if isinstance(error, LeaseEndedError) and not is_any_done:
                raise
            # Of any other outage it may not be known.
            is_any_done = is_any_done or isinstance(error, StorageUnavailableError)
            results.append(failed(item, error.without_frames()))
    return results


def unreadable_topics(
    caller: Caller, registry: TopicRegistry, topics: Iterable[TopicRef]
) -> dict[TopicRef, KafkaError]:
    """Return which topics may not be read, and why; without the right nobody learns whether a name exists."""
    if caller.rights is ALL_RIGHTS:
        return {}
    refused: dict[TopicRef, KafkaError] = {}
    refreshed = False
    for topic in dict.fromkeys(in_turns(topics)):
        name = topic.name
        if topic.id is not None:
            known = registry.cached(topic)
            if known is None and not refreshed:
                refreshed = True
                registry.refresh()
                known = registry.cached(topic)
            if known is None:
                refused[topic] = unknown_id()
                continue
            name = known.name
        if not caller.may(AclOperation.READ, name):
            refused[topic] = refusal(AclResourceType.TOPIC)
    return refused
