"""A blocking connection to one Kafka broker, which negotiates versions, and the deadline of a request.

Nothing that the peer sends is trusted: a size above the limit, a wrong correlation id, or bytes that are not the
response end the connection.
"""

from __future__ import annotations

import contextlib
import math
import queue
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from korvet_core import skip_tagged_fields

from korvet import __version__
from korvet.admin.errors import (
    AdminError,
    AnswerTooLargeError,
    AuthenticationFailedError,
    BadAnswerError,
    ConnectionFailedError,
    UnresolvedError,
    UnsupportedError,
    error_in,
    raise_error_in,
)
from korvet.admin.security import PLAINTEXT, ClientSecurity
from korvet.config import values

# Part of this module's names: applications get it from here.
from korvet.config.values import Address as Address  # noqa: PLC0414 - as said above
from korvet.errors import ErrorCode, ProtocolError
from korvet.protocol.compile import decode, encode
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from korvet.protocol.schema import Api, Message
from korvet.protocol.wire import Buffer

if TYPE_CHECKING:
    import ssl  # a client without TLS starts without it

_PAUSE_FIRST = 0.05
_PAUSE_MAX = 1.0

# The time of a broker for one attempt. It is below _ANSWER_SECONDS_MAX, so that the broker itself reports a timeout
# before it is taken for one that hangs.
_BROKER_SECONDS_MAX = 10.0


