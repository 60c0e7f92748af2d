"""The SCRAM credentials of all users, in Redis and in this worker (KIP-554).

A worker has them all in memory, as Kafka's brokers do, and refreshes them within milliseconds of a change: a login asks
Redis for nothing, and goes on while Redis is away. A user whose row cannot be read, or whose credential is too weak, is
treated as one that does not exist.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from korvet.cluster.rows import RowStore
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.types import ScramMechanism
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    ScramCredential,
    make_credential,
    new_salt,
)

FEED_MEMBER = "/users"
"""Member of the change feed that stands for a change of users: no topic can have that name."""

MECHANISMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)

USER_BYTES_MAX = 1024

_SECRET = ""
"""Name of the row that holds a secret salt in place of a user, whose name is never empty."""

UserRow = dict[str, ScramCredential]
"""A user's credentials by the name of their mechanism."""


class Deletion(NamedTuple):
    """Deletes a credential; `mechanism` is its number in the protocol."""

    mechanism: int


class Upsertion(NamedTuple):
    """Creates or replaces a credential."""

    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion(mechanism={self.mechanism})"


class UserCredentials:
    """The users of one namespace.

    What reads or writes Redis raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        """Nothing is read from Redis yet."""
        self._rows = RowStore(redis, keys, keys.users, FEED_MEMBER, UserRow)
        self._users: dict[str, UserRow] = {}
        self._secret = secrets.token_bytes(32)
        self._usual = dict.fromkeys(MECHANISMS, ITERATIONS_MIN)

    def refresh(self) -> None:
        """Read Redis if users have changed, which one small command finds out."""
        users = self._rows.load_if_changed()
        if users is None:
            return
        self._secret = users.pop(_SECRET, {}).get(_SECRET, _secret(self._secret)).salt
        self._users = users
        for mechanism in MECHANISMS:
            counts = Counter(
                result.iterations for name in users if (result := self.get(name, mechanism)) is not None
            )
            self._usual[mechanism] = counts.most_common(1)[0][0] if counts else ITERATIONS_MIN

    def get(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return a user's credential; None if there is none that counts."""
        result = self._users.get(user, {}).get(mechanism.sasl_name)
        size = hashlib.new(mechanism.digest).digest_size
        sound = result and len(result.stored_key) == size and result.iterations >= ITERATIONS_MIN
        return result if sound else None

    def get_or_stand_in(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return a user's credential, or one that no password fits, and that looks as if it were stored.

        Its salt is the same each time and on each broker.
        """
        if result := self.get(user, mechanism):
            return result
        salt = hmac.digest(self._secret, f"{mechanism.sasl_name} {user}".encode(), "sha256")
        size = hashlib.new(mechanism.digest).digest_size
        return ScramCredential(
            salt=salt[: len(new_salt())],
            stored_key=secrets.token_bytes(size),
            server_key=secrets.token_bytes(size),
            iterations=self._usual[mechanism],
        )

    def iterations(self) -> Mapping[str, Mapping[ScramMechanism, int]]:
        """Return for each user the mechanisms it has credentials for, and their iterations."""
        self.refresh()
        return {
            user: {item: row[item.sasl_name].iterations for item in MECHANISMS if item.sasl_name in row}
            for user, row in self._users.items()
        }

    def check(self, user: str, change: Upsertion | Deletion) -> None:
        """Raise KafkaError if a change alone is not allowed."""
        [row] = self._rows.load(user)
        _altered(row, _credentials(user, [change]))

    def alter(self, user: str, changes: Sequence[Upsertion | Deletion]) -> None:
        """Change a user's credentials, all or none; raises KafkaError for a change that is not allowed."""
        credentials = _credentials(user, changes)
        self._rows.alter(_SECRET, lambda row: row or {_SECRET: _secret(self._secret)})
        row = self._rows.alter(user, lambda row: _altered(row, credentials))
        # What is answered counts here already.
        if row is None:
            self._users.pop(user, None)
        else:
            self._users[user] = row


def _credentials(user: str, changes: Sequence[Upsertion | Deletion]) -> dict[str, ScramCredential | None]:
    """Return what is to be stored by the name of its mechanism, None to delete it; raises KafkaError."""
    if not user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(user.encode()) > USER_BYTES_MAX:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"A user name has at most {USER_BYTES_MAX} bytes")
    return {_mechanism(change.mechanism).sasl_name: _credential(change) for change in changes}


def _altered(row: UserRow | None, credentials: Mapping[str, ScramCredential | None]) -> UserRow | None:
    altered = dict(row or {})
    for name, credential in credentials.items():
        if credential is not None:
            altered[name] = credential
        elif altered.pop(name, None) is None:
            message = "Attempt to delete a user credential that does not exist"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    return altered or None


def _secret(salt: bytes) -> ScramCredential:
    return ScramCredential(salt=salt, stored_key=b"", server_key=b"", iterations=0)


def _mechanism(number: int) -> ScramMechanism:
    if number not in MECHANISMS:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return ScramMechanism(number)


def _credential(change: Upsertion | Deletion) -> ScramCredential | None:
    """Return what is to be stored, None for nothing; raises KafkaError if that is not allowed."""
    if isinstance(change, Deletion):
        return None
    mechanism = _mechanism(change.mechanism)
    problem = ""
    if change.iterations < ITERATIONS_MIN:
        problem = "Too few iterations"
    elif change.iterations > ITERATIONS_MAX:
        problem = "Too many iterations"
    elif not 0 < len(change.salt) <= SALT_BYTES_MAX:
        problem = f"A salt has between 1 and {SALT_BYTES_MAX} bytes"
    elif not change.salted_password:
        problem = "The salted password must not be empty"
    if problem:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, problem)
    return make_credential(mechanism, change.salted_password, change.salt, change.iterations)
