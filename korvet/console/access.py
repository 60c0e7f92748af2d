"""Who may use the ops port: under a name of this machine, from the console's own pages, and with a token for changes.

A browser sends requests on behalf of every page that its user opens. So a page of another site must not get anything:
neither under a name of its own that it resolves to this address (DNS rebinding), which the Host header shows, nor
across sites, which browsers report in Sec-Fetch-Site and Origin. There are no cookies that a browser would send itself.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from korvet.config.settings import Settings
from korvet.console.http import Answer, Request, plain
from korvet.logs import Log

TOKEN_CHARS_MIN = 16
_TOKEN_BYTES_MAX = 4096
_OWN_SITES = {"same-origin", "none"}

_log = Log(__name__)


class NoTokenError(Exception):
    """The file has no valid token; the message says why."""


def read_token(path: Path) -> bytes:
    """Return the token for changes, without surrounding white space. Raises NoTokenError."""
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES_MAX + 1).strip()
    except OSError as error:
        raise NoTokenError(error.strerror or str(error)) from None
    if not TOKEN_CHARS_MIN <= len(token) <= _TOKEN_BYTES_MAX:
        message = f"a token has {TOKEN_CHARS_MIN} to {_TOKEN_BYTES_MAX} bytes; this one has {len(token)}"
        raise NoTokenError(message)
    return token


class AllowedHosts:
    """The names by which the console and /metrics may be requested."""

    def __init__(self, settings: Settings) -> None:
        self._any_host = settings.ops_allowed_hosts == "*"
        own = socket.gethostname().lower()
        given = (each.strip().lower() for each in settings.ops_allowed_hosts.split(",") if each)
        self._hosts = {"localhost", own, own.partition(".")[0], *given}

    def refuse(self, request: Request) -> Answer | None:
        """Return the answer to a request by another name, else None."""
        if self._is_own(request.headers.get("host", "")):
            return None
        return plain(HTTPStatus.FORBIDDEN, "unknown host name; ops.allowed.hosts lists those allowed")

    def _is_own(self, host: str) -> bool:
        """Return whether no other site can make a browser use this name: an address cannot be rebound."""
        name = _host_name(host)
        if name is None:
            return False
        return self._any_host or name in self._hosts or name.endswith(".localhost") or _is_address(name)


class Guard:
    """The rules for one broker's console, besides those for names of hosts."""

    def __init__(self, settings: Settings) -> None:
        self._token_file = settings.console_token_file

    @property
    def allows_changes(self) -> bool:
        """Whether there is a token file, so that changes are possible."""
        return bool(self._token_file)

    def refuse(self, request: Request, *, for_data: bool) -> Answer | None:
        """Return the answer to a request that is not allowed, else None.

        Other sites may link to a page, but not read data.
        """
        if not for_data:
            return None
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        other_origin = origin is not None and _netloc(origin) != host.lower()
        if other_origin or request.headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            return plain(HTTPStatus.FORBIDDEN, "requests from other sites are refused")
        return None

    def refuse_change(self, request: Request) -> Answer | None:
        """Return the answer to a request without the token, else None. A new token in the file is valid at once."""
        if not self._token_file:
            return plain(HTTPStatus.NOT_FOUND, "changes are disabled: console.token.file is not set")
        try:
            token = read_token(Path(self._token_file))
        except NoTokenError as problem:
            _log.error("console.token.file has no valid token", reason=problem)
            message = "console.token.file has no valid token; the broker's log says why"
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, message)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Headers are decoded as Latin-1, whatever was sent.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), token):
            message = "changes require the token in console.token.file"
            return plain(HTTPStatus.UNAUTHORIZED, message, ("WWW-Authenticate", "Bearer"))
        return None


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _host_name(host: str) -> str | None:
    """Return the name of HOST or HOST:PORT in lower case; None if it is neither."""
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
