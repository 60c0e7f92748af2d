"""Where Redis is: parsed from the setting `redis.url`, or the embedded server of a data directory.

One server is `redis://`, `rediss://` (TLS) or `unix://`, with the query options of redis-py's `from_url`. Sentinels
that name the master are `redis+sentinel://HOST,HOST/MASTER`, nodes of a cluster `redis+cluster://HOST,HOST`, and both
may begin with `rediss+`. A password never leaves through `str()` or an error text: messages name a server by its
address, not by the URL.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from korvet.config.values import Address, parse_address, read_password
from korvet.errors import ConfigError

_PORT, _SENTINEL_PORT = 6379, 26379
_PORT_MAX = 65535
# sun_path holds 108 bytes with the final zero (unix(7)).
_SOCKET_PATH_BYTES_MAX = 107
_SOCKET = "server.sock"
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_check_hostname", "ssl_certfile", "ssl_keyfile")
_SENTINEL = "sentinel_"
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password", "sentinel_password_file")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_URL = re.compile(r"(?P<scheme>[a-z+]*)://(?P<where>[^/?#]*)(?P<path>[^?#]*)(\?(?P<query>[^#]*))?(#.*)?")
_SCHEME = re.compile(r"(?P<tls>redis|rediss)(\+(?P<kind>sentinel|cluster))?")
# What Sentinel itself takes as the name of a master.
_MASTER_NAME = re.compile(r"[A-Za-z0-9._-]+")

SWITCHED = "+switch-master"
"""The channel on which a Sentinel says that another server is the master."""

Kind = Literal["server", "sentinel", "cluster"]


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """How a `rediss://` connection is secured; by default as the system trusts, with the name checked."""

    ca_certs: str | None = None
    verify: bool = True
    check_hostname: bool = True
    certfile: str | None = None
    keyfile: str | None = None


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where one server is and who we are there; `path` is set for a unix socket, `host` and `port` otherwise."""

    host: str = ""
    port: int = 0
    path: str = ""
    username: str = ""
    password: str = ""
    db: int = 0
    tls: Tls | None = None

    def __str__(self) -> str:
        """Name the server for messages, without credentials."""
        return self.path or str(Address(self.host, self.port))

    def __repr__(self) -> str:
        """Name the server; never the password, a traceback may show locals."""
        return f"RedisAddress({self})"


class RedisTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What `redis.url` leads to: one server, the master that Sentinels name, or a cluster.

    `addresses` are those in the URL: the server, the Sentinels, or nodes by which the rest of the cluster is found.
    """

    kind: Kind
    addresses: tuple[RedisAddress, ...]
    master_name: str = ""
    login: RedisAddress
    """Credentials, database and TLS of every server that keeps records; its place is that of none."""

    def at(self, host: str, port: int) -> RedisAddress:
        """Return how to connect to a server that Sentinels or nodes of the cluster have named."""
        return msgspec.structs.replace(self.login, host=host, port=port)

    def __str__(self) -> str:
        """Name it for messages, without credentials."""
        listed = ", ".join(map(str, self.addresses))
        if self.kind == "server":
            return listed
        return f"{self.master_name} (Sentinels {listed})" if self.master_name else f"cluster {listed}"

    @property
    def safe_url(self) -> str:
        """The database as a URL without credentials and options."""
        scheme = "redis" if self.login.tls is None else "rediss"
        hosts, db = ",".join(map(str, self.addresses)), self.login.db
        if self.kind == "sentinel":
            return f"{scheme}+sentinel://{hosts}/{self.master_name}?db={db}"
        if self.kind == "cluster":
            return f"{scheme}+cluster://{hosts}"
        return f"unix://{hosts}?db={db}" if self.addresses[0].path else f"{scheme}://{hosts}/{db}"


def server_at(address: RedisAddress) -> RedisTarget:
    return RedisTarget(kind="server", addresses=(address,), login=address)


def parse_url(url: str) -> RedisTarget:
    """Parse a Redis URL of any form; raises ConfigError that says what is wrong and never repeats the URL."""
    parts = _URL.fullmatch(url)
    scheme = _SCHEME.fullmatch(parts["scheme"]) if parts else None
    if not parts or not (scheme or parts["scheme"] == "unix"):
        raise ConfigError(
            "redis.url must begin with redis://, redis+sentinel://, redis+cluster:// (rediss for TLS) or unix://"
        )
    # As in the part before the @, a plus sign stands for itself.
    options = dict(parse_qsl((parts["query"] or "").replace("+", "%2B"), keep_blank_values=True))
    credentials, _, hosts = parts["where"].rpartition("@")
    username, _, password = credentials.partition(":")
    login = RedisAddress(username=unquote(username), password=unquote(password))
    if scheme is None:
        return _unix(login, hosts, unquote(parts["path"]), options)
    supported: tuple[str, ...] = ()
    if scheme["tls"] == "rediss":
        login = msgspec.structs.replace(login, tls=_tls(options))
        supported = _TLS_OPTIONS
    path = unquote(parts["path"]).strip("/")
    if scheme["kind"] == "sentinel":
        return _sentinel(login, hosts, path, options, supported)
    login = msgspec.structs.replace(login, db=_db(options, path))
    _check_all_read(options, ("db", *supported))
    target = RedisTarget(kind="server", addresses=_addresses(login, hosts, _PORT), login=login)
    if scheme["kind"] == "cluster":
        if login.db:
            raise ConfigError("redis.url: a Redis Cluster has database 0 only")
        return msgspec.structs.replace(target, kind="cluster")
    if len(target.addresses) > 1:
        raise ConfigError(
            "redis.url: redis:// names one server; several are Sentinels (redis+sentinel://) or nodes of a "
            "cluster (redis+cluster://)"
        )
    return target


def parse(url: str) -> RedisAddress:
    """Parse the URL of one server; raises ConfigError as `parse_url` does, and for Sentinels and a cluster."""
    target = parse_url(url)
    if target.kind != "server":
        raise ConfigError(f"redis.url: one server is needed here, not a {target.kind}")
    return target.addresses[0]


def _unix(login: RedisAddress, hosts: str, path: str, options: dict[str, str]) -> RedisTarget:
    if hosts or not path:
        raise ConfigError(
            "redis.url: a unix socket is named by an absolute path, as in unix:///run/redis.sock"
        )
    login = msgspec.structs.replace(login, path=path, db=_db(options, ""))
    _check_all_read(options, ("db",))
    return RedisTarget(kind="server", addresses=(login,), login=login)


def _sentinel(
    login: RedisAddress, hosts: str, name: str, options: dict[str, str], supported: tuple[str, ...]
) -> RedisTarget:
    if not _MASTER_NAME.fullmatch(name):
        raise ConfigError(
            "redis.url: the name by which Sentinels know the master is missing or is none: "
            "redis+sentinel://HOST,HOST,HOST/NAME"
        )
    password, file = options.pop("sentinel_password", ""), options.pop("sentinel_password_file", "")
    if file:
        if password:
            raise ConfigError("redis.url: of sentinel_password and sentinel_password_file one at most")
        password = read_password(file, f"redis.url: sentinel_password_file = {file}")
    asked = RedisAddress(username=options.pop("sentinel_username", ""), password=password)
    if asked.username and not password:
        raise ConfigError("redis.url: sentinel_username has no sentinel_password")
    if login.tls is not None:
        asked = msgspec.structs.replace(asked, tls=_tls(options, _SENTINEL, login.tls))
    login = msgspec.structs.replace(login, db=_db(options, ""))
    _check_all_read(
        options, ("db", *_SENTINEL_OPTIONS, *supported, *(_SENTINEL + option for option in supported))
    )
    return RedisTarget(
        kind="sentinel",
        addresses=_addresses(asked, hosts, _SENTINEL_PORT),
        master_name=name,
        login=login,
    )


def _addresses(login: RedisAddress, hosts: str, port: int) -> tuple[RedisAddress, ...]:
    addresses = []
    for text in hosts.split(","):
        # `redis://` and `redis://:7000` are this machine, as for redis-py; in a list a name is missing.
        whole = f"localhost{text}" if text[:1] in {"", ":"} and text == hosts else text
        try:
            address = parse_address(unquote(whole), port)
        except ValueError:
            # Its own words quote what it could not parse, and that may be a password.
            raise ConfigError("redis.url is malformed: its host or port cannot be read") from None
        if not address.port:
            raise ConfigError(f"redis.url: the port must lie between 1 and {_PORT_MAX}")
        addresses.append(msgspec.structs.replace(login, host=address.host, port=address.port))
    return tuple(addresses)


def _db(options: dict[str, str], path: str) -> int:
    db = options.pop("db", "") or path or "0"
    if not (db.isascii() and db.isdigit()):
        # It may be the rest of a password with a `/` in it.
        raise ConfigError("redis.url: the database is not a number")
    return int(db)


def _check_all_read(options: dict[str, str], supported: tuple[str, ...]) -> None:
    if options:
        # Only the option's name: its value may be a secret that got here by a missing percent-encoding.
        raise ConfigError(
            f"redis.url: unknown option {next(iter(options))!r}; supported: {', '.join(supported)}"
        )


def _tls(options: dict[str, str], prefix: str = "", default: Tls | None = None) -> Tls:
    """Take the options of TLS; with `default` only those are changed that are there."""
    chosen = {name: options.pop(prefix + name) for name in _TLS_OPTIONS if prefix + name in options}
    if default is not None and not chosen:
        return default
    required = chosen.get("ssl_cert_reqs", "required")
    if required not in {"none", "optional", "required"}:
        raise ConfigError(f"redis.url: {prefix}ssl_cert_reqs must be none, optional or required")
    named = chosen.get("ssl_check_hostname", "true").lower()
    if named not in _TRUTH:
        raise ConfigError(f"redis.url: {prefix}ssl_check_hostname must be true or false")
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
