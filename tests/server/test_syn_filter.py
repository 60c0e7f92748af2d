"""A socket that is about to close, beside another one of the same port: it takes no new connection and loses none."""

from __future__ import annotations

import socket

from korvet.config.values import Address
from korvet.server.net.listener import begin_no_handshake
from korvet.server.supervisor import ports
from tests.support import processes


def listening(address: Address) -> socket.socket:
    sock = socket.socket()
    ports.prepare_shared(sock)
    sock.bind(address)
    sock.listen(128)
    sock.setblocking(False)  # noqa: FBT003 - takes no keyword
    return sock


def accepted(sock: socket.socket) -> int:
    """Accept what is queued; returns how many."""
    count = 0
    while True:
        try:
            sock.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_new_connections_find_the_other_socket_and_those_before_stay() -> None:
    with ports.reserve("listen ", Address("127.0.0.1", 0)) as port:
        leaving, staying = listening(port.address), listening(port.address)
        clients = [socket.create_connection(port.address, 30) for _ in range(40)]
        before = accepted(staying)
        begin_no_handshake(leaving)
        # More than chance would lead past it; each that its first packet led there begins again after a second.
        late = [socket.socket() for _ in range(40)]
        for client in late:
            client.setblocking(False)  # noqa: FBT003 - takes no keyword
            client.connect_ex(port.address)
        assert accepted(leaving) == 40 - before > 0
        leaving.close()
        processes.wait_until(lambda: all(map(connected, late)), "all of them are connected")
        assert accepted(staying) == 40
        for sock in (*clients, *late, staying):
            sock.close()


def connected(client: socket.socket) -> bool:
    try:
        client.getpeername()
    except OSError:
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "it was refused or reset"
        return False
    return True


def test_without_the_filter_some_would_have_been_reset() -> None:
    """Hold the test above to what it is for."""
    with ports.reserve("listen ", Address("127.0.0.1", 0)) as port:
        leaving, staying = listening(port.address), listening(port.address)
        clients = [socket.create_connection(port.address, 30) for _ in range(40)]
        leaving.close()
        for client in clients:
            client.setblocking(False)  # noqa: FBT003 - takes no keyword
        processes.wait_until(lambda: len(clients) - accepted(staying) > 0, "some are lost")
        assert any(is_reset(client) for client in clients)
        for sock in (*clients, staying):
            sock.close()


def is_reset(client: socket.socket) -> bool:
    try:
        client.recv(1)
    except ConnectionResetError:
        return True
    except BlockingIOError:
        return False
    return False
