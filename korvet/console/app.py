"""Which request of the console is answered by whom, how many at once, and what an error becomes.

Knows paths, methods and statuses. A request holds a place of few while the broker is asked, never while its answer is
sent: neither a Redis that hangs nor a slow browser keeps the probes and /metrics from being answered.

Who may ask the console: by a name that is this machine's, from the console's own pages, with the token for changes.

A browser takes part in everything that its user can reach. So a page of somebody else must not be able to ask: neither
under a name of its own that it lets point here (DNS rebinding), which the Host header tells, nor across sites, which
browsers tell by Sec-Fetch-Site and Origin. Nothing is known of a browser that it would send by itself: no cookies.

The pages of the console as they are sent: what lies in web/, read once, and the headers that bound what it can do.

Knows files and headers; nothing of brokers. The pages take nothing from elsewhere and run nothing that is written into
them: what somebody put into a record or a name stays text, whatever it looks like.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from korvet.admin.connection import Address as BrokerAddress
from korvet.admin.errors import (
    AdminError,
    AnswerTooLargeError,
    BadAnswerError,
    BrokerError,
    ConnectionFailedError,
    UnsupportedError,
)
from korvet.admin.reset import ResetRefusedError
from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.console import changes, query, records
from korvet.console import pages as groups
from korvet.console import pages as lake
from korvet.console import pages as overview
from korvet.console import pages as topics
from korvet.console.api_client import ApiClient, ApiClients, NoTokenError, read_token
from korvet.console.http import Answer, Request, plain
from korvet.console.pages import ConsoleMetrics
from korvet.console.query import BadRequestError, Query
from korvet.errors import ErrorCode
from korvet.logs import Log
from korvet.telemetry.process_table import ProcessTable

_OWN_SITES = {"same-origin", "none"}

_log = Log(__name__)


class Guard:
    """The rules for one broker's console."""

    def __init__(self, settings: Settings) -> None:
        self._any_host = settings.console_hosts == "*"
        own = socket.gethostname().lower()
        given = (each.strip().lower() for each in settings.console_hosts.split(",") if each)
        self._hosts = {"localhost", own, own.partition(".")[0], *given}
        self._token_file = settings.console_token_file

    @property
    def takes_changes(self) -> bool:
        """Whether there is a token by which changes could be made."""
        return bool(self._token_file)

    def refusal(self, request: Request, *, asks_for_data: bool) -> Answer | None:
        """Return the answer to who may not ask; None for others. A page may be led to from anywhere, data may not."""
        host = request.headers.get("host", "")
        if not self._is_own(host):
            message = "the console is not called so: console.hosts names what it is called"
            return plain(HTTPStatus.MISDIRECTED_REQUEST, message)
        if not asks_for_data:
            return None
        origin = request.headers.get("origin")
        foreign = origin is not None and _netloc(origin) != host.lower()
        if foreign or request.headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            return plain(HTTPStatus.FORBIDDEN, "only the console's own pages may ask")
        return None

    def refusal_of_change(self, request: Request) -> Answer | None:
        """Return the answer to who may not change anything; None for who has the token. It is read anew each time."""
        if not self._token_file:
            return plain(HTTPStatus.NOT_FOUND, "console.token.file is not set: nothing is changed here")
        try:
            token = read_token(Path(self._token_file))
        except NoTokenError as problem:
            _log.error("console.token.file holds no token", reason=problem)
            return plain(
                HTTPStatus.SERVICE_UNAVAILABLE, "console.token.file holds no token; the log says why"
            )
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Headers are read as Latin-1, whatever was sent.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), token):
            return plain(
                HTTPStatus.UNAUTHORIZED,
                "changes take the token of console.token.file",
                ("WWW-Authenticate", "Bearer"),
            )
        return None

    def _is_own(self, host: str) -> bool:
        """Tell whether a browser that asks under this name was led here by it: an address cannot be rebound."""
        name = _netloc_host(host)
        if name is None:
            return False
        return self._any_host or name in self._hosts or name.endswith(".localhost") or _is_address(name)


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _netloc_host(host: str) -> str | None:
    """Return the name of HOST or HOST:PORT in lower case; None for what is neither."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.netloc != host or "@" in host:
        return None
    return parts.hostname.rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


_WEB = Path(__file__).parent / "web"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_DOCUMENT = "index.html"

HEADERS = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""What every answer of the console carries, pages and data."""


class Site:
    """The files of the pages, by the path that they are asked for."""

    def __init__(self) -> None:
        """Read them; raises OSError where the installation is incomplete."""
        self._pages: dict[str, Answer] = {}
        for file in sorted(_WEB.iterdir()):
            answer = Answer(HTTPStatus.OK, _TYPES[file.suffix], file.read_bytes(), HEADERS)
            self._pages[f"/console/{file.name}"] = answer
        self._pages["/"] = self._pages["/console"] = self._pages[f"/console/{_DOCUMENT}"]

    def page(self, path: str) -> Answer | None:
        """Return what lies there; None for nothing."""
        return self._pages.get(path)


AT_ONCE = 8
RECORDS_AT_ONCE = 2
_PLACE_SECONDS_MAX = 1.0

_API = "/api/"
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what is listened at is told from where it is called


# What a broker refuses, by what a client of HTTP makes of it; other errors are the broker's.
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


class _Change(NamedTuple):
    """What is changed: the body that says how, who does it, and how the log calls it."""

    body: type[Any]
    make: Callable[[ApiClient, Any], dict[str, Any]]
    name: str


