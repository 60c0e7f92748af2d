"""A socket that is about to close, beside another one of the same port: it takes no new connection and loses none."""

from __future__ import annotations

import socket

from korvet.config.values import Address
from korvet.server.supervisor import ports
from tests.support import processes


def listening(address: Address) -> socket.socket:
    sock = socket.socket()
    ports.prepare_shared(sock)
    sock.bind(address)
    sock.listen(128)
    sock.setblocking(False)  # noqa: FBT003 - takes no keyword
    return sock


def accepted(sock: socket.socket, result: set[int]) -> set[int]:
    """Accept what is queued, and return the clients' ports with those found before.

    The queue may be behind: a client is connected before the listener has its connection.
    """
    while True:
        try:
            connection, (_, port) = sock.accept()
        except BlockingIOError:
            return result
        connection.close()
        result.add(port)


def own_ports(clients: list[socket.socket]) -> set[int]:
    return {client.getsockname()[1] for client in clients}


def test_new_connections_find_the_other_socket_and_those_before_stay() -> None:
    with ports.reserve("listen ", Address("127.0.0.1", 0)) as port:
        leaving, staying = listening(port.address), listening(port.address)
        clients = [socket.create_connection(port.address, 30) for _ in range(40)]
        ports.begin_no_handshake(leaving)
        # More than chance would lead past it; each that its first packet led there begins again after a second.
        late = [socket.socket() for _ in range(40)]
        for client in late:
            client.setblocking(False)  # noqa: FBT003 - takes no keyword
            client.connect_ex(port.address)
        left, stayed = set[int](), set[int]()
        processes.wait_until(
            lambda: own_ports(clients) <= accepted(leaving, left) | accepted(staying, stayed),
            "all of those before are accepted",
        )
        assert left
        assert left <= own_ports(clients)
        leaving.close()
        processes.wait_until(lambda: all(map(connected, late)), "all of them are connected")
        processes.wait_until(lambda: own_ports(late) <= accepted(staying, stayed), "they are accepted")
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
        processes.wait_until(lambda: len(clients) > len(accepted(staying, set())), "some are lost")
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
