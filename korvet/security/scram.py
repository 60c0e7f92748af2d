"""SCRAM (RFC 5802, RFC 7677, KIP-84): what is stored of a password, and the server's side of an exchange.

    client  n,,n=alice,r=<nonce>
    server  r=<nonce><more>,s=<salt>,i=<iterations>
    client  c=biws,r=<nonce><more>,p=<proof>
    server  v=<signature>

Nothing here does I/O. The password is salted by PBKDF2 once, when a credential is made; an exchange takes a few HMACs.
Nobody can log in with the stored data: a client proves that it has a key, and only its hash is stored. As in Kafka
names and passwords are taken as they are, without SASLprep.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Protocol

import msgspec

from korvet.errors import AuthenticationError
from korvet.protocol.types import ScramMechanism
from korvet.security.exchange import Exchange, another_authorization_id

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
"""Limits of Kafka's controller; RFC 7677 asks for the lower one."""

SALT_BYTES_MAX = 1024
_SALT_BYTES = 26  # as many as Kafka's own tools take
_MESSAGE_BYTES_MAX = 8192  # of a message: it holds a name, a nonce, a proof

_SASL_NAME = rb"(?:[^\0=,]|=2C|=3D)+"
_NONCE = rb"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = rb"(?:,[A-Za-z]+=[^\0,]+)*"
_CLIENT_FIRST = re.compile(
    rb"(?P<header>[ny],(?:a=(?P<authzid>" + _SASL_NAME + rb"))?,)"
    rb"(?P<bare>n=(?P<name>"
    + _SASL_NAME
    + rb"),r=(?P<nonce>"
    + _NONCE
    + rb")(?P<extensions>"
    + _EXTENSIONS
    + rb"))"
)
_CLIENT_FINAL = re.compile(
    rb"(?P<bare>c=(?P<header>[A-Za-z0-9/+=]*),r=(?P<nonce>" + _NONCE + rb")" + _EXTENSIONS + rb"),"
    rb"p=(?P<proof>[A-Za-z0-9/+=]+)"
)


class ScramCredential(msgspec.Struct, frozen=True):
    """What is stored of a password for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Show nothing of it: with the salt and the keys one may try passwords."""
        return f"ScramCredential(iterations={self.iterations})"


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password; takes milliseconds, on purpose."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def make_credential(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.digest)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(mechanism.digest, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", mechanism.digest),
        iterations=iterations,
    )


def new_salt() -> bytes:
    return secrets.token_bytes(_SALT_BYTES)


def new_nonce() -> bytes:
    """Return what the server adds to a client's nonce."""
    return base64.b64encode(secrets.token_bytes(24))


def is_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Return whether a password is the credential's; takes as long as `salt_password`."""
    salted = salt_password(mechanism, password, credential.salt, credential.iterations)
    made = make_credential(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


class CredentialSource(Protocol):
    """Whose credentials are known."""

    def get_or_stand_in(self, user: str, mechanism: ScramMechanism, /) -> ScramCredential:
        """Return a credential for every name: one that no password fits for an unknown user.

        So no exchange shows which users there are: it takes as many messages and as much work for each.
        """


class ScramServer(Exchange):
    """An exchange of SCRAM."""

    def __init__(self, mechanism: ScramMechanism, users: CredentialSource) -> None:
        super().__init__()
        self._mechanism = mechanism
        self._users = users
        self._credential: ScramCredential | None = None
        self._header = self._nonce = self._messages = b""

    def evaluate(self, token: bytes) -> bytes:
        """Return the answer to the client's next message; raises AuthenticationError."""
        if len(token) > _MESSAGE_BYTES_MAX:
            raise AuthenticationError(f"a SCRAM message of {len(token)} bytes", user=self.user)
        if self._credential is None:
            return self._begin(token)
        if self.complete:
            raise AuthenticationError("a message after the last one of SCRAM", user=self.user)
        return self._end(token, self._credential)

    def _begin(self, token: bytes) -> bytes:
        result = _CLIENT_FIRST.fullmatch(token)
        if result is None:
            raise AuthenticationError("malformed first message of SCRAM")
        self.user = _name(result["name"])
        if result["authzid"] is not None and _name(result["authzid"]) != self.user:
            raise another_authorization_id(self.user)
        if b",tokenauth=true" in result["extensions"]:
            raise AuthenticationError("delegation tokens are not supported", user=self.user)
        self._credential = self._users.get_or_stand_in(self.user, self._mechanism)
        self._header = result["header"]
        self._nonce = result["nonce"] + new_nonce()
        salt = base64.b64encode(self._credential.salt)
        answer = b"r=%s,s=%s,i=%d" % (self._nonce, salt, self._credential.iterations)
        self._messages = result["bare"] + b"," + answer + b","
        return answer

    def _end(self, token: bytes, credential: ScramCredential) -> bytes:
        result = _CLIENT_FINAL.fullmatch(token)
        if result is None:
            raise AuthenticationError("malformed last message of SCRAM", user=self.user)
        if not hmac.compare_digest(result["nonce"], self._nonce):
            raise AuthenticationError("the nonce is not that of this exchange", user=self.user)
        if _decoded(result["header"]) != self._header:
            raise AuthenticationError("the channel binding has changed", user=self.user)
        messages, digest = self._messages + result["bare"], self._mechanism.digest
        signature = hmac.digest(credential.stored_key, messages, digest)
        proof = _decoded(result["proof"])
        if len(proof) != len(signature):
            raise AuthenticationError("a proof of another length", user=self.user)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key):
            raise AuthenticationError("unknown user or wrong password", user=self.user)
        self.complete = True
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, messages, digest))


def _name(text: bytes) -> str:
    try:
        return text.replace(b"=2C", b",").replace(b"=3D", b"=").decode()
    except UnicodeDecodeError as error:
        raise AuthenticationError("a name in SCRAM is not UTF-8") from error


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise AuthenticationError("malformed base64 in SCRAM") from error
