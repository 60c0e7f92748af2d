"""The client's side of SASL: what each mechanism sends, and how it checks what the broker answers.

An exchange is a generator: it yields what to send, and is given what the broker has answered. Sources: RFC 4616
(PLAIN), RFC 5802 and 7677 (SCRAM), RFC 7628 (OAUTHBEARER), KIP-43, KIP-84, KIP-255.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import secrets
import urllib.parse
from collections.abc import Generator
from pathlib import Path

import msgspec

from korvet.admin.errors import AuthenticationFailedError
from korvet.admin.security import ClientSecurity

Exchange = Generator[bytes, bytes, None]

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000
"""Of SCRAM: a hostile server could ask for a proof that is cheap to guess from, or for more work than can be done."""

_DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_TOKEN_BYTES_MAX = 1024 * 1024


class _Granted(msgspec.Struct):
    """What a token server answers (RFC 6749, 5.1)."""

    access_token: str


def exchange(security: ClientSecurity, timeout: float) -> Exchange:
    """Begin the exchange of a mechanism; a token server has `timeout` seconds. It raises AuthenticationFailedError."""
    match security.mechanism:
        case "PLAIN":
            yield f"\0{security.username}\0{security.password}".encode()
        case "OAUTHBEARER":
            bearer = token(security, timeout)
            refusal = yield f"n,,\x01auth=Bearer {bearer}\x01\x01".encode()
            if refusal:
                yield b"\x01"  # the broker ends the exchange with its error then
        case scram:
            yield from _scram(security, _DIGESTS[scram])


def _scram(security: ClientSecurity, digest: str) -> Exchange:
    def signed(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, digest)

    nonce = base64.b64encode(secrets.token_bytes(24)).decode()
    first = f"n={security.username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    challenge = (yield f"n,,{first}".encode()).decode("utf-8", "replace")
    given = _attributes(challenge)
    try:
        salt, iterations, both = base64.b64decode(given["s"], validate=True), int(given["i"]), given["r"]
    except (KeyError, ValueError):
        raise AuthenticationFailedError("the broker's challenge cannot be read") from None
    if not both.startswith(nonce) or both == nonce:
        raise AuthenticationFailedError("the broker's challenge is not an answer to this client")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise AuthenticationFailedError(
            f"the broker asks for {iterations} iterations, not for {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    salted = hashlib.pbkdf2_hmac(digest, security.password.encode(), salt, iterations)
    client_key = signed(salted, b"Client Key")
    without_proof = f"c=biws,r={both}"
    exchanged = f"{first},{challenge},{without_proof}".encode()
    signature = signed(hashlib.new(digest, client_key).digest(), exchanged)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    final = (yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()).decode(
        "utf-8", "replace"
    )
    expected = base64.b64encode(signed(signed(salted, b"Server Key"), exchanged)).decode()
    if not hmac.compare_digest(_attributes(final).get("v", "").encode(), expected.encode()):
        raise AuthenticationFailedError(
            "the broker does not know this user's password: it may be an impostor"
        )


def _attributes(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}


def token(security: ClientSecurity, timeout: float) -> str:
    """Return a token: of a file, or granted to a client (KIP-768). Raises AuthenticationFailedError."""
    url = security.configs["sasl.oauthbearer.token.endpoint.url"]
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme == "file":
            return Path(urllib.parse.unquote(parts.path)).read_text(encoding="ascii").strip()
        if parts.scheme not in ("http", "https"):
            raise AuthenticationFailedError(
                "sasl.oauthbearer.token.endpoint.url must begin with file:, http: or https:"
            )
        return _granted(url, security, timeout)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        where = f"{parts.scheme}://{parts.hostname or parts.path}"
        raise AuthenticationFailedError(f"no token from {where}: {reason}") from error


def _granted(url: str, security: ClientSecurity, timeout: float) -> str:
    import urllib.error  # noqa: PLC0415 - as below
    import urllib.request  # noqa: PLC0415 - takes a fifth of the time in which a command starts

    prefix = "sasl.oauthbearer.client.credentials.client"
    client = ":".join(security.configs.get(f"{prefix}.{part}", "") for part in ("id", "secret"))
    form = {"grant_type": "client_credentials"}
    if scope := security.configs.get("sasl.oauthbearer.scope"):
        form["scope"] = scope
    request = urllib.request.Request(  # noqa: S310 - http or https, as the caller has checked
        url,
        urllib.parse.urlencode(form).encode(),
        {
            "Authorization": f"Basic {base64.b64encode(client.encode()).decode()}",
            "Accept": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - the same
            return msgspec.json.decode(answer.read(_TOKEN_BYTES_MAX), type=_Granted).access_token
    except urllib.error.HTTPError as refusal:
        with refusal:
            raise OSError(0, f"HTTP {refusal.code}") from None
