"""Archived records, asked of the process of this broker that reads the lake.

Knows the socket to that process and the questions under way; nothing of tables. All questions of a worker share one
connection, and an answer that nobody waits for any more is dropped: a slow lake costs those who ask it and nobody else.
gevent's sockets by name.

What workers and the lake's reading process say to each other, on a unix socket of the broker.

Knows shapes and framing; nothing of sockets or of the lake. A frame is its length in four bytes, big-endian, and then
one message in MessagePack. Requests carry a number that their answer repeats; answers come in any order.
"""

from __future__ import annotations

import contextlib
import math
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import gevent
import msgspec
from gevent import socket
from gevent.event import AsyncResult
from gevent.lock import RLock

from korvet.errors import ErrorCode, KafkaError

LENGTH = struct.Struct(">I")

FRAME_BYTES_MAX = 256 * 1024 * 1024
"""No frame is larger: an answer holds what one fetch may, or one record whatever its size."""


Kind = Literal["read", "first_from", "largest"]


class RemoteRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A question about one partition of a topic; `topic_id` is the text of 22 characters.

    It is about what is archived from `offset` on, and `archived` is how far that is known to go. `read` wants batches
    of `bytes_max` bytes at the most, but for one record with `at_least_one`, in the codec of that number. `first_from`
    wants the first record whose timestamp (ms) is not smaller, `largest` the first of those with the largest one.
    `until` (seconds of the machine's monotonic clock) is when nobody waits for the answer any more: a reader that is
    behind passes such questions over, or it would never catch up.
    """

    number: int
    kind: Kind
    topic: str
    topic_id: str
    partition: int
    offset: int
    archived: int
    bytes_max: int = 0
    at_least_one: bool = True
    codec: int = 0
    leader_epoch: int = 0
    timestamp: int = -1
    until: float = math.inf


class RemoteResponse(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer to one question: an error in words, or what was asked for.

    To `read`: batches, the number of their records, the offset to read next, and whether that one is archived too. To
    the others: offset and timestamp (ms) of the record, -1 where there is none.
    """

    number: int
    error: str = ""
    data: bytes = b""
    record_count: int = 0
    next_offset: int = -1
    more: bool = False
    offset: int = -1
    timestamp: int = -1


def framed(message: RemoteRequest | RemoteResponse) -> bytes:
    """Return a message as a frame."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


UNDER_WAY_MAX = 256
"""Questions of one worker that may wait for an answer; more are refused, for the lake is behind already."""

Seen: TypeAlias = Callable[[Kind, float], None]
"""Is told what was asked, and after how many seconds the answer came."""

_CONNECT_S_MAX = 1.0

_SEND_S_MAX = 1.0
"""A reader that takes in no question for so long hangs: what it holds is more than it has answered for minutes."""


class _Asked(NamedTuple):
    answer: AsyncResult[RemoteResponse]
    kind: Kind
    at: float


class RemoteCall:
    """A question that was sent."""

    def __init__(self, answer: AsyncResult[RemoteResponse], number: int, store: RemoteClient) -> None:
        self._answer = answer
        self._number = number
        self._store = store

    def wait(self, timeout_s: float) -> bool:
        """Wait so long for the answer; tells whether `finish` has nothing to wait for."""
        self._answer.wait(timeout=timeout_s)
        return self._answer.ready()

    def finish(self, timeout_s: float) -> RemoteResponse:
        """Wait for the answer; raises KafkaError KAFKA_STORAGE_ERROR where there is none, or it is an error."""
        try:
            answer = self._answer.get(timeout=timeout_s)
        except gevent.Timeout:
            self._store.forget(self._number)
            message = f"the lake did not answer within {timeout_s:g} s"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from None
        assert answer is not None  # noqa: S101 - what is set is an answer
        if answer.error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, answer.error)
        return answer

    def abandon(self) -> None:
        """Want no answer any more."""
        self._store.forget(self._number)


class RemoteClient:
    """The lake as one worker sees it."""

    def __init__(self, path: Path, seen: Seen = lambda _kind, _seconds: None) -> None:
        """Take `path` for the socket of the process that reads; the connection is made at the first question.

        `seen` is told of every answer that somebody waited for.
        """
        self._path = path
        self._seen = seen
        self._socket: socket.socket | None = None
        self._under_way: dict[int, _Asked] = {}
        self._numbers = 0
        self._sending = RLock()

    def ask(self, request: RemoteRequest) -> RemoteCall:
        """Send a question, whose number is given to it here.

        Raises KafkaError KAFKA_STORAGE_ERROR where the process is away, or too many questions wait already.
        """
        if len(self._under_way) >= UNDER_WAY_MAX:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{UNDER_WAY_MAX} questions wait for the lake")
        self._numbers += 1
        number = self._numbers
        answer: AsyncResult[RemoteResponse] = AsyncResult()
        with self._sending:
            # Others may be sending: a frame must not be torn by another's.
            connected = self._connected()
            self._under_way[number] = _Asked(answer, request.kind, time.monotonic())
            hangs = TimeoutError("it takes in no questions")
            try:
                with gevent.Timeout(_SEND_S_MAX, hangs):
                    connected.sendall(framed(msgspec.structs.replace(request, number=number)))
            except OSError as error:
                self._lose(connected, error)
        return RemoteCall(answer, number, self)

    def forget(self, number: int) -> None:
        """Drop the answer to a question, should it still come."""
        self._under_way.pop(number, None)

    def close(self) -> None:
        """Close the connection; what is under way ends with an error."""
        if self._socket is not None:
            self._lose(self._socket, ConnectionAbortedError("the worker ends"))

    def _connected(self) -> socket.socket:
        if self._socket is None:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connected.settimeout(_CONNECT_S_MAX)
            try:
                connected.connect(str(self._path))
            except OSError as error:
                connected.close()
                raise _away(error) from error
            connected.settimeout(None)
            self._socket = connected
            gevent.spawn(self._receive, connected)
        return self._socket

    def _receive(self, connected: socket.socket) -> None:
        decoder = msgspec.msgpack.Decoder(RemoteResponse)
        try:
            while True:
                (length,) = LENGTH.unpack(_exactly(connected, LENGTH.size))
                if length > FRAME_BYTES_MAX:
                    raise ConnectionAbortedError(f"it sent a frame of {length} bytes")
                answer = decoder.decode(_exactly(connected, length))
                asked = self._under_way.pop(answer.number, None)
                if asked is not None:
                    self._seen(asked.kind, time.monotonic() - asked.at)
                    asked.answer.set(answer)
        except (OSError, msgspec.MsgspecError) as error:
            self._lose(connected, error)

    def _lose(self, connected: socket.socket, error: Exception) -> None:
        """Close the connection, and tell all who wait for an answer on it."""
        with contextlib.suppress(OSError):
            connected.close()
        if self._socket is not connected:
            return
        self._socket = None
        waiting, self._under_way = self._under_way, {}
        for asked in waiting.values():
            asked.answer.set_exception(_away(error))


def _exactly(connected: socket.socket, size: int) -> bytearray:
    """Receive `size` bytes; raises OSError where the connection ends before."""
    received = bytearray(size)
    view = memoryview(received)
    while view:
        count = connected.recv_into(view)
        if not count:
            raise ConnectionResetError("it closed the connection")
        view = view[count:]
    return received


def _away(error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the process that reads the lake is away: {error}")
