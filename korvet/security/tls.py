"""TLS of listeners: contexts from Kafka's ssl.* settings, made again when their files change.

Key stores and trust stores are PEM (KIP-651), in files or in the settings themselves. Nothing of a private key or of
its password is written anywhere: errors name settings and files.
"""

from __future__ import annotations

import ssl
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from korvet.config.settings import Settings
from korvet.config.values import file_in_memory, listed
from korvet.errors import ConfigError
from korvet.logs import Log
from korvet.security.certificates import PemBlock, expires_at, pem_blocks, subject
from korvet.security.principal_mapper import PrincipalMapper
from korvet.security.session import ANONYMOUS, Principal

_log = Log(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_CERTIFICATE = "CERTIFICATE"
OPS = "OPS.LISTEN"
"""What stands for the name of a listener in metrics and in the log; no listener can have a dot in its name."""


class NoPrincipalError(Exception):
    """No rule of ssl.principal.mapping.rules has a user for a certificate."""


class ListenerTls:
    """TLS of one listener: `context` is for new connections, `expires_at` the end of its certificates' validity."""

    def __init__(self, listener: str, settings: Settings) -> None:
        """Read keys and certificates; raises ConfigError."""
        self.listener = listener
        self._settings = settings.for_listener(listener)
        self._logs_in = settings.security_protocol(listener).sasl
        if self._logs_in:
            # As in Kafka, where logins need no certificate unless this listener itself asks for one (KIP-684).
            given = settings.overrides.get(listener, {})
            self._client_auth = str(given.get("ssl_client_auth", "none"))
        else:
            self._client_auth = self._settings.ssl_client_auth
        self._mapper = PrincipalMapper(self._settings.ssl_principal_mapping_rules)
        self._files = self._refused = self._look()
        self.context, self.expires_at = self._load()

    def refresh(self) -> None:
        """Read the files again if they have changed; while they cannot be used the former ones stay in use."""
        files = self._look()
        if files == self._files:
            return
        try:
            self.context, self.expires_at = self._load()
        except (ConfigError, OSError) as error:
            # Tried again each time: the reason may be a lack of descriptors, or permissions that are still to be given.
            if files != self._refused:
                _log.error(
                    "the changed certificate cannot be used; the former one stays in use", reason=error
                )
            self._refused = files
        else:
            self._files = files
            _log.info("certificate read again", listener=self.listener, expires=_date(self.expires_at))

    def principal(self, certificate: bytes | None) -> Principal:
        """Return as whom a client has shown itself by its certificate; raises NoPrincipalError."""
        if certificate is None or self._logs_in:
            return ANONYMOUS
        name = subject(certificate)
        user = self._mapper.user(name)
        if user is None:
            raise NoPrincipalError(f"no rule of ssl.principal.mapping.rules matches {name}")
        return Principal("User", user)

    def is_key_readable_by_all(self) -> bool:
        """Return whether every user of this machine can read the file with the private key."""
        path = self._settings.ssl_keystore_location
        return bool(path) and bool(Path(path).stat().st_mode & stat.S_IROTH)

    def _look(self) -> list[tuple[int, ...]]:
        """Return what changes whenever a file is written or replaced."""
        found: list[tuple[int, ...]] = []
        for path in (self._settings.ssl_keystore_location, self._settings.ssl_truststore_location):
            try:
                status = Path(path).stat() if path else None
            except OSError:
                status = None
            found.append((status.st_mtime_ns, status.st_size, status.st_ino) if status else ())
        return found

    def _load(self) -> tuple[ssl.SSLContext, float]:
        try:
            return _context(self._settings, self._client_auth)
        except ConfigError as error:
            raise ConfigError(f"listener {self.listener}: {error}") from None


def listeners_tls(names: Iterable[str], settings: Settings) -> dict[str, ListenerTls]:
    """Return TLS of those listeners that have it, by name; raises ConfigError."""
    return {name: ListenerTls(name, settings) for name in names if settings.security_protocol(name).tls}


def ops_tls(settings: Settings) -> ListenerTls | None:
    """Return TLS of `ops.listen`, None if it has none; raises ConfigError."""
    if not settings.ops_ssl_keystore_location:
        return None
    own = replace(
        settings,
        listener_security_protocol_map=f"{OPS}:SSL",
        overrides={},
        ssl_keystore_location=settings.ops_ssl_keystore_location,
        ssl_keystore_certificate_chain="",
        ssl_keystore_key="",
        ssl_key_password=settings.ops_ssl_key_password,
        ssl_client_auth="none",
    )
    try:
        return ListenerTls(OPS, own)
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"listener {OPS}: ssl.", "ops.ssl.")) from None


