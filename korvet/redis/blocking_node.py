"""The client of `client.Redis` for threads that may block, without gevent: Spark's tasks, jobs and queries of the lake.

gevent gives each thread an event loop that it keeps, with two files, until the process ends, so threads that come and
go must not use it. Here a request is sent when it is begun, and its replies are read when they are taken, or before the
next request: so requests to several nodes of a cluster are under way at once. A connection is for one thread at a time;
what an idle one misses, as a failover, it learns with the next request.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Sequence
from typing import cast

from korvet_core import NotRespError, pack_command

from korvet.errors import OutcomeUnknownError, StorageUnavailableError
from korvet.pending import SendOrder
from korvet.redis.connection import (
    MORE,
    READ_BYTES,
    Arg,
    Command,
    NodeLimits,
    Observer,
    configure,
    new_reader,
    reason_of,
    shake_hands,
    tls_context,
    unreachable,
)
from korvet.redis.node import RedisNode
from korvet.redis.replies import ReadOnlyError, Reply, history_of
from korvet.redis.scripts import Script
from korvet.redis.sentinel import named_master
from korvet.redis.slots import REFRESH_S_MIN, SlotMap, parsed_slots
from korvet.redis.url import RedisAddress, RedisTarget


def open_blocking(
    address: RedisAddress, timeout_ms: int, command: tuple[Arg, ...]
) -> tuple[socket.socket, Reply]:
    """Open and authenticate a connection; returns it, and the reply to its first command, which may be an error.

    Raises StorageUnavailableError after `timeout_ms` without an answer.
    """
    opened: socket.socket | None = None
    kept = False
    try:
        opened = _open(address, timeout_ms / 1000)
        if address.tls is not None:
            context = tls_context(address.tls, ssl.SSLContext)
            opened = context.wrap_socket(opened, server_hostname=address.host)
        reply = shake_hands(opened, address, command)
        kept = True
    except TimeoutError as late:
        raise StorageUnavailableError(f"Redis at {address} did not answer within {timeout_ms} ms") from late
    except (OSError, UnicodeError) as error:
        raise unreachable(address, error, connected=opened is not None) from error
    finally:
        if opened is not None and not kept:
            opened.close()
    return opened, reply


def _open(address: RedisAddress, timeout_s: float) -> socket.socket:
    if not address.path:
        opened = socket.create_connection((address.host, address.port), timeout_s)
        configure(opened)
        return opened
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.settimeout(timeout_s)
        opened.connect(address.path)
    except BaseException:
        opened.close()
        raise
    return opened


def _connect_to(target: RedisTarget, timeout_ms: int) -> tuple[socket.socket, str]:
    """Open a connection to the one server of a target, or to the master that a Sentinel names; and its history."""
    if target.kind != "sentinel":
        connected, info = open_blocking(target.addresses[0], timeout_ms, ("INFO", "replication"))
        return connected, history_of(info)
    share_ms = timeout_ms // (len(target.addresses) + 1) + 1
    problems: list[str] = []
    for sentinel in target.addresses:
        command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", target.master_name)
        try:
            asked, reply = open_blocking(sentinel, share_ms, command)
            asked.close()
            master = named_master(target, sentinel, reply)
            connected, info = open_blocking(master, share_ms, ("INFO", "replication"))
        except StorageUnavailableError as error:
            problems.append(error.message)
            continue
        if history := history_of(info):
            return connected, history
        connected.close()
        problems.append(f"the Sentinel at {sentinel} names {master}, which is no master")
    raise StorageUnavailableError(f"no master for {target}: {'; '.join(dict.fromkeys(problems))}")


def is_readable(connected: socket.socket) -> bool:
    """Return whether there is something to read now, or the end."""
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(0))


class _Exchange:
    """A request that was sent; its replies are read in the order of the requests."""

    def __init__(self, node: BlockingNode, count: int, deadline: float) -> None:
        self.count, self.deadline = count, deadline
        self.replies: list[Reply] | None = None
        self.error: StorageUnavailableError | None = None
        self._node = node

    def ready(self) -> bool:
        """Return whether the replies were read, or never will be."""
        return self.replies is not None or self.error is not None

    def get(self) -> Reply:
        """Wait for the replies; returns the one, or all if there are several."""
        self._node.read_until(self)
        if self.error is not None:
            raise self.error.without_frames()
        assert self.replies is not None  # noqa: S101 - they were read, or that has failed
        return self.replies if self.count > 1 else self.replies[0]


class BlockingNode(RedisNode):
    """One server of Redis over one connection of a thread."""

    _socket: socket.socket | None = None

    def __init__(
        self,
        target: RedisTarget,
        limits: NodeLimits,
        observer: Observer,
        operation: str,
        order: SendOrder,
        load: Sequence[Script],
        *,
        fails_fast: bool,
    ) -> None:
        super().__init__(target, limits, observer, operation, order, load, fails_fast=fails_fast)
        self._sent: _Exchange | None = None
        self._reader = new_reader()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._socket is not None

    @property
    def ready(self) -> bool:
        """Whether a request is sent at once."""
        return self.connected

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return self._sent is not None

    def connect(self) -> str:
        """Connect if there is no connection, and return the history to which it leads."""
        self._opened()
        return self.history

    def reconnect_soon(self) -> None:
        """Do nothing: the next request tries to connect."""

    def reconnect(self, reason: str) -> None:
        """Close the connection, and open another one for the next request; what is in flight fails with `reason`."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        message = f"the connection to Redis at {self.name} was lost: {reason}; the outcome of the request is unknown"
        if self._sent is not None:
            self._sent.error = OutcomeUnknownError(message)
            self._sent = None

    def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        self.reconnect("closed by this program")

    def read_until(self, wanted: _Exchange) -> None:
        """Read the replies of the request that was sent, unless they were read or the connection is lost."""
        if wanted.ready():
            return
        try:
            wanted.replies = [self._reply(wanted.deadline) for _ in range(wanted.count)]
        except TimeoutError:
            self.reconnect(f"it did not answer within {round(self._timeout_s * 1000)} ms")
        except OSError as error:
            self.reconnect(reason_of(error))
        except NotRespError as error:
            self.reconnect(f"it sent what is not RESP: {error}")
        except MemoryError:
            self.reconnect("there is no memory for what it sent")
        else:
            self._sent = None
            if any(isinstance(each, ReadOnlyError) for each in wanted.replies):
                # Its address may lead to the master by now.
                self.reconnect("the server is a read-only replica")

    def _reply(self, deadline: float) -> Reply:
        assert self._socket is not None  # noqa: S101 - something is in flight
        while (reply := self._reader.next_reply(MORE)) is MORE:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._reader.feed(data)
        return cast("Reply", reply)

    def _opened(self) -> socket.socket:
        if self._closed:
            raise StorageUnavailableError(f"the connection to Redis at {self._target} is closed")
        if self._socket is not None and is_readable(self._socket):
            # Nothing is due: that is its end, which came while the connection was idle.
            self.reconnect("it closed the connection")
        if self._socket is not None:
            return self._socket
        if time.monotonic() < self._not_before:
            raise StorageUnavailableError(self._refusal)
        try:
            self._socket, self.history = _connect_to(self._target, self._connect_timeout_ms)
        except StorageUnavailableError as error:
            self._refusal = error.message
            self._not_before = time.monotonic() + self._backoff.next_s()
            raise
        self._backoff.reset()
        self._refusal = ""
        self._reader = new_reader()
        if self.connections:
            self.reconnected_at = time.monotonic()
        self.connections += 1
        self.connected_at = time.monotonic()
        return self._socket

    def _begin(
        self,
        commands: Sequence[Command],
        operation: str,  # noqa: ARG002 - nobody observes
        history: str | None = None,
        reply_bytes: int = 0,  # noqa: ARG002 - a thread has one request under way
    ) -> _Exchange:
        data = b"".join(map(pack_command, commands))
        if self._sent is not None:
            # While both ends only write neither reads.
            self.read_until(self._sent)
        connected = self._opened()
        self.check_history(history)
        exchange = self._sent = _Exchange(self, len(commands), time.monotonic() + self._timeout_s)
        try:
            connected.settimeout(self._timeout_s)
            connected.sendall(data)
        except OSError as error:
            self.reconnect(reason_of(error))
        return exchange


