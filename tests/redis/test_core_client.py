"""korvet_core.RedisClient as Python sees it: objects of replies, its sockets, and what a failure leaves.

What it decides is tested in core/proto, and what the drivers make of it in test_client_faults.py and
test_blocking_driver.py.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from korvet_core import RedisClient, RespReader, pack_command

from korvet.redis.replies import error_of, prevented

EVERY_KIND = (
    (b"+OK\r\n", b"OK"),
    (b"$2\r\n\r\n\r\n", b"\r\n"),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"_\r\n", None),
    (b":-9223372036854775808\r\n", -(2**63)),
    (b"*3\r\n:1\r\n*0\r\n$0\r\n\r\n", [1, [], b""]),
    (b"%2\r\n+a\r\n:1\r\n*1\r\n+b\r\n:2\r\n", [(b"a", 1), ([b"b"], 2)]),
    (b"~2\r\n:1\r\n:1\r\n", [1, 1]),
    (b">2\r\n+message\r\n:1\r\n", [b"message", 1]),
    (b"*2\r\n|1\r\n+ttl\r\n:3\r\n:1\r\n:2\r\n", [1, 2]),
    (b",-1.5\r\n", -1.5),
    (b"#t\r\n", True),
    (b"(-1234567890123456789012345\r\n", -1234567890123456789012345),
    (b"=7\r\ntxt:abc\r\n", b"abc"),
)

GREETING = pack_command(("CLIENT", "SETNAME", "korvet")) + pack_command(("INFO", "replication"))
GREETED = b"+OK\r\n$0\r\n\r\n"


class Server:
    """The other end of a client's one connection, and what the client asked its driver to do."""

    def __init__(self, error_of: Callable[[str], Any] = error_of, *, has_socket: bool = True) -> None:
        mine, self.socket = socket.socketpair()
        self.fd = mine.detach()
        self.actions: list[tuple[Any, ...]] = []
        self.made = 0
        self.client: RedisClient[str] = RedisClient(
            "server",
            [("127.0.0.1", 1)],
            "",
            ("", "", 0),
            ("", ""),
            error_of,
            partial(prevented, is_cluster=False),
            self.new_waiter,
            self.actions.extend,
            timeout_s=10,
            connect_timeout_s=10,
            seed=1,
        )
        self.lane = self.client.add_lane(commands_max=100, bytes_max=1 << 20, reply_bytes_max=1 << 20)
        self.client.connect(self.lane, 0)
        [(_, self.connection, *where)] = [action for action in self.actions if action[0] == "open"]
        assert where == ["127.0.0.1", 1, False]
        if has_socket:
            self.client.opened(self.connection, self.fd)
            self.client.writable(self.connection)
            assert self.socket.recv(1000) == GREETING
            assert self.answered(GREETED) == [("waiter 1", [])]
        del self.actions[:]

    def new_waiter(self) -> str:
        """Return a waiter, by its number."""
        self.made += 1
        return f"waiter {self.made}"

    def ask(self, *commands: Any) -> str:
        """Begin commands."""
        return self.client.begin(self.lane, commands, "test", None, 0)

    def answered(self, answer: bytes) -> list[Any]:
        """Return what the client has finished once it was answered."""
        self.socket.sendall(answer)
        done, actions = self.client.readable(self.connection)
        self.actions += actions
        return [(waiter, replies) for waiter, replies, _, _ in done]

    def take(self, size: int) -> bytes:
        """Return that number of bytes, which the client writes."""
        received = bytearray()
        self.socket.settimeout(10)
        while len(received) < size:
            self.actions += self.client.writable(self.connection)[1]
            received += self.socket.recv(1 << 20)
        return bytes(received)

    def close(self) -> None:
        """Close both ends."""
        self.client.close(self.lane)
        self.client.closed(self.connection)
        self.socket.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.mark.parametrize(("answer", "reply"), EVERY_KIND)
def test_every_kind_of_reply_is_an_object(server: Server, answer: bytes, reply: object) -> None:
    assert server.ask(("PING",)) == "waiter 2"
    assert server.answered(answer) == [("waiter 2", [reply])]
    reader = RespReader(error_of)
    for byte in answer:
        assert reader.next_reply("none") == "none"
        reader.feed(bytes([byte]))
    assert reader.next_reply("none") == reply


