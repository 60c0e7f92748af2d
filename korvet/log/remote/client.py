"""The client of the process of this broker that reads the lake, and the messages between the two.

All requests of a worker share one connection on a unix socket. A frame is its length in four bytes, big-endian, and
then one message in MessagePack. A request carries a number that its answer repeats; answers come in any order, and one
that comes too late is dropped: a slow lake delays only the consumers that read from it.
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
from korvet.log.epochs import Epochs

LENGTH = struct.Struct(">I")

FRAME_BYTES_MAX = 256 * 1024 * 1024
"""No frame is larger: an answer holds what one fetch may, or one record whatever its size."""

Kind = Literal["read", "first_from", "largest"]


class RemoteRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A request for one partition of a topic; `topic_id` is the text of 22 characters.

    It is for what is archived from `offset` on; the log is known to be archived up to `archived`. `read` returns
    batches of `bytes_max` bytes at the most, but for one record with `at_least_one`, in codec `codec`, with the leader
    epochs of the log, `epochs`. `first_from`
    returns the first record whose timestamp (ms) is not smaller, `largest` the first of those with the largest one.
    After `until` (seconds of the machine's monotonic clock) no caller waits for the answer: a reader that lags drops
    such requests, or it would never catch up.
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
    epochs: Epochs = ()
    timestamp: int = -1
    until: float = math.inf


class RemoteResponse(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer to one request: an error in words, or the result.

    Of `read`: batches, the number of their records, the offset to read next, and whether that one is archived too. Of
    the others: offset and timestamp (ms) of the record, -1 without one.
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
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


UNDER_WAY_MAX = 256
"""Requests of one worker that may wait for an answer; more are refused, for the reader lags already."""

OnAnswer: TypeAlias = Callable[[Kind, float], None]
"""Called with the kind of each request, and the seconds until its answer."""

_CONNECT_S_MAX = 1.0

_SEND_S_MAX = 1.0
"""A reader that receives nothing for so long hangs: it holds more requests than it has answered for minutes."""


class _SentRequest(NamedTuple):
    answer: AsyncResult[RemoteResponse]
    kind: Kind
    at: float


class RemoteCall:
    """A request that was sent."""

    def __init__(self, answer: AsyncResult[RemoteResponse], number: int, client: RemoteClient) -> None:
        self._answer = answer
        self._number = number
        self._client = client

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the answer; returns whether it is there."""
        self._answer.wait(timeout=timeout_s)
        return self._answer.ready()

    def finish(self, timeout_s: float) -> RemoteResponse:
        """Wait for the answer; raises KafkaError KAFKA_STORAGE_ERROR if there is none in time, or it is an error."""
        try:
            answer = self._answer.get(timeout=timeout_s)
        except gevent.Timeout:
            self._client.forget(self._number)
            message = f"the lake did not answer within {timeout_s:g} s"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from None
        assert answer is not None  # noqa: S101 - what is set is an answer
        if answer.error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, answer.error)
        return answer

    def abandon(self) -> None:
        """Drop the answer."""
        self._client.forget(self._number)


class RemoteClient:
    """The requests of one worker."""

    def __init__(self, path: Path, on_answer: OnAnswer = lambda _kind, _seconds: None) -> None:
        """`path` is the socket of the process that reads; the connection is made at the first request.

        `on_answer` is called for every answer that was not dropped.
        """
        self._path = path
        self._on_answer = on_answer
        self._socket: socket.socket | None = None
        self._under_way: dict[int, _SentRequest] = {}
        self._numbers = 0
        self._sending = RLock()

    def send(self, request: RemoteRequest) -> RemoteCall:
        """Send a request, whose number is set here.

        Raises KafkaError KAFKA_STORAGE_ERROR while the process is away, or if too many requests wait already.
        """
        if len(self._under_way) >= UNDER_WAY_MAX:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{UNDER_WAY_MAX} requests wait for the lake")
        self._numbers += 1
        number = self._numbers
        answer: AsyncResult[RemoteResponse] = AsyncResult()
        with self._sending:
            # Others may be sending: a frame must not be torn by another's.
            connected = self._connected()
            self._under_way[number] = _SentRequest(answer, request.kind, time.monotonic())
            hangs = TimeoutError("it receives no requests")
            try:
                with gevent.Timeout(_SEND_S_MAX, hangs):
                    connected.sendall(framed(msgspec.structs.replace(request, number=number)))
            except OSError as error:
                self._lose(connected, error)
        return RemoteCall(answer, number, self)

    def forget(self, number: int) -> None:
        """Drop the answer to a request, should it still come."""
        self._under_way.pop(number, None)

    def close(self) -> None:
        """Close the connection; requests under way end with an error."""
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
                pending = self._under_way.pop(answer.number, None)
                if pending is not None:
                    self._on_answer(pending.kind, time.monotonic() - pending.at)
                    pending.answer.set(answer)
        except (OSError, msgspec.MsgspecError) as error:
            self._lose(connected, error)

    def _lose(self, connected: socket.socket, error: Exception) -> None:
        """Close the connection; all requests that wait on it fail."""
        with contextlib.suppress(OSError):
            connected.close()
        if self._socket is not connected:
            return
        self._socket = None
        waiting, self._under_way = self._under_way, {}
        for pending in waiting.values():
            pending.answer.set_exception(_away(error))


def _exactly(connected: socket.socket, size: int) -> bytearray:
    """Receive `size` bytes; raises OSError if the connection ends before."""
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