_CHANGES = {
    ("POST", "/api/topics"): _Change(changes.CreateTopic, changes.create_topic, "topic created"),
    ("DELETE", "/api/topics"): _Change(changes.Named, changes.delete_topic, "topic deleted"),
    ("POST", "/api/topics/partitions"): _Change(changes.GrowTopic, changes.grow_topic, "partitions added"),
    ("POST", "/api/topics/configs"): _Change(changes.AlterTopic, changes.alter_topic, "configs altered"),
    ("POST", "/api/groups/offsets"): _Change(changes.ResetGroup, changes.reset_group, "offsets reset"),
    ("DELETE", "/api/groups"): _Change(changes.Named, changes.delete_group, "group deleted"),
}
_SESSION = "/api/session"


class Console:
    """The console of one broker, which listens at `address`; `metrics_directory` is where its processes count."""

    def __init__(
        self, settings: Settings, address: Address, table: ProcessTable, metrics_directory: Path
    ) -> None:
        self._settings = settings
        self._table = table
        self._site = Site()
        self._guard = Guard(settings)
        self._figures = ConsoleMetrics(metrics_directory)
        here = BrokerAddress(_WILDCARDS.get(address.host, address.host), address.port)
        self._askers = ApiClients(here, settings.broker_id)
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._places_of_records = threading.BoundedSemaphore(RECORDS_AT_ONCE)
        self._questions: dict[str, Callable[[ApiClient, Query], dict[str, Any]]] = {
            "/api/cluster": lambda asker, _: overview.cluster(asker, settings.broker_id),
            "/api/topics": lambda asker, asked: topics.topics(self._askers, asker, self._figures, asked),
            "/api/topic": lambda asker, asked: topics.topic(self._askers, asker, self._figures, asked),
            "/api/groups": lambda asker, asked: groups.groups(asker, self._figures, asked),
            "/api/group": lambda asker, asked: groups.group(asker, self._figures, asked),
            "/api/lake": lake.lake,
        }
        self._records = {"/api/records": records.records, "/api/record": records.record}

    def answer(self, request: Request) -> Answer | None:
        """Answer a request for the console; None for what is none of its paths."""
        path = request.path
        asks_for_data = path.startswith(_API)
        page = None if asks_for_data else self._site.page(path)
        if page is None and not asks_for_data:
            return None
        refusal = self._guard.refusal(request, asks_for_data=asks_for_data)
        if refusal is not None:
            return _guarded(refusal)
        if page is not None:
            return (
                page
                if request.method == "GET"
                else _error(HTTPStatus.METHOD_NOT_ALLOWED, "a page is only read")
            )
        try:
            return self._change(request) if self._is_change(request) else self._question(request)
        except BadRequestError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        except AdminError as error:
            return _error(_status(error), str(error))

    def _is_change(self, request: Request) -> bool:
        return request.method != "GET" or request.path == _SESSION

    def _change(self, request: Request) -> Answer:
        """Make a change, for who has the token."""
        refusal = self._guard.refusal_of_change(request)
        if refusal is not None:
            return _guarded(refusal)
        if request.path == _SESSION:
            return _data({})
        change = _CHANGES.get((request.method, request.path))
        if change is None:
            return _error(HTTPStatus.NOT_FOUND, "there is no such change")
        wish = query.body(request, change.body)

        def make(asker: ApiClient) -> dict[str, Any]:
            return change.make(asker, wish)

        answer = self._asked(self._places, make, fresh=True)
        if answer.status is HTTPStatus.OK and getattr(wish, "execute", True):
            _log.info(f"{change.name} by the console", name=wish.name, peer=request.peer)
        return answer

    def _question(self, request: Request) -> Answer:
        """Answer what anybody may ask."""
        if request.path == "/api/overview":
            changes_taken = self._guard.takes_changes
            told = overview.overview(self._settings, self._table, self._figures, takes_changes=changes_taken)
            return _data(told)
        places = self._places
        ask = self._questions.get(request.path)
        if ask is None:
            places, ask = self._places_of_records, self._records.get(request.path)
        if ask is None:
            return _error(HTTPStatus.NOT_FOUND, "there is no such question")
        asked, question = Query(request.target), ask
        return self._asked(places, lambda asker: question(asker, asked))

    def _asked(
        self,
        places: threading.BoundedSemaphore,
        ask: Callable[[ApiClient], dict[str, Any]],
        *,
        fresh: bool = False,
    ) -> Answer:
        """Ask with a client of its own, when a place is free. Raises AdminError, BadQuestionError."""
        if not places.acquire(timeout=_PLACE_SECONDS_MAX):
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "too many ask at once")
        try:
            with self._askers.one(fresh=fresh) as asker:
                return _data(ask(asker))
        finally:
            places.release()


def _status(error: AdminError) -> HTTPStatus:
    """Return what a client of HTTP is to make of an error."""
    if isinstance(error, BrokerError):
        return _STATUS.get(error.code, HTTPStatus.BAD_GATEWAY)
    if isinstance(error, ResetRefusedError):
        return HTTPStatus.CONFLICT
    if isinstance(error, AnswerTooLargeError):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    known = isinstance(error, ConnectionFailedError | BadAnswerError | UnsupportedError)
    return HTTPStatus.BAD_GATEWAY if known else HTTPStatus.INTERNAL_SERVER_ERROR


def _data(content: dict[str, Any]) -> Answer:
    return Answer(HTTPStatus.OK, "application/json", msgspec.json.encode(content), HEADERS)


def _error(status: HTTPStatus, message: str) -> Answer:
    return Answer(status, "application/json", msgspec.json.encode({"error": message}), HEADERS)


def _guarded(refusal: Answer) -> Answer:
    """Return a refusal as the console's pages read errors."""
    answer = _error(refusal.status, refusal.body.decode().strip())
    return answer._replace(headers=(*refusal.headers, *answer.headers))