def test_what_is_no_reply_is_an_error_of_a_reader() -> None:
    reader = RespReader(error_of)
    reader.feed(b"SSH-2.0\r\n")
    with pytest.raises(ValueError, match="begins with the byte 0x53"):
        reader.next_reply(None)


def test_an_inner_sequence_stands_for_its_arguments() -> None:
    flat = pack_command(("EVALSHA", "sha", 1, "key", b"a", memoryview(b"bc"), -(2**70), -5))
    assert pack_command(["EVALSHA", "sha", 1, ["key"], (b"a", memoryview(b"bc"), -(2**70)), (), -5]) == flat
    assert flat.startswith(b"*8\r\n$7\r\nEVALSHA\r\n")
    assert flat.endswith(b"$23\r\n-1180591620717411303424\r\n$2\r\n-5\r\n")
    for wrong in (True, 1.5, None, bytearray(b"x"), [["x"]], memoryview(b"abcd")[::2]):
        with pytest.raises((TypeError, BufferError)):
            pack_command(("GET", wrong))  # type: ignore[arg-type]  # the point of the test


def test_large_arguments_are_written_from_where_they_are_and_let_go_when_they_are_answered(
    server: Server,
) -> None:
    large = bytearray(b"x" * 100_000)
    commands = [("SET", "k", memoryview(large)), ("SET", "l", bytes(large))]
    server.ask(*commands)
    expected = pack_command(("SET", "k", bytes(large))) + pack_command(("SET", "l", bytes(large)))
    assert server.take(len(expected)) == expected
    assert len(server.answered(b"+OK\r\n+OK\r\n")) == 1
    del commands
    large.clear()  # BufferError while anything shows it


def test_what_a_full_socket_does_not_take_is_written_later(server: Server) -> None:
    large = b"x" * 5_000_000
    server.ask(("SET", "k", large))
    assert ("stuck", server.connection) in server.actions
    expected = pack_command(("SET", "k", large))
    assert server.take(len(expected)) == expected
    assert server.actions[-1] == ("unstuck", server.connection)


def test_an_error_that_cannot_be_made_is_the_reply_and_the_others_are_not_lost() -> None:
    def fails(text: str) -> object:
        raise LookupError(text)

    made = Server(fails)
    for _ in range(3):
        made.ask(("PING",))
    (_, [first]), (_, [second]), (_, [third]) = made.answered(b"+1\r\n-ERR \xff\r\n*1\r\n-NO way\r\n")
    assert (first, type(second), type(third[0])) == (b"1", LookupError, LookupError)
    assert str(third[0]) == "NO way"
    made.close()


def test_a_client_may_be_used_while_it_makes_objects_of_replies() -> None:
    again: list[object] = []

    def asks(text: str) -> object:
        again.append(made.ask(("ECHO", text)))
        return text

    made = Server(asks)
    made.ask(("PING",))
    made.ask(("PING",))
    assert made.answered(b"-one\r\n-two\r\n+thr") == [("waiter 2", ["one"]), ("waiter 3", ["two"])]
    assert again == ["waiter 4", "waiter 5"]
    assert made.answered(b"ee\r\n+four\r\n") == [("waiter 4", [b"three"]), ("waiter 5", [b"four"])]
    made.close()


def test_a_request_without_commands_or_with_a_wrong_one_is_not_sent(server: Server) -> None:
    with pytest.raises(ValueError, match="no command"):
        server.ask()
    with pytest.raises(TypeError):
        server.ask(("PING",), ("GET", None))
    assert server.client.under_way(server.lane, 0) == (0, 0, 0)
    server.ask(("PING",))
    assert server.take(1) == pack_command(("PING",))


def test_replies_of_several_commands_are_a_list_however_they_come(server: Server) -> None:
    server.ask(("GET", "a"), ("GET", "b"), ("GET", "c"))
    server.ask(("PING",))
    assert server.answered(b"+1\r\n:2") == []
    assert server.answered(b"\r\n-ERR x\r\n+PONG\r\n")[1] == ("waiter 3", [b"PONG"])
    assert server.client.under_way(server.lane, 0) == (0, 0, 0)


