"""A client's socket in the event loop: what waits, for how long, and that all of an answer leaves."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

import gevent
import gevent.ssl
import pytest
from gevent import socket as gevent_socket

from korvet.config.settings import Settings
from korvet.security.session import ANONYMOUS
from korvet.security.tls import ListenerTls
from korvet.server.net.socket import JOIN_BYTES, PIECES_MAX, Channel
from korvet.server.net.tls import Handshakes, TlsChannel
from tests.support.authority import Authority

pytestmark = pytest.mark.slow

LATE = 30.0


@pytest.fixture(params=["plain", "TLSv1_2", "TLSv1_3"])
def pair(
    request: pytest.FixtureRequest, authority: Authority
) -> Iterator[tuple[Channel, gevent_socket.socket]]:
    """Give a channel, plain or with TLS, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    peer = gevent_socket.socket(theirs.family, theirs.type, theirs.proto, theirs.detach())
    if request.param == "plain":
        channel = Channel(ours)
    else:
        settings = Settings(ssl_keystore_location=str(authority.issue("/CN=broker").store))
        channel = TlsChannel(ours, ListenerTls("SSL", settings), Handshakes())
        shaking = gevent.spawn(channel.handshake, LATE)
        context = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(authority.certificate)
        context.maximum_version = ssl.TLSVersion[request.param]
        peer = context.wrap_socket(peer, server_hostname="localhost")
        assert shaking.get(timeout=LATE) is ANONYMOUS
    with peer:
        yield channel, peer
        channel.close()


def received(peer: gevent_socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += peer.recv(size - len(data))
    return data


def test_a_wait_ends_with_the_first_bytes_or_with_the_end(pair: tuple[Channel, gevent_socket.socket]) -> None:
    channel, peer = pair
    assert channel.receive_at_once(10) is None
    waiting = gevent.spawn(channel.receive, 10, None)
    gevent.sleep(0)
    peer.sendall(b"abc")
    assert waiting.get(timeout=LATE) == b"abc"
    waited = [channel.waited]
    peer.sendall(b"def")
    assert channel.receive(10, LATE) == b"def"
    assert [*waited, channel.waited] == [True, False]
    waiting = gevent.spawn(channel.receive, 10, None)
    gevent.sleep(0)
    channel.end_receiving()
    assert waiting.get(timeout=LATE) == b""


def test_each_wait_has_its_own_limit(pair: tuple[Channel, gevent_socket.socket]) -> None:
    """One timer serves all: it must not end a longer wait after a shorter one, nor miss a shorter after a longer."""
    channel, peer = pair
    for limits in ((LATE, 0.01), (0.02, LATE), (0.01, None)):
        first, second = limits
        waiting = gevent.spawn(channel.receive, 10, first)
        gevent.sleep(0)
        if first == LATE:
            peer.sendall(b"x")
            assert waiting.get(timeout=LATE) == b"x"
        else:
            with pytest.raises(TimeoutError):
                waiting.get(timeout=LATE)
        waiting = gevent.spawn(channel.receive, 10, second)
        if second == 0.01:
            with pytest.raises(TimeoutError):
                waiting.get(timeout=LATE)
        else:
            gevent.sleep(0.05)
            assert not waiting.dead
            peer.sendall(b"y")
            assert waiting.get(timeout=LATE) == b"y"


@pytest.mark.parametrize(
    "sizes", [[1], [10, JOIN_BYTES - 10], [JOIN_BYTES, 1], [700] * (PIECES_MAX * 2 + 1), [3_000_000]]
)
def test_all_of_an_answer_leaves_however_little_the_kernel_takes_at_once(
    pair: tuple[Channel, gevent_socket.socket], sizes: list[int]
) -> None:
    channel, peer = pair
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    sending = gevent.spawn(channel.send, pieces, LATE)
    assert received(peer, sum(sizes)) == b"".join(pieces)
    assert sending.get(timeout=LATE) == sum(sizes)


def test_a_peer_that_takes_nothing_is_not_waited_for_longer_than_said(
    pair: tuple[Channel, gevent_socket.socket],
) -> None:
    channel, _ = pair
    with pytest.raises(TimeoutError):
        channel.send([b"x" * 10_000_000], 0.01)


def test_a_greenlet_killed_while_it_waits_leaves_the_channel_usable(
    pair: tuple[Channel, gevent_socket.socket],
) -> None:
    channel, peer = pair
    waiting = gevent.spawn(channel.receive, 10, LATE)
    gevent.sleep(0)
    waiting.kill()
    peer.sendall(b"later")
    assert gevent.spawn(channel.receive, 10, LATE).get(timeout=LATE) == b"later"
    with contextlib.closing(peer):
        pass
    assert channel.receive(10, LATE) == b""


def test_a_close_after_peer_what_was_sent_drops_what_comes_and_waits_for_the_peer_or_no_longer_than_it_may(
    pair: tuple[Channel, gevent_socket.socket],
) -> None:
    channel, peer = pair
    channel.end_receiving()
    channel.send([b"last"], LATE)
    closing = gevent.spawn(channel.close_after_peer, LATE)
    peer.sendall(b"more" * 1000)
    assert received(peer, 4) + peer.recv(1) == b"last"
    assert not closing.ready()
    peer.shutdown(socket.SHUT_WR)
    closing.get(timeout=LATE)


def test_what_is_dropped_keeps_nobody_waiting(pair: tuple[Channel, gevent_socket.socket]) -> None:
    channel, peer = pair
    peer.sendall(b"more" * 25_000)
    peer.shutdown(socket.SHUT_WR)
    closing = gevent.spawn(channel.close_after_peer, LATE)
    seen: list[bool] = []
    gevent.spawn(lambda: seen.append(closing.ready()))
    closing.get(timeout=LATE)
    assert seen == [False]


def test_a_peer_that_does_not_close_is_left(pair: tuple[Channel, gevent_socket.socket]) -> None:
    channel, peer = pair
    gevent.spawn(channel.close_after_peer, 0.01).get(timeout=LATE)
    with pytest.raises((BrokenPipeError, ssl.SSLEOFError)):
        peer.sendall(b"more")


def test_less_than_was_asked_for_comes_only_if_no_more_is_there(
    pair: tuple[Channel, gevent_socket.socket],
) -> None:
    """From this follows since when a request has been there; records of TLS end elsewhere than reads do."""
    channel, peer = pair
    sent = bytes(number % 251 for number in range(50_000))
    peer.sendall(sent)
    for size, whole in ((20_000, sent[:20_000]), (5, sent[20_000:20_005]), (40_000, sent[20_005:])):
        assert channel.receive(size, LATE) == whole
        assert not channel.waited
    assert channel.receive_at_once(10) is None
    peer.sendall(b"abcdef")
    assert [channel.receive_at_once(4) for _ in range(3)] == [b"abcd", b"ef", None]
