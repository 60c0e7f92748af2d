"""An identity provider: keys, tokens signed with them, and an HTTP server of the public keys that may hang or fail."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://idp.example", "korvet"


class Provider:
    """Keys by their ids. `requests` counts what was asked of the server, which does not answer while it `hangs`.

    While there are `redirects` it answers with the next of them.
    """

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Any]] = {}
        self.document: bytes | None = None
        self.requests = 0
        self.url = ""
        self.redirects: list[str] = []
        self.hangs = threading.Event()
        self.released = threading.Event()

    def add(self, key_id: str = "one", algorithm: str = "RS256") -> None:
        """Begin to sign with another key."""
        key: Any
        if algorithm.startswith("ES"):
            key = ec.generate_private_key({"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}[algorithm])
        elif algorithm == "EdDSA":
            key = ed25519.Ed25519PrivateKey.generate()
        else:
            key = rsa.generate_private_key(65537, 2048)
        self.keys[key_id] = algorithm, key

    def jwks(self) -> bytes:
        """Return the public keys."""
        if self.document is not None:
            return self.document
        result = []
        for key_id, (algorithm, key) in self.keys.items():
            kind: Any = {"E": ECAlgorithm, "R": RSAAlgorithm, "P": RSAAlgorithm}[algorithm[0]]
            kind = OKPAlgorithm if algorithm == "EdDSA" else kind
            jwk = kind.to_jwk(key.public_key(), as_dict=True)
            jwk.pop("key_ops", None)
            result.append({**jwk, "kid": key_id, "use": "sig"})
        return json.dumps({"keys": result}).encode()

    def public_pem(self) -> bytes:
        public = self.keys["one"][1].public_key()
        pem: bytes = public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return pem

    def token(
        self, key_id: str = "one", *, headers: dict[str, Any] | None = None, without: str = "", **claims: Any
    ) -> str:
        """Return a token of `claims` over those that are right."""
        algorithm, key = self.keys[key_id]
        given = claims_of(**claims)
        given.pop(without, None)
        return jwt.encode(given, key, algorithm=algorithm, headers={"kid": key_id, **(headers or {})})


def claims_of(**claims: Any) -> dict[str, Any]:
    now = int(time.time())
    right = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 600}
    return right | claims


def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes = b"") -> str:
    """Return a token with any header; signed by an HMAC with `secret`, if there is one."""
    parts = [_encoded(json.dumps(item).encode()) for item in (header, claims)]
    signature = hmac.digest(secret, ".".join(parts).encode(), hashlib.sha256) if secret else b""
    return ".".join([*parts, _encoded(signature)])


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@contextlib.contextmanager
def identity_provider() -> Iterator[Provider]:
    """Run a provider with one key, on a port of its own."""
    provider = Provider()
    provider.add()

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.requests += 1
            if provider.hangs.is_set():
                provider.released.wait(60)
            body = provider.jwks()
            if provider.redirects:
                self.send_response(302)
                self.send_header("Location", provider.redirects.pop(0))
            else:
                self.send_response(200 if self.path == "/keys" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    provider.url = f"http://127.0.0.1:{server.server_address[1]}/keys"
    # It looks that often whether it is to stop.
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
