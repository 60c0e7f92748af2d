"""Who may use the ops port: by a name of this machine, from the console's own pages, with a token to read or change.

A browser sends requests on behalf of every page that its user opens. So a page of another site must not get anything:
neither under a name of its own that it resolves to this address (DNS rebinding), which the Host header shows, nor
across sites, which browsers report in Sec-Fetch-Site and Origin. Once its user has logged in to read, a browser sends
that by itself: so a change takes a token only from a header that the console's pages set.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import socket
from collections.abc import Mapping
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
    """Return the token in a file, without surrounding white space. Raises NoTokenError."""
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
        given = (host.strip().lower() for host in settings.ops_allowed_hosts.split(",") if host)
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
    """The rules for one broker's ops port, besides those for names of hosts."""

    def __init__(self, settings: Settings) -> None:
        self._token_file = settings.console_token_file
        self._read_token_file = settings.console_read_token_file

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

    def refuse_read(self, request: Request) -> Answer | None:
        """Return the answer to a request without a token that may read, if that is needed, else None.

        The token is a Bearer's, or the password of any user, for browsers and Prometheus ask for one.
        """
        if not self._read_token_file:
            return None
        scheme, given = _authorization(request)
        token = {"bearer": given, "basic": _password(given)}.get(scheme, b"")
        files = {"console.read.token.file": self._read_token_file}
        if self._token_file:
            files["console.token.file"] = self._token_file
        challenge = "Bearer" if scheme == "bearer" else 'Basic realm="korvet", charset="UTF-8"'
        return _refuse_token(token, files, "reading requires", challenge)

    def refuse_change(self, request: Request) -> Answer | None:
        """Return the answer to a request without the token, else None. A new token in the file is valid at once."""
        if not self._token_file:
            return plain(HTTPStatus.NOT_FOUND, "changes are disabled: console.token.file is not set")
        scheme, given = _authorization(request)
        files = {"console.token.file": self._token_file}
        return _refuse_token(given if scheme == "bearer" else b"", files, "changes require", "Bearer")


def _refuse_token(given: bytes, files: Mapping[str, str], what: str, challenge: str) -> Answer | None:
    """Return the answer to a request whose token is in none of these files, which are named by their settings."""
    problems = {}
    for name, path in files.items():
        try:
            token = read_token(Path(path))
        except NoTokenError as problem:
            _log.error(f"{name} has no valid token", reason=problem)
            problems[name] = problem
        else:
            if hmac.compare_digest(given, token):
                return None
    wanted = next(iter(files))
    if wanted in problems:
        message = f"{wanted} has no valid token; the broker's log says why"
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, message)
    message = f"{what} the token in {wanted}"
    return plain(HTTPStatus.UNAUTHORIZED, message, ("WWW-Authenticate", challenge))


def _authorization(request: Request) -> tuple[str, bytes]:
    """Return the scheme in lower case, and what is given."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Headers are decoded as Latin-1, whatever was sent.
    return scheme.lower(), given.strip().encode("latin-1")


def _password(given: bytes) -> bytes:
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except ValueError:
        return b""


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
