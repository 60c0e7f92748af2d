"""The client's side of SCRAM, written from RFC 5802 and nothing of the server's: HMACs, PBKDF2 and base64."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from korvet.protocol.types import ScramMechanism


class ScramClient:
    """One exchange: send `first()`, then `final(answer)`, and `check` the last answer."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str) -> None:
        self._digest = {1: "sha256", 2: "sha512"}[mechanism]
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={secrets.token_hex(8)}".encode()
        self._password = password.encode()
        self._signature = b""

    def first(self) -> bytes:
        return b"n,," + self._bare

    def final(self, answer: bytes) -> bytes:
        nonce, salt, iterations = (part[2:] for part in answer.split(b","))
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, base64.b64decode(salt), int(iterations))
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        without_proof = b"c=" + base64.b64encode(b"n,,") + b",r=" + nonce
        messages = b",".join([self._bare, answer, without_proof])
        signature = hmac.digest(stored_key, messages, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(
            hmac.digest(salted, b"Server Key", self._digest), messages, self._digest
        )
        return without_proof + b",p=" + base64.b64encode(proof)

    def check(self, answer: bytes) -> None:
        assert answer == b"v=" + base64.b64encode(self._signature)
