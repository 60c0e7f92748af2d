"""The process of a broker that reads the lake for its workers: `python -m korvet.lake.service FD` (see child).

What blocks or takes long blocks a thread here and no worker. It ends with the supervisor.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import socketserver
import struct
import sys
import threading
import time
from pathlib import Path

import msgspec

from korvet import logs
from korvet.errors import LakeError
from korvet.lake.child import ChildConfig
from korvet.lake.reader import LakeReader
from korvet.lake.table import Lake
from korvet.log.remote.client import FRAME_BYTES_MAX, LENGTH, RemoteRequest, RemoteResponse, framed

THREADS = 4
"""Requests that are answered at once, each thread with tables and row groups of its own."""

STORE_BOUNDS = {"connect_timeout": "5s", "timeout": "10s", "max_retries": "3", "retry_timeout": "15s"}
"""How long an object store may take, unless lake.storage.options say: by default it would be minutes, in which a store
that hangs keeps all threads waiting, and every consumer waits for a thread."""

SEND_SECONDS_MAX = 5
"""How long a response may wait for a worker to read it: threads must be free for others."""

_log = logs.Log(__name__)
_rate_limited_log = logs.RateLimitedLogger(_log, pause_seconds=60)
"""A file that is missing fails each fetch of its records, which consumers repeat until somebody restores it."""


class _Peer(socketserver.StreamRequestHandler):
    """A worker's connection; responses of several threads go to it whole, one after the other."""

    server: _RequestServer

    def setup(self) -> None:
        super().setup()
        # For sending only: workers may have no request for long.
        limit = struct.pack("@ll", SEND_SECONDS_MAX, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._sending = threading.Lock()

    def handle(self) -> None:
        """Queue a worker's requests until it closes the connection."""
        decoder = msgspec.msgpack.Decoder(RemoteRequest)
        # A worker that dies with responses on their way resets the connection.
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            while len(head := self.rfile.read(LENGTH.size)) == LENGTH.size:
                (length,) = LENGTH.unpack(head)
                body = self.rfile.read(length) if length <= FRAME_BYTES_MAX else b""
                self.server.work.put((self, decoder.decode(body)))

    def send(self, response: RemoteResponse) -> None:
        try:
            with self._sending:
                self.connection.sendall(framed(response))
        except OSError:
            # The worker is gone, or it hangs: this ends the thread that reads from it.
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


class _RequestServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)
        self.work: queue.SimpleQueue[tuple[_Peer, RemoteRequest]] = queue.SimpleQueue()
        super().__init__(path, _Peer)


def main() -> None:
    """Serve until the supervisor is gone, or SIGTERM."""
    configuration = ChildConfig.read(int(sys.argv[1]))
    settings = configuration.settings
    logs.configure(settings, "lake")
    lake = Lake.of(settings.lake_path, settings.lake_storage_options)
    if "://" in lake.path:
        lake = lake._replace(storage_options=STORE_BOUNDS | (lake.storage_options or {}))
    threading.Thread(target=_end_with_supervisor, args=(configuration,), daemon=True).start()
    with _RequestServer(configuration.path) as listener:
        for _ in range(THREADS):
            threading.Thread(target=_answer, args=(LakeReader(lake), listener), daemon=True).start()
        configuration.report_ready()
        listener.serve_forever(poll_interval=3600)


def _answer(reader: LakeReader, listener: _RequestServer) -> None:
    while True:
        peer, request = listener.work.get()
        try:
            response = reader.answer(_in_time(request))
        except LakeError as error:
            _rate_limited_log.warning(request.topic_id, "the lake cannot be read", reason=error)
            response = RemoteResponse(request.number, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary of a thread: the worker gets the error, and it goes on
            _log.exception("a request failed")
            response = RemoteResponse(request.number, f"{type(error).__name__}: {error}")
        peer.send(response)


def _in_time(request: RemoteRequest) -> RemoteRequest:
    """Return a request that somebody still waits for; raises LakeError for another one."""
    if time.monotonic() > request.until:
        raise LakeError("the request timed out in the queue of the lake's reader")
    return request


def _end_with_supervisor(configuration: ChildConfig) -> None:
    configuration.wait_for_end_of_supervisor()
    os._exit(0)


if __name__ == "__main__":
    main()
