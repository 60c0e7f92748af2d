"""SASL by bytes against a real broker: what a listener serves to whom, and when it closes the connection."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.produce import ProduceResponse
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.protocol.types import ScramMechanism
from tests.support.batches import batch
from tests.support.broker import Broker, steady_broker
from tests.support.ops import total
from tests.support.peers import lines_about
from tests.support.processes import wait_until
from tests.support.sasl_client import SaslClient, set_password
from tests.support.scram_client import ScramClient
from tests.support.topic_client import Client, produce_request
from tests.support.wire_client import ClosedByBrokerError, request_frame

pytestmark = pytest.mark.slow

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
PASSWORD = "the-password-of-alice-in-this-test"
IN_FILE = "the-password-of-carol-in-the-file"
TLS = Path(__file__).parents[1] / "support" / "tls"
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SHORT://127.0.0.1:0,BOUND://127.0.0.1:0,"
    "SASL_SSL://127.0.0.1:0",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT,BOUND:SASL_PLAINTEXT,"
        "SASL_SSL:SASL_SSL"
    ),
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.short.sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
    "listener.name.short.scram-sha-256.connections.max.reauth.ms": 600_000,
    "listener.name.bound.sasl.server.max.receive.size": 2048,
    "connection.failed.authentication.delay.ms": 50,
}


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "plain-users.toml"
    path.touch(0o600)
    path.write_text(f'carol = "{IN_FILE}"\n')
    return path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, password_file: Path) -> Iterator[Broker]:
    key_store = password_file.with_name("key-store.pem")
    key_store.write_text(f"{(TLS / 'key.pem').read_text()}{(TLS / 'certificate.pem').read_text()}")
    settings = SETTINGS | {"sasl.plain.users.file": password_file, "ssl.keystore.location": key_store}
    with steady_broker(tmp_path_factory.mktemp("broker"), settings=settings, listen=(), workers=1) as running:
        with Client(running.at("PLAINTEXT")) as admin:
            admin.create("orders")
            set_password(admin, "alice", PASSWORD, SHA_256, SHA_512)
        yield running
        written = running.log() + running.output()
        assert PASSWORD not in written
        assert IN_FILE not in written


@pytest.fixture
def admin(broker: Broker) -> Iterator[Client]:
    with Client(broker.at("PLAINTEXT")) as connection:
        yield connection


@pytest.fixture
def client(broker: Broker) -> Iterator[SaslClient]:
    with SaslClient(broker.at("SASL_PLAINTEXT")) as connection:
        yield connection


def audited(broker: Broker, client: Client) -> str:
    refused = "authentication refused"
    [line] = [item for item in lines_about(broker, client, refused) if refused in item]
    return line


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_tokens_without_headers_follow_version_0_of_the_handshake(client: SaslClient, mechanism: str) -> None:
    assert client.call(ApiVersionsRequest(), 0).error_code == 0
    assert client.handshake(mechanism, 0).mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    if mechanism == "PLAIN":
        assert client.token(f"alice\0alice\0{PASSWORD}".encode()) == b""
    else:
        scram = ScramClient(SHA_256, "alice", PASSWORD)
        scram.check(client.token(scram.final(client.token(scram.first()))))
    assert client.call(ApiVersionsRequest(), 0).error_code == 0
    assert client.produce("orders", batch(b"x")).error_code == 0


@pytest.mark.parametrize(
    ("token", "reason"), [(b"\0alice\0wrong", "unknown user or wrong password"), (b"", "malformed")]
)
def test_a_wrong_token_without_header_has_no_answer(
    broker: Broker, client: SaslClient, token: bytes, reason: str
) -> None:
    client.handshake("PLAIN", 0)
    with pytest.raises(ClosedByBrokerError):
        client.token(token)
    assert reason in audited(broker, client)


def test_a_user_of_the_file_logs_in_by_plain_alone(broker: Broker, client: SaslClient) -> None:
    client.authenticated("carol", IN_FILE, "PLAIN")
    with SaslClient(broker.at("SASL_PLAINTEXT")) as other:
        assert other.log_in("carol", IN_FILE).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_session_may_have_an_end_by_one_mechanism_and_none_by_another(broker: Broker) -> None:
    for mechanism, lifetime_ms in (("SCRAM-SHA-256", 600_000), ("PLAIN", 0)):
        with SaslClient(broker.at("SHORT")) as short:
            assert short.log_in("alice", PASSWORD, mechanism).session_lifetime_ms == lifetime_ms
            assert short.described("orders").error_code == 0


def test_a_request_before_a_login_ends_the_connection(broker: Broker, client: SaslClient) -> None:
    assert client.call(ApiVersionsRequest(), 0).error_code == 0
    client.send(MetadataRequest(topics=[]), 9)
    assert client.is_closed_by_broker()
    wait_until(lambda: "before SaslHandshake: its client is not" in broker.log(), "the reason is logged")


@pytest.mark.parametrize("user", ["alice", "nobody"])
@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (
            "SCRAM-SHA-256",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256",
        ),
        ("PLAIN", "Authentication failed: Invalid username or password"),
    ],
)
def test_a_wrong_password_has_kafkas_answer_and_ends_the_connection(
    broker: Broker, client: SaslClient, user: str, mechanism: str, message: str
) -> None:
    refused = rf'korvet_authentications_total\{{[^}}]*mechanism="{mechanism}"[^}}]*outcome="refused"[^}}]*\}}'
    before = total(broker, refused)
    answer = client.log_in(user, "wrong-password", mechanism)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == message
    assert client.is_closed_by_broker()
    line = audited(broker, client)
    assert f"user={user} mechanism={mechanism} " in line
    assert "listener=SASL_PLAINTEXT" in line
    assert "wrong-password" not in broker.log()
    wait_until(lambda: total(broker, refused) > before, "the failure is counted")


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0\0password", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
    ],
)
def test_plain_says_what_is_missing(client: SaslClient, token: bytes, message: str) -> None:
    client.handshake("PLAIN")
    answer = client.authenticate(token)
    assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, message)


def test_no_quota_slows_down_who_logs_in(admin: Client, client: SaslClient) -> None:
    """Nobody knows yet whose it would be: clients that never log in would use up what all share."""

    def limit(percentage: float | None) -> None:
        quota = OpData(key="request_percentage", value=percentage or 0.0, remove=percentage is None)
        entity = [EntityData(entity_type="client-id", entity_name="logging-in")]
        entries = [EntryData(entity=entity, ops=[quota])]
        [result] = admin.call(AlterClientQuotasRequest(entries=entries, validate_only=False), 1).entries
        assert result.error_code == ErrorCode.NONE

    client.client_id = "logging-in"
    limit(1e-6)
    try:
        # The first is refused, and so another one may follow.
        greetings = [
            ApiVersionsRequest(client_software_name=n, client_software_version="1") for n in ("", "n")
        ]
        assert [client.call(greeting, 3).throttle_time_ms for greeting in greetings] == [0, 0]
        client.authenticated("alice", PASSWORD)
        assert client.call(ApiVersionsRequest(), 2).throttle_time_ms > 0
    finally:
        limit(None)


def test_what_is_sent_before_the_login_is_not_done_even_if_the_login_follows(
    broker: Broker, client: SaslClient, admin: Client
) -> None:
    admin.create("untouched")
    client.send_bytes(
        request_frame(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        + request_frame(produce_request("untouched", batch(b"x")), 8)
        + request_frame(SaslAuthenticateRequest(auth_bytes=f"\0alice\0{PASSWORD}".encode()), 1)
    )
    assert client.receive_frame()
    refused = client.receive(ProduceResponse, 8)
    assert refused.responses[0].partition_responses[0].error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.is_closed_by_broker()
    assert admin.fetch("untouched").high_watermark == 0


def test_requests_may_follow_the_login_without_a_pause(client: SaslClient) -> None:
    client.send_bytes(
        request_frame(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        + request_frame(SaslAuthenticateRequest(auth_bytes=f"\0alice\0{PASSWORD}".encode()), 1)
        + request_frame(produce_request("orders", batch(b"x")), 8)
        + request_frame(produce_request("orders", batch(b"y")), 8)
    )
    assert len([client.receive_frame() for _ in range(4)]) == 4


def test_a_large_frame_is_refused_before_the_login_and_served_after_it(broker: Broker) -> None:
    large = batch(b"x" * 4096)
    with SaslClient(broker.at("BOUND")) as client:
        client.handshake("PLAIN")
        client.send(SaslAuthenticateRequest(auth_bytes=b"x" * 4096), 1)
        assert client.is_closed_by_broker()
    with SaslClient(broker.at("BOUND")) as client:
        assert client.authenticated("alice", PASSWORD).produce("orders", large).error_code == 0
    with SaslClient(broker.at("BOUND")) as client:
        client.handshake("PLAIN", 0)
        client.send_bytes((1 << 20).to_bytes(4, "big"))
        assert client.is_closed_by_broker()


def secured(broker: Broker) -> SaslClient:
    context = ssl.create_default_context(cafile=TLS / "certificate.pem")
    context.check_hostname = False
    plain = socket.create_connection(broker.at("SASL_SSL"), 30)
    return SaslClient(context.wrap_socket(plain))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_a_user_logs_in_over_tls(broker: Broker, mechanism: str) -> None:
    with secured(broker) as client:
        client.authenticated("alice", PASSWORD, mechanism)
        assert client.produce("orders", batch(b"x" * 100_000)).error_code == 0
    with secured(broker) as client:
        assert client.log_in("alice", "wrong", mechanism).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_by_broker()
    with secured(broker) as client:
        client.handshake("PLAIN", 0)
        assert client.token(f"\0alice\0{PASSWORD}".encode()) == b""
        assert client.described("orders").error_code == 0


def test_nothing_is_produced_over_tls_before_the_login(broker: Broker, admin: Client) -> None:
    admin.create("untouched-over-tls")
    with secured(broker) as client:
        client.send(produce_request("untouched-over-tls"), 8)
        assert client.is_closed_by_broker()
    assert admin.fetch("untouched-over-tls").high_watermark == 0