class Deadline:
    """A moment `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self._begun = time.monotonic()
        self._end = self._begun + seconds

    def spent(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self._begun

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def broker_ms(self) -> int:
        """Return the milliseconds that a broker may take for a request sent now."""
        return int(min(self.left(), _BROKER_SECONDS_MAX) * 1000)

    def attempts(self) -> Iterator[int]:
        """Yield 0, 1, 2, ...: once at least, then after growing pauses until the time is over."""
        pause = _PAUSE_FIRST
        number = 0
        while True:
            yield number
            # Clients that lost the same broker must not come back in step.
            wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - no cryptography
            if wait >= self.left():
                return
            time.sleep(wait)
            pause = min(pause * 2, _PAUSE_MAX)
            number += 1


ANSWER_BYTES_MAX = 128 * 1024 * 1024
"""The largest response that is read."""

# An address that drops packets, and a broker that hangs, must leave time for the others.
_CONNECT_SECONDS_MAX = 5.0
_ANSWER_SECONDS_MAX = 15.0

_PROBE_SECONDS_MAX = 1.0
_HTTP = b"HTTP/"
_PROBE_BYTES = 8
_SESSION_SHARE = 0.85  # of the lifetime of a session after which clients authenticate again, as Kafka's do

_RECEIVE_BYTES = 65536
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_API_VERSIONS_FIRST = 3
_CORRELATION_IDS = 2**31
_PLAIN_PROBE_ID = b"tls?"
# ApiVersions, version 0, without a client id.
_PLAIN_PROBE = struct.pack(">ihh4sh", 10, ApiVersionsRequest.api.key, 0, _PLAIN_PROBE_ID, -1)
_API_VERSIONS_REQUEST = ApiVersionsRequest(
    client_software_name="korvet-admin", client_software_version=__version__.replace("+", "-")
)

PORT_DEFAULT = 9092

M = TypeVar("M", bound=Message)


def parse_address(text: str, port_default: int = PORT_DEFAULT) -> Address:
    """Read HOST:PORT, HOST, [IPv6]:PORT or [IPv6]; raises ValueError."""
    address = values.parse_address(text, port_default)
    if not address.port:
        raise ValueError(f"{text!r} has no port that a broker can listen on")
    return address


class Connection:
    """A connection to one broker. After any error but BrokerError and UnsupportedError it is unusable."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        deadline: Deadline,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        """Connect, ask for the versions that the broker serves, and authenticate. Raises AdminError."""
        self.address = address
        self._security = security
        self._reauthenticate_at = math.inf
        self._was_answered = False
        self._answer_bytes_max = answer_bytes_max
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._served: dict[int, tuple[int, int]] = {}
        try:
            self._socket = open_socket(
                address, _seconds(deadline, _CONNECT_SECONDS_MAX, f"no connection to {address}")
            )
        except (OSError, UnicodeError) as error:
            failed = (
                UnresolvedError
                if isinstance(error, socket.gaierror | UnicodeError)
                else ConnectionFailedError
            )
            raise failed(f"no connection to {address}: {_reason(error)}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.uses_tls:
                self._encrypt(deadline)
            served = self.api_versions(deadline)
            self._served = {each.api_key: (each.min_version, each.max_version) for each in served.api_keys}
            if security.mechanism:
                self._authenticate(deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, ConnectionFailedError | BadAnswerError):
                found = _other_protocol(address, uses_tls=security.uses_tls)
                if found:
                    raise BadAnswerError(found) from error
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def serves(self, request: type[Message]) -> bool:
        """Whether both sides know a version of a request."""
        first, last = self._served.get(request.api.key, (0, -1))
        return max(first, request.api.versions[0]) <= min(last, request.api.versions[1])

    def version(self, request: type[Message], versions: tuple[int, int] | None = None) -> int:
        """Return the newest version of a request that both sides know, within these `versions` if given.

        Raises UnsupportedError if there is none.
        """
        name = request.__name__.removesuffix("Request")
        first, last = versions or request.api.versions
        served = self._served.get(request.api.key)
        if served is None:
            raise UnsupportedError(f"{self.address} does not serve {name}")
        version = min(last, served[1])
        if version < max(first, served[0]):
            raise UnsupportedError(
                f"{self.address} serves {name} in versions {served[0]} to {served[1]}, needed are {first} to {last}"
            )
        return version

    def call(
        self, request: Message, answer: type[M], deadline: Deadline, versions: tuple[int, int] | None = None
    ) -> M:
        """Send a request and return the response.

        Raises UnsupportedError before anything is sent if the version cannot carry the request; ConnectionFailedError
        if the broker is gone or silent too long; BadAnswerError, AnswerTooLargeError.
        """
        if time.monotonic() >= self._reauthenticate_at:
            self._authenticate(deadline)
        version = self.version(type(request), versions)
        try:
            body = encode(request, version)
        except (ValueError, struct.error) as error:
            raise UnsupportedError(
                f"{self.address} cannot take this {type(request).__name__}: {error}"
            ) from error
        try:
            frame = self._exchange(request.api, version, body, deadline)
        except ConnectionFailedError:
            if not (
                self._was_answered or self._security.mechanism or isinstance(request, SaslHandshakeRequest)
            ):
                self._check_no_login_is_needed()
            raise
        self._was_answered = True
        # KIP-511: the response to ApiVersions has the plain header in every version.
        return self._decode(answer, version, frame, flexible_header=request.api.is_flexible(version))

    def api_versions(self, deadline: Deadline) -> ApiVersionsResponse:
        """Ask what the broker serves, in the newest version that both sides know, if it was asked before.

        A broker that is too old for the request answers in version 0. Raises AdminError.
        """
        api = ApiVersionsRequest.api
        version = self.version(ApiVersionsRequest) if self._served else _API_VERSIONS_FIRST
        frame = self._exchange(api, version, encode(_API_VERSIONS_REQUEST, version), deadline)
        if frame[_SIZE.size : _SIZE.size + 2] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION):
            version = 0
            frame = self._exchange(api, version, encode(_API_VERSIONS_REQUEST, version), deadline)
        response = self._decode(ApiVersionsResponse, version, frame, flexible_header=False)
        raise_error_in(response.error_code)
        return response

    def _encrypt(self, deadline: Deadline) -> None:
        """Do TLS's handshake. Raises AuthenticationFailedError for a broker that is not the one that was asked for."""
        import ssl  # noqa: PLC0415 - a client without TLS starts without it

        try:
            context = self._security.tls_context()
        except ValueError as error:
            raise AuthenticationFailedError(str(error)) from error
        silent = f"{self.address} does not do the handshake of TLS"
        self._socket.settimeout(_seconds(deadline, _CONNECT_SECONDS_MAX, silent))
        try:
            name = self._security.server_name or self.address.host
            self._socket = context.wrap_socket(self._socket, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailedError(
                f"the certificate of {self.address}: {error.verify_message}"
            ) from error
        except TimeoutError as error:
            raise ConnectionFailedError(f"{silent} in time") from error
        except (ssl.SSLEOFError, ConnectionError) as error:
            raise ConnectionFailedError(f"{self.address} ends the handshake of TLS") from error
        except (OSError, ValueError) as error:
            self._raise_refusal(error)
            raise BadAnswerError(f"{self.address}: no connection by TLS: {_reason(error)}") from error

    def _raise_refusal(self, error: Exception) -> None:
        """Raise AuthenticationFailedError if the broker has refused this client by an alert of TLS."""
        _, alert, says = (getattr(error, "reason", None) or "").partition("_ALERT_")
        if alert:
            why = says.replace("_", " ").lower()
            raise AuthenticationFailedError(f"{self.address} refuses this client by TLS: {why}") from error

    def _authenticate(self, deadline: Deadline) -> None:
        """Authenticate, or do so again before the session ends (KIP-368). Raises AdminError."""
        from korvet.admin import sasl  # noqa: PLC0415 - a client without a user starts without it

        self._reauthenticate_at = math.inf
        began = time.monotonic()
        mechanism = self._security.mechanism
        offered = self.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, deadline)
        if offered.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            known = ", ".join(offered.mechanisms)
            raise AuthenticationFailedError(f"{self.address} does not take {mechanism}, only {known}")
        if offered.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailedError(
                f"{self.address} takes no SASL: security.protocol has to be PLAINTEXT or SSL"
            )
        if offered.error_code:
            raise AuthenticationFailedError(f"{self.address}: {error_in(offered.error_code)}")
        exchange = sasl.exchange(self._security, deadline.left())
        lifetime_ms = 0
        try:
            token = next(exchange)
            while True:
                answer = self.call(
                    SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, deadline
                )
                if answer.error_code:
                    reason = answer.error_message or error_in(answer.error_code)
                    raise AuthenticationFailedError(f"{self.address}: {reason}")
                lifetime_ms = answer.session_lifetime_ms
                token = exchange.send(answer.auth_bytes)
        except StopIteration:
            pass
        if lifetime_ms > 0:
            self._reauthenticate_at = began + lifetime_ms / 1000 * _SESSION_SHARE

    def _check_no_login_is_needed(self) -> None:
        """Raise AuthenticationFailedError if a broker that has closed the connection would have had a login first."""
        offered = None
        with contextlib.suppress(AdminError):
            probe = Connection(
                self.address, self._client_id.decode(), Deadline(_PROBE_SECONDS_MAX), security=self._security
            )
            with contextlib.closing(probe):
                offered = probe.call(
                    SaslHandshakeRequest(mechanism=""), SaslHandshakeResponse, Deadline(_PROBE_SECONDS_MAX)
                )
        if offered is not None and offered.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            protocol = "SASL_SSL" if self._security.uses_tls else "SASL_PLAINTEXT"
            raise AuthenticationFailedError(
                f"{self.address} requires a login: security.protocol has to be {protocol}, and sasl.mechanism one of "
                + ", ".join(offered.mechanisms)
            )

    def _exchange(self, api: Api, version: int, body: list[Buffer], deadline: Deadline) -> bytearray:
        """Send a request and return the frame of the response, without its size."""
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        header = _HEADER.pack(api.key, version, self._correlation_id, len(self._client_id)) + self._client_id
        if api.is_flexible(version):
            header += b"\0"
        payload = b"".join([header, *body])
        silent = f"{self.address} does not respond"
        answered_by = Deadline(_seconds(deadline, _ANSWER_SECONDS_MAX, silent))
        try:
            self._socket.settimeout(_seconds(answered_by, _ANSWER_SECONDS_MAX, silent))
            self._socket.sendall(_SIZE.pack(len(payload)) + payload)
            (size,) = _SIZE.unpack(self._receive(_SIZE.size, answered_by))
            if not _SIZE.size <= size <= ANSWER_BYTES_MAX:
                raise BadAnswerError(
                    f"{self.address} announces a response of {size} bytes: not a Kafka broker?"
                )
            if size > self._answer_bytes_max:
                raise AnswerTooLargeError(
                    f"{self.address} announces a response of {size} bytes, more than {self._answer_bytes_max}"
                )
            frame = self._receive(size, answered_by)
        except TimeoutError as error:
            raise ConnectionFailedError(silent) from error
        except OSError as error:
            self._raise_refusal(error)
            raise ConnectionFailedError(f"lost the connection to {self.address}: {_reason(error)}") from error
        (correlation_id,) = _SIZE.unpack_from(frame)
        if correlation_id != self._correlation_id:
            raise BadAnswerError(f"{self.address} responds to a request that was not sent")
        return frame

    def _receive(self, size: int, deadline: Deadline) -> bytearray:
        data = bytearray()
        while len(data) < size:
            left = _seconds(deadline, _ANSWER_SECONDS_MAX, f"{self.address} does not respond")
            self._socket.settimeout(left)
            piece = self._socket.recv(min(size - len(data), _RECEIVE_BYTES))
            if not piece:
                raise ConnectionFailedError(f"{self.address} closed the connection")
            data += piece
        return data

    def _decode(self, answer: type[M], version: int, frame: bytearray, *, flexible_header: bool) -> M:
        try:
            position = skip_tagged_fields(frame, _SIZE.size) if flexible_header else _SIZE.size
            return decode(answer, version, frame, position)
        except ProtocolError as error:
            raise BadAnswerError(f"{self.address} sends a response that cannot be read: {error}") from error


