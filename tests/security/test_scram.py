"""SCRAM against the exchanges of the RFCs, an independent client, and clients that cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple

import pytest

from korvet.errors import AuthenticationError
from korvet.protocol.types import ScramMechanism
from korvet.security import scram
from korvet.security.scram import ScramCredential, ScramServer
from tests.support.scram_client import ScramClient

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
BOTH = pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])


def credential(
    mechanism: ScramMechanism = SHA_256, salt: bytes = b"salt", iterations: int = 4096
) -> ScramCredential:
    salted = scram.salt_password(mechanism, "pencil", salt, iterations)
    return scram.make_credential(mechanism, salted, salt, iterations)


class OneCredential(NamedTuple):
    """Users who all have the same credential."""

    credential: ScramCredential

    def get_or_stand_in(self, _user: str, _mechanism: ScramMechanism) -> ScramCredential:
        return self.credential


def server(mechanism: ScramMechanism = SHA_256, stored: ScramCredential | None = None) -> ScramServer:
    return ScramServer(mechanism, OneCredential(stored or credential(mechanism)))


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(AuthenticationError) as caught:
        call()
    return caught.value.reason


def test_the_exchange_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    monkeypatch.setattr(scram, "new_nonce", lambda: b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    one = server(stored=credential(salt=salt))
    assert one.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert one.evaluate(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (one.user, one.complete) == ("user", True)


@BOTH
@pytest.mark.parametrize("user", ["alice", "a=b,c", "jürgen", "a b"])
def test_a_client_and_the_server_prove_themselves(mechanism: ScramMechanism, user: str) -> None:
    one, client = server(mechanism), ScramClient(mechanism, user, "pencil")
    client.check(one.evaluate(client.final(one.evaluate(client.first()))))
    assert (one.user, one.complete) == (user, True)


@BOTH
def test_a_wrong_password_is_refused(mechanism: ScramMechanism) -> None:
    one, client = server(mechanism), ScramClient(mechanism, "alice", "pencils")
    final = client.final(one.evaluate(client.first()))
    assert refused(lambda: one.evaluate(final)) == "unknown user or wrong password"
    assert not one.complete


def test_an_exchange_cannot_be_replayed() -> None:
    one, client = server(), ScramClient(SHA_256, "alice", "pencil")
    first = client.first()
    final = client.final(one.evaluate(first))
    one.evaluate(final)
    assert refused(lambda: one.evaluate(final)) == "a message after the last one of SCRAM"
    again = server()
    again.evaluate(first)
    assert refused(lambda: again.evaluate(final)) == "the nonce is not that of this exchange"


def test_the_server_never_takes_the_same_nonce() -> None:
    nonces = {server().evaluate(b"n,,n=alice,r=x").split(b",")[0] for _ in range(20)}
    assert len(nonces) == 20
    assert all(len(nonce) >= 34 for nonce in nonces)


def test_what_is_stored_does_not_log_in() -> None:
    """A stolen row has the stored key, of which the client's proof needs the preimage."""
    stored = credential()
    one, client = server(stored=stored), ScramClient(SHA_256, "alice", "pencil")
    answer = one.evaluate(client.first())
    without_proof = client.final(answer).rpartition(b",p=")[0]
    messages = b",".join([client.first().partition(b",,")[2], answer, without_proof])
    signature = hmac.digest(stored.stored_key, messages, "sha256")
    forged = bytes(a ^ b for a, b in zip(signature, stored.stored_key, strict=True))
    final = without_proof + b",p=" + base64.b64encode(forged)
    assert refused(lambda: one.evaluate(final)) == "unknown user or wrong password"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "malformed first message of SCRAM"),
        (b"\xff" * 20, "malformed first message of SCRAM"),
        (b"n,,n=,r=x", "malformed first message of SCRAM"),
        (b"n,,n=alice", "malformed first message of SCRAM"),
        (b"n,,n=alice,r=", "malformed first message of SCRAM"),
        (b"n,,n=al=ice,r=x", "malformed first message of SCRAM"),
        (b"n,,m=must,n=alice,r=x", "malformed first message of SCRAM"),
        (b"p=tls-unique,,n=alice,r=x", "malformed first message of SCRAM"),
        (b"n,,n=alice,r=x\0", "malformed first message of SCRAM"),
        (b"n,,n=\xff,r=x", "a name in SCRAM is not UTF-8"),
        (b"n,a=bob,n=alice,r=x", "another authorization id than the user"),
        (b"n,,n=alice,r=x,tokenauth=true", "delegation tokens are not supported"),
        (b"n,,n=" + b"a" * 9000 + b",r=x", "a SCRAM message of 9009 bytes"),
    ],
)
def test_a_first_message_that_cannot_be_is_refused(message: bytes, reason: str) -> None:
    assert refused(lambda: server().evaluate(message)) == reason


def test_a_first_message_may_name_its_own_user_and_extensions() -> None:
    one = server()
    assert one.evaluate(b"y,a=alice,n=alice,r=x,ext=1").startswith(b"r=x")
    assert one.user == "alice"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _final: b"", "malformed last message of SCRAM"),
        (lambda final: final[:-1] + b"\n", "malformed last message of SCRAM"),
        (lambda final: final.replace(b"c=biws", b"c=eSws"), "the channel binding has changed"),
        (lambda final: final.replace(b"c=biws", b"c=biw"), "malformed base64 in SCRAM"),
        (lambda final: final.replace(b",r=", b",r=x"), "the nonce is not that of this exchange"),
        (lambda final: final.partition(b",p=")[0] + b",p=AAAA", "a proof of another length"),
        (lambda final: final.replace(b",p=", b",x=y,p="), "unknown user or wrong password"),
    ],
)
def test_a_last_message_that_cannot_be_is_refused(change: Callable[[bytes], bytes], reason: str) -> None:
    one, client = server(), ScramClient(SHA_256, "alice", "pencil")
    final = client.final(one.evaluate(client.first()))
    assert refused(lambda: one.evaluate(change(final))) == reason


@BOTH
def test_a_password_is_checked_against_what_is_stored(mechanism: ScramMechanism) -> None:
    stored = credential(mechanism)
    assert scram.is_password(mechanism, stored, "pencil")
    assert not scram.is_password(mechanism, stored, "pencils")
    assert not scram.is_password(mechanism, stored, "")


def test_a_credential_shows_nothing_in_a_log() -> None:
    stored = credential()
    assert repr(stored) == "ScramCredential(iterations=4096)"
    assert hashlib.sha256(stored.stored_key).hexdigest() not in repr({"alice": stored})
