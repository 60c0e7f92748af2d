"""A blocking connection to one Kafka broker, which negotiates versions, and the deadline of a request.

Nothing that the peer sends is trusted: a size above the limit, a wrong correlation id, or bytes that are not the
response end the connection.
"""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import struct
import threading
import time
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
from korvet.admin.security import PLAINTEXT, ClientSecurity, reason
from korvet.config import values

# Part of this module's names: applications get it from here.
from korvet.config.values import Address as Address  # noqa: PLC0414 - as said above
from korvet.errors import ErrorCode, ProtocolError
from korvet.protocol.compile import decode, encode
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from korvet.protocol.schema import Message

if TYPE_CHECKING:
    import ssl  # a client without TLS starts without it

PORT_DEFAULT = 9092
ANSWER_BYTES_MAX = 128 * 1024 * 1024
"""The largest response that is read."""

# An address that drops packets, and a broker that hangs, must leave time for the others.
_CONNECT_SECONDS_MAX = 5.0
_ANSWER_SECONDS_MAX = 15.0
# The time of a broker for one attempt. It is below _ANSWER_SECONDS_MAX, so that the broker itself reports a timeout
# before it is taken for one that hangs.
_BROKER_SECONDS_MAX = 10.0
_SESSION_SHARE = 0.85  # of the lifetime of a session after which clients authenticate again, as Kafka's do

_PROBE_SECONDS_MAX = 1.0
_PROBE_BYTES = 8
_HTTP_PROBE = b"HEAD / HTTP/1.0\r\n\r\n"
# An empty ClientHello, which a server that speaks TLS answers with an alert.
_TLS_PROBE, _TLS_ALERT = b"\x16\x03\x01\0\4\1\0\0\0", b"\x15\x03"
# ApiVersions, version 0, without a client id; the answer begins with its size and this correlation id.
_PLAIN_PROBE_ID = b"tls?"
_PLAIN_PROBE = struct.pack(">ihh4sh", 10, ApiVersionsRequest.api.key, 0, _PLAIN_PROBE_ID, -1)

_RECEIVE_BYTES = 65536
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_CORRELATION_IDS = 2**31
_API_VERSIONS_FIRST = 3
API_VERSIONS_REQUEST = ApiVersionsRequest(
    client_software_name="korvet-admin", client_software_version=__version__.replace("+", "-")
)

M = TypeVar("M", bound=Message)


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


def parse_address(text: str, port_default: int = PORT_DEFAULT) -> Address:
    """Read HOST:PORT, HOST, [IPv6]:PORT or [IPv6]; raises ValueError."""
    address = values.parse_address(text, port_default)
    if not address.port:
        raise ValueError(f"{text!r} has no port that a broker can listen on")
    return address


