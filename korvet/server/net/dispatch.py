"""From a frame to its answer: the table of handlers, the version check, and the boundary where every error ends.

Knows the four fates of an error: a peer that broke the protocol loses its connection (ProtocolError passes through);
a rule that said no, and a Redis that is away, are answered with their code; a mistake of ours is logged once with its
traceback and answered with UNKNOWN_SERVER_ERROR, or where not even that can be said (FaultError) by closing. Nothing of
sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from korvet.config.listeners import DEFAULT_LISTENER
from korvet.errors import ErrorCode, KafkaError, ProtocolError, StorageUnavailableError
from korvet.handlers import api_versions
from korvet.handlers.context import Begun, Broker, Caller, Handler
from korvet.logs import Log, RateLimitedLogger
from korvet.protocol.compile import decode, encode
from korvet.protocol.decoding import Buffer
from korvet.protocol.frame import RequestHeader, read_request_header, response_frame
from korvet.protocol.schema import Message
from korvet.telemetry import metrics
from korvet.telemetry.request_metrics import REQUEST_METRICS
from korvet.telemetry.request_timer import DECODE, ENCODE, NO_TIMER, QUEUE, request_timer

_log = Log(__name__)
_seldom = RateLimitedLogger(_log)
_API_VERSIONS = api_versions.REQUEST.api.key


class FaultError(Exception):
    """A mistake of ours, which the log tells of, leaves no response to send: the connection is to be closed."""


class _Later(NamedTuple):
    """A request of which nothing is under way before its turn to be answered."""

    finish: Callable[[], Message | None]
    in_order: bool
    ready: bool = False


class Exchange:
    """A request that has begun: what is left to do is to wait for what it asked of others, and to answer."""

    __slots__ = (
        "_api",
        "_arrived",
        "_caller",
        "_handler",
        "_header",
        "_request",
        "_under_way",
    )

    def __init__(
        self,
        api: str,
        handler: Handler,
        header: RequestHeader,
        request: Message,
        caller: Caller,
        arrived: float,
    ) -> None:
        self._api = api
        self._handler = handler
        self._header = header
        self._request = request
        self._caller = caller
        self._arrived = arrived
        self._under_way: Begun | _Later

    @property
    def overlaps(self) -> bool:
        """Whether the next request of the connection may begin before this one is answered.

        Where this turns to false until it is answered, none may before all that have begun are.
        """
        return self._under_way.in_order

    @property
    def ready(self) -> bool:
        """Whether the answer need not be waited for, as far as is known."""
        return self._under_way.ready

    def begin(self, broker: Broker) -> None:
        """Begin what can begin before it is this request's turn to be answered."""
        handler, request, caller = self._handler, self._request, self._caller
        if handler.begin is None:
            self._under_way = _Later(partial(handler.handle, request, caller, broker), in_order=False)
            caller.laps.lap(DECODE)
            return
        try:
            self._under_way = handler.begin(request, caller, broker)
            caller.laps.lap(DECODE)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - see answer
            self._under_way = _Later(partial(_raise, error), in_order=True)

    def answer(self) -> list[Buffer] | None:
        """Wait for the response and return its chunks, or None where none is to be sent.

        Raises ProtocolError or FaultError where the connection is to be closed; every other error becomes a response.
        """
        code = ErrorCode.NONE
        laps = self._caller.laps
        if self._handler.begin is None:
            laps.lap(QUEUE)
        try:
            chunks = self._encode(self._under_way.finish())
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: this client gets an answer and the others go on
            refusal = self._refusal(error)
            code = refusal.code
            chunks = self._refuse(refusal)
        laps.lap(ENCODE)
        seconds = time.monotonic() - self._arrived
        REQUEST_METRICS.answered(self._api, code.name, seconds, laps.seconds)
        return chunks

    def _refuse(self, refusal: KafkaError) -> list[Buffer] | None:
        try:
            return self._encode(self._handler.refuse(self._request, self._caller, refusal))
        except ProtocolError:
            raise
        except Exception as error:
            self._log_fault("refusal failed")
            raise FaultError from error

    def _encode(self, response: Message | None) -> list[Buffer] | None:
        if response is None:
            return None
        header, api = self._header, self._handler.request.api
        flexible = header.api_key != _API_VERSIONS and api.is_flexible(header.api_version)
        chunks = encode(response, header.api_version)
        return response_frame(header.correlation_id, chunks, flexible_header=flexible)

    def _refusal(self, error: Exception) -> KafkaError:
        """Return what the client is told of an error; what it is not to know goes to the log."""
        if isinstance(error, KafkaError):
            if isinstance(error, StorageUnavailableError):
                metrics.REDIS_UNAVAILABLE.inc()
                fields = {"api": self._api, "peer": self._caller.peer, "error": error.message}
                _seldom.warning(self._api, "Redis unavailable", **fields)
            return error
        self._log_fault("request failed")
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "an error of the broker; its log says more")

    def _log_fault(self, event: str) -> None:
        caller = self._caller
        _log.exception(
            event, api=self._api, version=caller.version, peer=caller.peer, client_id=caller.client_id
        )


