"""Hostile logins: what a client may send to a listener with SASL before it has shown who it is, and instead of that."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.fuzz.requests import damaged
from tests.support.wire_client import frame, request_frame

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1:1/keys",
    "connection.failed.authentication.delay.ms": 1,
}
LONGEST = 500_000
_TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6Im9uZSJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"

_TOKENS: dict[str, tuple[bytes, ...]] = {
    "PLAIN": (b"\0alice\0secret", b"alice\0alice\0secret", b"\0\0", b"\0alice\0\xff", b"\0a\nb\0c"),
    "SCRAM-SHA-256": (
        b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL",
        b"n,a=bob,n=alice,r=x,ext=1,tokenauth=true",
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"y,,n=a=2Cb=3D,r=x",
    ),
    "OAUTHBEARER": (
        f"n,,\x01auth=Bearer {_TOKEN}\x01\x01".encode(),
        f"n,a=alice,\x01ext=1\x01auth=Bearer {_TOKEN}\x01\x01".encode(),
        b"\x01",
    ),
}
_REPEATED = (b"auth=Bearer x\x01", b"a=b\x01", b",m=x", b"=2C", b"\0", b"\x01", b",", b"{", b".", b"AAAA")


def login(rng: Random) -> bytes:
    """Return what one client sends, all at once."""
    pieces: list[bytes] = []
    if rng.random() < 0.2:
        pieces.append(request_frame(ApiVersionsRequest(), 0))
    mechanism = rng.choice([*_TOKENS, "SCRAM-SHA-512", "GSSAPI", "", "x" * 1000])
    version = rng.choice((0, 1))
    send = frame if version == 0 else _authenticate
    if rng.random() < 0.9:
        pieces.append(request_frame(SaslHandshakeRequest(mechanism=mechanism), version))
    pieces += [_token(rng, mechanism, send) for _ in range(rng.choice((1, 1, 2, 3)))]
    if rng.random() < 0.3:
        pieces.append(request_frame(MetadataRequest(topics=None), 8))
    if rng.random() < 0.2:
        at = rng.randrange(len(pieces))
        pieces[at] = damaged(rng, pieces[at])
    return b"".join(pieces)


def _token(rng: Random, mechanism: str, send: Callable[[bytes], bytes]) -> bytes:
    token = rng.choice(_TOKENS.get(mechanism) or _TOKENS["SCRAM-SHA-256"])
    kind = rng.random()
    if kind < 0.4:
        token = damaged(rng, token)
    elif kind < 0.6:
        part = rng.choice(_REPEATED)
        at = rng.randrange(len(token) + 1)
        token = token[:at] + part * (rng.choice((10, 1000, LONGEST)) // len(part)) + token[at:]
    return send(token)


def _authenticate(token: bytes) -> bytes:
    return request_frame(SaslAuthenticateRequest(auth_bytes=token), 1)
