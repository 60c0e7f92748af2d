"""The ops process: /healthz, /readyz, /metrics and the console, apart from workers: their load does not delay it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import redis
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.console.access import AllowedHosts
from korvet.console.app import Console
from korvet.console.http import Answer, HttpServer, Request, plain
from korvet.redis import blocking
from korvet.server.supervisor.child import SupervisorLink
from korvet.telemetry import page as metrics_page
from korvet.telemetry.process_table import ProcessState, ProcessTable
from korvet.telemetry.redis_metrics import redis_state

PROBES = ("/healthz", "/readyz")


class Ops:
    """Answers requests for the three pages and the console; `broker` is where the workers listen."""

    def __init__(
        self, settings: Settings, table: ProcessTable, metrics_directory: Path, broker: Address
    ) -> None:
        self._settings = settings
        self._table = table
        self._supervisor = os.getppid()
        # Its pool opens a connection at the first page that needs one, and makes a new one for a lost one.
        self._redis = blocking.connect(metrics_page.hurried(settings))
        self._registry = metrics_page.registry(settings, table, metrics_directory)
        self._hosts = AllowedHosts(settings)
        self.pages: dict[str, Callable[[], Answer]] = {
            "/healthz": self.health,
            "/readyz": self.readiness,
            "/metrics": self.metrics,
        }
        self._console = None
        if settings.console_enable:
            self._console = Console(settings, broker, table, metrics_directory, self._redis_state)

    def answer(self, request: Request) -> Answer:
        """Answer any request; probes by any name, since kubelet asks by the pod's address and balancers by theirs."""
        refusal = None if request.path in PROBES else self._hosts.refuse(request)
        if refusal is not None:
            return refusal
        page = self.pages.get(request.path)
        if page is None:
            shown = self._console.answer(request) if self._console else None
            paths = [*(["/"] if self._console else []), *self.pages]
            return shown or plain(HTTPStatus.NOT_FOUND, f"the pages are {', '.join(paths)}")
        if request.method != "GET":
            return plain(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{request.path} is only read", ("Allow", "GET, HEAD")
            )
        return page()

    def health(self) -> Answer:
        """Say whether the supervisor lives."""
        alive = os.getppid() == self._supervisor
        return _json(alive, {"status": "ok" if alive else "the supervisor is gone"})

    def readiness(self) -> Answer:
        """Say whether clients are served: a worker accepts, Redis answers, and the broker is not draining."""
        workers = self._table.workers()
        counts = {
            state.name.lower(): sum(row.state is state for row in workers) for state in ProcessState if state
        }
        redis_says = self._ping()
        draining = self._table.draining
        ready = counts["accepting"] > 0 and redis_says == "ok" and not draining
        return _json(ready, {"ready": ready, "draining": draining, "workers": counts, "redis": redis_says})

    def metrics(self) -> Answer:
        """Return the metrics of all processes in Prometheus' text format."""
        return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry))

    def _redis_state(self) -> dict[str, Any] | None:
        return redis_state(self._redis, metrics_page.replicas_wanted(self._settings))

    def _ping(self) -> str:
        try:
            self._redis.ping()
        except redis.RedisError as error:
            return blocking.one_line(error)
        return "ok"


def main(
    settings: Settings,
    link: SupervisorLink,
    listener: socket.socket,
    metrics_directory: Path,
    broker: Address,
) -> None:
    """Serve until SIGTERM or the end of the supervisor; runs in a child that was forked for it.

    `broker` is where the workers listen.
    """
    ops = Ops(settings, link.table, metrics_directory, broker)
    server = HttpServer(listener, ops.answer)
    sigterm_fd, wakeup_fd = os.pipe()
    os.set_blocking(wakeup_fd, False)
    signal.set_wakeup_fd(wakeup_fd)
    signal.signal(signal.SIGTERM, lambda *_: None)
    link.report_ready()
    poll = select.poll()
    for fd in (listener.fileno(), link.life_fd, sigterm_fd):
        poll.register(fd, select.POLLIN)
    while not {link.life_fd, sigterm_fd} & {fd for fd, _ in poll.poll()}:
        server.handle_request()


def _json(good: bool, content: dict[str, object]) -> Answer:  # noqa: FBT001 - what decides the status
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(status, "application/json", json.dumps(content).encode() + b"\n")