def _seconds(deadline: Deadline, most: float, message: str) -> float:
    """Return how long a socket may wait. Raises ConnectionFailedError if the time is over."""
    left = deadline.left()
    if left <= 0:
        raise ConnectionFailedError(f"{message} in time")
    return min(left, most)


def _other_protocol(address: Address, *, uses_tls: bool) -> str:
    """Say what a port speaks that does not speak the client's protocol; nothing if that is not known."""
    if not uses_tls and _speaks_tls(address):
        return f"{address} speaks TLS: security.protocol has to be SSL or SASL_SSL"
    # The console's port (`ops.listen`) is easily taken for the broker's.
    if _first_bytes(address, b"HEAD / HTTP/1.0\r\n\r\n", uses_tls=uses_tls).startswith(_HTTP):
        return f"{address} speaks HTTP: Kafka clients connect to another port, that of `listen`"
    if uses_tls and _first_bytes(address, _PLAIN_PROBE, uses_tls=False)[_SIZE.size :] == _PLAIN_PROBE_ID:
        return f"{address} does not speak TLS: security.protocol has to be PLAINTEXT or SASL_PLAINTEXT"
    return ""


def _first_bytes(address: Address, sent: bytes, *, uses_tls: bool) -> bytes:
    """Return the first bytes that a port answers; none if it does not."""
    received = b""
    try:
        plain = open_socket(address, _PROBE_SECONDS_MAX)
        with plain, _trusting().wrap_socket(plain) if uses_tls else plain as probe:
            probe.sendall(sent)
            while len(received) < _PROBE_BYTES and (piece := probe.recv(_PROBE_BYTES - len(received))):
                received += piece
    except OSError:
        pass
    return received


