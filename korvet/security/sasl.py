"""SASL (KIP-43, KIP-152, KIP-368): which clients a listener lets in, and how far each connection has come.

A client chooses a mechanism by SaslHandshake, and exchanges the mechanism's tokens with the broker: in SaslAuthenticate
requests, or after version 0 of the handshake with nothing but their size. Until that has succeeded nothing else is
served but ApiVersions. A client that fails gets its answer late, and its connection is closed.

A session may last for a limited time. Then only another login, as the same user and by the same mechanism, keeps the
connection. A user who is deleted or has another password is cut off then at the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.config.definition import INT64_MAX
from korvet.config.settings import Settings
from korvet.config.values import listed
from korvet.errors import AuthenticationError, ErrorCode, KafkaError, ProtocolError
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.protocol.types import ScramMechanism
from korvet.security import audit
from korvet.security.credentials import UserCredentials
from korvet.security.exchange import Exchange
from korvet.security.plain import PlainServer, PlainUsers
from korvet.security.scram import ScramServer
from korvet.security.session import Principal, Session
from korvet.telemetry import metrics

RENEWAL_PAUSE_SECONDS_MIN = 1.0
"""Between two logins on one connection, as in Kafka."""

_VERSIONS, _HANDSHAKE = ApiVersionsRequest.api.key, SaslHandshakeRequest.api.key
_AUTHENTICATE = SaslAuthenticateRequest.api.key
_BEFORE_HANDSHAKE = {_VERSIONS, _HANDSHAKE}


class Mechanism(msgspec.Struct, frozen=True):
    """A mechanism of a listener: what begins an exchange, and how long a session lasts (ms; 0: no limit)."""

    begin: Callable[[], Exchange]
    max_reauth_ms: int


class SaslListener(msgspec.Struct, frozen=True):
    """How clients of one listener log in. `token_bytes_max` is the limit of all that they send before."""

    mechanisms: Mapping[str, Mechanism]
    token_bytes_max: int
    login_seconds_max: float
    failure_delay_seconds: float

    @classmethod
    def of(cls, settings: Settings, listener: str, users: UserCredentials) -> SaslListener:
        own = settings.for_listener(listener)
        mechanisms = {}
        for name in listed(own.sasl_enabled_mechanisms):
            of_mechanism = own.for_listener(f"{listener}.{name}")
            mechanisms[name] = Mechanism(
                _exchanges(name, of_mechanism, users), of_mechanism.connections_max_reauth_ms
            )
        return cls(
            mechanisms=mechanisms,
            token_bytes_max=own.sasl_server_max_receive_size,
            login_seconds_max=own.connection_receive_timeout_ms / 1000,
            failure_delay_seconds=own.connection_failed_authentication_delay_ms / 1000,
        )


def _exchanges(name: str, settings: Settings, users: UserCredentials) -> Callable[[], Exchange]:
    if name == "PLAIN":
        plain_users = PlainUsers(settings.sasl_plain_users_file, users)
        return lambda: PlainServer(plain_users)
    if name == "OAUTHBEARER":
        # Here only: nothing else needs PyJWT and cryptography.
        from korvet.security.oauth import OAuthServer, SigningKeys, TokenValidator  # noqa: PLC0415 - as said above

        validator = TokenValidator(settings, SigningKeys(settings))
        return lambda: OAuthServer(validator)
    mechanism = ScramMechanism[name.replace("-", "_")]
    return lambda: ScramServer(mechanism, users)


class Authenticator:
    """The logins of one connection: the first, and those that renew it.

    `complete`: its requests are served, until `expires_at` (monotonic seconds). `raw`: tokens come without headers.
    `failed`: the connection has to close.
    """

    __slots__ = (
        "_began",
        "_clock",
        "_greeted",
        "_is_known",
        "_listener",
        "_mechanism",
        "_server",
        "_session",
        "complete",
        "expires_at",
        "failed",
        "raw",
    )

    def __init__(self, listener: SaslListener, session: Session, *, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._listener = listener
        self._session = session
        self._server: Exchange | None = None
        self._mechanism = ""
        self._began = self._clock.monotonic()
        self._greeted = self._is_known = False
        self.complete = self.failed = self.raw = False
        self.expires_at = inf

    @property
    def seconds_left(self) -> float:
        """How long the login may still take."""
        return max(0.0, self._began + self._listener.login_seconds_max - self._clock.monotonic())

    @property
    def token_bytes_max(self) -> int:
        """Size of the largest frame before the login is complete."""
        return self._listener.token_bytes_max

    @property
    def mechanisms(self) -> list[str]:
        return list(self._listener.mechanisms)

    def admit(self, api_key: int) -> KafkaError | None:
        """Return None if a request of this API may be served now, or the error to answer it with before closing.

        Raises ProtocolError if the connection must close without an answer.
        """
        if self.complete:
            if self._clock.monotonic() > self.expires_at and api_key != _HANDSHAKE:
                raise ProtocolError("the session has expired, and its client has not authenticated again")
        elif self._server is not None:
            if api_key != _AUTHENTICATE:
                self.failed = True
                message = f"a request with API key {api_key} in place of SaslAuthenticate"
                return KafkaError(ErrorCode.ILLEGAL_SASL_STATE, message)
        elif api_key == _VERSIONS and self._greeted:
            raise ProtocolError("a second ApiVersions request before SaslHandshake")
        elif api_key not in _BEFORE_HANDSHAKE:
            raise ProtocolError(
                f"a request with API key {api_key} before SaslHandshake: its client is not set to use SASL"
            )
        return None

    def greet(self) -> None:
        """Note that ApiVersions was served: as in Kafka only SaslHandshake may follow."""
        self._greeted = True

    def handshake(self, mechanism: str, *, raw: bool) -> None:
        """Begin a login; raises KafkaError."""
        now = self._clock.monotonic()
        renews = self.complete
        if renews and (self.expires_at == inf or now - self._began < RENEWAL_PAUSE_SECONDS_MIN):
            raise KafkaError(
                ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake request received after successful authentication"
            )
        self._began = now
        if mechanism not in self._listener.mechanisms or (renews and mechanism != self._mechanism):
            self._fail(mechanism, "the mechanism is not enabled, or not that of the first login")
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"Unsupported SASL mechanism {mechanism}")
        self._mechanism, self._server = mechanism, self._listener.mechanisms[mechanism].begin()
        self.complete, self.raw = False, raw

    def authenticate(self, token: bytes) -> tuple[bytes, int]:
        """Return the answer to a token, and once the login is complete how long the session lasts (ms; 0: no limit).

        Raises KafkaError.
        """
        server = self._server
        if server is None:
            raise KafkaError(
                ErrorCode.ILLEGAL_SASL_STATE,
                "SaslAuthenticate request received after successful authentication",
            )
        try:
            answer = server.evaluate(token)
            if not server.complete:
                if server.refusal is not None:
                    # Its client need not send another token to be known as one that failed.
                    self._note_refusal(self._mechanism, server.refusal.reason, server.refusal.user)
                return answer, 0
            lifetime_ms = self._complete(server)
        except AuthenticationError as error:
            self._fail(self._mechanism, error.reason, error.user)
            usual = (
                f"Authentication failed during {'re-' if self._is_known else ''}authentication due to invalid"
                f" credentials with SASL mechanism {self._mechanism}"
            )
            raise KafkaError(error.code, error.message or usual) from None
        return answer, lifetime_ms

    def _complete(self, server: Exchange) -> int:
        principal, before = Principal("User", server.user), self._session.principal
        if self._is_known and principal != before:
            message = f"Cannot change principals during re-authentication from {before}: {principal}"
            raise AuthenticationError(
                "another user than before", message.replace("User:", "User."), user=server.user
            )
        limits_ms = [self._listener.mechanisms[self._mechanism].max_reauth_ms or inf]
        if server.expires_at is not None:
            limits_ms.append(max(0.0, (server.expires_at - self._clock.time()) * 1000))
        lifetime_ms = min(limits_ms)
        self._session.principal = principal
        self.expires_at = self._clock.monotonic() + lifetime_ms / 1000
        self._server, self.complete, self.raw = None, True, False
        outcome = "renewed" if self._is_known else "authenticated"
        metrics.AUTHENTICATIONS.labels(self._session.listener, self._mechanism, outcome).inc()
        self._is_known = True
        return 0 if lifetime_ms == inf else min(int(lifetime_ms), INT64_MAX)

    def _fail(self, mechanism: str, reason: str, user: str = "") -> None:
        """Note a login that failed, and let its client wait for the answer."""
        noted = self._server is not None and self._server.refusal is not None
        self.failed, self.complete, self._server = True, False, None
        if not noted:
            self._note_refusal(mechanism, reason, user)
        self._clock.sleep(self._listener.failure_delay_seconds)

    def _note_refusal(self, mechanism: str, reason: str, user: str) -> None:
        label = mechanism if mechanism in self._listener.mechanisms else "unknown"
        metrics.AUTHENTICATIONS.labels(self._session.listener, label, "refused").inc()
        audit.refused(self._session, "authentication refused", user=user, mechanism=mechanism, reason=reason)
