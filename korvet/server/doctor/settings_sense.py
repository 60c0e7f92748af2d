"""Settings that are allowed each, and together look like a slip.

Knows settings alone: what is said here is true on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from korvet.config import WILDCARDS, Settings, parse_address
from korvet.server.doctor.finding import Finding, ok, warning
from korvet.storage import redis_url

_LOOPBACK = ("localhost", "127.", "::1")


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what looks wrong, or that nothing does."""
    found = [
        *_leases(settings),
        *_sizes(settings),
        *_exposure(settings),
    ]
    yield from found or [ok("settings", "nothing contradicts itself")]


def is_local(host: str) -> bool:
    """Whether a host is this machine and none else."""
    return host.startswith(_LOOPBACK)


def _leases(settings: Settings) -> Iterator[Finding]:
    for name, lease_ms in (
        ("keeper.lease.ms", settings.keeper_lease_ms),
        ("broker.lease.ms", settings.broker_lease_ms),
    ):
        if lease_ms <= settings.redis_timeout_ms:
            yield warning(
                name,
                f"{lease_ms} ms, no more than redis.timeout.ms ({settings.redis_timeout_ms}): a slow command loses it",
                f"set {name} to twice redis.timeout.ms or more",
            )


def _sizes(settings: Settings) -> Iterator[Finding]:
    if settings.message_max_bytes > settings.socket_request_max_bytes:
        yield warning(
            "message.max.bytes",
            f"{settings.message_max_bytes}, more than socket.request.max.bytes ({settings.socket_request_max_bytes}):"
            " such a batch never arrives",
            "raise socket.request.max.bytes above message.max.bytes",
        )
    if settings.message_max_bytes > settings.record_decompressed_max_bytes:
        yield warning(
            "message.max.bytes",
            f"{settings.message_max_bytes}, more than record.decompressed.max.bytes"
            f" ({settings.record_decompressed_max_bytes}): such a batch is refused",
            "raise record.decompressed.max.bytes above message.max.bytes",
        )


def _exposure(settings: Settings) -> Iterator[Finding]:
    if settings.ops_listen and settings.console_enable:
        host = parse_address(settings.ops_listen).host
        if host in WILDCARDS or not is_local(host):
            yield warning(
                "ops.listen",
                f"{settings.ops_listen}: whoever reaches it sees all records on the console",
                "listen on 127.0.0.1 or a private network, or set console.enable to false",
            )
    if settings.redis_url:
        server = redis_url.parse(settings.redis_url)
        if server.host and not is_local(server.host) and not server.password:
            yield warning(
                "redis.url",
                f"{server} is asked for no password: whoever reaches it reads and deletes records",
                "give Korvet a user of its own in Redis (README, How durable, has its rights)",
            )
