"""korvet_core.ClientSockets with TLS, against Python's ssl: data of any size, cut anywhere, and many handshakes."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

import pytest
from korvet_core import TlsServer

from tests.support.authority import Authority
from tests.support.client_sockets import HEADER, Owner, Worker, received, until
from tests.support.wire_client import frame

pytestmark = pytest.mark.slow

SIZES = (1, 100, 16_383, 16_384, 16_385, 70_000, 5 << 20)
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class Site(NamedTuple):
    """A CA, and the key store of a listener by it."""

    authority: Authority
    store: Path

    def server(self, client_auth: str = "none") -> TlsServer:
        """Return TLS of a listener."""
        return TlsServer(
            key_store=self.store.read_text(),
            trust_store=self.authority.certificate.read_text(),
            client_auth=client_auth,
            versions=tuple(VERSIONS),
            suites=(),
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Make a CA and a key store."""
    authority = Authority(tmp_path_factory.mktemp("site"))
    return Site(authority, authority.issue("/CN=broker").store)


class TlsClient:
    """A client whose ciphertext leaves in the pieces that a test wants."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        self.socket = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._unsent = b""
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.is_open = False
        self.data = bytearray()

    def shake(self, following: bytes = b"") -> None:
        """Go on with the handshake as far as it goes, and send what follows in one piece with that."""
        self._incoming.write(received(self.socket))
        if not self.is_open:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
                self.is_open = True
        if self.is_open:
            self._outgoing.write(following)
        self.flush()

    def receive(self) -> None:
        """Decrypt what has arrived."""
        self._incoming.write(received(self.socket))
        with contextlib.suppress(ssl.SSLWantReadError):
            while data := self.tls.read(1 << 20):
                self.data += data

    def flush(self, size: int | None = None) -> None:
        """Send the next bytes of what is encrypted, all without a size."""
        self._unsent += self._outgoing.read()
        if self._unsent:
            try:
                sent = self.socket.send(self._unsent if size is None else self._unsent[:size])
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:]


def opened(worker: Worker, server: TlsServer, context: ssl.SSLContext) -> tuple[Owner, TlsClient]:
    """Return a new connection whose handshake is done, and its client."""
    owner, plain = worker.connect(server)
    client = TlsClient(plain, context)
    until(
        lambda: client.is_open and bool(owner.events), client.shake, lambda: worker.note(worker.core.turn())
    )
    return owner, client


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("version", VERSIONS)
def test_frames_of_every_size_come_and_go_cut_anywhere(site: Site, version: str, size: int) -> None:
    rng = random.Random(size)
    context = site.authority.client()
    context.minimum_version = context.maximum_version = VERSIONS[version]
    worker = Worker()
    owner, client = opened(worker, site.server(), context)
    assert client.tls.version() == version
    assert owner.events.pop() == ("open", None)
    cuts = (1, 4, 1000, 20_000) if size < 100_000 else (5, 16_390, 300_000)
    for _ in range(3):
        sent = frame(HEADER + rng.randbytes(size))
        client.tls.write(sent)
        client.data.clear()
        until(
            lambda: len(client.data) >= 4 + len(HEADER) + size,
            lambda: client.flush(rng.choice(cuts)),
            lambda: worker.note(worker.core.turn()),
            lambda: worker.echo(owner) if owner.frames else None,
            client.receive,
        )
        assert client.data == sent
    assert all(event == ("written", None) for event in owner.events)
    client.socket.close()


def test_one_step_of_a_handshake_is_done_in_a_turn_and_a_plain_connection_has_every_turn(site: Site) -> None:
    worker, server, context = Worker(), site.server(), site.authority.client()
    plain_owner, plain = worker.connect()
    peers = []
    for _ in range(64):
        owner, end = worker.connect(server)
        peers.append((owner, TlsClient(end, context)))
    for _, client in peers:
        client.shake()
    turns = 0
    while not all(owner.events for owner, _ in peers):
        turns += 1
        plain.send(frame(HEADER))
        worker.turn()
        assert len(plain_owner.frames) == 1
        worker.echo(plain_owner)
        assert received(plain) == frame(HEADER)
        assert sum(bool(owner.events) for owner, _ in peers) <= turns
        for _, client in peers:
            client.shake()
    assert turns >= 2 * 64
    for owner, client in peers:
        assert owner.events == [("open", None)]
        client.socket.close()
    plain.close()


def test_frames_of_a_peer_come_after_the_certificate_that_it_has_shown(site: Site) -> None:
    worker = Worker()
    identity = site.authority.issue("/CN=client")
    owner, client = opened(worker, site.server("required"), site.authority.client(identity))
    der = ssl.PEM_cert_to_DER_cert(identity.certificate.read_text())
    assert owner.events == [("open", der)]
    client.tls.write(frame(HEADER))
    client.flush()
    worker.turn()
    assert [body for _, body in owner.frames] == [HEADER]
    client.socket.close()


@pytest.mark.parametrize(("client_auth", "word"), [("required", "refused"), ("none", "handshake")])
def test_a_client_that_is_not_let_in_learns_why(site: Site, client_auth: str, word: str) -> None:
    worker = Worker()
    context = site.authority.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if word == "handshake":
        context.set_ciphers("ECDHE-RSA-AES128-SHA")
    owner, plain = worker.connect(site.server(client_auth))
    client = TlsClient(plain, context)
    with pytest.raises(ssl.SSLError, match="alert"):
        until(lambda: client.is_open, client.shake, lambda: worker.note(worker.core.turn()))
    [(ended, text)] = owner.events
    assert ended == word
    assert text
    client.socket.close()


@pytest.mark.parametrize("way", ["close", "leave"])
def test_a_client_sees_that_nothing_was_cut_off_when_the_worker_ends_a_connection(
    site: Site, way: str
) -> None:
    worker = Worker()
    owner, client = opened(worker, site.server(), site.authority.client())
    if way == "close":
        worker.note(worker.core.close(owner.number))
    else:
        worker.note(worker.core.leave(owner.number, 60, True))  # noqa: FBT003 - of the core
    client.receive()
    assert client.tls.read(1) == b"", "that is the end; cut off it would want more"
    client.socket.close()
    until(lambda: worker.core.count == 0, lambda: worker.note(worker.core.turn()))
    assert owner.events == [("open", None), ("ended", None)]


def test_a_client_that_ends_its_tls_has_closed(site: Site) -> None:
    worker = Worker()
    owner, client = opened(worker, site.server(), site.authority.client())
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    client.flush()
    until(lambda: worker.core.count == 0, lambda: worker.note(worker.core.turn()))
    assert owner.events == [("open", None), ("closed", None)]
    client.socket.close()


def test_damage_that_comes_with_the_end_of_the_handshake_is_no_failed_handshake(site: Site) -> None:
    worker = Worker()
    owner, plain = worker.connect(site.server())
    client = TlsClient(plain, site.authority.client())
    client.shake()
    worker.turn()
    client.shake(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert client.is_open
    worker.turn()
    assert owner.events == [("open", None), ("malformed", "TLS: decryption failed or bad record mac")]
    client.socket.close()


@pytest.mark.parametrize("ends", ["peer", "own"])
def test_a_connection_that_ends_within_an_encrypted_answer_gives_its_buffers_back(
    site: Site, ends: str
) -> None:
    worker = Worker()
    owner, client = opened(worker, site.server(), site.authority.client())
    client.tls.write(frame(HEADER))
    client.flush()
    worker.turn()
    data = bytearray(4 << 20)
    assert not worker.answer(owner, [(0, [memoryview(data)])])
    if ends == "peer":
        client.socket.close()
        until(lambda: worker.core.count == 0, lambda: worker.note(worker.core.turn()))
    else:
        worker.note(worker.core.close(owner.number))
        client.socket.close()
    assert owner.events[1][0] == ("lost" if ends == "peer" else "ended")
    data.append(0)


def test_a_slow_reader_of_tls_gets_all_of_its_answer(site: Site) -> None:
    worker = Worker()
    owner, client = opened(worker, site.server(), site.authority.client())
    client.tls.write(frame(HEADER))
    client.flush()
    worker.turn()
    data = random.Random(2).randbytes(6 << 20)
    assert not worker.answer(owner, [(0, [data[:100], data[100:]])])
    until(lambda: len(client.data) == len(data), client.receive, lambda: worker.note(worker.core.turn()))
    assert client.data == data
    assert owner.events == [("open", None), ("written", None)]
    client.socket.close()


def test_everybody_else_is_served_while_tiny_records_are_decrypted(site: Site) -> None:
    """A record of one byte costs as much as a large one: 40,000 have come at once."""
    worker = Worker()
    owner, client = opened(worker, site.server(), site.authority.client())
    sent = frame(HEADER + bytes(40_000))
    for byte in sent:
        client.tls.write(bytes([byte]))
    turns = 0
    while not owner.frames:
        client.flush()
        worker.turn()
        turns += 1
    # A turn decrypts 64 KiB at the most, of records that take 23 bytes each.
    assert turns >= 23 * len(sent) // (64 * 1024) > 10
    client.socket.close()
