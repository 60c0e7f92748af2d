"""The forms of texts of settings: addresses, URLs, names, lists; and texts without their secrets, or as files."""

from __future__ import annotations

import ipaddress
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from korvet.errors import ConfigError

Form = Callable[[str], str]
"""Returns "" for a valid text, else a description of the valid ones."""

_HOST = re.compile(r"\w([\w.-]*\w)?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}")
_PORT_MAX = 65535
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
"""Addresses that stand for every interface: to listen on, not to connect to."""

LOG_LEVELS = ("debug", "info", "warning", "error")
_USER_AND_PASSWORD = re.compile(r"://([^/@\s:]*):\S*@")
_PLAIN_OPTION = re.compile(
    r"(^|_)(region|endpoint|endpoint_url|allow_http|conditional_put|account_name|use_emulator|request|timeout|retries|type|uri|warehouse)$",
    re.IGNORECASE,
)
_PEM = re.compile(r"(-----BEGIN [A-Z0-9 ]+-----[^-]*-----END [A-Z0-9 ]+-----\s*)+")
_SECRET_PARAMETER = re.compile(r"([?&](?:(?:ssl_|sentinel_)?password)=)[^&\s]*", re.IGNORECASE)


class Address(NamedTuple):
    """Where to listen or to connect: a host name or IP address, and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Write it as HOST:PORT, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, port_default: int | None = None) -> Address:
    """Read `host:port` or `[ipv6]:port`; with a default also without the port. Raises ValueError."""
    bare = ":" not in text or text.endswith("]")
    whole = f"{text}:{port_default}" if bare and port_default is not None else text
    host, _, port = whole.rpartition(":")
    if not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise ValueError(f"{text!r} is not HOST:PORT with a port up to {_PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise ValueError(f"{text!r} is not [IPv6]:PORT") from error
    elif not _HOST.fullmatch(host):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return Address(host, int(port))


def is_local(host: str) -> bool:
    return host.startswith(("localhost", "127.", "::1"))


def key_values(text: str) -> dict[str, str]:
    """Read `NAME=VALUE,...`; a value may have `=` in it, and no comma. Raises ValueError."""
    pairs = [part.strip().partition("=") for part in text.split(",")] if text else []
    result = {name.strip(): value for name, _, value in pairs}
    if len(result) != len(pairs) or not all(name and equals for name, equals, _ in pairs):
        raise ValueError("not NAME=VALUE, comma-separated, each name once")
    return result


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _matching(pattern: str, allowed: str) -> Form:
    expression = re.compile(pattern)
    return lambda text: "" if expression.fullmatch(text) else allowed


def _list_of(pattern: str, allowed: str) -> Form:
    expression = re.compile(pattern)
    return lambda text: "" if all(map(expression.fullmatch, listed(text))) else allowed


def read_by(parse: Callable[[str], object], allowed: str) -> Form:
    """Return the form of what `parse` reads without a ValueError."""

    def form(text: str) -> str:
        try:
            parse(text)
        except ValueError:
            return allowed
        return ""

    return form


def optional(form: Form) -> Form:

    def allowed(text: str) -> str:
        return text and (said := form(text)) and f"{said}, or nothing"

    return allowed


listen_address = read_by(
    parse_address, f"HOST:PORT with a port from 0 to {_PORT_MAX}, for instance 127.0.0.1:9092 or [::1]:9092"
)
"""Port 0 lets the kernel choose."""


def advertised_address(text: str) -> str:
    try:
        address = parse_address(text)
    except ValueError:
        address = Address("", 0)
    reachable = address.port and address.host not in WILDCARDS
    return "" if reachable else f"HOST:PORT that clients can connect to, with a port from 1 to {_PORT_MAX}"


def host_names(text: str) -> str:
    """Allow names of hosts, comma-separated, or `*`."""
    known = text == "*" or all(map(_HOST.fullmatch, listed(text)))
    return "" if known else "names of hosts, comma-separated, * for any"


def principals(text: str) -> str:
    known = all(all(item.strip().partition(":")) for item in text.split(";") if item.strip())
    return "" if known else "TYPE:NAME, separated by ;, for instance User:alice;User:bob"


# The rest of the URL is read by the room that connects.
redis_url = _matching(
    r"(rediss?(\+(sentinel|cluster))?|unix)://\S*",
    "redis://HOST:PORT/DB, redis+sentinel://HOST,HOST/MASTER, redis+cluster://HOST,HOST, with TLS rediss.., unix:///PATH",
)
path = _matching(r"[^\0]+", "a path")
# What can stand in a name of a key beside `:`, `{` and `}`.
name = _matching(r"[A-Za-z0-9._-]{1,64}", "1 to 64 letters, digits, '.', '_' and '-'")
jwks_url = _matching(r"(https?://[^\s/]+|file://)/\S*", "http://HOST/PATH, https://HOST/PATH or file:///PATH")
authorizer = _matching(
    r"(org\.apache\.kafka\.metadata\.authorizer\.)?StandardAuthorizer",
    "StandardAuthorizer, with its package org.apache.kafka.metadata.authorizer or without",
)
name_patterns = _list_of(
    r"[A-Za-z0-9._*?\[\]!-]+", "names or PATTERNs of topics, comma-separated, as in __*,metrics.?"
)
format_patterns = _list_of(
    r"[A-Za-z0-9._*?\[\]!-]+=(record|batch)",
    "PATTERN=record or PATTERN=batch, comma-separated, as in metrics.*=batch",
)


def parse_connection_limits(text: str) -> dict[str, int]:
    """Read `ADDRESS:COUNT,...`, an IPv6 address with or without brackets. Raises ValueError."""
    parts = [part.rpartition(":") for part in listed(text)]
    result = {canonical_address(address.strip("[]")): int(count) for address, _, count in parts}
    if len(result) < len(parts) or not all(count.isascii() and count.isdigit() for _, _, count in parts):
        raise ValueError("not ADDRESS:COUNT, comma-separated, each address once")
    return result


def canonical_address(text: str) -> str:
    """Write an IP address in its only form, an IPv4 address in IPv6 as the former (Java). Raises ValueError."""
    address = ipaddress.ip_address(text)
    return str(getattr(address, "ipv4_mapped", None) or address)


connection_limits = read_by(
    parse_connection_limits,
    "ADDRESS:COUNT, comma-separated, each address once, as in 10.0.0.7:100; names are not resolved",
)
log_levels = _list_of(
    rf"[A-Za-z_][A-Za-z0-9_.]*=({'|'.join(LOG_LEVELS)})",
    f"LOGGER=LEVEL, comma-separated, as in korvet.groups=debug, with {', '.join(LOG_LEVELS)} as levels",
)
archive = _matching(
    r"(?!.*://)[^\0]+|(s3|gs|abfss)://.+",
    "a directory, s3://BUCKET/PATH, gs://BUCKET/PATH, abfss://CONTAINER@ACCOUNT.HOST/PATH",
)
_replicas = _list_of(r"([0-9]+:[0-9]+)?", "*, or a list of PARTITION:BROKER, comma-separated")


def throttled_replicas(text: str) -> str:
    """Allow PARTITION:BROKER, comma-separated, or `*`."""
    return "" if text.strip() == "*" else _replicas(text)


# As Spark's "Submitting Applications" lists them under Master URLs.
spark_master = _matching(
    r"local(\[([1-9][0-9]*|\*)(,[1-9][0-9]*)?\])?|yarn|(spark|k8s)://\S+",
    "local[CORES,TRIES], spark://HOST:PORT, k8s://HOST:PORT or yarn",
)


EARLIEST, LATEST, BY_DURATION = "earliest", "latest", "by_duration:"
_DURATION = re.compile(
    r"\+?P(?=.)(?:([0-9]{1,6})D)?(?:T(?=.)(?:([0-9]{1,8})H)?(?:([0-9]{1,10})M)?(?:([0-9]{1,12}(?:[.,][0-9]{0,9})?)S)?)?",
    re.IGNORECASE,
)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)


def parse_share_reset(text: str) -> str | int:
    """Read share.auto.offset.reset: earliest, latest, or the time of by_duration in ms. Raises ValueError."""
    if text in (EARLIEST, LATEST):
        return text
    result = _DURATION.fullmatch(text.removeprefix(BY_DURATION)) if text.startswith(BY_DURATION) else None
    if result is None:
        raise ValueError(f"{text!r} is no strategy")
    parts = zip(result.groups(), _UNITS_MS, strict=True)
    return sum(round(float(part.replace(",", ".")) * unit) for part, unit in parts if part)


share_reset = read_by(parse_share_reset, "latest, earliest, or by_duration:PnDTnHnMn.nS")
storage_options = read_by(key_values, "NAME=VALUE, comma-separated, each name once, or nothing")


def pem(text: str) -> str:
    """Allow PEM blocks, with line ends or, as in a file of Java properties, with blanks in their place."""
    return "" if not text or _PEM.fullmatch(text.strip()) else "-----BEGIN ...----- PEM -----END ...-----"


def without_option_secrets(text: str) -> str:
    """Mask the values in `NAME=VALUE,...` except those of names that hold no secret; all of another text."""
    try:
        options = key_values(text)
    except ValueError:
        return "***"
    shown = (
        f"{name}={without_secrets(value) if _PLAIN_OPTION.search(name) else '***'}"
        for name, value in options.items()
    )
    return ",".join(shown)


def read_password(file: str, name: str) -> str:
    """Return the password in a file; raises ConfigError that begins with `name`."""
    try:
        password = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    if not password:
        raise ConfigError(f"{name}: it is empty")
    return password


def nameless_file() -> IO[bytes]:
    """Return an empty file that has no name: on Linux in memory, elsewhere on the disk of temporary files."""
    return (
        os.fdopen(os.memfd_create("korvet"), "w+b")
        if hasattr(os, "memfd_create")
        else tempfile.TemporaryFile()
    )


@contextmanager
def file_in_memory(text: str) -> Iterator[str]:
    """Give a path to a text, for keys: OpenSSL takes them from files only. On Linux none gets to a disk by that."""
    with nameless_file() as file:
        file.write(text.encode())
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"


def without_secrets(text: str) -> str:
    """Mask the passwords of URLs in a text: what is printed or logged passes here."""
    text = _USER_AND_PASSWORD.sub(r"://\1:***@", text)
    return _SECRET_PARAMETER.sub(r"\1***", text)
