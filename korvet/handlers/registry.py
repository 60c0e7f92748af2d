"""The registry of handlers: which requests are served, and by which functions.

Each handler file registers itself. Dispatch finds the handler of a request here, and ApiVersions lists what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller
from korvet.protocol.schema import Message

MEMORY = "memory"
"""Why a producer is throttled if Redis' memory, or its disk, is short; all other reasons are quotas."""


class Reply(NamedTuple):
    """A response, None if the client gets none, and for how long the connection then takes no requests, and why."""

    response: Message | None
    throttle_ms: int = 0
    throttled_by: str = MEMORY


Answer: TypeAlias = Message | Reply
"""What a handler returns; a plain response throttles nobody."""

R = TypeVar("R", bound=Message)
C = TypeVar("C")


class Handler(msgspec.Struct, frozen=True):
    """How requests of one class are served.

    `handle` is given the context of the class `context`. `timed`: metrics show how long each stage takes. `unconfirmed`
    is the error that is
    answered if too few of Redis' replicas have what the request has changed; NONE asks for no replicas. `abandoned`
    gives the error, a retriable one, for a request that comes late and whose client has gone; NONE: it is begun.
    `confirms` says of a single request whether replicas are asked for. `errors` are those that it may answer, besides
    those for missing rights, and for a Redis, or replicas of it, that are away.
    """

    request: type[Message]
    context: type[object]
    handle: Callable[[Any, Caller, Any], Any]
    refuse: Callable[[Any, Caller, KafkaError], Message | None]
    timed: bool = False
    unconfirmed: ErrorCode = ErrorCode.NONE
    abandoned: Callable[[Any], ErrorCode] = lambda _request: ErrorCode.NONE
    confirms: Callable[[Any], bool] = lambda _request: True
    errors: frozenset[ErrorCode] = frozenset()


HANDLERS: dict[int, Handler] = {}
"""By API key."""


def register(  # noqa: PLR0913 - what Handler has, each by its name
    request: type[R],
    context: type[C],
    handle: Callable[[R, Caller, C], Answer],
    refuse: Callable[[R, Caller, KafkaError], Message | None],
    *,
    errors: Collection[ErrorCode] = (),
    timed: bool = False,
    unconfirmed: ErrorCode = ErrorCode.NONE,
    abandoned: Callable[[R], ErrorCode] | None = None,
    confirms: Callable[[R], bool] = lambda _request: True,
) -> None:
    """Serve requests of this class by `handle`; `refuse` makes the response that answers all of one with an error.

    What is abandoned is answered with `unconfirmed` if nothing else is said.
    """
    HANDLERS[request.api.key] = Handler(
        request,
        context,
        handle,
        refuse,
        timed=timed,
        unconfirmed=unconfirmed,
        abandoned=abandoned or (lambda _request: unconfirmed),
        confirms=confirms,
        errors=frozenset(errors),
    )
