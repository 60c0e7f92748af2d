"""From a frame to its answer: the table of handlers, the version check, and the boundary where every error ends.

Knows the four fates of an error: a peer that broke the protocol loses its connection (ProtocolError passes through);
a rule that said no, and a Redis that is away, are answered with their code; a mistake of ours is logged once with its
traceback and answered with UNKNOWN_SERVER_ERROR. Nothing of sockets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from korvet.errors import ErrorCode, KafkaError, ProtocolError, StorageUnavailableError
from korvet.handlers import api_versions
from korvet.handlers.handler import Broker, Caller, Handler
from korvet.logs import Log
from korvet.protocol.compile import decode, encode
from korvet.protocol.decoding import Buffer
from korvet.protocol.frame import RequestHeader, read_request_header, response_frame
from korvet.protocol.schema import Message
from korvet.server import metrics

_log = Log(__name__)
_API_VERSIONS = api_versions.REQUEST.api.key


class Dispatcher:
    """Answers requests with the handlers of a table, on one broker."""

    def __init__(self, handlers: Mapping[int, Handler], broker: Broker) -> None:
        self._handlers = handlers
        self._broker = broker
        self._names = {key: _name(handler.request) for key, handler in handlers.items()}

    def answer(self, frame: Buffer, peer: str) -> list[Buffer] | None:
        """Answer the request in `frame` (without its size); returns the response's chunks, or None for none.

        Raises ProtocolError where the connection is to be closed.
        """
        began = time.monotonic()
        header = read_request_header(frame, self._is_flexible)
        handler = self._handlers.get(header.api_key)
        if handler is None:
            message = f"API key {header.api_key} is unknown"
            raise ProtocolError(message)
        first, last = handler.request.api.versions
        if not first <= header.api_version <= last:
            return self._unsupported(header)
        request = decode(handler.request, header.api_version, frame, header.body)
        caller = Caller(header.client_id, peer, header.api_version)
        response, code = self._handle(handler, request, caller)
        name = self._names[header.api_key]
        metrics.REQUESTS.labels(name, code.name).inc()
        metrics.REQUEST_DURATION.labels(name).observe(time.monotonic() - began)
        if response is None:
            return None
        flexible = header.api_key != _API_VERSIONS and handler.request.api.is_flexible(header.api_version)
        chunks = encode(response, header.api_version)
        return response_frame(header.correlation_id, chunks, flexible_header=flexible)

    def _handle(self, handler: Handler, request: Message, caller: Caller) -> tuple[Message | None, ErrorCode]:
        """Call the handler; every error but the peer's own becomes a response."""
        try:
            return handler.handle(request, caller, self._broker), ErrorCode.NONE
        except ProtocolError:
            raise
        except KafkaError as error:
            if isinstance(error, StorageUnavailableError):
                metrics.REDIS_UNAVAILABLE.inc()
                _log.warning(
                    "Redis unavailable", api=_name(handler.request), peer=caller.peer, error=error.message
                )
            refusal = error
        except Exception:  # noqa: BLE001 - the boundary: whatever it is, this client gets an answer and others go on
            api, version = _name(handler.request), caller.version
            _log.exception(
                "request failed", api=api, version=version, peer=caller.peer, client_id=caller.client_id
            )
            refusal = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "an error of the broker; its log says more")
        return handler.refuse(request, refusal), refusal.code

    def _unsupported(self, header: RequestHeader) -> list[Buffer]:
        """Answer an ApiVersions request of an unknown version in version 0 (KIP-511); refuse any other."""
        if header.api_key != _API_VERSIONS:
            message = f"version {header.api_version} of {self._names[header.api_key]} is not served"
            raise ProtocolError(message)
        metrics.REQUESTS.labels(self._names[header.api_key], ErrorCode.UNSUPPORTED_VERSION.name).inc()
        return response_frame(
            header.correlation_id, encode(api_versions.unsupported(), 0), flexible_header=False
        )

    def _is_flexible(self, api_key: int, version: int) -> bool | None:
        handler = self._handlers.get(api_key)
        return None if handler is None else handler.request.api.is_flexible(version)


def _name(request: type[Message]) -> str:
    return request.__name__.removesuffix("Request")
