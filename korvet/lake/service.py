"""The process of a broker that reads the lake for its workers: `python -m korvet.lake.service FD`.

It is started as a new program, not forked, for neither deltalake nor Arrow survives a fork; the descriptor FD holds its
configuration as JSON. What blocks or takes long blocks a thread here and no worker. It ends with the supervisor.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from korvet import logs
from korvet.config.settings import Settings
from korvet.errors import LakeError
from korvet.lake.files import StorageOptions
from korvet.lake.reader import LakeReader, ReadLimits, ReadPosition
from korvet.lake.table import LakeTopic
from korvet.log.remote.client import FRAME_BYTES_MAX, LENGTH, RemoteRequest, RemoteResponse, framed

THREADS = 4
"""Requests that are answered at once, each thread with tables and row groups of its own."""

STORE_BOUNDS = {"connect_timeout": "5s", "timeout": "10s", "max_retries": "3", "retry_timeout": "15s"}
"""How long an object store may take, unless lake.storage.options say: by default it would be minutes, in which a store
that hangs keeps all threads waiting, and every consumer waits for a thread."""

SEND_SECONDS_MAX = 5
"""How long a response may wait for a worker to read it: threads must be free for others."""

_log = logs.Log(__name__)


class ReaderProcessConfig(msgspec.Struct, frozen=True):
    """The configuration of the process.

    It writes `ready` to `note_fd` once it listens on `socket`, and ends once `life_fd` reads end-of-file.
    """

    lake: str
    storage_options: StorageOptions
    socket: str
    life_fd: int
    note_fd: int
    ready: bytes
    log_format: Literal["text", "json"]
    log_level: Literal["debug", "info", "warning", "error"]


class _Peer:
    """A worker's connection; responses of several threads go to it whole, one after the other."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        # For sending only: workers may have no request for long.
        limit = struct.pack("@ll", SEND_SECONDS_MAX, 0)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._sending = threading.Lock()

    def frames(self) -> BinaryIO:
        return self._socket.makefile("rb")

    def send(self, response: RemoteResponse) -> None:
        data = framed(response)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError:
            self.close()  # the worker is gone, or it hangs

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Ends the thread that reads from it.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


Work = tuple[_Peer, RemoteRequest]


def main() -> None:
    """Serve until the supervisor is gone, or SIGTERM."""
    with os.fdopen(int(sys.argv[1]), "rb") as given:
        configuration = msgspec.json.decode(given.read(), type=ReaderProcessConfig)
    logs.configure(Settings(log_format=configuration.log_format, log_level=configuration.log_level), "lake")
    work: queue.SimpleQueue[Work] = queue.SimpleQueue()
    options = configuration.storage_options
    if "://" in configuration.lake:
        options = STORE_BOUNDS | (options or {})
    for _ in range(THREADS):
        reader = LakeReader(configuration.lake, options)
        threading.Thread(target=_answer, args=(reader, work), daemon=True).start()
    threading.Thread(target=_end_with_parent, args=(configuration.life_fd,), daemon=True).start()
    path = Path(configuration.socket)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        os.write(configuration.note_fd, configuration.ready)
        while True:
            connected, _ = listener.accept()
            threading.Thread(target=_receive, args=(_Peer(connected), work), daemon=True).start()


def _receive(peer: _Peer, work: queue.SimpleQueue[Work]) -> None:
    """Queue a worker's requests until it closes the connection."""
    decoder = msgspec.msgpack.Decoder(RemoteRequest)
    # A worker that dies with responses on their way resets the connection.
    with contextlib.suppress(OSError), peer.frames() as frames:
        while len(head := frames.read(LENGTH.size)) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            body = frames.read(length) if length <= FRAME_BYTES_MAX else b""
            try:
                work.put((peer, decoder.decode(body)))
            except msgspec.MsgspecError:
                break
    peer.close()


def _answer(reader: LakeReader, work: queue.SimpleQueue[Work]) -> None:
    while True:
        peer, request = work.get()
        try:
            response = _read(reader, request)
        except LakeError as error:
            _log.warning("the lake cannot be read", reason=error)
            response = RemoteResponse(request.number, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary of a thread: the worker gets the error, and it goes on
            _log.exception("a request failed")
            response = RemoteResponse(request.number, f"{type(error).__name__}: {error}")
        peer.send(response)


def _read(reader: LakeReader, request: RemoteRequest) -> RemoteResponse:
    if time.monotonic() > request.until:
        raise LakeError("the request timed out in the queue of the lake's reader")
    of = LakeTopic(request.topic, request.topic_id)
    place = ReadPosition(of, request.partition, request.offset, request.archived)
    if request.kind == "read":
        limits = ReadLimits(request.bytes_max, request.at_least_one, request.codec, request.leader_epoch)
        found = reader.read(place, limits)
        return RemoteResponse(
            request.number,
            data=found.data,
            record_count=found.record_count,
            next_offset=found.next_offset,
            more=found.more,
        )
    by_time = request.kind == "first_from"
    offset, timestamp = (
        reader.first_from(place, request.timestamp) if by_time else reader.largest(place)
    ) or (-1, -1)
    return RemoteResponse(request.number, offset=offset, timestamp=timestamp)


def _end_with_parent(life_fd: int) -> None:
    """Exit with the supervisor: nobody writes to the pipe, so reading it returns when its other end is gone."""
    os.read(life_fd, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
