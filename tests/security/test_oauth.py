"""Tokens of OAUTHBEARER: valid and invalid ones, and the provider of keys meanwhile."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.errors import AuthenticationError
from korvet.security import oauth
from korvet.security.oauth import JWKS_BYTES_MAX, JWKS_SECONDS_MAX, OAuthServer, SigningKeys, TokenValidator
from tests.support.identity_provider import AUDIENCE, ISSUER, Provider, claims_of, forged, identity_provider
from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def provider() -> Iterator[Provider]:
    with identity_provider() as running:
        yield running


def settings(provider: Provider, **given: Any) -> Settings:
    return dataclasses.replace(
        Settings(),
        **{
            "sasl_oauthbearer_jwks_endpoint_url": provider.url,
            "sasl_oauthbearer_expected_audience": f"other,{AUDIENCE}",
            "sasl_oauthbearer_expected_issuer": ISSUER,
        }
        | given,
    )


def validator(provider: Provider, clock: Clock = CLOCK, **given: Any) -> TokenValidator:
    own = settings(provider, **given)
    return TokenValidator(own, SigningKeys(own, clock=clock))


def refused(by: TokenValidator, token: str) -> str:
    with pytest.raises(AuthenticationError) as caught:
        by.validate(token)
    assert token not in caught.value.reason
    return caught.value.reason


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA"])
def test_a_token_names_its_user_until_it_ends(provider: Provider, algorithm: str) -> None:
    provider.add("two", algorithm)
    end = int(time.time()) + 60
    assert validator(provider).validate(provider.token("two", sub="bob", exp=end)) == ("bob", float(end))


def test_claims_have_the_names_that_are_set(provider: Provider) -> None:
    own = validator(
        provider, sasl_oauthbearer_sub_claim_name="client_id", sasl_oauthbearer_scope_claim_name="scp"
    )
    assert own.validate(provider.token(client_id="app", scp=["a", "b"]))[0] == "app"
    assert refused(own, provider.token(client_id="app", scp=1)) == "scp of the token is no list of texts"
    assert refused(own, provider.token()) == "the token names nobody in client_id"


def test_without_expectations_any_issuer_and_audience_count(provider: Provider) -> None:
    own = validator(provider, sasl_oauthbearer_expected_audience="", sasl_oauthbearer_expected_issuer="")
    assert own.validate(provider.token(iss="elsewhere", aud="else"))[0] == "alice"
    assert own.validate(provider.token(without="aud"))[0] == "alice"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "else"}, "Audience doesn't match"),
        ({"without": "aud"}, 'missing the "aud" claim'),
        ({"iss": "https://elsewhere.example"}, "Invalid issuer"),
        ({"without": "iss"}, 'missing the "iss" claim'),
        ({"exp": 1}, "Signature has expired"),
        ({"without": "exp"}, 'missing the "exp" claim'),
        ({"without": "iat"}, 'missing the "iat" claim'),
        ({"exp": "soon"}, "must be an integer"),
        ({"nbf": 10**11}, "not yet valid"),
        ({"iat": 10**11}, "not yet valid"),
        ({"sub": ""}, "names nobody in sub"),
        ({"sub": "  "}, "names nobody in sub"),
        ({"sub": "x" * 2000}, "names nobody in sub"),
        ({"sub": 7}, "Subject must be a string"),
    ],
)
def test_a_token_with_wrong_claims_does_not_count(
    provider: Provider, claims: dict[str, Any], reason: str
) -> None:
    assert reason in refused(validator(provider), provider.token(**claims))


def test_the_clocks_may_differ(provider: Provider) -> None:
    token = provider.token(exp=int(time.time()) - 20)
    assert validator(provider).validate(token)[0] == "alice"
    assert "expired" in refused(validator(provider, sasl_oauthbearer_clock_skew_seconds=5), token)


def test_a_token_without_a_signature_does_not_count(provider: Provider) -> None:
    for algorithm in ("none", "None", "NONE", ""):
        token = forged({"alg": algorithm, "kid": "one"}, claims_of())
        assert "a token may not be signed by" in refused(validator(provider), token)
    assert "does not count" in refused(validator(provider), provider.token().rpartition(".")[0] + ".")
    assert provider.requests == 1, "what is not signed at all causes no fetch"


def test_a_public_key_is_not_taken_as_a_secret(provider: Provider) -> None:
    """The key is known to all: who signs by HMAC with it must not pass for the provider."""
    for secret in (provider.public_pem(), provider.jwks(), b"x"):
        token = forged({"alg": "HS256", "kid": "one"}, claims_of(), secret)
        assert refused(validator(provider), token) == "a token may not be signed by 'HS256'"


def test_a_secret_among_the_keys_is_left_out(provider: Provider) -> None:
    provider.document = b'{"keys": [{"kty": "oct", "kid": "one", "k": "c2VjcmV0"}]}'
    token = forged({"alg": "HS256", "kid": "one"}, claims_of(), b"secret")
    assert refused(validator(provider), token) == "a token may not be signed by 'HS256'"
    assert refused(validator(provider), provider.token()) == "the token is signed with an unknown key"


def test_a_key_is_for_algorithms_of_its_kind(provider: Provider) -> None:
    token = forged({"alg": "ES256", "kid": "one"}, claims_of(), b"x")
    assert refused(validator(provider), token) == "the key of the token is none for ES256"


def test_a_signature_of_another_key_does_not_count(provider: Provider) -> None:
    provider.add("two")
    token = provider.token("two", headers={"kid": "one"})
    assert "Signature verification failed" in refused(validator(provider), token)


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "..",
        "a.b.c",
        "e30.e30.",
        "A" * 70_000,
        forged({"alg": 1}, {}),
        forged({"alg": "RS256", "kid": 7}, {}),
        "W1tb" * 10_000 + ".e30.x",
    ],
)
def test_what_is_no_token_does_not_count(provider: Provider, token: str) -> None:
    assert refused(validator(provider), token)
    assert provider.requests == 0


def test_a_key_that_is_not_known_yet_is_fetched_after_a_pause(provider: Provider) -> None:
    clock = VirtualClock()
    own = validator(provider, clock)
    assert own.validate(provider.token())[0] == "alice"
    del provider.keys["one"]
    provider.add("two")
    assert refused(own, provider.token("two")) == "the token is signed with an unknown key"
    clock.advance(10)
    assert own.validate(provider.token("two"))[0] == "alice"
    assert provider.requests == 2
    assert own.validate(provider.token("two"))[0] == "alice"
    assert provider.requests == 2


def test_ids_that_nobody_has_do_not_keep_the_provider_busy(provider: Provider) -> None:
    clock = VirtualClock()
    own = validator(provider, clock, sasl_oauthbearer_jwks_endpoint_retry_backoff_ms=10_000)
    assert own.validate(provider.token())[0] == "alice"
    for number in range(50):
        clock.spawn(refused, own, provider.token(headers={"kid": f"x{number}"}))
    clock.run_until_idle()
    assert provider.requests == 1
    assert own.validate(provider.token())[0] == "alice"


def test_keys_are_fetched_again_when_they_are_old(provider: Provider) -> None:
    clock = VirtualClock()
    own = validator(provider, clock, sasl_oauthbearer_jwks_endpoint_refresh_ms=60_000)
    assert own.validate(provider.token())[0] == "alice"
    token = provider.token()
    provider.document = b'{"keys": []}'
    clock.advance(60)
    assert own.validate(token)[0] == "alice"
    clock.run_until_idle()
    assert provider.requests == 1, "they are not old yet"
    clock.advance(1)
    assert own.validate(token)[0] == "alice"
    clock.run_until_idle()
    assert provider.requests == 2
    # A provider that has lost its keys for a moment takes nobody's login away.
    assert own.validate(token)[0] == "alice"


def test_a_provider_that_hangs_holds_up_nobody_else(provider: Provider) -> None:
    clock = VirtualClock()
    own = validator(provider, clock, sasl_oauthbearer_jwks_endpoint_retry_backoff_ms=1000)
    assert own.validate(provider.token())[0] == "alice"
    clock.advance(10)
    provider.hangs.set()
    unknown = provider.token(headers={"kid": "not known yet"})
    waiting = [clock.spawn(refused, own, unknown) for _ in range(20)]
    clock.run_until(lambda: provider.requests == 2)
    assert own.validate(provider.token())[0] == "alice"
    assert not any(waiter.dead for waiter in waiting)
    clock.jump(JWKS_SECONDS_MAX)
    gevent.joinall(waiting, raise_error=True)
    assert provider.requests == 2
    assert {waiter.value for waiter in waiting} == {"the token is signed with an unknown key"}
    provider.released.set()


def test_a_provider_that_is_away_is_one_log_line(
    provider: Provider, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    own = validator(provider, sasl_oauthbearer_jwks_endpoint_url="http://127.0.0.1:1/keys")
    assert refused(own, provider.token()) == "the token is signed with an unknown key"
    assert "cannot fetch the keys of tokens" in caplog.text
    assert "Traceback" not in capfd.readouterr().err


def test_a_provider_that_is_away_is_asked_again_later(provider: Provider) -> None:
    clock = VirtualClock()
    keys = SigningKeys(settings(provider), clock=clock)
    documents = (b"not json", b'{"keys": 7}', b'{"keys": [7]}', b"[]", b"[" * 100_000)
    for requests, provider.document in enumerate(documents, 1):
        assert keys.get("one") is None
        assert keys.get("one") is None
        assert provider.requests == requests
        clock.advance(60)
    provider.document = None
    assert keys.get("one") is not None


def test_keys_may_lie_in_a_file(provider: Provider, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(provider.jwks())
    own = validator(provider, sasl_oauthbearer_jwks_endpoint_url=file.as_uri())
    assert own.validate(provider.token())[0] == "alice"
    assert provider.requests == 0


def test_a_document_without_end_is_not_read(provider: Provider) -> None:
    provider.document = b"x" * (JWKS_BYTES_MAX + 1)
    with pytest.raises(ValueError, match="more than"):
        oauth.fetch_jwks(provider.url)


def test_keys_are_not_fetched_by_another_scheme(provider: Provider) -> None:
    """From https to http anybody on the way could give keys."""
    provider.redirects = [provider.url.replace("http:", "https:")]
    with pytest.raises(OSError, match="redirected from http to another scheme"):
        oauth.fetch_jwks(provider.url)
    provider.redirects = [provider.url]
    assert oauth.fetch_jwks(provider.url) == provider.jwks()


def first_message(token: str, authzid: str = "", more: str = "") -> bytes:
    return f"n,{authzid},\x01{more}auth=Bearer {token}\x01\x01".encode()


def test_an_exchange_is_one_message(provider: Provider) -> None:
    server = OAuthServer(validator(provider))
    assert server.evaluate(first_message(provider.token(), "a=alice", "ext=1\x01")) == b""
    assert (server.user, server.complete) == ("alice", True)
    assert server.expires_at
    assert abs(server.expires_at - time.time() - 600) < 60


def test_a_refusal_is_a_message_and_then_an_error(provider: Provider) -> None:
    server = OAuthServer(validator(provider))
    assert server.evaluate(first_message(provider.token(exp=1))) == b'{"status":"invalid_token"}'
    for answer in (b"\x01", first_message(provider.token())):
        with pytest.raises(AuthenticationError) as caught:
            server.evaluate(answer)
        assert caught.value.message == '{"status":"invalid_token"}'
        assert "expired" in caught.value.reason
    assert not server.complete


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"p=x,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01" + b"a=b\x01" * 100_000,
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01",
        b"n,,\x01auth=Bearer x\x01=\x01\x01",
        # An expression for the whole of it took minutes for these.
        b"n,,\x01" + b"auth=Bearer x\x01" * 37_000,
        b"n,,\x01" + b"auth=Bearer x\x01" * 37_000 + b"!",
    ],
)
def test_a_message_that_cannot_be_is_refused(provider: Provider, message: bytes) -> None:
    with pytest.raises(AuthenticationError, match=r"^SASL_AUTHENTICATION_FAILED$") as caught:
        OAuthServer(validator(provider)).evaluate(message)
    assert caught.value.reason == "malformed message of OAUTHBEARER"


def test_another_user_than_that_of_the_token_is_refused(provider: Provider) -> None:
    server = OAuthServer(validator(provider))
    with pytest.raises(AuthenticationError):
        server.evaluate(first_message(provider.token(), "a=bob"))
    assert not server.complete
