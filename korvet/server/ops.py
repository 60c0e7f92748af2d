"""The ops process: /healthz, /readyz, /metrics and the console, apart from workers: their load does not delay it."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import signal
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import msgspec
import redis
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from korvet.admin.security import PLAINTEXT, from_configs, read_properties
from korvet.cluster.registration import BrokerRow
from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.console.access import AllowedHosts, Guard
from korvet.console.api_client import BrokerAccess
from korvet.console.app import Console
from korvet.console.http import Answer, HttpServer, Request, plain
from korvet.errors import ConfigError
from korvet.logs import Log
from korvet.redis import blocking
from korvet.redis.keys import Keys
from korvet.security import audit
from korvet.security.session import Session
from korvet.security.tls import OPS, ListenerTls, ops_tls
from korvet.server import refusals
from korvet.server.supervisor.child import SupervisorLink
from korvet.server.supervisor.ports import Bound
from korvet.server.supervisor.redis_check import cluster_info, in_effect
from korvet.telemetry import metrics
from korvet.telemetry import page as metrics_page
from korvet.telemetry.process_table import ProcessState, ProcessTable
from korvet.telemetry.redis_metrics import redis_state

PROBES = ("/healthz", "/readyz")
# A broker that listens on all addresses is reached at the loopback one.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - an address to connect to

_WORKER_STATES = (ProcessState.STARTING, ProcessState.ACCEPTING, ProcessState.DRAINING, ProcessState.DEAD)

_MECHANISM = "token"
"""What stands for the mechanism of a login, in the metric and in the audit log."""

_log = Log(__name__)


class Ops:
    """Answers requests for the three pages and the console."""

    def __init__(
        self,
        settings: Settings,
        table: ProcessTable,
        metrics_directory: Path,
        listeners: Sequence[Bound],
        data_dir: Path | None,
    ) -> None:
        """`data_dir` is the directory of the embedded server."""
        self._settings = settings
        self._data_dir = data_dir
        self._table = table
        self._supervisor = os.getppid()
        # The pools open a connection at the first page that needs one, and make a new one for a lost one.
        self._masters = blocking.Masters(metrics_page.hurried(settings))
        self._registry = metrics_page.registry(settings, table, metrics_directory)
        self._hosts = AllowedHosts(settings)
        self._guard = Guard(settings)
        self.pages: dict[str, Callable[[], Answer]] = {
            "/healthz": self.health,
            "/readyz": self.readiness,
            "/metrics": self.metrics,
        }
        self._console = None
        if settings.console_enable:
            access = broker_access(settings, listeners)
            if access.problem:
                _log.error("the console cannot connect to its broker", reason=access.problem)
            self._console = Console(
                settings, access, table, metrics_directory, self._redis_state, self._builds
            )

    def answer(self, request: Request) -> Answer:
        """Answer any request; one with a wrong token is a login that was refused."""
        answer = self._answer(request)
        if answer.status is HTTPStatus.UNAUTHORIZED and "authorization" in request.headers:
            metrics.AUTHENTICATIONS.labels(OPS, _MECHANISM, "refused").inc()
            session = Session(request.peer, OPS)
            audit.refused(session, "authentication refused", mechanism=_MECHANISM, path=request.path)
        return answer

    def _answer(self, request: Request) -> Answer:
        # Probes by any name, since kubelet asks by the pod's address and balancers by theirs.
        if request.path not in PROBES:
            refusal = self._hosts.refuse(request) or self._guard.refuse_read(request)
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
        alive = os.getppid() == self._supervisor
        return _json(alive, {"status": "ok" if alive else "the supervisor is gone"})

    def readiness(self) -> Answer:
        """Say whether clients are served: a worker accepts, Redis answers, and the broker is not draining.

        Of a cluster one master is enough, if it takes the cluster for up; the others are named. A broker that refuses
        producers is ready all the same, for consumers are served; `producers` says why it refuses them.
        """
        workers = self._table.workers()
        counts = {state.name.lower(): sum(row.state is state for row in workers) for state in _WORKER_STATES}
        infos = self._ask()
        says = {node: said for node, (said, _) in infos.items()}
        # As a broker of Kafka is with some partitions offline.
        answers = any(say == "ok" for say in says.values())
        away = [f"{node}: {item}" if node else item for node, item in says.items() if item != "ok"]
        draining = self._table.draining
        ready = counts["accepting"] > 0 and answers and not draining
        refused = away + self._refusals({node: info for node, (said, info) in infos.items() if said == "ok"})
        content = {"ready": ready, "draining": draining, "workers": counts, "redis": "; ".join(away) or "ok"}
        content["producers"] = f"refused: {'; '.join(refused)}" if refused else "ok"
        return _json(ready, content)

    def metrics(self) -> Answer:
        return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry))

    def _redis_state(self) -> list[dict[str, Any]]:
        return redis_state(self._masters, self._settings.replicas_wanted)

    def _builds(self) -> dict[int, dict[str, Any]]:
        """Return the version and format of each registered broker by its id; nothing if Redis does not answer."""
        key = Keys(self._settings.namespace).brokers
        builds = {}
        with contextlib.suppress(redis.RedisError):
            for broker, text in cast("dict[bytes, bytes]", self._masters.of(key).hgetall(key)).items():
                with contextlib.suppress(ValueError, msgspec.DecodeError):
                    row = msgspec.json.decode(text, type=BrokerRow)
                    builds[int(broker)] = {"version": row.version, "format": row.format}
        return builds

    def _ask(self) -> dict[str, tuple[str, refusals.Fields]]:
        """Return "ok" or what is wrong, and the fields of INFO, by the name of the node."""

        def ask(client: redis.Redis) -> tuple[str, refusals.Fields]:
            client.ping()
            info = refusals.info_of(client)
            if not self._masters.is_cluster:
                return "ok", info
            # A node of a cluster that is down answers PING, and refuses every key.
            state = cluster_info(client).get("cluster_state", "ok")
            return state if state == "ok" else f"the cluster is down (cluster_state {state})", info

        try:
            answers = self._masters.each(ask)
        except redis.RedisError as error:
            answers = {"": error}
        return {
            node: (blocking.one_line(answer), {}) if isinstance(answer, redis.RedisError) else answer
            for node, answer in answers.items()
        }

    def _refusals(self, infos: Mapping[str, refusals.Fields]) -> list[str]:
        """Return why servers that answer refuse producers, by the settings as clients have altered them."""
        settings, key = self._settings, Keys(self._settings.namespace).broker_configs
        reasons: list[str] = []
        with contextlib.suppress(redis.RedisError, ConfigError):
            if self._masters.name_of(key) in infos:
                settings = in_effect(self._masters, settings)
        for node, info in infos.items():
            with contextlib.suppress(OSError):
                reasons += refusals.by_server(info, settings, node or "Redis", self._data_dir)
        return reasons


def broker_access(settings: Settings, listeners: Sequence[Bound]) -> BrokerAccess:
    """Return how the console connects: by a listener with the protocol of `console.client.config`, or with PLAINTEXT.

    A loopback address comes first; the certificate is that of the advertised address all the same.
    """
    first, security = listeners[0].address, PLAINTEXT
    if settings.console_client_config:
        try:
            security = from_configs(read_properties(Path(settings.console_client_config)))
        except ValueError as error:
            return BrokerAccess(first, problem=f"console.client.config: {error}")
    fitting = [
        listener for listener in listeners if settings.security_protocol(listener.name) == security.protocol
    ]
    if not fitting:
        login = "it connects by a listener that is, or as console.client.config says"
        if settings.console_client_config:
            login = f"console.client.config {settings.console_client_config} has this security.protocol"
        return BrokerAccess(first, problem=f"no listener is {security.protocol}: {login}")
    chosen = min(fitting, key=lambda item: not _is_loopback(item.address.host))
    host = _WILDCARDS.get(chosen.address.host, chosen.address.host)
    security = msgspec.structs.replace(security, server_name=chosen.advertised.host)
    return BrokerAccess(Address(host, chosen.address.port), security)


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(_WILDCARDS.get(host, host)).is_loopback


def main(
    settings: Settings,
    link: SupervisorLink,
    listener: socket.socket,
    metrics_directory: Path,
    listeners: Sequence[Bound],
    data_dir: Path | None,
) -> None:
    """Serve until SIGTERM or the end of the supervisor; runs in a child that was forked for it.

    `listeners` are those of the workers, `data_dir` is the directory of the embedded server.
    """
    ops = Ops(settings, link.table, metrics_directory, listeners, data_dir)
    tls = ops_tls(settings)
    server = HttpServer(listener, ops.answer, partial(_context, tls) if tls else None)
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


def _context(tls: ListenerTls) -> ssl.SSLContext:
    tls.refresh()
    return tls.context


def _json(good: bool, content: dict[str, object]) -> Answer:  # noqa: FBT001 - what decides the status
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(status, "application/json", json.dumps(content).encode() + b"\n")
