"""How a client proves who it is, and checks whom it talks to: Kafka's client configs security.*, ssl.* and sasl.*.

Certificates and keys are PEM: files, or the text itself where Kafka has a config for that. The names of librdkafka
(ssl.ca.location, sasl.username, ...) are known too, so that one file serves all clients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from korvet.config.values import file_in_memory

if TYPE_CHECKING:
    import ssl  # a client without TLS starts without it

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

FAMILIES = ("security.", "ssl.", "sasl.")
_ALIASES = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
}
"""librdkafka's names, and Kafka's for the same."""

_NAMES = frozenset(
    {
        *_ALIASES.values(),
        "security.protocol",
        "ssl.truststore.type",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "sasl.username",
        "sasl.password",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.scope",
    }
)
_LOGIN_MODULE = re.compile(
    r"(?P<module>[\w.]+)\s+required(?P<options>(?:\s+\w+\s*=\s*\"(?:[^\"\\]|\\.)*\")*)\s*;", re.ASCII
)
_LOGIN_OPTION = re.compile(r"(\w+)\s*=\s*\"((?:[^\"\\]|\\.)*)\"", re.ASCII)
_LOGIN_OPTIONS = {
    "username": "sasl.username",
    "password": "sasl.password",
    "clientId": "sasl.oauthbearer.client.credentials.client.id",
    "clientSecret": "sasl.oauthbearer.client.credentials.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_PROPERTY = re.compile(r"(?P<name>(?:[^\s:=\\]|\\.)+)\s*[:=]?\s*(?P<value>.*)", re.DOTALL)


class ClientSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """The security of a client's connections; `configs` by Kafka's names. Its text has no secrets."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    configs: Mapping[str, str] = {}
    server_name: str = ""
    """Whom a certificate has to be for, if not for the host of the address."""

    def __repr__(self) -> str:
        """Name protocol, mechanism and user; never a password."""
        return f"ClientSecurity({self.protocol} {self.mechanism} {self.username!r})"

    @property
    def username(self) -> str:
        """The user of PLAIN and SCRAM."""
        return self.configs.get("sasl.username", "")

    @property
    def password(self) -> str:
        """The user's password."""
        return self.configs.get("sasl.password", "")

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    def tls_context(self) -> ssl.SSLContext:
        """Return what connections are encrypted by. Raises ValueError for files that cannot be used."""
        import ssl  # noqa: PLC0415 - as said above

        configs = self.configs
        location = configs.get("ssl.truststore.location")
        try:
            context = ssl.create_default_context(
                cafile=location, cadata=configs.get("ssl.truststore.certificates")
            )
        except (OSError, ValueError) as error:
            raise ValueError(
                f"ssl.truststore.location: {location or 'certificates'}: {reason(error)}"
            ) from None
        # As Java does, trust what is in the trust store, be it the end of a chain or not.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        # Kafka's way to say no is an empty value, librdkafka's is none.
        if configs.get("ssl.endpoint.identification.algorithm", "https").strip().lower() in ("", "none"):
            context.check_hostname = False
        key_file = configs.get("ssl.key.location")
        chain_file = configs.get("ssl.certificate.location") or configs.get("ssl.keystore.location")
        chain, key = configs.get("ssl.keystore.certificate.chain"), configs.get("ssl.keystore.key")
        try:
            with file_in_memory(f"{key}\n{chain}") if chain and key else nullcontext() as made:
                if made or chain_file:
                    # Without a password a protected key would ask for one at the terminal.
                    password = configs.get("ssl.key.password", "")
                    context.load_cert_chain(made or chain_file or "", key_file, lambda: password)
        except (OSError, ValueError) as error:
            raise ValueError(f"ssl.keystore.location: {chain_file or 'key'}: {reason(error)}") from None
        return context


PLAINTEXT = ClientSecurity()


def from_configs(given: Mapping[str, str]) -> ClientSecurity:
    """Take the security from a client's configs; those of other families are left alone. Raises ValueError."""
    configs = _known(given)
    for store in ("ssl.truststore.type", "ssl.keystore.type"):
        if configs.pop(store, "PEM") != "PEM":
            raise ValueError(f"{store} must be PEM; `keytool` and `openssl pkcs12` convert other stores")
    protocol = configs.pop("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"security.protocol must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    mechanism = configs.pop("sasl.mechanism", "") if protocol.startswith("SASL") else ""
    security = ClientSecurity(protocol=protocol, mechanism=mechanism, configs=configs)
    if protocol.startswith("SASL"):
        _check_login(security)
    if security.uses_tls:
        security.tls_context()  # an error now, not at the first connection
    return security


def read_properties(path: Path) -> dict[str, str]:
    """Read a file of Java properties, as Kafka's tools take them. Raises ValueError, which repeats no value."""
    try:
        lines = iter(path.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"cannot read {path}: it is not UTF-8 text") from None
    properties = {}
    for first in lines:
        line = first.lstrip()
        if not line or line[0] in "#!":
            continue
        while _CONTINUED.search(line):
            line = line[:-1] + next(lines, "").lstrip()
        parts = _PROPERTY.fullmatch(line)
        if parts is None:
            raise ValueError(f"{path}: a line has no name of a config")
        properties[_unescaped(parts["name"])] = _unescaped(parts["value"])
    return properties


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """Return the configs of security by Kafka's names. Raises ValueError for one that would have no effect."""
    configs: dict[str, str] = {}
    for name, value in given.items():
        known = _ALIASES.get(name, name)
        if known in _NAMES:
            configs[known] = value
        elif name.startswith(FAMILIES):
            raise ValueError(f"{name} is not known to this client")
    handler = configs.pop("sasl.login.callback.handler.class", "")
    if handler and not handler.endswith(".OAuthBearerLoginCallbackHandler"):
        raise ValueError(
            "sasl.login.callback.handler.class is Java's: only Kafka's own for OAUTHBEARER is known"
        )
    jaas = configs.pop("sasl.jaas.config", "")
    return configs | _login(jaas) if jaas else configs


def _check_login(security: ClientSecurity) -> None:
    """Raise ValueError if a mechanism is not known, or lacks what it needs."""
    mechanism = security.mechanism
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism!r}")
    if mechanism == "OAUTHBEARER":
        if not security.configs.get("sasl.oauthbearer.token.endpoint.url"):
            raise ValueError(
                "OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url, file:///PATH or a server's URL"
            )
    elif not (security.username and security.password):
        raise ValueError(f"{mechanism} needs sasl.username and sasl.password, or sasl.jaas.config")


def _login(jaas: str) -> dict[str, str]:
    """Return the configs that a line of JAAS stands for."""
    parts = _LOGIN_MODULE.fullmatch(jaas.strip())
    if parts is None:
        raise ValueError('sasl.jaas.config must be: LOGIN_MODULE required username="..." password="...";')
    module = parts["module"].rpartition(".")[2]
    if module not in ("PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule"):
        raise ValueError(f"sasl.jaas.config: {module} is not supported")
    options = {
        name: re.sub(r"\\(.)", r"\1", value) for name, value in _LOGIN_OPTION.findall(parts["options"])
    }
    return {_LOGIN_OPTIONS[name]: value for name, value in options.items() if name in _LOGIN_OPTIONS}


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match["code"]
        return chr(int(code, 16)) if code else _ESCAPES.get(match["char"], match["char"])

    return re.sub(r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|(?P<char>.))", one, text)


def reason(error: Exception) -> str:
    """Return the message of the system without its number."""
    return getattr(error, "strerror", None) or str(error)
