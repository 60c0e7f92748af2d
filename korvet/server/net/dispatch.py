"""From a frame to its answer: the handler, the version check, and the boundary where every error ends.

An error has one of four fates. A peer that broke the protocol loses its connection (ProtocolError passes through). A
rule that said no, and a Redis that is away, are answered with their code. A mistake of ours is logged once with its
traceback and answered with UNKNOWN_SERVER_ERROR; if not even that can be encoded (FaultError) the connection closes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
from korvet_core import request_header

from korvet.errors import ErrorCode, KafkaError, LeaseEndedError, ProtocolError, StorageUnavailableError
from korvet.handlers import audit, authorization
from korvet.handlers.api_versions import unsupported
from korvet.handlers.registry import Answer, Caller, Handler, Reply, Services
from korvet.logs import Log, RateLimitedLogger
from korvet.protocol.compile import decode, encode
from korvet.protocol.frame import response_frame
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.schema import Message, RequestHeader
from korvet.protocol.wire import Buffer
from korvet.security.authorizer import ALL_RIGHTS
from korvet.security.quotas import Quota
from korvet.security.sasl import Authenticator
from korvet.security.session import Session
from korvet.server.net.budget import Frame
from korvet.server.net.throttle import Throttle
from korvet.server.serving_lease import ServingLease
from korvet.telemetry import metrics
from korvet.telemetry.request_metrics import REQUEST_METRICS
from korvet.telemetry.request_timer import DECODE, ENCODE, NO_TIMER, QUEUE, request_timer
from korvet.turns import LongArray, in_parts, in_turns

_log = Log(__name__)
_rate_limited_log = RateLimitedLogger(_log)
CHUNKS_MAX = 10_000
"""Of a response; more are joined, in turns, for each of them is counted and sent in one step."""

_API_VERSIONS = ApiVersionsRequest.api.key


class FaultError(Exception):
    """A mistake of ours, logged already, leaves no response to send: the connection must close."""


class ResponseFrame(NamedTuple):
    """A response as bytes; after it the connection takes no requests for `throttle_ms`, by the quota `throttled_by`."""

    chunks: list[Buffer]
    throttle_ms: int = 0
    throttled_by: Quota = Quota.CONTROLLER_MUTATION_RATE


class Client(Protocol):
    """A connection whose requests are served; `sasl` has its logins, on a listener where clients have to log in."""

    session: Session
    sasl: Authenticator | None

    def is_gone(self) -> bool:
        """Whether the client has closed the connection; one that only sends no more looks the same."""


class _Serving:
    """A request that is served."""

    __slots__ = ("_began", "_by", "_caller", "_frame", "_handler", "_header", "_request")

    def __init__(
        self,
        dispatcher: Dispatcher,
        handler: Handler,
        header: RequestHeader,
        request: Message,
        caller: Caller,
        frame: Frame,
    ) -> None:
        self._by, self._handler = dispatcher, handler
        self._began = dispatcher.throttle.busy_s() if dispatcher.throttle.watches else 0.0
        self._header, self._request = header, request
        self._caller, self._frame = caller, frame

    def answer(self, refusal: KafkaError | None) -> ResponseFrame:
        """Serve it, or answer with an error, and return the bytes of the response.

        Raises ProtocolError or FaultError if the connection must close; every other error becomes a response.
        """
        error_name = ErrorCode.NONE.name
        timer = self._caller.timer
        timer.end_stage(DECODE)
        try:
            frame = self._finish(self._handle(refusal))
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: this client gets an answer and the others go on
            refusal = self._refusal(error).without_frames()
            error_name = refusal.code.name
            frame = self._refuse(refusal)
        timer.end_stage(ENCODE)
        seconds = time.monotonic() - self._frame.arrived
        REQUEST_METRICS.answered(self._handler.name, error_name, seconds, timer.seconds)
        return frame

    def _handle(self, refusal: KafkaError | None) -> Answer:
        if refusal is not None:
            raise refusal
        self._admit()
        call, handler = self._call, self._handler
        unconfirmed = handler.unconfirmed if handler.confirms(self._request) else ErrorCode.NONE
        if unconfirmed is not ErrorCode.NONE and not getattr(self._request, "validate_only", False):
            call = partial(self._by.services.replicas.confirm_call, call, unconfirmed)
        try:
            answer: Answer = call()
        except LeaseEndedError:
            # The worker was stopped since it was admitted, or Redis' clock has jumped. Nothing is done: once more.
            self._admit()
            answer = call()
        return answer

    def _call(self) -> Answer:
        handler, request, caller = self._handler, self._request, self._caller
        try:
            answer: Answer = authorization.call(handler, request, caller, self._by.services)
        except KafkaError as error:
            audit.note_failure(handler, request, caller, error)
            raise
        response = answer.response if isinstance(answer, Reply) else answer
        audit.note(handler, request, caller, response)
        return answer

    def _admit(self) -> None:
        """Renew the lease if it has ended; raises KafkaError for a late request whose client has gone (Handler)."""
        frame, lease = self._frame, self._by.lease
        if not lease.is_late(frame.came_after):
            return
        code = self._handler.abandoned(self._request)
        if code is not ErrorCode.NONE and self._caller.is_gone():
            name, peer = self._handler.name, self._caller.session.peer
            _rate_limited_log.info(name, "late request not begun, its client has gone", api=name, peer=peer)
            raise KafkaError(code, "the request came late, and nobody waits for its answer")
        self._caller = msgspec.structs.replace(
            self._caller, not_after_ms=lease.not_after_ms(frame.came_after)
        )

    def _refuse(self, refusal: KafkaError) -> ResponseFrame:
        try:
            return self._finish(self._handler.refuse(self._request, self._caller, refusal))
        except ProtocolError:
            raise
        except Exception as error:
            self._log_fault("refusal failed")
            raise FaultError from error

    def _finish(self, answer: Answer) -> ResponseFrame:
        """Encode a response, and throttle its client if that is over a quota now."""
        response, throttle_ms = answer if isinstance(answer, Reply) else (answer, 0)
        throttled_by = Quota.CONTROLLER_MUTATION_RATE
        chunks = self._encode(response)
        throttle = self._by.throttle
        if throttle.active:
            used_s = throttle.busy_s(self._began) if self._began else 0.0
            quota_ms, quota = throttle.charge(self._caller, response, chunks, used_s)
            if quota_ms > throttle_ms:
                throttle_ms, throttled_by = quota_ms, quota
        if throttle_ms and getattr(response, "throttle_time_ms", throttle_ms) != throttle_ms:
            response.throttle_time_ms = throttle_ms  # type: ignore[attr-defined]  # it has the field, as was asked
            chunks = self._encode(response)
        return ResponseFrame(chunks, throttle_ms, throttled_by)

    def _encode(self, response: Message) -> list[Buffer]:
        header, api = self._header, self._handler.request.api
        flexible = header.api_key != _API_VERSIONS and api.is_flexible(header.api_version)
        chunks = encode(response, header.api_version, in_turns)
        if len(chunks) > CHUNKS_MAX:
            chunks = [b"".join(chunk) for chunk in in_parts(chunks, CHUNKS_MAX)]
        return response_frame(header.correlation_id, chunks, flexible_header=flexible)

    def _refusal(self, error: Exception) -> KafkaError:
        """Return the error to answer with; what the client is not to know goes to the log."""
        if isinstance(error, KafkaError):
            if isinstance(error, StorageUnavailableError):
                metrics.REDIS_UNAVAILABLE.inc()
                api = self._handler.name
                fields = {"api": api, "peer": self._caller.session.peer, "error": error.message}
                _rate_limited_log.warning(api, "Redis unavailable", **fields)
            return error
        self._log_fault("request failed")
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "an error of the broker; its log says more")

    def _log_fault(self, event: str) -> None:
        caller = self._caller
        _log.exception(
            event,
            api=self._handler.name,
            version=caller.version,
            peer=caller.session.peer,
            client_id=caller.client_id,
        )


class Dispatcher:
    """Begins the requests of a worker's clients."""

    def __init__(self, handlers: Mapping[int, Handler], services: Services, lease: ServingLease) -> None:
        """Without an authorizer among the services every client may do everything."""
        self.services, self.lease = services, lease
        self.throttle = Throttle(services.quotas)
        self._handlers = handlers
        apis = [handler.request.api for handler in handlers.values()]
        self._flexible_from = {api.key: api.flexible for api in apis if api.flexible is not None}

    def serve(self, frame: Frame, client: Client) -> ResponseFrame:
        """Serve the request of a frame; raises ProtocolError or FaultError if the connection must close."""
        header = RequestHeader(*request_header(frame.data, self._flexible_from))
        session, sasl = client.session, client.sasl
        refusal = None if sasl is None else sasl.admit(header.api_key)
        handler = self._handlers.get(header.api_key)
        if handler is None:
            raise ProtocolError(f"API key {header.api_key} is unknown")
        first, last = handler.request.api.versions
        if not first <= header.api_version <= last:
            return _unsupported(handler.name, header)
        timer = request_timer(frame.arrived) if handler.timed else NO_TIMER
        timer.end_stage(QUEUE)
        request = decode(handler.request, header.api_version, frame.data, header.body, LongArray)
        authorizer = self.services.authorizer
        rights = ALL_RIGHTS if authorizer is None else authorizer.rights(session, handler.name)
        caller = Caller(
            header.client_id,
            session,
            header.api_version,
            sasl,
            timer,
            frame.fetched,
            rights=rights,
            is_gone=client.is_gone,
        )
        if self.throttle.active:
            caller = self.throttle.limited(caller, request)
        return _Serving(self, handler, header, request, caller, frame).answer(refusal)


def _unsupported(api: str, header: RequestHeader) -> ResponseFrame:
    """Answer an ApiVersions request of an unknown version in version 0; any other closes the connection (KIP-511)."""
    if header.api_key != _API_VERSIONS:
        raise ProtocolError(f"version {header.api_version} of {api} is not served")
    REQUEST_METRICS.answered(api, ErrorCode.UNSUPPORTED_VERSION.name, 0.0)
    chunks = response_frame(header.correlation_id, encode(unsupported(), 0), flexible_header=False)
    return ResponseFrame(chunks)