def test_a_raw_reply_is_its_bytes_and_the_next_request_has_objects(server: Server) -> None:
    commands = [pack_command(("GET", "a")), ("GET", "b")]
    server.client.begin(server.lane, commands, "test", None, 0, True)  # noqa: FBT003 - raw
    assert server.take(40) == pack_command(("GET", "a")) + pack_command(("GET", "b"))
    server.ask(("PING",))
    [(waiter, replies), (_, objects)] = server.answered(b"*2\r\n$1\r\nv\r\n:5\r\n-ERR x\r\n+PONG\r\n")
    assert (waiter, objects) == ("waiter 2", [b"PONG"])
    assert [bytes(reply) for reply in replies] == [b"*2\r\n$1\r\nv\r\n:5\r\n", b"-ERR x\r\n"]


def test_what_prevents_a_raw_reply_stands_in_its_place(server: Server) -> None:
    server.client.begin(server.lane, [pack_command(("GET", "a"))], "test", None, 0, True)  # noqa: FBT003 - raw
    server.socket.shutdown(socket.SHUT_RDWR)
    [(_, [error], _, _)] = server.client.readable(server.connection)[0]
    assert "it closed the connection" in error.message


def test_who_waits_for_a_lost_connection_is_answered_once(server: Server) -> None:
    for _ in range(3):
        server.ask(("PING",))
    server.socket.sendall(b"+1\r\n")
    server.socket.shutdown(socket.SHUT_RDWR)
    done: list[Any] = []
    for _ in range(3):
        done += server.client.readable(server.connection)[0]
        done += server.client.tick()[0]
    (waiter, replies, operation, seconds), *lost = done
    assert (waiter, replies, operation, seconds >= 0) == ("waiter 2", [b"1"], "test", True)
    assert [(waiter, seconds) for waiter, _, _, seconds in lost] == [("waiter 3", -1.0), ("waiter 4", -1.0)]
    for _, [error], _, _ in lost:
        assert "it closed the connection" in error.message
    assert not server.client.is_ready(server.lane, 0)


def test_a_socket_is_closed_once_its_driver_watches_it_no_more() -> None:
    server = Server()
    server.client.lose(server.lane, 0, "for the test", False)  # noqa: FBT003 - without a pause
    assert ("close", server.connection) in server.actions
    os.fstat(server.fd)
    server.client.closed(server.connection)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(server.fd)
    # Somebody else has the number now.
    os.dup2(server.socket.fileno(), server.fd)
    server.client.closed(server.connection)
    server.close()
    del server.client
    gc.collect()
    os.fstat(server.fd)
    os.close(server.fd)


def test_a_descriptor_that_is_none_is_refused() -> None:
    made = Server(has_socket=False)
    with pytest.raises(ValueError, match="the descriptor is none"):
        made.client.opened(made.connection, -1)
    os.close(made.fd)
    made.close()


def test_without_a_socket_bytes_pass_through_the_driver() -> None:
    made = Server(has_socket=False)
    client, connection = made.client, made.connection
    client.opened(connection, None)
    assert client.unwritten(connection, 5) == GREETING[:5]
    client.wrote(connection, 3)
    assert client.unwritten(connection, 1000) == GREETING[3:]
    client.wrote(connection, len(GREETING) - 3)
    assert client.unwritten(connection, 1000) == b""
    assert made.ask(("PING",)) == "waiter 2"
    done, _ = client.received(connection, GREETED)
    assert [waiter for waiter, *_ in done] == ["waiter 1"]
    packed = pack_command(("PING",))
    assert client.unwritten(connection, 1000) == packed
    client.wrote(connection, len(packed))
    [(waiter, replies, _, _)], _ = client.received(connection, b"+PONG\r\n")
    assert (waiter, replies) == ("waiter 2", [b"PONG"])
    _, actions = client.received(connection, b"+PONG\r\n")
    assert ("lost", made.lane, 0) in [action[:3] for action in actions]
    os.close(made.fd)
    made.close()
