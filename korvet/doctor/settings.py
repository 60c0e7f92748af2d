"""Settings that are allowed each and together look like a slip, the console's files with tokens, and the lake."""

from __future__ import annotations

import contextlib
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from korvet.admin.security import from_configs, read_properties
from korvet.config.dynamic import CLUSTER_WIDE, overridden
from korvet.config.settings import Settings
from korvet.config.sources import BrokerConfig
from korvet.config.values import WILDCARDS, is_local, parse_address
from korvet.console.access import TOKEN_CHARS_MIN, NoTokenError, read_token
from korvet.errors import ConfigError
from korvet.redis import url as redis_url
from korvet.server.finding import Finding, error, ok, warning
from korvet.server.supervisor import checks, redis_check

_SOON_S = 50 * 365 * 86_400

LakeProblem = Callable[[Settings], str]
"""Tries to write to the lake of the settings; returns in one line why it cannot, "" if it can."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what looks wrong, or that nothing does."""
    result = [*_leases(settings), *_sizes(settings), *_offsets(settings), *_exposure(settings)]
    yield from result or [ok("settings", "no contradictions")]


def examine_altered(configuration: BrokerConfig) -> Iterator[Finding]:
    """Yield the settings of file, environment and flags that do not count, for clients have altered them."""
    settings, origins = configuration.settings, configuration.origins
    with contextlib.suppress(ConfigError):  # the examination of Redis says what is wrong
        if layers := redis_check.altered_layers(settings):
            for item, layer in overridden(layers, origins):
                given, counts = (item.format(item.value(chunk)) for chunk in (settings, layers.settings))
                whose = "--cluster" if layer == CLUSTER_WIDE else f"--broker {settings.broker_id}"
                said = f"{given} ({origins[item.name]}) has no effect: clients have set {counts} ({layer})"
                advice = f"korvet configs alter {whose} --delete {item.name}, or start the broker with {counts} too"
                yield warning(item.name, said, advice)


def examine_console(settings: Settings) -> Iterator[Finding]:
    """Yield what is true of the console's files with tokens, and with configs of its client, that there should be."""
    files = {
        "console.token.file": (settings.console_token_file, "the console makes no changes"),
        "console.read.token.file": (
            settings.console_read_token_file,
            "nobody reads console or /metrics with it",
        ),
    }
    for name, (path, effect) in files.items():
        used = settings.ops_listen and (settings.console_enable or name == "console.read.token.file")
        if path and used:
            yield _token_file(name, Path(path), effect)
    if settings.console_client_config and settings.ops_listen and settings.console_enable:
        try:
            from_configs(read_properties(Path(settings.console_client_config)))
        except ValueError as problem:
            said = f"{problem}: the console cannot connect to its broker"
            yield warning("console.client.config", said, "correct the file")


def _token_file(name: str, path: Path, effect: str) -> Finding:
    try:
        read_token(path)
        mode = stat.S_IMODE(path.stat().st_mode)
    except (NoTokenError, OSError) as problem:
        advice = (
            f"write a secret of {TOKEN_CHARS_MIN} characters or more to it, which the broker's user can read"
        )
        return warning(name, f"{path}: {problem}; {effect}", advice)
    if mode & stat.S_IROTH:
        return warning(name, f"{path}: every user of this machine can read it", f"chmod o-rwx {path}")
    return ok(name, f"{path} holds a token")


def examine_lake(settings: Settings, problem_of: LakeProblem) -> Iterator[Finding]:
    """Yield whether the lake can be written, if there should be one and what it needs is installed."""
    if not settings.lake_path or any(finding.is_fatal for finding in checks.lake(settings)):
        return
    if said := problem_of(settings):
        advice = "let this user write there, or correct lake.path and lake.storage.options"
        yield error("lake.path", f"{settings.lake_path} cannot be written: {said}", advice)
    else:
        yield ok("lake.path", f"{settings.lake_path} can be written")


def _leases(settings: Settings) -> Iterator[Finding]:
    timeout_ms = settings.redis_timeout_ms
    for name, lease_ms in (
        ("keeper.lease.ms", settings.keeper_lease_ms),
        ("broker.lease.ms", settings.broker_lease_ms),
    ):
        if lease_ms <= timeout_ms:
            said = f"{lease_ms} ms, not more than redis.timeout.ms ({timeout_ms}): one slow command loses the lease"
            yield warning(name, said, f"set {name} to twice redis.timeout.ms or more")


def _sizes(settings: Settings) -> Iterator[Finding]:
    largest = settings.message_max_bytes
    for name, limit, effect in (
        ("socket.request.max.bytes", settings.socket_request_max_bytes, "never arrives"),
        ("record.decompressed.max.bytes", settings.record_decompressed_max_bytes, "is refused"),
    ):
        if largest > limit:
            said = f"{largest}, more than {name} ({limit}): a batch of that size {effect}"
            yield warning("message.max.bytes", said, f"raise {name} above message.max.bytes")


def _offsets(settings: Settings) -> Iterator[Finding]:
    if last := offsets_end_soon(settings.offset_sequence_bits):
        said = f"{settings.offset_sequence_bits}: a new topic takes no more records after {last}"
        yield warning(
            "offset.sequence.bits", said, "set it to 11 or less; a topic keeps what it was created with"
        )


def offsets_end_soon(bits: int) -> str:
    """Return the month of the last offset with these low bits, of 53; "" if that is decades from now."""
    last_s = 2 ** (53 - bits) // 1000
    return "" if last_s - time.time() > _SOON_S else f"{datetime.fromtimestamp(last_s, UTC):%B %Y}"


def _exposure(settings: Settings) -> Iterator[Finding]:
    host = parse_address(settings.ops_listen).host if settings.ops_listen else ""
    if host and (host in WILDCARDS or not is_local(host)):
        if settings.console_enable and not settings.console_read_token_file:
            said = f"{settings.ops_listen}: anybody who can connect sees all records on the console"
            advice = "set console.read.token.file or listen on a private network; or console.enable to false"
            yield warning("ops.listen", said, advice)
        token = settings.console_read_token_file or (settings.console_enable and settings.console_token_file)
        if token and not settings.ops_ssl_keystore_location:
            said = f"{settings.ops_listen}: tokens and records cross the network unencrypted"
            advice = "set ops.ssl.keystore.location, or listen on loopback for a proxy that has TLS"
            yield warning("ops.ssl.keystore.location", said, advice)
    if settings.redis_url:
        target = redis_url.parse_url(settings.redis_url)
        remote = [address for address in target.addresses if address.host and not is_local(address.host)]
        if target.kind == "sentinel" and any(not item.password for item in remote):
            said = "the Sentinels need no password: anybody who can connect can name another master"
            yield warning(
                "redis.url",
                said,
                "set requirepass or users on the Sentinels, and sentinel_password in redis.url",
            )
        if remote and not target.login.password:
            said = f"{target} needs no password: anybody who can connect can read and delete records"
            advice = "give Korvet a user of its own in Redis (docs/redis.md lists its permissions)"
            yield warning("redis.url", said, advice)
