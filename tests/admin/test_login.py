"""The admin client at a broker that wants a login: how it logs in, renews its session, and what it says if it fails."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.connection import Connection
from korvet.admin.errors import AdminError, AuthenticationFailedError
from korvet.admin.security import ClientSecurity, from_configs
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.types import ScramMechanism
from korvet.security import sasl as server_sasl
from tests.support.identity_provider import AUDIENCE, ISSUER, Provider
from tests.support.in_process import InProcessBroker, only_broker
from tests.support.sasl_client import delete_password, set_password
from tests.support.topic_client import Client

PASSWORD = "the-password-of-alice-in-this-test"
REAUTH_MS = 600_000
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SHORT://127.0.0.1:0",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT"
    ),
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "sasl.oauthbearer.expected.audience": AUDIENCE,
    "sasl.oauthbearer.expected.issuer": ISSUER,
    "listener.name.short.sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.short.connections.max.reauth.ms": str(REAUTH_MS),
}


@pytest.fixture(scope="module")
def broker(redis_server: str, provider: Provider) -> Iterator[InProcessBroker]:
    """Give a broker without TLS, with the user alice."""
    settings = SETTINGS | {
        "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": provider.url
    }
    with only_broker(redis_server, settings) as running:
        with Client(running.at("PLAINTEXT")) as admin:
            set_password(admin, "alice", PASSWORD, ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        yield running


def alice(mechanism: str = "SCRAM-SHA-256", **changed: str) -> ClientSecurity:
    login = {"sasl_username": "alice", "sasl_password": PASSWORD} | changed
    configs = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    return from_configs(configs | {name.replace("_", "."): value for name, value in login.items()})


def address(broker: InProcessBroker, listener: str) -> str:
    host, port = broker.at(listener)
    return f"{host}:{port}"


def failure(at: str, security: ClientSecurity | None = None) -> str:
    """Return why a client fails, which must be without a retry."""
    retried: list[AdminError] = []
    given: dict[str, Any] = {} if security is None else {"security": security}
    with (
        AdminClient(at, on_retry=lambda error, _: retried.append(error), **given) as admin,
        pytest.raises(AuthenticationFailedError) as failed,
    ):
        admin.topology()
    assert retried == []
    assert PASSWORD not in str(failed.value)
    return str(failed.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_logs_in_by_each_mechanism(broker: InProcessBroker, mechanism: str) -> None:
    with AdminClient(address(broker, "SASL_PLAINTEXT"), security=alice(mechanism)) as admin:
        assert admin.cluster.describe().brokers


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("wrong", [{"sasl_password": "wrong"}, {"sasl_username": "nobody"}])
def test_a_wrong_password_fails_at_once(
    broker: InProcessBroker, mechanism: str, wrong: dict[str, str]
) -> None:
    at = address(broker, "SASL_PLAINTEXT")
    assert failure(at, alice(mechanism, **wrong)).startswith(f"{at}: Authentication failed")


def test_a_token_is_read_from_its_file_at_each_login(
    broker: InProcessBroker, provider: Provider, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    configs = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"file://{file}",
    }
    at, security = address(broker, "SASL_PLAINTEXT"), from_configs(configs)
    expired = provider.token(exp=int(time.time()) - 3600)
    file.write_text(expired)
    said = failure(at, security)
    assert said == f'{at}: {{"status":"invalid_token"}}'
    file.write_text(f"{provider.token()}\n")
    with AdminClient(at, security=security) as admin:
        assert admin.cluster.describe().brokers


@pytest.fixture(autouse=True)
def _renewed_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker take a renewal as soon as it comes."""
    monkeypatch.setattr(server_sasl, "RENEWAL_PAUSE_SECONDS_MIN", 0.0)


def let_sessions_be_due(admin: AdminClient) -> None:
    """Move the moment at which connections authenticate again to now."""
    for connection in admin._connections.values():
        connection._reauthenticate_at = 0.0


def test_a_session_is_renewed_on_its_connection_when_that_is_due(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    call = Connection.call

    def counted(connection: Connection, request: Any, *rest: Any) -> Any:
        if isinstance(request, SaslAuthenticateRequest):
            sent.append(request)
        return call(connection, request, *rest)

    monkeypatch.setattr(Connection, "call", counted)
    with AdminClient(address(broker, "SHORT"), security=alice()) as admin:
        admin.topology()
        opened = dict(admin._connections)
        for connection in opened.values():
            assert 0 < connection._reauthenticate_at < math.inf
        for logins in (1, 2, 3):
            # Each login is of two messages, and is made once.
            for _ in range(3):
                admin.topology()
                assert len(sent) == 2 * logins
            let_sessions_be_due(admin)
        assert admin._connections == opened


def test_a_user_who_is_deleted_is_cut_off_when_the_session_is_renewed(broker: InProcessBroker) -> None:
    with Client(broker.at("PLAINTEXT")) as other:
        set_password(other, "bob", PASSWORD)
        with AdminClient(address(broker, "SHORT"), security=alice(sasl_username="bob")) as admin:
            admin.topology()
            delete_password(other, "bob")
            admin.topology()
            let_sessions_be_due(admin)
            with pytest.raises(AuthenticationFailedError, match="Authentication failed"):
                admin.topology()
