"""OAUTHBEARER against a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.errors import ErrorCode
from tests.support.broker import Broker, steady_broker
from tests.support.identity_provider import AUDIENCE, ISSUER, Provider
from tests.support.processes import wait_until
from tests.support.sasl_client import SaslClient

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Broker]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": provider.url,
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": 1,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    with steady_broker(tmp_path_factory.mktemp("broker"), settings=settings, listen=(), workers=1) as running:
        yield running
        assert ".eyJ" not in running.log(), "no token is written down"


@pytest.fixture
def client(broker: Broker) -> Iterator[SaslClient]:
    with SaslClient(broker.at("SASL_PLAINTEXT")) as connection:
        yield connection


def first(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def test_a_token_that_does_not_count_is_refused_in_two_steps(
    broker: Broker, client: SaslClient, provider: Provider
) -> None:
    client.handshake("OAUTHBEARER")
    answer = client.authenticate(first(provider.token(aud="else")))
    assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
    peer = "{}:{}".format(*client.socket.getsockname())
    refused = f"authentication refused principal=User:ANONYMOUS peer={peer} "
    wait_until(lambda: refused in broker.log(), "the audit log has it before the client answers")
    answer = client.authenticate(b"\x01")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == '{"status":"invalid_token"}'
    assert client.is_closed_by_broker()
    wait_until(lambda: "Audience doesn't match" in broker.log(), "the reason is logged")
    assert broker.log().count(refused) == 1
