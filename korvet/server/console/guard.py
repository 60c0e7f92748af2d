"""Who may ask the console: by a name that is this machine's, from the console's own pages, with the token for changes.

A browser takes part in everything that its user can reach. So a page of somebody else must not be able to ask: neither
under a name of its own that it lets point here (DNS rebinding), which the Host header tells, nor across sites, which
browsers tell by Sec-Fetch-Site and Origin. Nothing is known of a browser that it would send by itself: no cookies.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from korvet.config import Settings
from korvet.logs import Log
from korvet.server.console.token import NoTokenError, read_token
from korvet.server.ops_http import Answer, Request, plain

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
