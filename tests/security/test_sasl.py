"""How far the login of a connection has come: what it admits, how long it may take, and when it has to be renewed."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from korvet.errors import AuthenticationError, ErrorCode, KafkaError, ProtocolError
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.produce import ProduceRequest
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.security.exchange import Exchange
from korvet.security.sasl import RENEWAL_PAUSE_SECONDS_MIN, Authenticator, Mechanism, SaslListener
from korvet.security.session import Principal, Session
from korvet.telemetry import metrics
from tests.support.virtual_clock import VirtualClock

REAUTH_MS = 60_000
VERSIONS, HANDSHAKE = ApiVersionsRequest.api.key, SaslHandshakeRequest.api.key
AUTHENTICATE, METADATA = SaslAuthenticateRequest.api.key, MetadataRequest.api.key
PRODUCE = ProduceRequest.api.key


class OneToken(Exchange):
    """A mechanism whose token is the user's name; `mallory` is refused in two steps."""

    def __init__(self, expires_at: float | None = None) -> None:
        super().__init__()
        self.expires_at = expires_at

    def evaluate(self, token: bytes) -> bytes:
        if self.refusal is not None:
            raise self.refusal
        if not token:
            raise AuthenticationError("no such user")
        if token == b"mallory":
            self.refusal = AuthenticationError("the token does not count", user="mallory")
            return b"no"
        self.user, self.complete = token.decode(), True
        return b"yes"


class Login:
    def __init__(self, clock: VirtualClock, begin: Callable[[], OneToken] = OneToken) -> None:
        listener = SaslListener(
            mechanisms={"SHORT": Mechanism(begin, REAUTH_MS), "LONG": Mechanism(begin, 0)},
            token_bytes_max=1000,
            login_seconds_max=30.0,
            failure_delay_seconds=7.0,
        )
        self.session = Session("10.0.0.1:1")
        self.authenticator = Authenticator(listener, self.session, clock=clock)

    def log_in(self, user: str = "alice", mechanism: str = "SHORT") -> int:
        self.authenticator.handshake(mechanism, raw=False)
        answer, lifetime_ms = self.authenticator.authenticate(user.encode())
        assert answer == b"yes"
        return lifetime_ms

    def refused(self, user: str = "alice", mechanism: str = "SHORT") -> KafkaError:
        with pytest.raises(KafkaError) as caught:
            self.log_in(user, mechanism)
        return caught.value

    def admits(self, api: int) -> bool:
        try:
            return self.authenticator.admit(api) is None
        except ProtocolError:
            return False


@pytest.fixture
def login(clock: VirtualClock) -> Login:
    return Login(clock)


def test_each_step_of_a_login_admits_what_belongs_to_it(login: Login) -> None:
    apis = (VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA, PRODUCE)

    def admitted() -> set[int]:
        return {api for api in apis if login.admits(api)}

    assert admitted() == {VERSIONS, HANDSHAKE}
    login.authenticator.greet()
    assert admitted() == {HANDSHAKE}
    login.authenticator.handshake("SHORT", raw=False)
    assert admitted() == {AUTHENTICATE}
    assert login.authenticator.failed, "the connection closes after an answer to another one"
    login.authenticator.authenticate(b"alice")
    assert admitted() == set(apis)
    assert login.session.principal == Principal("User", "alice")


@pytest.mark.parametrize("user", ["", "mallory"])
def test_the_answer_to_a_failure_waits_and_nothing_follows(
    login: Login, clock: VirtualClock, user: str
) -> None:
    began = clock.monotonic()
    login.authenticator.handshake("SHORT", raw=False)
    if user:
        assert login.authenticator.authenticate(user.encode()) == (b"no", 0)
        assert clock.monotonic() == began
    with pytest.raises(KafkaError) as caught:
        login.authenticator.authenticate(user.encode())
    assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert caught.value.message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SHORT"
    )
    assert clock.monotonic() == began + 7
    assert login.authenticator.failed
    assert not login.admits(METADATA)


