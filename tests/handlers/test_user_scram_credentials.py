"""Describe- and AlterUserScramCredentials (KIP-554) against a real broker, by bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from korvet.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tests.support.broker import Broker
from tests.support.processes import wait_until
from tests.support.topic_client import Client

SHA_256, SHA_512 = 1, 2
PASSWORD = b"a-password-of-this-test"


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> ScramCredentialUpsertion:
    digest = {SHA_512: "sha512"}.get(mechanism, "sha256")
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=b"salt",
        salted_password=hashlib.pbkdf2_hmac(digest, PASSWORD, b"salt", iterations),
    )


def deletion(name: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(client: Client, *changes: Any) -> dict[str, tuple[int, str | None]]:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    results = client.call(request, 0).results
    found = {each.user: (each.error_code, each.error_message) for each in results}
    assert len(found) == len(results)
    return found


def describe(client: Client, *users: str) -> dict[str, Any]:
    named = [UserName(name=each) for each in users]
    answer = client.call(DescribeUserScramCredentialsRequest(users=named or None), 0)
    assert (answer.error_code, answer.error_message) == (0, None)
    return {
        each.user: each.error_code or {info.mechanism: info.iterations for info in each.credential_infos}
        for each in answer.results
    }


@pytest.fixture(autouse=True)
def nobody(client: Client) -> Iterator[None]:
    yield
    for user, infos in describe(client).items():
        for mechanism in infos:
            assert alter(client, deletion(user, mechanism)) == {user: (0, None)}


def test_users_are_created_described_and_deleted(client: Client) -> None:
    assert describe(client) == {}
    done = (0, None)
    assert alter(client, upsertion("alice"), upsertion("bob", SHA_512, 8192)) == {"alice": done, "bob": done}
    assert alter(client, upsertion("alice", SHA_512)) == {"alice": done}
    assert describe(client) == {"alice": {SHA_256: 4096, SHA_512: 4096}, "bob": {SHA_512: 8192}}
    assert describe(client, "bob", "carol") == {"bob": {SHA_512: 8192}, "carol": ErrorCode.RESOURCE_NOT_FOUND}
    assert alter(client, deletion("alice"), upsertion("carol")) == {"alice": done, "carol": done}
    assert describe(client) == {
        "alice": {SHA_512: 4096},
        "bob": {SHA_512: 8192},
        "carol": {SHA_256: 4096},
    }


def test_an_empty_list_of_users_is_all(client: Client) -> None:
    alter(client, upsertion("alice"))
    answer = client.call(DescribeUserScramCredentialsRequest(users=[]), 0)
    assert [each.user for each in answer.results] == ["alice"]


@pytest.mark.parametrize(
    "changes",
    [
        (deletion("alice"), upsertion("alice")),
        (upsertion("alice"), upsertion("alice", SHA_512)),
        (deletion("alice"), upsertion("alice", SHA_512)),
        (deletion("alice"), deletion("alice", SHA_512)),
    ],
)
def test_a_user_that_is_named_twice_is_refused_and_the_others_are_done(
    client: Client, changes: tuple[Any, ...]
) -> None:
    """As by Kafka's controller, whichever mechanisms the changes are of."""
    found = alter(client, *changes, upsertion("bob"))
    assert found["alice"] == (
        ErrorCode.DUPLICATE_RESOURCE,
        "A user credential cannot be altered twice in the same request",
    )
    assert found["bob"] == (0, None)
    assert describe(client) == {"bob": {SHA_256: 4096}}
    assert describe(client, "bob", "bob") == {"bob": ErrorCode.DUPLICATE_RESOURCE}


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (upsertion("alice", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        (upsertion("alice", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        (upsertion("alice", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        (deletion("alice"), ErrorCode.RESOURCE_NOT_FOUND, "that does not exist"),
        (deletion("alice", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
    ],
)
def test_a_change_that_cannot_be_leaves_everything_as_it_is(
    client: Client, change: Any, code: ErrorCode, said: str
) -> None:
    [(found, message)] = alter(client, change).values()
    assert found == code
    assert message is not None
    assert said in message
    assert describe(client) == {}


@pytest.mark.parametrize("times", [1, 2])
def test_a_message_about_the_longest_name_is_no_longer_than_a_string_may_be(
    client: Client, times: int
) -> None:
    named = [UserName(name="x" * 32767)] * times
    [result] = client.call(DescribeUserScramCredentialsRequest(users=named), 0).results
    assert result.user == "x" * 32767
    assert result.error_message.endswith("xxx...")


def test_a_change_is_known_to_the_other_worker_and_noted(
    two_clients: tuple[Client, Client], broker: Broker
) -> None:
    here, there = two_clients
    alter(here, upsertion("alice"))
    assert describe(there) == {"alice": {SHA_256: 4096}}
    alter(there, deletion("alice"))
    assert describe(here) == {}
    noted = 'api=AlterUserScramCredentials done="user alice (SCRAM-SHA-256 deleted)"'
    wait_until(lambda: noted in broker.log(), "the change is noted")
    [line] = [each for each in broker.log().splitlines() if noted in each][-1:]
    assert "principal=User:ANONYMOUS" in line
    assert "peer=127.0.0.1:" in line
    assert PASSWORD.decode() not in broker.log()
