"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): the client shows a JSON Web Token that an identity provider has signed.

Signatures are checked with the provider's public keys (JWKS), from `sasl.oauthbearer.jwks.endpoint.url`. They are
fetched in a thread, within JWKS_SECONDS_MAX: a provider that is away or hangs delays only logins with a key that is not
known. What is known stays known while the provider is away.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from math import inf
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jwt
from gevent.lock import RLock
from gevent.threadpool import ThreadPool

from korvet.backoff import Backoff
from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.config.values import listed
from korvet.errors import AuthenticationError
from korvet.logs import Log, RateLimitedLogger
from korvet.security.credentials import USER_BYTES_MAX
from korvet.security.exchange import Exchange

_log = RateLimitedLogger(Log(__name__))

_OF_KIND: dict[tuple[str, str | None], frozenset[str]] = {
    ("RSA", None): frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}
ALGORITHMS = frozenset[str]().union(*_OF_KIND.values())
"""Signatures by a private key: `none`, and HMACs with what may be a public key, are no proof."""

TOKEN_CHARS_MAX = 65_536
JWKS_BYTES_MAX = 1024 * 1024
JWKS_SECONDS_MAX = 10.0
_PIECE_BYTES = 65_536
_FETCH_ERRORS = (OSError, HTTPException, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What a provider can cause that is away, or answers with something else."""

_PAIRS_MAX = 100  # of a message: the token, and extensions, of which Korvet knows none
_HEADER = re.compile(r"[ny],(?:a=((?:[^\0\x01,=]|=2C|=3D)+))?,")
_PAIR = re.compile(r"[A-Za-z]+=[^\0]*")
_AUTH = re.compile(r"auth=[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9_.-]+)")
_ERROR = b'{"status":"invalid_token"}'


class SigningKey(NamedTuple):
    """A public key of the provider, and the algorithms it may be used with: those of its kind alone."""

    key: Any
    algorithms: frozenset[str]


class SigningKeys:
    """The provider's keys by their ids, as they were when they were last fetched."""

    def __init__(self, settings: Settings, *, clock: Clock = CLOCK) -> None:
        """Nothing is fetched before the first token comes."""
        self._url = settings.sasl_oauthbearer_jwks_endpoint_url
        self._refresh_s = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._pause_max_s = settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
        self._pauses = Backoff(
            first_s=settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000, max_s=self._pause_max_s
        )
        self._clock = clock
        self._keys: dict[str | None, SigningKey] = {}
        self._fetched_at = self._not_before = -inf
        self._attempts = 0
        self._fetching = RLock()
        # One thread: a fetch that hangs holds up no other work, and there is never a second.
        self._threads = ThreadPool(1)

    def get(self, key_id: str | None) -> SigningKey | None:
        """Return a key, the only one if there is no id; fetches the keys if they are old or do not have it."""
        if self._keys and self._clock.monotonic() - self._fetched_at > self._refresh_s:
            self._clock.spawn(self._refresh, self._attempts)
        result = self._find(key_id)
        if result is None:
            self._refresh(self._attempts)
            result = self._find(key_id)
        return result

    def _find(self, key_id: str | None) -> SigningKey | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _refresh(self, attempts: int) -> None:
        """Fetch the keys unless that was just tried: ids that nobody has must not keep the provider busy."""
        with self._fetching:
            if self._attempts != attempts or self._clock.monotonic() < self._not_before:
                return
            if self._clock.monotonic() > self._not_before + self._pause_max_s:
                self._pauses.reset()
            try:
                with self._clock.timeout(JWKS_SECONDS_MAX, TimeoutError("no answer in time")):
                    self._keys = _parse(self._threads.apply(_outcome, (self._url,)))
                self._fetched_at = self._clock.monotonic()
            except _FETCH_ERRORS as error:
                _log.error(self._url, "cannot fetch the keys of tokens", url=self._url, reason=str(error))
            self._attempts += 1
            # After a success too: a key that is not there yet is asked for again, but not with every token.
            self._not_before = self._clock.monotonic() + self._pauses.next_s()


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows no redirect from https to http, as Java: anybody on the way could give keys."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,  # noqa: ANN401 - as urllib has it
        code: int,
        msg: str,
        headers: Any,  # noqa: ANN401 - the same
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != req.type:
            raise OSError(f"redirected from {req.type} to another scheme")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_opener = urllib.request.build_opener(_SameScheme)


def fetch_jwks(url: str) -> bytes:
    """Return the document at a URL, http(s) or file; raises OSError, ValueError. Blocks the calling thread."""
    deadline = time.monotonic() + JWKS_SECONDS_MAX
    parts: list[bytes] = []
    size = 0
    # The setting allows http, https and file.
    with _opener.open(url, timeout=JWKS_SECONDS_MAX / 2) as response:
        while part := response.read1(_PIECE_BYTES):
            parts.append(part)
            size += len(part)
            if size > JWKS_BYTES_MAX:
                raise ValueError(f"more than {JWKS_BYTES_MAX} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError("not all of it came in time")
    return b"".join(parts)


def _outcome(url: str) -> bytes | Exception:
    """Return the document or its error: gevent prints a traceback of what is raised in a thread."""
    try:
        return fetch_jwks(url)
    except _FETCH_ERRORS as error:
        return error


def _parse(document: bytes | Exception) -> dict[str | None, SigningKey]:
    """Return the keys that can have signed a token; raises ValueError, TypeError, LookupError, or what is given."""
    if isinstance(document, Exception):
        raise document
    result = {}
    for item in json.loads(document)["keys"]:
        algorithms = _OF_KIND.get((item.get("kty"), item.get("crv")), frozenset())
        if "alg" in item:
            algorithms &= {item["alg"]}
        if algorithms and item.get("use", "sig") == "sig":
            with contextlib.suppress(jwt.PyJWTError):
                result[item.get("kid")] = SigningKey(jwt.PyJWK(item, min(algorithms)).key, algorithms)
    if not result:
        raise ValueError("no public key that could have signed a token")
    return result


class TokenValidator:
    """Checks tokens as one listener wants them."""

    def __init__(self, settings: Settings, keys: SigningKeys) -> None:
        self._keys = keys
        self._audience = listed(settings.sasl_oauthbearer_expected_audience) or None
        self._issuer = settings.sasl_oauthbearer_expected_issuer or None
        self._leeway = settings.sasl_oauthbearer_clock_skew_seconds
        self._subject = settings.sasl_oauthbearer_sub_claim_name
        self._scope = settings.sasl_oauthbearer_scope_claim_name

    def validate(self, token: str) -> tuple[str, float]:
        """Return whom a token names, and when it ends (seconds since 1970); raises AuthenticationError."""
        if len(token) > TOKEN_CHARS_MAX:
            raise AuthenticationError(f"a token of {len(token)} characters")
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            # Before a key is looked for: what is not signed must not cause a fetch.
            if algorithm not in ALGORITHMS:
                raise AuthenticationError(f"a token may not be signed by {str(algorithm)[:40]!r}")
            key = self._keys.get(header.get("kid"))
            if key is None:
                raise AuthenticationError("the token is signed with an unknown key")
            if algorithm not in key.algorithms:
                raise AuthenticationError(f"the key of the token is none for {algorithm}")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", "iat"], "verify_aud": self._audience is not None},
            )
            return self._user(claims), float(claims["exp"])
        except (jwt.PyJWTError, ArithmeticError, TypeError, ValueError, RecursionError) as error:
            raise AuthenticationError(f"the token does not count: {str(error)[:200]}") from None

    def _user(self, claims: Mapping[str, Any]) -> str:
        user, scope = claims.get(self._subject), claims.get(self._scope, "")
        if not isinstance(user, str) or not user.strip() or len(user.encode()) > USER_BYTES_MAX:
            raise AuthenticationError(f"the token names nobody in {self._subject}")
        scopes = scope if isinstance(scope, list) else [scope]
        if not all(isinstance(item, str) for item in scopes):
            raise AuthenticationError(f"{self._scope} of the token is no list of texts", user=user)
        return user


class OAuthServer(Exchange):
    """An exchange: a token, and after a token that does not count a word that this was seen."""

    def __init__(self, validator: TokenValidator) -> None:
        super().__init__()
        self._validator = validator

    def evaluate(self, token: bytes) -> bytes:
        """Return the answer to the client's next message; raises AuthenticationError."""
        if self.refusal is not None:
            raise self.refusal
        wanted, bearer = _parse_first(token)
        try:
            user, expires_at = self._validator.validate(bearer)
        except AuthenticationError as error:
            self.refusal = AuthenticationError(error.reason, _ERROR.decode(), user=error.user)
            return _ERROR
        if wanted not in {"", user}:
            raise AuthenticationError("another authorization id than the user of the token", user=user)
        self.user, self.expires_at, self.complete = user, expires_at, True
        return b""


def _parse_first(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token of a client's first message; raises AuthenticationError.

    One expression for all of it would try every way to read it, at the expense of all clients.
    """
    malformed = AuthenticationError("malformed message of OAUTHBEARER")
    try:
        first, *pairs = message.decode().split("\x01", _PAIRS_MAX)
    except UnicodeDecodeError:
        raise malformed from None
    header = _HEADER.fullmatch(first)
    auth = [_AUTH.fullmatch(pair) for pair in pairs if pair.startswith("auth=")]
    if (
        header is None
        or pairs[-2:] != ["", ""]
        or not all(map(_PAIR.fullmatch, pairs[:-2]))
        or len(auth) != 1
        or auth[0] is None
    ):
        raise malformed
    return (header[1] or "").replace("=2C", ",").replace("=3D", "="), auth[0][1]
