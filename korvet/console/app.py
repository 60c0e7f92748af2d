"""The console's endpoints: the function for each request, how many run at once, and the response to an error.

A request holds one of few slots while the broker works on it, never while its answer is sent: neither a Redis that
hangs nor a slow browser delays the probes and /metrics.

The pages load nothing from other sites and run nothing that is written into them: the headers forbid it, and a record
or a name remains text, whatever it contains.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from korvet.admin.errors import AdminError, AnswerTooLargeError, BrokerError
from korvet.admin.offsets import ResetRefusedError
from korvet.config.settings import Settings
from korvet.console import changes, pages, records
from korvet.console.access import Guard
from korvet.console.api_client import ApiClient, ApiClients, BrokerAccess
from korvet.console.http import Answer, Request
from korvet.console.query import BadRequestError, Query, body
from korvet.errors import ErrorCode
from korvet.logs import Log
from korvet.telemetry.process_table import ProcessTable

AT_ONCE = 8
RECORDS_AT_ONCE = 2
_SLOT_SECONDS_MAX = 1.0

HEADERS = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
    ),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""The headers of every answer of the console, pages and data, beside those of the server."""

_WEB = Path(__file__).parent / "web"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_DOCUMENT = "index.html"
_API = "/api/"
_SESSION = "/api/session"

# Errors of the broker by HTTP status; all others are 502.
_STATUS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: HTTPStatus.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: HTTPStatus.NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.OFFSET_OUT_OF_RANGE: HTTPStatus.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: HTTPStatus.CONFLICT,
    ErrorCode.NON_EMPTY_GROUP: HTTPStatus.CONFLICT,
    ErrorCode.UNKNOWN_MEMBER_ID: HTTPStatus.CONFLICT,
    ErrorCode.INVALID_TOPIC_EXCEPTION: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_GROUP_ID: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_PARTITIONS: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_CONFIG: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_REQUEST: HTTPStatus.BAD_REQUEST,
    ErrorCode.POLICY_VIOLATION: HTTPStatus.FORBIDDEN,
    ErrorCode.TOPIC_DELETION_DISABLED: HTTPStatus.FORBIDDEN,
    ErrorCode.REQUEST_TIMED_OUT: HTTPStatus.GATEWAY_TIMEOUT,
}

_log = Log(__name__)


class _Change(NamedTuple):
    """A change: the body of its request, the function that makes it, and its name in the log."""

    body: type[Any]
    make: Callable[[ApiClient, Any], dict[str, Any]]
    name: str


_CHANGES = {
    ("POST", "/api/topics"): _Change(changes.CreateTopic, changes.create_topic, "topic created"),
    ("DELETE", "/api/topics"): _Change(changes.Named, changes.delete_topic, "topic deleted"),
    ("POST", "/api/topics/partitions"): _Change(
        changes.AddPartitions, changes.add_partitions, "partitions added"
    ),
    ("POST", "/api/topics/configs"): _Change(changes.AlterConfigs, changes.alter_configs, "configs altered"),
    ("POST", "/api/groups/offsets"): _Change(changes.ResetOffsets, changes.reset_offsets, "offsets reset"),
    ("DELETE", "/api/groups"): _Change(changes.Named, changes.delete_group, "group deleted"),
}
_Read = Callable[[ApiClient, Query], dict[str, Any]]