def _speaks_tls(address: Address) -> bool:
    import ssl  # noqa: PLC0415 - most clients have no such port

    try:
        with open_socket(address, _PROBE_SECONDS_MAX) as plain, _trusting().wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "_ALERT_" in (error.reason or "")
    except OSError:
        return False


def _trusting() -> ssl.SSLContext:
    """Return what encrypts a probe, which sends nothing that is worth to be known to anybody else."""
    import ssl  # noqa: PLC0415 - as above

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def open_socket(address: Address, seconds: float) -> socket.socket:
    """Connect to a host, at the first of its addresses that takes it within `seconds`. Raises OSError, UnicodeError.

    Its name is resolved within `seconds` too, which socket.create_connection does not promise.
    """
    failed: OSError | None = None
    for family, kind, protocol, _, at in _resolved(address, seconds):
        try:
            opened = socket.socket(family, kind, protocol)
            try:
                opened.settimeout(seconds)
                opened.connect(at)
            except BaseException:
                opened.close()
                raise
        except OSError as error:
            failed = error
        else:
            return opened
    raise failed or OSError(f"{address.host} has no address")


def _resolved(address: Address, seconds: float) -> list[tuple[Any, ...]]:
    """Return what socket.getaddrinfo does. A name server that is silent keeps that for up to minutes.

    So a thread waits for it, and is left alone after `seconds`.
    """
    outcome: queue.SimpleQueue[list[tuple[Any, ...]] | OSError | UnicodeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            outcome.put([*socket.getaddrinfo(*address, type=socket.SOCK_STREAM)])
        except (OSError, UnicodeError) as error:
            outcome.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        found = outcome.get(timeout=seconds)
    except queue.Empty as error:
        message = f"its name is not resolved within {seconds:.1f} s"
        raise socket.gaierror(socket.EAI_AGAIN, message) from error
    if isinstance(found, Exception):
        raise found
    return found


def _reason(error: OSError | ValueError) -> str:
    """Return the message of the system without its number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