def _context(settings: Settings, client_auth: str) -> tuple[ssl.SSLContext, float]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    # A resumed session could outlive what its certificate was trusted for; one of TLS 1.2 ends with the context.
    context.num_tickets = 0
    # As Java does, trust what is in the trust store, be it the end of a chain or not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _limit_versions(context, settings)
    blocks = _key_store(settings)
    with file_in_memory("".join(each.text for each in blocks)) as path:
        try:
            # Without a password OpenSSL would ask for it at the terminal.
            context.load_cert_chain(path, password=lambda: settings.ssl_key_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(_key_problem(error, settings)) from None
    context.verify_mode = _VERIFY[client_auth]
    if client_auth != "none":
        _trust(context, settings, client_auth)
    return context, min(_expires_at(each) for each in blocks if each.label == _CERTIFICATE)


def _limit_versions(context: ssl.SSLContext, settings: Settings) -> None:
    suites = listed(settings.ssl_cipher_suites)
    every = [each["name"] for each in context.get_ciphers()]
    new = [name for name in every if name.startswith("TLS_")]
    versions = [
        version
        for version in listed(settings.ssl_enabled_protocols)
        if version <= settings.ssl_protocol and (not suites or _has_suites(version, suites, new))
    ]
    if not versions:
        raise ConfigError("ssl.enabled.protocols, ssl.protocol and ssl.cipher.suites leave no version of TLS")
    context.minimum_version, context.maximum_version = _VERSIONS[min(versions)], _VERSIONS[max(versions)]
    if "TLSv1.3" in versions and suites and (missing := set(new) - set(suites)):
        raise ConfigError(
            f"ssl.cipher.suites: all suites of TLS 1.3 or none of them; {', '.join(sorted(missing))} cannot be left out"
        )
    old = [_openssl_name(name) for name in suites if name not in new]
    if unknown := [name for name in old if name not in every]:
        raise ConfigError(
            f"ssl.cipher.suites: {unknown[0]} is unknown or not safe; there are {', '.join(every)}"
        )
    if old:
        context.set_ciphers(":".join(old))


def _has_suites(version: str, suites: Sequence[str], new: Sequence[str]) -> bool:
    """Return whether a version of TLS has any of `suites`; `new` are those of 1.3."""
    return any((name in new) == (version == "TLSv1.3") for name in suites)


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite: IANA's TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    bare = suite.removeprefix("TLS_").replace("_WITH_", "_").replace("AES_", "AES").replace("_CBC", "")
    return bare.replace("POLY1305_SHA256", "POLY1305").replace("_", "-")


def _key_store(settings: Settings) -> list[PemBlock]:
    """Return private key and certificate chain; raises ConfigError."""
    where, chain, key = (
        settings.ssl_keystore_location,
        settings.ssl_keystore_certificate_chain,
        settings.ssl_keystore_key,
    )
    if where and (chain or key):
        raise ConfigError("both ssl.keystore.location and ssl.keystore.key are given: one is enough")
    if bool(chain) != bool(key):
        raise ConfigError("ssl.keystore.certificate.chain and ssl.keystore.key go together: one is missing")
    if not (where or chain):
        raise ConfigError("TLS needs ssl.keystore.location, a PEM file with private key and certificates")
    what = f"ssl.keystore.location {where}" if where else "ssl.keystore.key, ssl.keystore.certificate.chain"
    blocks = pem_blocks(_read("ssl.keystore.location", where) if where else f"{key}\n{chain}")
    if not any(each.label.endswith("PRIVATE KEY") for each in blocks):
        raise ConfigError(f"{what}: there is no private key in PEM")
    if not any(each.label == _CERTIFICATE for each in blocks):
        raise ConfigError(f"{what}: there is no certificate in PEM")
    return blocks


def _trust(context: ssl.SSLContext, settings: Settings, client_auth: str) -> None:
    where, given = settings.ssl_truststore_location, settings.ssl_truststore_certificates
    if where and given:
        raise ConfigError(
            "both ssl.truststore.location and ssl.truststore.certificates are given: one is enough"
        )
    if not (where or given):
        raise ConfigError(
            f"ssl.client.auth = {client_auth} needs ssl.truststore.location, the CAs to trust in PEM"
        )
    what = f"ssl.truststore.location {where}" if where else "ssl.truststore.certificates"
    blocks = pem_blocks(_read("ssl.truststore.location", where) if where else given)
    trusted = [each.text for each in blocks if each.label == _CERTIFICATE]
    if not trusted:
        raise ConfigError(f"{what}: there is no certificate in PEM")
    try:
        context.load_verify_locations(cadata="".join(trusted))
    except ssl.SSLError as error:
        raise ConfigError(f"{what}: {reason(error)}") from None


def _read(setting: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"{setting} {path}: {error.strerror}") from None


def _key_problem(error: Exception, settings: Settings) -> str:
    """Say what is wrong with a key store, with nothing of its content."""
    what = f"ssl.keystore.location {settings.ssl_keystore_location}".strip()
    said = getattr(error, "reason", None) or ""
    if said == "KEY_VALUES_MISMATCH":
        return f"{what}: the private key does not belong to the first certificate, which has to be the broker's own"
    if not said:
        return f"{what}: the private key cannot be read; is ssl.key.password right?"
    return f"{what}: {reason(error)}"


def _expires_at(block: PemBlock) -> float:
    try:
        return expires_at(block.der)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"a certificate cannot be read: {error}") from None


def reason(error: Exception) -> str:
    """Return in words what OpenSSL reports."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    said = str(getattr(error, "reason", None) or error)
    _, alert, peer_says = said.partition("_ALERT_")
    if alert:
        return f"the peer refused, by alert {peer_says.replace('_', ' ').lower()}"
    return said.replace("_", " ").lower()


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
