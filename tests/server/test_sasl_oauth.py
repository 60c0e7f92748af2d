"""OAUTHBEARER against a real broker: a session ends with its token, and no provider of keys stops a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tests.support.broker import Broker, steady_broker
from tests.support.identity_provider import AUDIENCE, ISSUER, Provider, identity_provider
from tests.support.processes import wait_until
from tests.support.sasl_client import SaslClient
from tests.support.topic_client import Client


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with identity_provider() as running:
        yield running


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


def test_a_session_lasts_as_long_as_its_token(client: SaslClient, provider: Provider) -> None:
    assert client.handshake("OAUTHBEARER").mechanisms == ["SCRAM-SHA-512", "OAUTHBEARER"]
    answer = client.authenticate(first(provider.token(exp=int(time.time()) + 2)))
    assert answer.error_code == 0
    assert 0 < answer.session_lifetime_ms <= 2000
    client.call(MetadataRequest(topics=[]), 9)
    time.sleep(2)
    client.send(MetadataRequest(topics=[]), 9)
    assert client.is_closed_by_broker()


def test_a_token_without_an_end_in_sight_is_a_session_of_as_long_as_can_be_said(
    client: SaslClient, provider: Provider
) -> None:
    client.handshake("OAUTHBEARER")
    answer = client.authenticate(first(provider.token(exp=10**17)))
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 2**63 - 1)
    client.call(MetadataRequest(topics=[]), 9)


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


def test_a_token_of_a_megabyte_is_not_read(client: SaslClient) -> None:
    client.handshake("OAUTHBEARER")
    with pytest.raises(OSError, match=r"."):  # noqa: PT012 - the end may be seen by either call
        client.send_bytes((1 << 20).to_bytes(4, "big") + b"x" * (1 << 20))
        raise ConnectionError(client.is_closed_by_broker())


def test_a_provider_that_hangs_stops_no_other_client(
    broker: Broker, client: SaslClient, provider: Provider
) -> None:
    token = provider.token()
    unknown = provider.token(headers={"kid": "not known yet"})
    client.handshake("OAUTHBEARER")
    assert client.authenticate(first(token)).error_code == 0
    before = provider.requests
    provider.hangs.set()
    try:
        with SaslClient(broker.at("SASL_PLAINTEXT")) as waiting, Client(broker.at("PLAINTEXT")) as other:
            waiting.handshake("OAUTHBEARER")
            waiting.send(SaslAuthenticateRequest(auth_bytes=first(unknown)), 2)
            wait_until(lambda: provider.requests > before, "the provider is asked")
            # All on one worker, whose loop would not get here while it waits.
            assert other.call(MetadataRequest(topics=[]), 9).cluster_id
            with SaslClient(broker.at("SASL_PLAINTEXT")) as known:
                known.handshake("OAUTHBEARER")
                assert known.authenticate(first(token)).error_code == 0
    finally:
        provider.hangs.clear()
        provider.released.set()
