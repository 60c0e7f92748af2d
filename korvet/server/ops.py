"""The ops process: /healthz, /readyz and /metrics over HTTP, apart from the workers so that it answers without them.

Knows HTTP, the scoreboard and the metrics' files; nothing of Kafka. A peer may be anybody who reaches the port: one
request per connection, a head of bounded size read in bounded time, no bodies, a bounded number of connections.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

import korvet
from korvet.config import Settings
from korvet.server import redis_check
from korvet.server.figures_file import LogCollector
from korvet.server.scoreboard import Scoreboard, State
from korvet.server.slot import ChildSlot

_HEAD_BYTES_MAX = 8 * 1024
_HEAD_SECONDS_MAX = 5.0
_CONNECTIONS_MAX = 64
_HEAD_ENDS = (b"\r\n\r\n", b"\n\n")


class Answer(NamedTuple):
    """One response."""

    status: HTTPStatus
    content_type: str
    body: bytes


class Ops:
    """What the three pages say."""

    def __init__(self, settings: Settings, scoreboard: Scoreboard, metrics_directory: Path) -> None:
        self._scoreboard = scoreboard
        self._supervisor = os.getppid()
        # Its pool opens a connection at the first page that needs one, and makes a new one for a lost one.
        self._redis = redis_check.connect(settings)
        self._registry = CollectorRegistry()
        MultiProcessCollector(self._registry, str(metrics_directory))  # type: ignore[no-untyped-call]  # untyped there
        self._registry.register(OwnMetrics(scoreboard))
        self._registry.register(LogCollector(metrics_directory))
        self.pages: dict[str, Callable[[], Answer]] = {
            "/healthz": self.health,
            "/readyz": self.readiness,
            "/metrics": self.metrics,
        }

    def health(self) -> Answer:
        """Say whether the supervisor lives."""
        alive = os.getppid() == self._supervisor
        return _json(alive, {"status": "ok" if alive else "the supervisor is gone"})

    def readiness(self) -> Answer:
        """Say whether clients are served: a worker accepts, Redis answers, and nobody is draining."""
        workers = self._scoreboard.workers()
        counts = {state.name.lower(): sum(row.state is state for row in workers) for state in State if state}
        redis_says = self._ping()
        draining = self._scoreboard.draining
        ready = counts["accepting"] > 0 and redis_says == "ok" and not draining
        return _json(ready, {"ready": ready, "draining": draining, "workers": counts, "redis": redis_says})

    def metrics(self) -> Answer:
        """Return the metrics of all processes in Prometheus' text format."""
        return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry))

    def _ping(self) -> str:
        try:
            self._redis.ping()
        except redis.RedisError as error:
            return redis_check.one_line(error)
        return "ok"


class OwnMetrics(Collector):
    """What no process counts by itself."""

    def __init__(self, scoreboard: Scoreboard) -> None:
        self._scoreboard = scoreboard

    def collect(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        """Return restarts, workers by state and the build."""
        restarts = CounterMetricFamily(
            "korvet_child_restarts", "Processes started in the place of one that died."
        )
        restarts.add_metric([], self._scoreboard.restarts)
        workers = GaugeMetricFamily("korvet_workers", "Worker slots by state.", labels=["state"])
        rows = self._scoreboard.workers()
        for state in (State.STARTING, State.ACCEPTING, State.DRAINING):
            workers.add_metric([state.name.lower()], sum(row.state is state for row in rows))
        build = GaugeMetricFamily("korvet_build_info", "Always 1; the version.", labels=["version"])
        build.add_metric([korvet.__version__], 1)
        return [restarts, workers, build]


class _Server(ThreadingHTTPServer):
    """Serves one listening socket that the supervisor made, with a thread per connection and not too many of them."""

    daemon_threads = True
    # Each call takes a connection that is there; the wait for one is the process's own select.
    timeout = 0

    def __init__(self, listener: socket.socket, ops: Ops) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.ops = ops
        self._room = threading.BoundedSemaphore(_CONNECTIONS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base class's types
        """Take a connection, or close it at once when there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Serve one connection in a thread of its own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Let a peer that went away be: there is nobody left to tell."""


class _Handler(BaseHTTPRequestHandler):
    """One request: its head is read here, whole and bounded, before the base class parses it."""

    server: _Server
    server_version = "korvet"
    sys_version = ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(message)s: %(explain)s\n"

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(io.BytesIO(self._read_head()))

    def _read_head(self) -> bytes:
        """Return the request up to its empty line; a longer or a slower one is cut, and so refused."""
        deadline = time.monotonic() + _HEAD_SECONDS_MAX
        head = b""
        while not any(end in head for end in _HEAD_ENDS) and len(head) < _HEAD_BYTES_MAX:
            left = deadline - time.monotonic()
            if left <= 0:
                return b""
            self.connection.settimeout(left)
            try:
                block = self.connection.recv(_HEAD_BYTES_MAX)
            except TimeoutError:
                return b""
            if not block:
                return b""
            head += block
        self.connection.settimeout(_HEAD_SECONDS_MAX)
        self.too_long = not any(end in head[:_HEAD_BYTES_MAX] for end in _HEAD_ENDS)
        return head[:_HEAD_BYTES_MAX]

    def parse_request(self) -> bool:
        """Refuse a head that was cut before the base class makes sense of the half."""
        if self.too_long:
            self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return False
        return super().parse_request()

    def do_GET(self) -> None:
        """Answer a page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer a page without its body."""
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the base class's signature
        """Log nothing: probes come every second, and their outcome is in the response."""

    def _answer(self, *, with_body: bool) -> None:
        page = self.server.ops.pages.get(self.path.partition("?")[0])
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"the pages are {', '.join(self.server.ops.pages)}")
            return
        answer = page()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)


def main(settings: Settings, slot: ChildSlot, listener: socket.socket, metrics_directory: Path) -> None:
    """Serve until SIGTERM or the end of the supervisor; runs in a child that was forked for it."""
    server = _Server(listener, Ops(settings, slot.scoreboard, metrics_directory))
    told_to_end, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGTERM, lambda *_: None)
    slot.ready()
    poll = select.poll()
    for fd in (listener.fileno(), slot.life_fd, told_to_end):
        poll.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if slot.life_fd in ready or told_to_end in ready:
            return
        server.handle_request()


def _json(good: bool, content: dict[str, object]) -> Answer:  # noqa: FBT001 - what the status hangs on
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(status, "application/json", json.dumps(content).encode() + b"\n")