class BlockingSlotMap(SlotMap):
    """The map of a cluster, read when it is needed: nothing runs beside the thread that needs it."""

    _stale = False

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def read_soon(self) -> None:
        """Read the map before it is used again."""
        self._stale = True

    def master_of(self, slot: int) -> RedisAddress:
        """Return the master of a slot; raises StorageUnavailableError if there is none."""
        self._read_if_stale()
        return super().master_of(slot)

    def masters(self) -> dict[RedisAddress, tuple[int, int]]:
        """Return the masters that have slots, each with its lowest and its highest."""
        self._read_if_stale()
        return super().masters()

    def read(self) -> None:
        """Read the map of the first node that gives it; raises StorageUnavailableError if none does."""
        failure = StorageUnavailableError("the Redis cluster has no node")
        for address in self._candidates():
            try:
                connected, reply = open_blocking(address, self._timeout_ms, ("CLUSTER", "SLOTS"))
                connected.close()
                self._take(parsed_slots(self._target, address, reply))
            except StorageUnavailableError as error:
                failure = error
                continue
            self._stale = False
            return
        raise failure

    def _read_later(self) -> None:
        self._stale = True

    def _read_if_stale(self) -> None:
        if self._stale and time.monotonic() - self._read_at >= REFRESH_S_MIN:
            self._read_at = time.monotonic()
            self.read()
