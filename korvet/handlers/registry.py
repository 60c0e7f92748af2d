"""The registry of handlers: which requests are served, and by which functions.

Each handler file registers itself. Dispatch finds the handler of a request here, and ApiVersions lists what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_type_hints

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, Services
from korvet.handlers.rights import Rule
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

Outcome: TypeAlias = tuple[str, int]
"""What was to be changed, and the error code."""

R = TypeVar("R", bound=Message)


class Handler(msgspec.Struct, frozen=True):
    """How requests of one class are served.

    `refuse` makes the response that answers all of a request with an error. `rights` are the rules that are looked at
    first. `changes` reads from a response what an administrator has changed, for the audit log; None: nothing. `timed`:
    metrics show how long each stage takes. `unconfirmed` is the error that is answered if too few of Redis' replicas
    have what the request has changed; NONE asks for no replicas. `abandoned` gives the error, a retriable one, for a
    request that comes late and whose client has gone; NONE: it is begun. `confirms` says of a single request whether
    replicas are asked for.
    """

    request: type[Message]
    handle: Callable[[Any, Caller, Services], Any]
    refuse: Callable[[Any, Caller, KafkaError], Message | None]
    rights: tuple[Rule, ...] = ()
    changes: Callable[[Any, Any], Iterable[Outcome]] | None = None
    timed: bool = False
    unconfirmed: ErrorCode = ErrorCode.NONE
    abandoned: Callable[[Any], ErrorCode] = lambda _request: ErrorCode.NONE
    confirms: Callable[[Any], bool] = lambda _request: True


HANDLERS: dict[int, Handler] = {}
"""By API key."""


def register(  # noqa: PLR0913 - what Handler has, each by its name
    handle: Callable[[R, Caller, Services], Answer],
    refuse: Callable[[R, Caller, KafkaError], Message | None],
    *,
    rights: Collection[Rule],
    changes: Callable[[R, Any], Iterable[Outcome]] | None = None,
    timed: bool = False,
    unconfirmed: ErrorCode = ErrorCode.NONE,
    abandoned: ErrorCode | Callable[[R], ErrorCode] | None = None,
    confirms: Callable[[R], bool] = lambda _request: True,
) -> None:
    """Serve the requests that `handle` takes, by its annotations.

    What is abandoned is answered with `unconfirmed` if nothing else is said.
    """
    request, *_ = get_type_hints(handle).values()
    code = unconfirmed if abandoned is None else abandoned
    HANDLERS[request.api.key] = Handler(
        request,
        handle,
        refuse,
        rights=tuple(rights),
        changes=changes,
        timed=timed,
        unconfirmed=unconfirmed,
        abandoned=code if callable(code) else lambda _request: code,
        confirms=confirms,
    )
