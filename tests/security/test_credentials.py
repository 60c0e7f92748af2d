"""Users in a real Redis: the stored rows, the knowledge of every worker, and malformed rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.types import ScramMechanism
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.security.credentials import USER_BYTES_MAX, Deletion, Upsertion, UserCredentials
from korvet.security.scram import is_password, salt_password

KEYS = Keys("korvet")
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
PASSWORD = "a-password-that-nobody-may-see"


def users_of(redis: Redis) -> UserCredentials:
    users = UserCredentials(redis, KEYS)
    users.refresh()
    return users


def add(
    users: UserCredentials,
    user: str = "alice",
    mechanism: int = SHA_256,
    iterations: int = 4096,
    **given: Any,
) -> None:
    salt = given.get("salt", b"salt")
    salted = salt_password(ScramMechanism(mechanism or 1), PASSWORD, salt, iterations)
    users.alter(user, [Upsertion(mechanism, iterations, salt, given.get("salted", salted))])


def test_a_user_is_known_to_another_worker_once_it_refreshes(redis: Redis) -> None:
    here, there = users_of(redis), users_of(redis)
    add(here)
    add(here, mechanism=SHA_512, iterations=8192)
    stored = here.get("alice", SHA_256)
    assert stored
    assert is_password(SHA_256, stored, PASSWORD)
    assert there.get("alice", SHA_256) is None
    there.refresh()
    assert there.get("alice", SHA_256) == stored
    assert there.iterations() == {"alice": {SHA_256: 4096, SHA_512: 8192}}
    here.alter("alice", [Deletion(SHA_256)])
    there.refresh()
    assert there.iterations() == {"alice": {SHA_512: 8192}}
    here.alter("alice", [Deletion(SHA_512)])
    assert here.iterations() == there.iterations() == {}


def test_redis_holds_no_password_and_nothing_that_logs_in(redis: Redis, raw_redis: Any) -> None:
    add(users_of(redis))
    salted = salt_password(SHA_256, PASSWORD, b"salt", 4096)
    [row] = [item for name, item in raw_redis.hgetall(KEYS.users).items() if name == b"alice"]
    assert set(json.loads(row)["SCRAM-SHA-256"]) == {"salt", "stored_key", "server_key", "iterations"}
    stored = b"".join(item for pair in raw_redis.hgetall(KEYS.users).items() for item in pair)
    assert PASSWORD.encode() not in stored
    assert salted not in stored
    assert salted.hex().encode() not in stored


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"user": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ({"user": "ü" * USER_BYTES_MAX}, ErrorCode.UNACCEPTABLE_CREDENTIAL, "A user name has at most"),
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        ({"iterations": 16385}, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL, "A salt has between 1 and 1024 bytes"),
        ({"salted": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password must not be empty"),
    ],
)
def test_a_credential_that_is_not_allowed_is_not_stored(
    redis: Redis, given: dict[str, Any], code: ErrorCode, said: str
) -> None:
    users = users_of(redis)
    with pytest.raises(KafkaError, match=said) as caught:
        add(users, **given)
    assert caught.value.code is code
    assert users.iterations() == {}


def test_what_is_not_there_is_not_deleted(redis: Redis) -> None:
    users = users_of(redis)
    add(users)
    for user, mechanism in (("bob", SHA_256), ("alice", SHA_512)):
        with pytest.raises(KafkaError, match="that does not exist") as caught:
            users.alter(user, [Deletion(mechanism)])
        assert caught.value.code is ErrorCode.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    "row",
    [
        "x",
        "[]",
        '{"SCRAM-SHA-256": {"salt": ""}}',
        '{"SCRAM-SHA-256": {"salt": "AAAA", "stored_key": "AAAA", "server_key": "AAAA", "iterations": 4096}}',
    ],
)
def test_a_user_whose_row_cannot_be_read_is_none(redis: Redis, raw_redis: Any, row: str) -> None:
    users = users_of(redis)
    add(users)
    raw_redis.hset(KEYS.users, "alice", row)
    fresh = users_of(redis)
    assert fresh.get("alice", SHA_256) is None
    add(fresh)
    assert fresh.get("alice", SHA_256)
    assert users_of(redis).get("alice", SHA_256)


def test_a_credential_with_few_iterations_does_not_count(redis: Redis, raw_redis: Any) -> None:
    add(users_of(redis))
    row = json.loads(raw_redis.hget(KEYS.users, "alice"))
    row["SCRAM-SHA-256"]["iterations"] = 4095
    raw_redis.hset(KEYS.users, "alice", json.dumps(row))
    assert users_of(redis).get("alice", SHA_256) is None


def test_a_user_that_is_not_there_looks_as_one_that_is(redis: Redis) -> None:
    users = users_of(redis)
    add(users, iterations=8192, salt=b"s" * 26)
    one, other = users_of(redis), users_of(redis)
    shown = one.get_or_stand_in("bob", SHA_256)
    again = other.get_or_stand_in("bob", SHA_256)
    assert (shown.salt, shown.iterations) == (again.salt, again.iterations)
    assert (len(shown.salt), shown.iterations) == (26, 8192)
    assert shown.salt != one.get_or_stand_in("carol", SHA_256).salt
    assert shown.salt != one.get_or_stand_in("bob", SHA_512).salt
    assert not is_password(SHA_256, shown, PASSWORD)
    assert one.get_or_stand_in("alice", SHA_256).salt == b"s" * 26


def test_the_changes_of_a_user_are_made_together_or_not_at_all(redis: Redis) -> None:
    users = users_of(redis)
    add(users)
    salted = salt_password(SHA_512, PASSWORD, b"salt", 4096)
    both: list[Deletion | Upsertion] = [Deletion(SHA_256), Upsertion(SHA_512, 4096, b"salt", salted)]
    for wrong in (
        Deletion(SHA_512),
        Upsertion(SHA_512, 1, b"salt", salted),
        Upsertion(SHA_256, 4096, b"", b""),
    ):
        with pytest.raises(KafkaError):
            users.alter("alice", [Deletion(SHA_256), wrong])
        assert users.iterations() == {"alice": {SHA_256: 4096}}
    users.alter("alice", both)
    assert users.iterations() == {"alice": {SHA_512: 4096}}
    assert repr(salted) not in repr(both)
