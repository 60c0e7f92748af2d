"""TLS at `ops.listen`: pages and probes are encrypted, and a certificate is replaced without a restart."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.errors import BadAnswerError
from korvet.admin.security import from_configs
from korvet.config.settings import Settings
from korvet.errors import ConfigError
from korvet.security.tls import ops_tls
from tests.support.authority import Authority, Issued
from tests.support.broker import Broker, echo_broker
from tests.support.console import Caller
from tests.support.processes import wait_until

pytestmark = pytest.mark.slow

PASSWORD = "the-password-of-the-key-in-this-test"


@pytest.fixture(scope="module")
def store(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "ops.pem"
    shutil.copy(authority.issue("/CN=first", password=PASSWORD).store, path)
    return path


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Broker]:
    settings = (f"ops.ssl.keystore.location={store}", f"ops.ssl.key.password={PASSWORD}")
    with echo_broker(tmp_path_factory.mktemp("encrypted"), *settings, workers=1) as running:
        yield running
        assert PASSWORD not in running.log() + running.output()
        assert "Traceback" not in running.log()


def subject(broker: Broker, authority: Authority) -> str:
    with (
        connected(broker) as plain,
        authority.client().wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        result: Any = tls.getpeercert()
    return str(result["subject"][0][0][1])


@contextlib.contextmanager
def connected(broker: Broker) -> Iterator[socket.socket]:
    host, _, port = broker.ops_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def test_pages_and_probes_are_read_by_tls(encrypted: Broker, authority: Authority) -> None:
    caller = Caller(encrypted.ops_address, tls=authority.client())
    for path in ("/healthz", "/metrics", "/", "/api/overview"):
        assert caller.get(path).status == 200
    assert f"https://{encrypted.ops_address} (console" in encrypted.output()


def test_who_does_not_know_the_ca_gets_nothing(encrypted: Broker) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Caller(encrypted.ops_address, tls=ssl.create_default_context()).get("/metrics")


def test_peers_that_are_silent_or_speak_http_delay_nobody(encrypted: Broker, authority: Authority) -> None:
    with connected(encrypted), connected(encrypted) as plain:
        plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert Caller(encrypted.ops_address, tls=authority.client()).get("/healthz").status == 200
        assert not plain.recv(100).startswith(b"HTTP")


def test_a_client_of_kafka_learns_where_it_is(encrypted: Broker, authority: Authority) -> None:
    security = from_configs({"security.protocol": "SSL", "ssl.ca.location": str(authority.certificate)})
    with AdminClient(encrypted.ops_address) as admin, pytest.raises(BadAnswerError, match="speaks TLS"):
        admin.topology()
    with (
        AdminClient(encrypted.ops_address, security=security) as admin,
        pytest.raises(BadAnswerError, match="speaks HTTP"),
    ):
        admin.topology()


def test_a_certificate_that_is_replaced_counts_at_once(
    encrypted: Broker, authority: Authority, store: Path
) -> None:
    def replace(issued: Issued) -> None:
        shutil.copy(issued.store, store.with_suffix(".new"))
        store.with_suffix(".new").rename(store)

    assert subject(encrypted, authority) == "first"
    replace(authority.issue("/CN=other", password="another-password"))
    assert subject(encrypted, authority) == "first"
    wait_until(lambda: "the changed certificate cannot be used" in encrypted.log(), "the log says so")
    replace(authority.issue("/CN=second", password=PASSWORD))
    assert subject(encrypted, authority) == "second"


def test_a_key_store_that_cannot_be_used_is_refused_by_its_own_name(authority: Authority) -> None:
    assert ops_tls(Settings()) is None
    issued = authority.issue("/CN=ops", password=PASSWORD)
    settings = Settings(ops_ssl_keystore_location=str(issued.store), ops_ssl_key_password="wrong")
    with pytest.raises(ConfigError, match=rf"^ops\.ssl\.keystore\.location {issued.store}: .*key") as refused:
        ops_tls(settings)
    assert "wrong" not in str(refused.value)


def test_a_key_store_of_a_port_that_is_switched_off_is_not_read() -> None:
    assert ops_tls(Settings(ops_listen="", ops_ssl_keystore_location="/none")) is None
