"""The checks of a broker's settings and certificates, by a start before anything is forked and by `korvet doctor`.

redis_check.py has those of Redis.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from korvet import extras, java
from korvet.config.listeners import Listener
from korvet.config.settings import Settings
from korvet.config.values import listed
from korvet.errors import ConfigError
from korvet.security.password_file import read_passwords
from korvet.security.tls import listeners_tls, ops_tls
from korvet.server.finding import Finding, error, fatal, ok, warning
from korvet.server.supervisor import ports

CERTIFICATE_DAYS_MIN = 14
"""As the alert KorvetCertificateExpires has it."""


def examine(settings: Settings, listeners: Sequence[Listener]) -> Iterator[Finding]:
    yield from replicas(settings)
    yield from lake(settings)
    yield from of_listeners(settings, listeners)


def of_listeners(settings: Settings, listeners: Sequence[Listener]) -> Iterator[Finding]:
    """Yield what is found of listeners: these are what a reload may change."""
    yield from sasl(settings, listeners)
    yield from tls(settings, listeners)
    yield from reach(settings, listeners)


def replicas(settings: Settings) -> Iterator[Finding]:
    for name, wanted in (
        ("replicas", settings.replicas),
        ("min.insync.replicas", settings.min_insync_replicas - 1),
    ):
        if wanted and not settings.redis_url:
            said = f"{name}: the embedded server has no replicas; only a Redis that redis.url names can have some"
            yield fatal(name, said, f"set redis.url to a Redis with replicas, or leave {name} out")


def lake(settings: Settings) -> Iterator[Finding]:
    """Yield whether what the processes of the lake need is installed, if lake.path is set."""
    if not settings.lake_path:
        return
    # Found, not imported: only the processes that read and write the lake load them.
    archives = settings.lake_interval_ms > 0
    needed = ["deltalake", "pyarrow", "numpy", *(("pyspark",) if archives else ())]
    if settings.lake_iceberg_catalog:
        needed.append("pyiceberg")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        said = f"lake.path needs {', '.join(missing)}: run `{extras.lake_command(*missing)}`"
        yield fatal("lake", said, "install what it names")
    elif archives and (problem := java.problem()):
        said = f"lake.path: {problem}; or set lake.interval.ms=0 and run `korvet lake archive` on another machine"
        yield fatal("lake", said, "install what it names")
    else:
        yield ok("lake", f"{'Spark, Java and deltalake are' if archives else 'deltalake is'} installed")


def sasl(settings: Settings, listeners: Sequence[Listener]) -> Iterator[Finding]:
    """Yield the listeners whose clients could not log in by SASL."""
    for name, _ in listeners:
        problem = _login_problem(settings, name) if settings.security_protocol(name).sasl else ""
        if problem:
            yield fatal(
                f"SASL ({name})", problem, "correct the settings of the listener, or the file of users"
            )


def _login_problem(settings: Settings, listener: str) -> str:
    own = settings.for_listener(listener)
    mechanisms = listed(own.sasl_enabled_mechanisms)
    if not mechanisms:
        return f"listener {listener}: sasl.enabled.mechanisms names no mechanism"
    if "OAUTHBEARER" in mechanisms:
        url = own.for_listener(f"{listener}.OAUTHBEARER").sasl_oauthbearer_jwks_endpoint_url
        if not url:
            return f"listener {listener}: OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url"
    if "PLAIN" in mechanisms and own.sasl_plain_users_file:
        try:
            read_passwords(Path(own.sasl_plain_users_file))
        except ConfigError as problem:
            return str(problem)
    return ""


def tls(settings: Settings, listeners: Sequence[Listener]) -> Iterator[Finding]:
    """Yield what is true of the key stores of listeners with TLS, and of that of `ops.listen`."""
    for name in [*(listener.name for listener in listeners), "ops.listen"]:
        is_ops = name == "ops.listen"
        what = f"TLS ({name})"
        try:
            listener_tls = ops_tls(settings) if is_ops else listeners_tls([name], settings).get(name)
        except ConfigError as problem:
            yield fatal(what, str(problem), "make key and certificates readable by the broker's user")
            continue
        if listener_tls is None:
            continue
        days = int((listener_tls.expires_at - time.time()) // 86_400)
        if days < 0:
            said = "the certificate has expired: clients refuse to connect"
            yield error(what, said, "renew the certificate, and replace the file")
        elif days < CERTIFICATE_DAYS_MIN:
            yield warning(what, f"the certificate expires in {days} days", "renew the certificate")
        else:
            yield ok(what, f"the certificate is valid for {days} days")
        if listener_tls.is_key_readable_by_all():
            setting = "ops.ssl.keystore.location" if is_ops else f"ssl.keystore.location ({name})"
            yield warning(
                setting, "every user of this machine can read the private key", "chmod o-rwx the file"
            )


def reach(settings: Settings, listeners: Sequence[Listener]) -> Iterator[Finding]:
    """Yield whether clients can reach listeners, and whether strangers can use them."""
    try:
        ports.bind_listeners(settings, listeners)
    except ConfigError as problem:
        yield fatal("advertised", str(problem), "give clients an address that they can connect to")
        return
    for name, lacks in ports.unguarded(settings, listeners).items():
        said = f"{lacks}: anybody who can connect may use it"
        yield warning(
            f"listener {name}", said, "secure it (docs/security.md), or listen on a private network"
        )