class Refusal:
    """An ApiVersions request of an unknown version, answered in version 0 (KIP-511)."""

    overlaps = False
    ready = True

    def __init__(self, correlation_id: int) -> None:
        self._correlation_id = correlation_id

    def answer(self) -> list[Buffer]:
        """Return the chunks of the response."""
        chunks = encode(api_versions.unsupported(), 0)
        return response_frame(self._correlation_id, chunks, flexible_header=False)


class Dispatcher:
    """Finds the handlers of requests that come in by one listener of a broker."""

    def __init__(
        self, handlers: Mapping[int, Handler], broker: Broker, listener: str = DEFAULT_LISTENER
    ) -> None:
        self._handlers = handlers
        self._broker = broker
        self._listener = listener
        self._names = {key: _name(handler.request) for key, handler in handlers.items()}

    def begin(
        self,
        frame: Buffer,
        peer: str,
        hold: Callable[[int], None] = lambda _size: None,
        mute: Callable[[int], None] = lambda _ms: None,
        arrived: float | None = None,
    ) -> Exchange | Refusal:
        """Begin to serve the request in `frame` (without its size), which had `arrived` then (time.monotonic) or now.

        `hold` and `mute` are the Caller's.

        Raises ProtocolError where the connection is to be closed.
        """
        header = read_request_header(frame, self._is_flexible)
        handler = self._handlers.get(header.api_key)
        if handler is None:
            message = f"API key {header.api_key} is unknown"
            raise ProtocolError(message)
        first, last = handler.request.api.versions
        if not first <= header.api_version <= last:
            return self._unsupported(header)
        arrived = time.monotonic() if arrived is None else arrived
        laps = request_timer(arrived) if handler.staged else NO_TIMER
        laps.lap(QUEUE)
        request = decode(handler.request, header.api_version, frame, header.body)
        caller = Caller(header.client_id, peer, header.api_version, hold, mute, self._listener, laps)
        exchange = Exchange(self._names[header.api_key], handler, header, request, caller, arrived)
        exchange.begin(self._broker)
        return exchange

    def _unsupported(self, header: RequestHeader) -> Refusal:
        """Answer an ApiVersions request of an unknown version; any other closes the connection, as Kafka does."""
        if header.api_key != _API_VERSIONS:
            message = f"version {header.api_version} of {self._names[header.api_key]} is not served"
            raise ProtocolError(message)
        name = self._names[header.api_key]
        REQUEST_METRICS.answered(name, ErrorCode.UNSUPPORTED_VERSION.name, 0.0)
        return Refusal(header.correlation_id)

    def _is_flexible(self, api_key: int, version: int) -> bool | None:
        handler = self._handlers.get(api_key)
        return None if handler is None else handler.request.api.is_flexible(version)


def _name(request: type[Message]) -> str:
    return request.__name__.removesuffix("Request")


def _raise(error: Exception) -> None:
    raise error
