"""The forms that a setting's text may have: addresses, URLs and names; and texts without their secrets.

Knows text; not which settings there are, nor where their values come from.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import NamedTuple

# A form tells what it allows where a text does not have it, and nothing ("") where it has.
Form = Callable[[str], str]

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,5}")
_PORT_MAX = 65535
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
"""Addresses that stand for every interface: to listen on, not to connect to."""

LOG_LEVELS = ("debug", "info", "warning", "error")
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
_LAKE_SCHEMES = ("s3", "gs", "abfss")
_USER_AND_PASSWORD = re.compile(r"://([^/@\s:]*):\S*@")
_PLAIN_OPTION = re.compile(
    r"(^|_)(region|endpoint|endpoint_url|allow_http|conditional_put|account_name|use_emulator|request|timeout|retries)$",
    re.IGNORECASE,
)
_SECRET_PARAMETER = re.compile(r"([?&](?:password|ssl_password)=)[^&\s]*", re.IGNORECASE)


class Address(NamedTuple):
    """Where to listen or to connect: a host name or IP address, and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Write it as HOST:PORT, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `host:port` or `[ipv6]:port`; raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif not _HOST.fullmatch(host):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return Address(host, int(port))


def listen_address(text: str) -> str:
    """Allow HOST:PORT; port 0 lets the kernel choose."""
    try:
        parse_address(text)
    except ValueError:
        return f"HOST:PORT with a port from 0 to {_PORT_MAX}, for instance 127.0.0.1:9092 or [::1]:9092"
    return ""


def listen_address_or_none(text: str) -> str:
    """Allow HOST:PORT, or nothing."""
    return (allowed := text and listen_address(text)) and f"{allowed}, or nothing"


def advertised_address_or_none(text: str) -> str:
    """Allow HOST:PORT that a client can connect to, or nothing."""
    allowed = f"HOST:PORT that clients can connect to, with a port from 1 to {_PORT_MAX}, or nothing"
    if not text:
        return ""
    try:
        address = parse_address(text)
    except ValueError:
        return allowed
    return "" if address.port and address.host not in WILDCARDS else allowed


def redis_url_or_none(text: str) -> str:
    """Allow a URL by its scheme, or nothing; the rest of it is read by who connects."""
    if not text or (text.startswith(_REDIS_SCHEMES) and not re.search(r"\s", text)):
        return ""
    return "redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH, or nothing for the embedded server"


def path(text: str) -> str:
    """Allow a path."""
    return "" if text and "\0" not in text else "a path"


def path_or_none(text: str) -> str:
    """Allow a path, or nothing."""
    return (allowed := text and path(text)) and f"{allowed}, or nothing"


def host_names_or_none(text: str) -> str:
    """Allow names of hosts, comma-separated, or `*`, or nothing."""
    if text in {"", "*"} or all(_HOST.fullmatch(part.strip()) for part in text.split(",")):
        return ""
    return "names of hosts, comma-separated, * for any, or nothing"


def name(text: str) -> str:
    """Allow what can stand in a key name beside `:`, `{` and `}`."""
    return "" if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text) else "1 to 64 letters, digits, '.', '_' and '-'"


def name_or_none(text: str) -> str:
    """Allow a name, or nothing."""
    return (allowed := text and name(text)) and f"{allowed}, or nothing"


def topic_prefix(text: str) -> str:
    """Allow the beginning of a topic name, which may be empty."""
    if re.fullmatch(r"[A-Za-z0-9._-]{0,249}", text):
        return ""
    return "at most 249 letters, digits, '.', '_' and '-', or nothing"


def format_patterns(text: str) -> str:
    """Allow `PATTERN=record` and `PATTERN=batch`, comma-separated, or nothing."""
    if not text or all(
        re.fullmatch(r"\s*[A-Za-z0-9._*?\[\]!-]+=(record|batch)\s*", part) for part in text.split(",")
    ):
        return ""
    return "PATTERN=record or PATTERN=batch, comma-separated, as in metrics.*=batch"


def cleanup_policies(text: str) -> str:
    """Allow `delete` and `compact`, each once, comma-separated, or nothing."""
    policies = [each.strip() for each in text.split(",")] if text else []
    if set(policies) <= {"compact", "delete"} and len(set(policies)) == len(policies):
        return ""
    return "delete, compact, or both with a comma, or nothing"


def log_levels(text: str) -> str:
    """Allow `LOGGER=LEVEL`, comma-separated, or nothing."""
    levels = "|".join(LOG_LEVELS)
    if not text or all(
        re.fullmatch(rf"\s*[A-Za-z_][A-Za-z0-9_.]*=({levels})\s*", part) for part in text.split(",")
    ):
        return ""
    return f"LOGGER=LEVEL, comma-separated, as in korvet.groups=debug, with {', '.join(LOG_LEVELS)} as levels"


def key_values(text: str) -> dict[str, str]:
    """Read `NAME=VALUE,...`; a value may have `=` in it, and no comma. Raises ValueError."""
    pairs = [part.strip().partition("=") for part in text.split(",")] if text else []
    found = {name.strip(): value for name, _, value in pairs}
    if len(found) != len(pairs) or not all(name and equals for name, equals, _ in pairs):
        raise ValueError("not NAME=VALUE, comma-separated, each name once")
    return found


def storage_options(text: str) -> str:
    """Allow `NAME=VALUE,...`, or nothing."""
    try:
        key_values(text)
    except ValueError:
        return "NAME=VALUE, comma-separated, each name once, or nothing"
    return ""


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


def lake_or_none(text: str) -> str:
    """Allow a path, or the URI of an object store, or nothing."""
    scheme, separator, rest = text.partition("://")
    if not text or (not separator and "\0" not in text) or (scheme in _LAKE_SCHEMES and rest):
        return ""
    return "a directory, s3://BUCKET/PATH, gs://BUCKET/PATH, abfss://CONTAINER@ACCOUNT.HOST/PATH, or nothing"


def spark_master(text: str) -> str:
    """Allow what Spark takes as its master ("Submitting Applications", Master URLs)."""
    if re.fullmatch(r"local(\[([1-9][0-9]*|\*)(,[1-9][0-9]*)?\])?|yarn|(spark|k8s)://\S+", text):
        return ""
    return "local[CORES,TRIES], spark://HOST:PORT, k8s://HOST:PORT or yarn"


def without_secrets(text: str) -> str:
    """Mask the passwords of URLs in a text: what is printed or logged passes here."""
    text = _USER_AND_PASSWORD.sub(r"://\1:***@", text)
    return _SECRET_PARAMETER.sub(r"\1***", text)
