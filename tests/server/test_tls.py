"""Listeners with TLS: who gets in and who does not, with a line that says why, and what floods cost the others."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from korvet_core import ClientSockets, TlsServer

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.redis.client import Redis
from korvet.security.tls import ListenerTls
from korvet.server.net.sockets import HANDSHAKES_MAX
from korvet.telemetry import metrics
from tests.support import ops, processes
from tests.support.authority import Authority
from tests.support.batches import values
from tests.support.broker import Broker, korvet_broker
from tests.support.client_sockets import client_sockets
from tests.support.dispatching import connected, dispatcher, opened_sockets
from tests.support.peers import lines_about
from tests.support.topic_client import Client
from tests.support.wire_client import request_frame

pytestmark = pytest.mark.slow

PASSWORD = "known-secret-of-the-key"
TLS_LISTENERS = ("OPEN", "ASKED", "MUTUAL", "MAPPED")
HELLO = bytes.fromhex("160301")  # how a TLS handshake begins


class Site:
    """A broker, the CA of all its certificates, and where its key store is."""

    def __init__(self, broker: Broker, authority: Authority, store: Path) -> None:
        self.broker, self.authority, self.store = broker, authority, store
        self.audited: list[str] = []
        """The lines of the audit log about the last peer that was asked about."""

    def connect(
        self, listener: str = "", context: ssl.SSLContext | None = None, host: str = "localhost"
    ) -> Client:
        """Connect by TLS to a listener, or to the only one; raises what the handshake does."""
        plain = socket.create_connection(self.broker.at(listener) if listener else self.broker.address, 30)
        try:
            return Client((context or self.authority.client()).wrap_socket(plain, server_hostname=host))
        except BaseException:
            plain.close()
            raise

    def closed_line(self, address: tuple[str, int]) -> str:
        """Return the line about the end of a connection, by the client's address."""
        lines = lines_about(self.broker, address)
        self.audited = [line for line in lines if "authentication refused" in line]
        [line] = (line for line in lines if line not in self.audited)
        return line

    def refused(self, listener: str, context: ssl.SSLContext, host: str = "localhost") -> str:
        """Return the line about a client that does not get in."""
        with socket.create_connection(self.broker.at(listener), 30) as plain:
            address = plain.getsockname()
            with contextlib.suppress(OSError), context.wrap_socket(plain, server_hostname=host) as client:
                assert not client.recv(1), "the broker lets it in"
        return self.closed_line(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run a broker of one worker, with a listener of each kind; it never writes the password of its key."""
    directory = tmp_path_factory.mktemp("site")
    authority = Authority(directory / "ca")
    store = directory / "broker.pem"
    store.write_text(authority.issue("/CN=broker", password=PASSWORD).store.read_text())
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in ("PLAINTEXT", *TLS_LISTENERS)),
        "listener.security.protocol.map": ",".join(
            ["PLAINTEXT:PLAINTEXT", *(f"{name}:SSL" for name in TLS_LISTENERS)]
        ),
        "ssl.keystore.location": store,
        "ssl.key.password": PASSWORD,
        "ssl.truststore.location": authority.certificate,
        "listener.name.asked.ssl.client.auth": "requested",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mapped.ssl.client.auth": "required",
        "listener.name.mapped.ssl.principal.mapping.rules": "RULE:^CN=(alice)$/$1/",
        "log.level": "debug",
    }
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with korvet_broker(directory, *flags, workers=1, listen=()) as broker:
        pids = broker.worker_pids()
        yield Site(broker, authority, store)
        assert broker.worker_pids() == pids
        assert "Traceback" not in broker.log()
        assert PASSWORD not in broker.log() + broker.output()


def test_records_go_in_and_out_by_tls_whatever_their_size(site: Site) -> None:
    with site.connect("OPEN") as client, Client(site.broker.at("PLAINTEXT")) as plain:
        assert cast("ssl.SSLSocket", client.socket).version() == "TLSv1.3"
        client.create("sizes")
        records = [bytes([number]) * size for number, size in enumerate((10, 20_000, 900_000))]
        for value in records:
            client.append("sizes", value)
        fetched = [item.fetch("sizes").records for item in (client, plain)]
        assert fetched[0] == fetched[1]
        assert values(fetched[0]) == records


def test_who_does_not_fit_does_not_get_in_and_the_log_says_why(site: Site, tmp_path: Path) -> None:
    authority, other = site.authority, Authority(tmp_path / "other", "Other CA")
    nobody, stranger = authority.client(), authority.client(other.issue("/CN=alice"))
    late = authority.client(authority.issue("/CN=alice", days=-1))
    old = authority.client()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    mallory = authority.client(authority.issue("/CN=mallory"))
    failed, untrusted = "TLS handshake failed: ", "TLS handshake failed: certificate verify failed: "
    for listener, context, host, says, audits in (
        ("OPEN", other.client(), "localhost", f"{failed}the peer refused, by alert unknown ca", False),
        ("OPEN", nobody, "elsewhere", f"{failed}the peer refused, by alert bad certificate", False),
        ("OPEN", old, "localhost", f"{failed}unsupported protocol", False),
        ("MUTUAL", nobody, "localhost", f"{failed}peer did not return a certificate", True),
        ("MUTUAL", stranger, "localhost", f"{untrusted}unable to get local issuer certificate", True),
        ("MUTUAL", late, "localhost", f"{untrusted}certificate has expired", True),
        ("ASKED", stranger, "localhost", f"{untrusted}unable to get local issuer certificate", True),
        ("ASKED", late, "localhost", f"{untrusted}certificate has expired", True),
        ("MAPPED", mallory, "localhost", "TLS: no rule of ssl.principal.mapping.rules matches", True),
    ):
        line = site.refused(listener, context, host)
        assert " WARNING " in line
        assert f'reason="{says}' in line
        assert len(site.audited) == audits
        for audited in site.audited:
            assert f"listener={listener} mechanism=TLS" in audited
            assert f'reason="{says}' in audited
    closed = 'korvet_connections_closed_total{reason="handshake"}'
    processes.wait_until(lambda: ops.total(site.broker, closed) >= 9, "they are counted")
    for listener, number in (("OPEN", 0), ("MUTUAL", 3), ("ASKED", 2), ("MAPPED", 1)):
        refused = f'korvet_authentications_total{{listener="{listener}",mechanism="TLS",outcome="refused"}}'
        assert ops.total(site.broker, refused) == number


@pytest.mark.parametrize(
    "sent", [request_frame(ApiVersionsRequest(), 0), b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100_000]
)
def test_plain_bytes_at_a_listener_with_tls_are_named_in_the_log(site: Site, sent: bytes) -> None:
    with Client(site.broker.at("OPEN")) as client:
        client.send_bytes(sent)
        assert client.is_closed_by_broker()
        line = site.closed_line(client.socket.getsockname())
    assert not site.audited
    assert 'reason="not TLS: the listener OPEN expects it of its clients"' in line


def test_tls_at_a_listener_without_it_is_named_in_the_log(site: Site) -> None:
    line = site.refused("PLAINTEXT", site.authority.client())
    assert "so begins TLS, which this listener does not speak" in line


@pytest.mark.parametrize("sent", [b"", HELLO, HELLO + b"\0\x50" + b"\1" * 20])
def test_a_handshake_that_is_cut_off_is_no_event(site: Site, sent: bytes) -> None:
    with Client(site.broker.at("OPEN")) as client:
        client.send_bytes(sent)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_closed_by_broker()
        line = site.closed_line(client.socket.getsockname())
    assert " DEBUG " in line
    assert not site.audited
    assert "closed before its TLS handshake was done" in line


@pytest.mark.parametrize("begun", [b"", HELLO])
def test_a_handshake_that_takes_too_long_ends(
    site: Site, redis: Redis, caplog: pytest.LogCaptureFixture, begun: bytes
) -> None:
    closed = metrics.CONNECTIONS_CLOSED.labels("handshake")._value
    before = closed.get()
    tls = ListenerTls("SSL", Settings(ssl_keystore_location=str(site.authority.issue("/CN=broker").store)))
    settings = Settings(connection_receive_timeout_ms=50)
    with (
        opened_sockets(settings) as sockets,
        connected(dispatcher(redis, {}), sockets, tls=tls) as (_, client),
    ):
        client.sendall(begun)
        assert client.recv(1) == b""
    [line] = [vars(record)["korvet_fields"] for record in caplog.records]
    assert line["reason"] == "TLS handshake failed: not done within 0.05 s"
    assert closed.get() == before + 1


def test_handshakes_that_are_begun_and_left_keep_nobody_out(site: Site) -> None:
    with site.connect("OPEN") as connected, contextlib.ExitStack() as left:
        hello = _hello()
        peers = [left.enter_context(Client(site.broker.at("OPEN"))) for _ in range(HANDSHAKES_MAX // 2)]
        for peer in peers:
            peer.send_bytes(hello)
        assert connected.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
        for _ in range(HANDSHAKES_MAX):
            peer = left.enter_context(Client(site.broker.at("OPEN")))
            peer.send_bytes(hello[:-1])
        with site.connect("OPEN") as another:
            assert another.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
        assert connected.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
    processes.wait_until(
        lambda: f"more than {HANDSHAKES_MAX} others began" in site.broker.log(), "the oldest ended"
    )


def _hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x").do_handshake()
    return outgoing.read()


@pytest.fixture
def core(site: Site) -> tuple[ClientSockets[str], TlsServer]:
    """Return sockets without a loop, and TLS of a listener."""
    key_store = site.authority.issue("/CN=broker").store.read_text()
    versions = ["TLSv1.2", "TLSv1.3"]
    server = TlsServer(key_store=key_store, trust_store="", client_auth="none", versions=versions, suites=[])
    return client_sockets(), server


def test_everybody_else_is_served_between_two_handshakes(core: tuple[ClientSockets[str], TlsServer]) -> None:
    """Each costs a millisecond of CPU: as many as have come at once would be as much without a turn for others."""
    sockets, server = core
    with contextlib.ExitStack() as opened:
        pairs = [socket.socketpair() for _ in range(20)]
        for number, (ours, theirs) in enumerate(pairs):
            sockets.adopt(ours.detach(), f"{number}", None, server)
            opened.enter_context(theirs).sendall(_hello())
        ours, theirs = socket.socketpair()
        id_ = sockets.adopt(ours.detach(), "other", None, None)
        clients = [theirs for _, theirs in pairs]
        with theirs:
            answered = 0
            while answered < len(clients):
                theirs.sendall(request_frame(ApiVersionsRequest(), 0))
                events = sockets.turn()
                assert ("other", "frame", None) in events
                frame = sockets.next_frame(id_)
                assert frame is not None
                assert sockets.next_frame(id_) is None
                sockets.answer(id_, [(frame[0], [])])
                now = len(select.select(clients, [], [], 0)[0])
                assert now - answered in {0, 1}
                answered = now


def test_a_certificate_that_is_replaced_is_shown_to_new_clients_and_open_connections_stay(site: Site) -> None:
    def shown() -> bytes | None:
        with site.connect("OPEN") as client:
            return cast("ssl.SSLSocket", client.socket).getpeercert(binary_form=True)

    def expires() -> float:
        return ops.total(site.broker, 'korvet_tls_certificate_expiry_timestamp_seconds{listener="OPEN"}')

    processes.wait_until(lambda: abs(expires() - time.time() - 30 * 86_400) < 86_400, "the metric")
    with site.connect("OPEN") as before:
        former = shown()
        following = site.store.with_suffix(".new")
        following.write_text(site.authority.issue("/CN=broker", days=90, password=PASSWORD).store.read_text())
        following.replace(site.store)
        processes.wait_until(lambda: shown() != former, "the new certificate")
        assert before.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
    processes.wait_until(lambda: abs(expires() - time.time() - 90 * 86_400) < 86_400, "the metric")


def test_a_reload_ends_connections_in_order_and_refuses_what_cannot_be_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    good, config = authority.issue("/CN=broker"), tmp_path / "korvet.toml"
    text = (
        f'"listeners" = "SSL://127.0.0.1:{processes.free_port()}"\n"connection.receive.timeout.ms" = 60000\n'
    )
    config.write_text(f'{text}"ssl.keystore.location" = "{good.store}"\n')
    with korvet_broker(tmp_path, "--config", str(config), workers=1, listen=()) as broker:
        site = Site(broker, authority, good.store)
        with site.connect() as client, Client(broker.address) as half:
            half.send_bytes(HELLO)
            assert client.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
            broker.reload()
            assert client.socket.recv(1) == b""  # after a close_notify: without one this raises
            assert half.is_closed_by_broker()
        config.write_text(f'{text}"ssl.keystore.location" = "/no/such"\n')
        broker.signal(signal.SIGHUP)
        processes.wait_until(lambda: "the configuration is kept as it was" in broker.log(), "the refusal")
        assert "listener SSL: ssl.keystore.location /no/such: No such file or directory" in broker.log()
        with site.connect() as client:
            assert client.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