class Connection:
    """A connection to one broker. Any error but UnsupportedError closes it."""

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
            self._socket = open_socket(address, min(deadline.left(), _CONNECT_SECONDS_MAX))
        except (OSError, UnicodeError) as error:
            is_unresolved = isinstance(error, socket.gaierror | UnicodeError)
            failed = UnresolvedError if is_unresolved else ConnectionFailedError
            raise failed(f"no connection to {address}: {reason(error)}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.uses_tls:
                self._encrypt(deadline)
            served = self._negotiate(deadline).api_keys
            self._served = {api.api_key: (api.min_version, api.max_version) for api in served}
            if security.mechanism:
                self._authenticate(deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, ConnectionFailedError | BadAnswerError):
                other = _other_protocol(address, uses_tls=security.uses_tls)
                if other:
                    raise BadAnswerError(other) from error
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, by its owner or after an error."""
        return self._socket.fileno() < 0

    def call(
        self, request: Message, answer: type[M], deadline: Deadline, versions: tuple[int, int] | None = None
    ) -> M:
        """Send a request, in the newest version that both sides know, and return the response.

        `versions` limits them. Raises UnsupportedError before anything is sent if no version can carry the request;
        ConnectionFailedError if the broker is gone or silent too long; BadAnswerError, AnswerTooLargeError.
        """
        try:
            if time.monotonic() >= self._reauthenticate_at:
                self._authenticate(deadline)
            version = self._version(request, versions or request.api.versions)
            frame = self._exchange(request, version, deadline)
            self._was_answered = True
            return self._decode(answer, version, frame)
        except UnsupportedError:
            raise
        except BaseException as error:
            # Also if it is interrupted half-way: the response that is still to come has no reader.
            self.close()
            may_need_login = not (self._was_answered or self._security.mechanism)
            if (
                may_need_login
                and isinstance(error, ConnectionFailedError)
                and answer is not SaslHandshakeResponse
            ):
                self._check_no_login_is_needed()
            raise

    def _negotiate(self, deadline: Deadline) -> ApiVersionsResponse:
        """Ask what the broker serves; one that does not know this version answers in version 0 (KIP-511)."""
        version = _API_VERSIONS_FIRST
        frame = self._exchange(API_VERSIONS_REQUEST, version, deadline)
        if frame[_SIZE.size : _SIZE.size + 2] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION):
            version = 0
            frame = self._exchange(API_VERSIONS_REQUEST, version, deadline)
        response = self._decode(ApiVersionsResponse, version, frame)
        raise_error_in(response.error_code)
        return response

    def _version(self, request: Message, versions: tuple[int, int]) -> int:
        name = type(request).__name__.removesuffix("Request")
        served = self._served.get(request.api.key)
        if served is None:
            raise UnsupportedError(f"{self.address} does not serve {name}")
        version = min(versions[1], served[1])
        if version < max(versions[0], served[0]):
            raise UnsupportedError(
                f"{self.address} serves {name} in versions {served[0]} to {served[1]},"
                f" needed are {versions[0]} to {versions[1]}"
            )
        return version

    def _encrypt(self, deadline: Deadline) -> None:
        """Do TLS's handshake. Raises AuthenticationFailedError for a broker that is not the one that was asked for."""
        import ssl  # noqa: PLC0415 - a client without TLS starts without it

        silent = f"{self.address} does not do the handshake of TLS in time"
        try:
            context = self._security.tls_context()
        except ValueError as error:
            raise AuthenticationFailedError(str(error)) from error
        try:
            self._wait_at_most(min(deadline.left(), _CONNECT_SECONDS_MAX))
            name = self._security.server_name or self.address.host
            self._socket = context.wrap_socket(self._socket, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailedError(
                f"the certificate of {self.address}: {error.verify_message}"
            ) from error
        except TimeoutError as error:
            raise ConnectionFailedError(silent) from error
        except (ssl.SSLEOFError, ConnectionError) as error:
            raise ConnectionFailedError(f"{self.address} ends the handshake of TLS") from error
        except (OSError, ValueError) as error:
            self._raise_refusal(error)
            raise BadAnswerError(f"{self.address}: no connection by TLS: {reason(error)}") from error

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
        with contextlib.suppress(StopIteration):
            token = next(exchange)
            while True:
                sent = SaslAuthenticateRequest(auth_bytes=token)
                answer = self.call(sent, SaslAuthenticateResponse, deadline)
                if answer.error_code:
                    refusal = answer.error_message or error_in(answer.error_code)
                    raise AuthenticationFailedError(f"{self.address}: {refusal}")
                lifetime_ms = answer.session_lifetime_ms
                token = exchange.send(answer.auth_bytes)
        if lifetime_ms > 0:
            self._reauthenticate_at = began + lifetime_ms / 1000 * _SESSION_SHARE

    def _check_no_login_is_needed(self) -> None:
        """Raise AuthenticationFailedError if a broker that has closed the connection would have had a login first."""
        deadline = Deadline(_PROBE_SECONDS_MAX)
        try:
            probe = Connection(self.address, self._client_id.decode(), deadline, security=self._security)
            with contextlib.closing(probe):
                offered = probe.call(SaslHandshakeRequest(mechanism=""), SaslHandshakeResponse, deadline)
        except AdminError:
            return
        if offered.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            protocol = "SASL_SSL" if self._security.uses_tls else "SASL_PLAINTEXT"
            raise AuthenticationFailedError(
                f"{self.address} requires a login: security.protocol has to be {protocol}, and sasl.mechanism one of "
                + ", ".join(offered.mechanisms)
            )

    def _exchange(self, request: Message, version: int, deadline: Deadline) -> bytearray:
        """Send a request and return the frame of the response, without its size."""
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        api = request.api
        header = _HEADER.pack(api.key, version, self._correlation_id, len(self._client_id)) + self._client_id
        if api.is_flexible(version):
            header += b"\0"
        try:
            payload = b"".join([header, *encode(request, version)])
        except (TypeError, ValueError, struct.error) as error:
            raise UnsupportedError(
                f"{self.address} cannot take this {type(request).__name__}: {error}"
            ) from error
        answered_by = Deadline(min(deadline.left(), _ANSWER_SECONDS_MAX))
        try:
            self._wait_at_most(answered_by.left())
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
            raise ConnectionFailedError(f"{self.address} does not respond in time") from error
        except OSError as error:
            self._raise_refusal(error)
            raise ConnectionFailedError(f"lost the connection to {self.address}: {reason(error)}") from error
        (correlation_id,) = _SIZE.unpack_from(frame)
        if correlation_id != self._correlation_id:
            raise BadAnswerError(f"{self.address} responds to a request that was not sent")
        return frame

    def _receive(self, size: int, deadline: Deadline) -> bytearray:
        data = bytearray()
        while len(data) < size:
            self._wait_at_most(deadline.left())
            piece = self._socket.recv(min(size - len(data), _RECEIVE_BYTES))
            if not piece:
                raise ConnectionFailedError(f"{self.address} closed the connection")
            data += piece
        return data

    def _wait_at_most(self, seconds: float) -> None:
        """Limit the next call of the socket. Raises TimeoutError if there is no time."""
        if seconds <= 0:
            raise TimeoutError
        self._socket.settimeout(seconds)

    def _decode(self, answer: type[M], version: int, frame: bytearray) -> M:
        # KIP-511: the response to ApiVersions has the plain header in every version.
        has_tags = answer.api.is_flexible(version) and answer is not ApiVersionsResponse
        try:
            position = skip_tagged_fields(frame, _SIZE.size) if has_tags else _SIZE.size
            return decode(answer, version, frame, position)
        except ProtocolError as error:
            raise BadAnswerError(f"{self.address} sends a response that cannot be read: {error}") from error


def open_socket(address: Address, seconds: float) -> socket.socket:
    """Connect to a host, at the first of its addresses that takes it within `seconds`. Raises OSError, UnicodeError.

    Its name is resolved within `seconds` too, which socket.create_connection does not promise.
    """
    if seconds <= 0:
        raise TimeoutError("the time is over")
    failed: OSError | None = None
    for family, kind, protocol, _, target in _resolved(address, seconds):
        with contextlib.ExitStack() as closing:
            try:
                opened = closing.enter_context(socket.socket(family, kind, protocol))
                opened.settimeout(seconds)
                opened.connect(target)
            except OSError as error:
                failed = error
            else:
                closing.pop_all()
                return opened
    raise failed or OSError(f"{address.host} has no address")


def _resolved(address: Address, seconds: float) -> list[tuple[Any, ...]]:
    """Return what socket.getaddrinfo does, from a thread: a silent name server would block for minutes."""
    outcome: queue.SimpleQueue[list[tuple[Any, ...]] | OSError | UnicodeError] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            outcome.put([*socket.getaddrinfo(*address, type=socket.SOCK_STREAM)])
        except (OSError, UnicodeError) as error:
            outcome.put(error)

    threading.Thread(target=resolve, daemon=True).start()
    try:
        result = outcome.get(timeout=seconds)
    except queue.Empty as error:
        message = f"its name is not resolved within {seconds:.1f} s"
        raise socket.gaierror(socket.EAI_AGAIN, message) from error
    if isinstance(result, Exception):
        raise result
    return result


def _other_protocol(address: Address, *, uses_tls: bool) -> str:
    """Return the protocol that a port speaks in place of the client's; "" if it is unknown."""
    if not uses_tls and _first_bytes(address, _TLS_PROBE).startswith(_TLS_ALERT):
        return f"{address} speaks TLS: security.protocol has to be SSL or SASL_SSL"
    # The console's port (`ops.listen`) is easily taken for the broker's.
    if _first_bytes(address, _HTTP_PROBE, uses_tls=uses_tls).startswith(b"HTTP/"):
        return f"{address} speaks HTTP: Kafka clients connect to another port, that of `listen`"
    if uses_tls and _first_bytes(address, _PLAIN_PROBE)[_SIZE.size :] == _PLAIN_PROBE_ID:
        return f"{address} does not speak TLS: security.protocol has to be PLAINTEXT or SASL_PLAINTEXT"
    return ""


def _first_bytes(address: Address, sent: bytes, *, uses_tls: bool = False) -> bytes:
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


def _trusting() -> ssl.SSLContext:
    """Return the TLS of a probe, which sends nothing secret, so any certificate will do."""
    import ssl  # noqa: PLC0415 - a client without TLS starts without it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
