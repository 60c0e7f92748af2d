"""korvet_core.RedisLink as Python sees it: objects of replies, its socket, and what a failure leaves.

What it decides is tested in core/proto, and what gevent makes of it in test_client_faults.py.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from korvet_core import NotRespError, RedisLink, RespReader, pack_command

from korvet.redis.replies import error_of

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


class Server:
    """The other end of a link, and what the link asked its owner to do."""

    def __init__(self, error_of: Callable[[str], object] = error_of, **others: Any) -> None:
        mine, self.socket = socket.socketpair()
        self.fd = mine.detach()
        os.set_blocking(self.fd, False)
        self.bits: list[int] = []
        self.made = 0
        options = {
            "timeout_s": 10.0,
            "silence_s": None,
            "commands_max": 100,
            "bytes_max": 1 << 20,
            "reply_bytes_max": 1 << 20,
            "takes_unasked": False,
        }
        self.link = RedisLink(self.fd, error_of, self.new_waiter, self.bits.append, **{**options, **others})

    def new_waiter(self) -> str:
        """Return a waiter, by its number."""
        self.made += 1
        return f"waiter {self.made}"

    def answered(self, answer: bytes) -> list[Any]:
        """Return what the link has finished once it was answered."""
        self.socket.sendall(answer)
        done, _ = self.link.receive()
        return [(waiter, reply) for waiter, reply, _, _ in done]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.socket.close()


@pytest.mark.parametrize(("answer", "reply"), EVERY_KIND)
def test_every_kind_of_reply_is_an_object(server: Server, answer: bytes, reply: object) -> None:
    assert server.link.exchange([("PING",)], "test") == "waiter 1"
    assert server.answered(answer) == [("waiter 1", reply)]
    reader = RespReader(error_of)
    for byte in answer:
        assert reader.next_reply("none") == "none"
        reader.feed(bytes([byte]))
    assert reader.next_reply("none") == reply


def test_what_is_no_reply_is_an_error_of_a_reader() -> None:
    reader = RespReader(error_of)
    reader.feed(b"SSH-2.0\r\n")
    with pytest.raises(NotRespError, match="begins with the byte 0x53"):
        reader.next_reply(None)


def test_an_inner_sequence_stands_for_its_arguments() -> None:
    flat = pack_command(("EVALSHA", "sha", 1, "key", b"a", memoryview(b"bc"), -(2**70), -5))
    assert pack_command(["EVALSHA", "sha", 1, ["key"], (b"a", memoryview(b"bc"), -(2**70)), (), -5]) == flat
    assert flat.startswith(b"*8\r\n$7\r\nEVALSHA\r\n")
    assert flat.endswith(b"$23\r\n-1180591620717411303424\r\n$2\r\n-5\r\n")
    for wrong in (True, 1.5, None, bytearray(b"x"), [["x"]], memoryview(b"abcd")[::2]):
        with pytest.raises((TypeError, BufferError)):
            pack_command(("GET", wrong))  # type: ignore[arg-type]  # the point of the test


def test_large_arguments_are_written_from_where_they_are_and_then_let_go(server: Server) -> None:
    large = bytearray(b"x" * 100_000)
    server.link.exchange([("SET", "k", memoryview(large)), ("SET", "l", bytes(large))], "test")
    received = b""
    while len(received) < 200_000:
        received += server.socket.recv(1 << 20)
        server.link.write()
    assert received == pack_command(("SET", "k", bytes(large))) + pack_command(("SET", "l", bytes(large)))
    large.clear()  # BufferError while anything shows it


def test_what_a_full_socket_does_not_take_is_written_later(server: Server) -> None:
    large = b"x" * 5_000_000
    server.link.exchange([("SET", "k", large)], "test")
    assert server.bits[-1] & RedisLink.STUCK
    received = bytearray()
    while server.link.write() & RedisLink.STUCK:
        received += server.socket.recv(1 << 20)
    server.socket.settimeout(0)
    expected = pack_command(("SET", "k", large))
    while len(received) < len(expected):
        received += server.socket.recv(1 << 20)
    assert bytes(received) == expected


def test_an_error_that_cannot_be_made_is_the_reply_and_the_others_are_not_lost() -> None:
    def fails(text: str) -> object:
        raise LookupError(text)

    made = Server(fails)
    for _ in range(3):
        made.link.exchange([("PING",)], "test")
    (_, first), (_, second), (_, third) = made.answered(b"+1\r\n-ERR \xff\r\n*1\r\n-NO way\r\n")
    assert (first, type(second), type(third[0])) == (b"1", LookupError, LookupError)
    assert str(third[0]) == "NO way"
    made.socket.close()


def test_a_link_may_be_used_while_it_makes_objects_of_replies() -> None:
    again: list[object] = []

    def asks(text: str) -> object:
        again.append(made.link.exchange([("ECHO", text)], "test"))
        again.append(made.link.receive())
        return text

    made = Server(asks)
    made.link.exchange([("PING",)], "test")
    made.link.exchange([("PING",)], "test")
    assert made.answered(b"-one\r\n-two\r\n+thr") == [("waiter 1", "one"), ("waiter 2", "two")]
    assert again == ["waiter 3", ([], 0), "waiter 4", ([], 0)]
    assert made.answered(b"ee\r\n+four\r\n") == [("waiter 3", b"three"), ("waiter 4", b"four")]
    made.socket.close()


def test_a_request_without_commands_or_with_a_wrong_one_is_not_sent(server: Server) -> None:
    with pytest.raises(ValueError, match="no command"):
        server.link.exchange([], "test")
    with pytest.raises(TypeError):
        server.link.exchange([("PING",), ("GET", None)], "test")  # type: ignore[list-item]  # the point of the test
    assert server.link.under_way == (0, 0, 0)
    server.link.exchange([("PING",)], "test")
    assert server.socket.recv(100) == pack_command(("PING",))


def test_replies_of_several_commands_are_a_list_however_they_come(server: Server) -> None:
    server.link.exchange([("GET", "a"), ("GET", "b"), ("GET", "c")], "test")
    server.link.exchange([("PING",)], "test")
    assert server.answered(b"+1\r\n:2") == []
    assert server.answered(b"\r\n-ERR x\r\n+PONG\r\n")[1] == ("waiter 2", b"PONG")
    assert server.link.under_way == (0, 0, 0)


def test_waiters_of_a_lost_connection_are_handed_over_once(server: Server) -> None:
    for _ in range(3):
        server.link.exchange([("PING",)], "test")
    server.socket.sendall(b"+1\r\n")
    server.socket.shutdown(socket.SHUT_RDWR)
    [(waiter, reply, operation, seconds)], bits = server.link.receive()
    assert (waiter, reply, operation, seconds >= 0) == ("waiter 1", b"1", "test", True)
    assert not bits & RedisLink.LOST
    assert server.link.receive() == ([], RedisLink.LOST)
    assert server.link.lost == "it closed the connection"
    assert server.link.exchange([("PING",)], "test") is None
    assert server.link.close() == ["waiter 2", "waiter 3"]
    assert server.link.close() == []


def test_a_link_closes_its_socket_once_when_its_owner_says_so() -> None:
    server = Server()
    server.link.lose_for("for the test")
    os.fstat(server.fd)
    server.link.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(server.fd)
    # Somebody else has the number now.
    os.dup2(server.socket.fileno(), server.fd)
    server.link.close()
    del server.link
    gc.collect()
    os.fstat(server.fd)
    os.close(server.fd)
    server.socket.close()


def test_a_descriptor_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="the descriptor is none"):
        RedisLink(
            -1,
            error_of,
            str,
            print,
            timeout_s=1.0,
            silence_s=None,
            commands_max=1,
            bytes_max=1,
            reply_bytes_max=1,
            takes_unasked=False,
        )


def test_a_reply_without_a_request_is_handed_over_where_it_is_wanted() -> None:
    server = Server(takes_unasked=True)
    server.link.send([("SSUBSCRIBE", ["a", "b"])])
    server.link.write()
    assert server.socket.recv(100) == pack_command(("SSUBSCRIBE", "a", "b"))
    assert server.answered(b"*1\r\n+a\r\n+b\r\n") == [(None, [b"a"]), (None, b"b")]
    server.socket.close()


def test_without_a_socket_bytes_pass_through_the_owner() -> None:
    bits: list[int] = []
    link = RedisLink(
        None,
        error_of,
        lambda: "waiter",
        bits.append,
        timeout_s=10,
        silence_s=None,
        commands_max=10,
        bytes_max=1000,
        reply_bytes_max=1000,
        takes_unasked=False,
    )
    assert link.exchange([("PING",)], "test") == "waiter"
    assert bits == [RedisLink.WRITE | RedisLink.TIMER]
    packed = pack_command(("PING",))
    assert link.unwritten(5) == packed[:5]
    link.wrote(3)
    assert link.unwritten(1000) == packed[3:]
    link.wrote(len(packed) - 3)
    assert link.unwritten(1000) == b""
    [(waiter, reply, _, _)], todo = link.received(b"+PONG\r\n")
    assert (waiter, reply, todo) == ("waiter", b"PONG", 0)
    assert link.received(b"+PONG\r\n") == ([], RedisLink.LOST)
    assert link.lost == "it sent a reply without a request: +PONG"
