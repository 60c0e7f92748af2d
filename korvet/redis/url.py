"""The address of Redis: parsed from the setting `redis.url`, or that of the embedded server of a data directory.

The forms are `redis://`, `rediss://` and `unix://` with the query options of redis-py's `from_url`, because the
supervisor and tools give the same URL to redis-py. A password never leaves through `str()` or an error text: messages
name the server by its address, not by the URL.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from korvet.errors import ConfigError

_PORT = 6379
_PORT_MAX = 65535
# sun_path holds 108 bytes with the final zero (unix(7)).
_SOCKET_PATH_BYTES_MAX = 107
_SOCKET = "server.sock"
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_check_hostname", "ssl_certfile", "ssl_keyfile")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """How a `rediss://` connection is secured; by default as the system trusts, with the name checked."""

    ca_certs: str | None = None
    verify: bool = True
    check_hostname: bool = True
    certfile: str | None = None
    keyfile: str | None = None


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where Redis is and who we are there; `path` is set for a unix socket, `host` and `port` otherwise."""

    host: str = ""
    port: int = 0
    path: str = ""
    username: str = ""
    password: str = ""
    db: int = 0
    tls: Tls | None = None

    def __str__(self) -> str:
        """Name the server for messages, without credentials."""
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def safe_url(self) -> str:
        """The database as a URL without credentials and options."""
        if self.path:
            return f"unix://{self.path}?db={self.db}"
        return f"{'redis' if self.tls is None else 'rediss'}://{self}/{self.db}"

    def __repr__(self) -> str:
        """Name the server; never the password, a traceback may show locals."""
        return f"RedisAddress({self})"


def parse(url: str) -> RedisAddress:
    """Parse a Redis URL; raises ConfigError that says what is wrong and never repeats the URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        # urlsplit's own words may quote what it could not parse, and that may be a password.
        raise ConfigError("redis.url is malformed: its host or port cannot be read") from error
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise ConfigError("redis.url must begin with redis://, rediss:// or unix://")
    path, is_unix = unquote(parts.path), parts.scheme == "unix"
    if is_unix and (not path or parts.hostname):
        raise ConfigError(
            "redis.url: a unix socket is named by an absolute path, as in unix:///run/redis.sock"
        )
    if port == 0 and not is_unix:
        raise ConfigError(f"redis.url: the port must lie between 1 and {_PORT_MAX}")
    db = options.pop("db", "") or ("" if is_unix else path.strip("/")) or "0"
    tls = _tls(options) if parts.scheme == "rediss" else None
    if options:
        # Only the option's name: its value may be a secret that got here by a missing percent-encoding.
        supported = ", ".join(("db", *_TLS_OPTIONS))
        raise ConfigError(f"redis.url: unknown option {next(iter(options))!r}; supported: {supported}")
    if not (db.isascii() and db.isdigit()):
        raise ConfigError(f"redis.url: the database {db!r} is not a number")
    return RedisAddress(
        host="" if is_unix else unquote(parts.hostname or "localhost"),
        port=0 if is_unix else port or _PORT,
        path=path if is_unix else "",
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        db=int(db),
        tls=tls,
    )


def _tls(options: dict[str, str]) -> Tls:
    chosen = {name: options.pop(name) for name in _TLS_OPTIONS if name in options}
    required = chosen.get("ssl_cert_reqs", "required")
    if required not in {"none", "optional", "required"}:
        raise ConfigError("redis.url: ssl_cert_reqs must be none, optional or required")
    named = chosen.get("ssl_check_hostname", "true").lower()
    if named not in _TRUTH:
        raise ConfigError("redis.url: ssl_check_hostname must be true or false")
    # To a client "optional" means the same as "required": a server always shows its certificate.
    verify = required != "none"
    return Tls(
        ca_certs=chosen.get("ssl_ca_certs") or None,
        verify=verify,
        check_hostname=verify and _TRUTH[named],
        certfile=chosen.get("ssl_certfile") or None,
        keyfile=chosen.get("ssl_keyfile") or None,
    )


def socket_of(directory: Path) -> Path:
    """Return where the server of a data directory listens while it runs, the same at every start; raises ConfigError.

    It is in that directory, or where the path would be too long in one of the system's for temporary files.
    """
    directory = directory.expanduser().resolve()
    path = directory / _SOCKET
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
        return path
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    runtime = Path(tempfile.gettempdir()) / f"korvet-{os.getuid()}-{digest}"
    short = runtime / _SOCKET
    if len(os.fsencode(short)) > _SOCKET_PATH_BYTES_MAX:
        raise ConfigError(f"data.dir {directory}: too long for a unix socket, and so is {runtime}")
    return short


def running_url(directory: Path) -> str | None:
    """Return the Redis URL of the server of a data directory, None if none runs; raises ConfigError."""
    path = socket_of(directory)
    if not path.exists():
        return None
    # In a directory open to all users the name may be somebody else's, whose server this would be.
    if path.parent != directory.expanduser().resolve() and path.parent.lstat().st_uid != os.getuid():
        raise ConfigError(f"{path.parent} is not a private directory of this user: remove it")
    return f"unix://{quote(str(path))}"