def test_a_refusal_in_two_steps_is_counted_once(login: Login) -> None:
    counted = metrics.AUTHENTICATIONS.labels(login.session.listener, "SHORT", "refused")._value
    before = counted.get()
    login.authenticator.handshake("SHORT", raw=False)
    login.authenticator.authenticate(b"mallory")
    assert counted.get() == before + 1
    with pytest.raises(KafkaError):
        login.authenticator.authenticate(b"mallory")
    assert counted.get() == before + 1


def test_a_login_has_to_be_done_in_time(login: Login, clock: VirtualClock) -> None:
    assert login.authenticator.seconds_left == 30
    clock.advance(20)
    assert login.authenticator.seconds_left == 10
    clock.advance(11)
    assert login.authenticator.seconds_left == 0
    login.log_in()
    clock.advance(RENEWAL_PAUSE_SECONDS_MIN)
    login.authenticator.handshake("SHORT", raw=False)
    assert login.authenticator.seconds_left == 30, "a renewal has its own time"


def test_a_session_ends_unless_it_is_renewed(login: Login, clock: VirtualClock) -> None:
    assert login.log_in() == REAUTH_MS
    clock.advance(REAUTH_MS / 1000)
    assert login.admits(METADATA)
    clock.advance(0.001)
    assert [login.admits(api) for api in (METADATA, HANDSHAKE)] == [False, True]
    with pytest.raises(ProtocolError, match="the session has expired"):
        login.authenticator.admit(METADATA)
    assert login.log_in() == REAUTH_MS
    assert login.admits(METADATA)


def test_a_session_without_end_is_not_renewed(login: Login, clock: VirtualClock) -> None:
    assert login.log_in(mechanism="LONG") == 0
    assert login.authenticator.expires_at == inf
    clock.advance(3600)
    assert login.refused(mechanism="LONG").code == ErrorCode.ILLEGAL_SASL_STATE
    with pytest.raises(KafkaError) as caught:
        login.authenticator.authenticate(b"alice")
    assert caught.value.code == ErrorCode.ILLEGAL_SASL_STATE
    assert login.admits(METADATA)


def test_a_session_is_renewed_once_a_second_at_most(login: Login, clock: VirtualClock) -> None:
    login.log_in()
    clock.advance(RENEWAL_PAUSE_SECONDS_MIN - 0.1)
    assert login.refused().code == ErrorCode.ILLEGAL_SASL_STATE
    assert login.admits(METADATA)
    clock.advance(0.1)
    assert login.log_in() == REAUTH_MS


@pytest.mark.parametrize(
    ("user", "mechanism", "code", "message"),
    [
        (
            "bob",
            "SHORT",
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "Cannot change principals during re-authentication from User.alice: User.bob",
        ),
        (
            "",
            "SHORT",
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "Authentication failed during re-authentication due to invalid credentials with SASL mechanism SHORT",
        ),
        ("alice", "LONG", ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unsupported SASL mechanism LONG"),
    ],
)
def test_who_renews_a_session_is_the_same_user_by_the_same_mechanism(
    login: Login, clock: VirtualClock, user: str, mechanism: str, code: ErrorCode, message: str
) -> None:
    login.log_in()
    clock.advance(1)
    refusal = login.refused(user, mechanism)
    assert (refusal.code, refusal.message) == (code, message)
    assert login.authenticator.failed


def test_an_unknown_mechanism_ends_a_connection(login: Login) -> None:
    assert login.refused(mechanism="GSSAPI").code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert login.authenticator.failed
    assert login.authenticator.mechanisms == ["SHORT", "LONG"]


@pytest.mark.parametrize(
    ("mechanism", "left_s", "lifetime_ms"),
    [("LONG", 2, 2000), ("SHORT", 2, 2000), ("SHORT", 3600, REAUTH_MS), ("LONG", 10**17, 2**63 - 1)],
)
def test_a_session_lasts_no_longer_than_its_credential(
    clock: VirtualClock, mechanism: str, left_s: float, lifetime_ms: int
) -> None:
    login = Login(clock, lambda: OneToken(clock.time() + left_s))
    assert login.log_in(mechanism=mechanism) == pytest.approx(lifetime_ms, abs=1)
    clock.advance(2.01)
    assert login.admits(METADATA) == (left_s > 2)
