"""TLS of listeners, from Kafka's ssl.* settings, made again when their files change.

The core does that of clients, Python's ssl that of `ops.listen`. Key stores and trust stores are PEM (KIP-651), in
files or in the settings themselves. Nothing of a private key or of its password is written anywhere: errors name
settings and files.
"""

from __future__ import annotations

import ssl
import stat
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from korvet_core import TlsServer

from korvet.config.settings import Settings
from korvet.config.values import file_in_memory, listed
from korvet.errors import ConfigError
from korvet.logs import Log
from korvet.security.certificates import PemBlock, expires_at, pem_blocks, subject
from korvet.security.principal_mapper import PrincipalMapper
from korvet.security.session import ANONYMOUS, Principal

_log = Log(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CERTIFICATE = "CERTIFICATE"
OPS = "OPS.LISTEN"
"""What stands for the name of a listener in metrics and in the log; no listener can have a dot in its name."""


class NoPrincipalError(Exception):
    """No rule of ssl.principal.mapping.rules has a user for a certificate."""


class ListenerTls:
    """TLS of one listener: `server` is for new connections, `expires_at` the end of its certificates' validity.

    That of `ops.listen` has `context` in place of `server`.
    """

    server: TlsServer
    context: ssl.SSLContext

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
        self.expires_at = self._load()

    def refresh(self) -> None:
        """Read the files again if they have changed; while they cannot be used the former ones stay in use."""
        files = self._look()
        if files == self._files:
            return
        try:
            self.expires_at = self._load()
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
        result: list[tuple[int, ...]] = []
        for path in (self._settings.ssl_keystore_location, self._settings.ssl_truststore_location):
            try:
                status = Path(path).stat() if path else None
            except OSError:
                status = None
            result.append((status.st_mtime_ns, status.st_size, status.st_ino) if status else ())
        return result

    def _load(self) -> float:
        """Make `server` or `context` of the files as they are; returns `expires_at`."""
        try:
            blocks = _key_store(self._settings)
            expires = min(_expires_at(block) for block in blocks if block.label == _CERTIFICATE)
            if self.listener == OPS:
                self.context = _context(self._settings, blocks)
            else:
                self.server = _server(self._settings, blocks, self._client_auth)
        except ConfigError as error:
            raise ConfigError(f"listener {self.listener}: {error}") from None
        return expires


def listeners_tls(names: Iterable[str], settings: Settings) -> dict[str, ListenerTls]:
    """Return TLS of those listeners that have it, by name; raises ConfigError."""
    return {name: ListenerTls(name, settings) for name in names if settings.security_protocol(name).tls}


def ops_tls(settings: Settings) -> ListenerTls | None:
    """Return TLS of `ops.listen`, None if it has none; raises ConfigError."""
    if not (settings.ops_listen and settings.ops_ssl_keystore_location):
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


def _server(settings: Settings, blocks: Iterable[PemBlock], client_auth: str) -> TlsServer:
    """Return TLS for clients; raises ConfigError. It is made in the process that forks too, as a check.

    What the core does then leaves neither descriptors nor random state: that is made for the first connection.
    """
    suites = _suites(settings)
    versions = _versions(settings, suites)
    what, trusted = _trust_store(settings, client_auth) if client_auth != "none" else ("", "")
    try:
        return TlsServer(
            key_store=_text(blocks),
            trust_store=trusted,
            client_auth=client_auth,
            versions=versions,
            suites=suites,
        )
    except ValueError as error:
        store, _, said = str(error).partition(": ")
        named = what if store == "trust store" else _named_key_store(settings)
        raise ConfigError(f"{named}: {said}") from None


def _context(settings: Settings, blocks: Iterable[PemBlock]) -> ssl.SSLContext:
    """Return TLS for `ops.listen`; of TLS 1.3 it has every suite, which Python's ssl cannot choose among."""
    suites = _suites(settings)
    versions = _versions(settings, suites)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.minimum_version, context.maximum_version = _VERSIONS[min(versions)], _VERSIONS[max(versions)]
    with file_in_memory(_text(blocks)) as path:
        try:
            if old := [_openssl_name(name) for name in suites if _version(name) == "TLSv1.2"]:
                context.set_ciphers(":".join(old))
            context.load_cert_chain(path)
        except (ssl.SSLError, OSError) as error:
            said = str(getattr(error, "reason", None) or error).replace("_", " ").lower()
            if said == "key values mismatch":
                said = "the private key does not belong to the first certificate"
            raise ConfigError(f"{_named_key_store(settings)}: {said}") from None
    return context


def _versions(settings: Settings, suites: Iterable[str]) -> list[str]:
    """Return the versions that settings leave, those of `suites` if there are any; raises ConfigError."""
    of_suites = set(map(_version, suites)) or set(_VERSIONS)
    allowed = [name for name in listed(settings.ssl_enabled_protocols) if name <= settings.ssl_protocol]
    versions = [name for name in allowed if name in of_suites]
    if not versions:
        raise ConfigError("ssl.enabled.protocols, ssl.protocol and ssl.cipher.suites leave no version of TLS")
    return versions


def _suites(settings: Settings) -> list[str]:
    """Return the suites that settings name, by IANA's names; raises ConfigError."""
    every = TlsServer.all_suites()
    known = {name: name for name in every} | {_openssl_name(name): name for name in every}
    suites = listed(settings.ssl_cipher_suites)
    if unknown := [name for name in suites if name not in known]:
        raise ConfigError(
            f"ssl.cipher.suites: {unknown[0]} is unknown or not safe; there are {', '.join(every)}"
        )
    return [known[name] for name in suites]


def _version(suite: str) -> str:
    """Return the version of TLS that has a suite: names of 1.3 say nothing of how keys are exchanged."""
    return "TLSv1.2" if "_WITH_" in suite else "TLSv1.3"


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite: IANA's TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    if _version(suite) == "TLSv1.3":
        return suite
    bare = suite.removeprefix("TLS_").replace("_WITH_", "_").replace("AES_", "AES")
    return bare.replace("POLY1305_SHA256", "POLY1305").replace("_", "-")


def _key_store(settings: Settings) -> list[PemBlock]:
    """Return private key, not encrypted any more, and certificate chain; raises ConfigError."""
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
    what = _named_key_store(settings)
    blocks = pem_blocks(_read("ssl.keystore.location", where) if where else f"{key}\n{chain}")
    if not any(block.label.endswith("PRIVATE KEY") for block in blocks):
        raise ConfigError(f"{what}: there is no private key in PEM")
    if not any(block.label == _CERTIFICATE for block in blocks):
        raise ConfigError(f"{what}: there is no certificate in PEM")
    return [_decrypted(block, settings.ssl_key_password, what) for block in blocks]


def _named_key_store(settings: Settings) -> str:
    where = settings.ssl_keystore_location
    return f"ssl.keystore.location {where}" if where else "ssl.keystore.key, ssl.keystore.certificate.chain"


def _decrypted(block: PemBlock, password: str, what: str) -> PemBlock:
    """Return a private key without its password, in PKCS#8, and any other block as it is; raises ConfigError."""
    if not block.label.endswith("PRIVATE KEY") or "ENCRYPTED" not in block.text:
        return block
    # Here only: few keys are encrypted.
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - as said above
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as said above

    try:
        key = serialization.load_pem_private_key(block.text.encode(), password.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{what}: the private key cannot be read; is ssl.key.password right?") from None
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return PemBlock("PRIVATE KEY", key.private_bytes(*form).decode())


def _trust_store(settings: Settings, client_auth: str) -> tuple[str, str]:
    """Return how errors name the trust store, and its certificates in PEM; raises ConfigError."""
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
    return what, _text(pem_blocks(_read("ssl.truststore.location", where) if where else given))


def _text(blocks: Iterable[PemBlock]) -> str:
    return "".join(block.text for block in blocks)


def _read(setting: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"{setting} {path}: {error.strerror}") from None


def _expires_at(block: PemBlock) -> float:
    try:
        return expires_at(block.der)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"a certificate cannot be read: {error}") from None


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