class Console:
    """The console of one broker; its processes publish metrics in `directory`.

    `redis` returns what each server of Redis says of itself, `builds` the version and format of each broker by its id;
    neither waits long.
    """

    def __init__(
        self,
        settings: Settings,
        access: BrokerAccess,
        table: ProcessTable,
        directory: Path,
        redis: Callable[[], list[dict[str, Any]]],
        builds: Callable[[], dict[int, dict[str, Any]]],
    ) -> None:
        self._settings = settings
        self._table = table
        self._redis = redis
        self._guard = Guard(settings)
        self._files = read_files()
        self._metrics = metrics = pages.ConsoleMetrics(directory)
        self._clients = clients = ApiClients(access, settings.broker_id)
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._records_slots = threading.BoundedSemaphore(RECORDS_AT_ONCE)
        self._reads: dict[str, _Read] = {
            "/api/cluster": lambda client, _: pages.cluster(
                clients, client, metrics, builds(), is_redis_cluster="+cluster://" in settings.redis_url
            ),
            "/api/topics": lambda client, query: pages.topics(clients, client, metrics, query),
            "/api/topic": lambda client, query: pages.topic(clients, client, metrics, query),
            "/api/groups": lambda client, query: pages.groups(client, metrics, query),
            "/api/group": lambda client, query: pages.group(client, metrics, query),
            "/api/transactions": lambda client, query: pages.transactions(clients, client, query),
            "/api/lake": lambda client, _: pages.lake(client),
        }
        self._records_reads: dict[str, _Read] = {
            "/api/records": records.records,
            "/api/record": records.record,
        }

    def answer(self, request: Request) -> Answer | None:
        """Answer a request for the console; None if the path is not one of its own."""
        for_data = request.path.startswith(_API)
        file = None if for_data else self._files.get(request.path)
        if file is None and not for_data:
            return None
        refusal = self._guard.refuse(request, for_data=for_data)
        if refusal is not None:
            return _as_json(refusal)
        if file is not None:
            allowed = request.method == "GET"
            return file if allowed else _error(HTTPStatus.METHOD_NOT_ALLOWED, "pages are read-only")
        is_change = request.method != "GET" or request.path == _SESSION
        try:
            return self._change(request) if is_change else self._read(request)
        except BadRequestError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        except AdminError as error:
            return _error(_status(error), str(error))

    def _change(self, request: Request) -> Answer:
        """Make a change, if the request has the token; /api/session only checks it."""
        refusal = self._guard.refuse_change(request)
        if refusal is not None:
            return _as_json(refusal)
        if request.path == _SESSION:
            return _data({})
        change = _CHANGES.get((request.method, request.path))
        if change is None:
            return _error(HTTPStatus.NOT_FOUND, "unknown endpoint")
        spec = body(request, change.body)
        answer = self._with_client(self._slots, lambda client: change.make(client, spec), fresh=True)
        if answer.status is HTTPStatus.OK and getattr(spec, "execute", True):
            _log.info(f"{change.name} by the console", name=spec.name, peer=request.peer)
        return answer

    def _read(self, request: Request) -> Answer:
        if request.path == "/api/overview":
            allows_changes = self._guard.allows_changes
            return _data(
                pages.overview(
                    self._settings, self._table, self._metrics, self._redis(), allows_changes=allows_changes
                )
            )
        slots, read = self._slots, self._reads.get(request.path)
        if read is None:
            slots, read = self._records_slots, self._records_reads.get(request.path)
        if read is None:
            return _error(HTTPStatus.NOT_FOUND, "unknown endpoint")
        function, query = read, Query(request.target)
        return self._with_client(slots, lambda client: function(client, query))

    def _with_client(
        self,
        slots: threading.BoundedSemaphore,
        call: Callable[[ApiClient], dict[str, Any]],
        *,
        fresh: bool = False,
    ) -> Answer:
        """Answer with the result of `call`, when a slot is free. Raises AdminError, BadRequestError."""
        if not slots.acquire(timeout=_SLOT_SECONDS_MAX):
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "too many concurrent requests")
        try:
            with self._clients.one(fresh=fresh) as client:
                return _data(call(client))
        finally:
            slots.release()


def read_files() -> Mapping[str, Answer]:
    """Return the pages by path. Raises OSError if the installation is incomplete."""
    files = {
        f"/console/{file.name}": Answer(HTTPStatus.OK, _TYPES[file.suffix], file.read_bytes(), HEADERS)
        for file in _WEB.iterdir()
    }
    return files | dict.fromkeys(("/", "/console"), files[f"/console/{_DOCUMENT}"])


def _status(error: AdminError) -> HTTPStatus:
    if isinstance(error, BrokerError):
        return _STATUS.get(error.code, HTTPStatus.BAD_GATEWAY)
    if isinstance(error, ResetRefusedError):
        return HTTPStatus.CONFLICT
    if isinstance(error, AnswerTooLargeError):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return HTTPStatus.BAD_GATEWAY


def _data(content: dict[str, Any]) -> Answer:
    return Answer(HTTPStatus.OK, "application/json", msgspec.json.encode(content), HEADERS)


def _error(status: HTTPStatus, message: str) -> Answer:
    return Answer(status, "application/json", msgspec.json.encode({"error": message}), HEADERS)


def _as_json(refusal: Answer) -> Answer:
    """Return a refusal in the form in which the pages read errors."""
    answer = _error(refusal.status, refusal.body.decode().strip())
    return answer._replace(headers=(*refusal.headers, *answer.headers))
