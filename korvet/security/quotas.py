"""Client quotas (KIP-13, 55, 124, 546, 599, 612): what may be set on whom, where it is kept, and which one counts.

A quota is set on an entity: a user, a client id, both together, or an address; each by name or as the default. Of the
quotas that match a client the most specific one counts, in this order:

    user and client id, user and default client id, user,
    default user and client id, default user and default client id, default user,
    client id, default client id

Clients share what is allowed if they are the same to the level that counts: all of a user, all of a client id, or all
of a user with one client id. Each broker counts for itself, as in Kafka.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import product
from typing import NamedTuple, TypeAlias

import msgspec

from korvet.cluster.rows import RowStore
from korvet.config.definition import INT32_MAX, INT64_MAX
from korvet.config.values import canonical_address
from korvet.errors import ErrorCode, KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys

_log = logging.getLogger(__name__)

FEED_MEMBER = "/quotas"
"""Member of the change feed that stands for a change of quotas."""

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_ENTITY_TYPES = (USER, CLIENT_ID, IP)

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, sorted; a name of None is the default of its type."""

Values: TypeAlias = dict[str, float]


class Quota(StrEnum):
    """The quotas, as Kafka names them."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


_OF_CLIENTS = tuple(item for item in Quota if item is not Quota.CONNECTION_CREATION_RATE)
_WHOLE_NUMBERS = {
    Quota.PRODUCER_BYTE_RATE: ("a LONG", INT64_MAX),
    Quota.CONSUMER_BYTE_RATE: ("a LONG", INT64_MAX),
    Quota.CONNECTION_CREATION_RATE: ("an INT", INT32_MAX),
}
"""Kafka's type of each quota that is a whole number, and its largest value."""

_EPSILON = 1e-6
"""Kafka's tolerance for a quota that is a whole number."""


class Match(NamedTuple):
    """A component of a filter: entities with this type, of the name, the default (None), or of any if `any_name`."""

    name: str | None
    any_name: bool = False


class Limit(NamedTuple):
    """A quota that counts for a client, and with whom the client shares it; an empty name is not part of that."""

    bound: float
    user: str
    client_id: str


def parse_entity(pairs: Sequence[tuple[str, str | None]]) -> Entity:
    """Return the entity of a request; raises KafkaError INVALID_REQUEST."""
    if not pairs:
        raise _invalid("Invalid empty client quota entity")
    names = dict(pairs)
    for kind, name in pairs:
        if kind not in _ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if len(names) < len(pairs):
        raise _invalid("An entity type appears more than once in the client quota entity")
    if IP in names and len(names) > 1:
        raise _invalid("Invalid client quota entity: ip cannot be combined with another type")
    if (address := names.get(IP)) is not None and _address(address) is None:
        raise _invalid(f"{address} is not a valid IP.")
    return tuple(sorted(names.items(), key=lambda pair: pair[0]))


def parse_changes(entity: Entity, changes: Iterable[tuple[str, float | None]]) -> dict[str, float | None]:
    """Return the values to set by quota, None for one to remove; raises KafkaError INVALID_REQUEST."""
    result: dict[str, float | None] = {}
    for key, value in changes:
        if key in result:
            raise _invalid(f"Duplicate quota key {key}")
        result[key] = value
        if value is not None and (problem := _problem(entity, key, value)):
            raise _invalid(problem)
    return result


def _problem(entity: Entity, key: str, value: float) -> str:
    """Return why a quota cannot have that value, "" if it can."""
    if key not in ((Quota.CONNECTION_CREATION_RATE,) if entity[0][0] == IP else _OF_CLIENTS):
        return f"Invalid configuration key {key}"
    # Rate 0 shuts an address out; of all addresses nobody could take it back. Of all else 0 allows nothing.
    may_be_zero = key == Quota.CONNECTION_CREATION_RATE and entity[0][1] is not None
    if not math.isfinite(value) or value < 0:
        return f"Quota {key} must be greater than 0"
    kind, most = _WHOLE_NUMBERS.get(Quota(key), ("a DOUBLE", math.inf))
    if value > most:
        return f"Proposed value for {key} is too large for {kind}."
    whole = math.floor(value + _EPSILON)
    if key in _WHOLE_NUMBERS and abs(whole - value) > _EPSILON:
        return f"{key} cannot be a fractional value."
    if not may_be_zero and (whole if key in _WHOLE_NUMBERS else value) == 0:
        return f"Quota {key} must be greater than 0"
    return ""


def parse_filter(components: Iterable[tuple[str, int, str | None]]) -> dict[str, Match]:
    """Return the components of a filter by entity type; raises KafkaError.

    The match types are 0 for a name, 1 for the default and 2 for any.
    """
    result: dict[str, Match] = {}
    for kind, match_type, name in components:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in result:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match_type not in (0, 1, 2):
            raise _invalid(f"Unknown match type {match_type}")
        if (name is None) is (match_type == 0):
            said = "but no match string" if name is None else "and a match string"
            raise _invalid(f"The filter component has match type {match_type}, {said}.")
        result[kind] = Match(name, any_name=match_type == 2)  # noqa: PLR2004 - as listed above
    if IP in result and len(result) > 1:
        message = (
            "Invalid entity filter component combination. IP filter component should not be used with user or"
            " clientId filter component."
        )
        raise _invalid(message)
    return result


def is_matched(entity: Entity, components: Mapping[str, Match], *, strict: bool) -> bool:
    """Return whether an entity matches all components of a filter, and for a strict one has no other types."""
    names = dict(entity)
    if strict and names.keys() != components.keys():
        return False
    return all(
        kind in names and (match.any_name or names[kind] == match.name) for kind, match in components.items()
    )


class QuotaStore:
    """The quotas in Redis.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._rows = RowStore(redis, keys, keys.quotas, FEED_MEMBER, Values)
        self._ignored: set[tuple[str, str]] = set()

    def load_if_changed(self) -> dict[Entity, Values] | None:
        """Return what is set on each entity, None if nothing has changed since the last call.

        What cannot be read, or be set by a request, counts as not set, with one log line.
        """
        rows = self._rows.load_if_changed()
        if rows is None:
            return None
        result = {}
        ignored = set()
        for name, values in rows.items():
            try:
                names = msgspec.json.decode(name, type=dict[str, str | None])
                entity = parse_entity(list(names.items()))
            except (msgspec.DecodeError, KafkaError) as error:
                ignored.add((name, str(error)))
                continue
            problems = {key: _problem(entity, key, value) for key, value in values.items()}
            ignored |= {(name, problem) for problem in problems.values() if problem}
            if not all(problems.values()):
                result[entity] = {key: value for key, value in values.items() if not problems[key]}
        for name, problem in sorted(ignored - self._ignored):
            _log.error("ignoring a quota of %r: %s", name, problem)
        self._ignored = ignored
        return result

    def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        def changed(values: Values | None) -> Values | None:
            merged = {**(values or {}), **changes}
            return {key: value for key, value in merged.items() if value is not None} or None

        self._rows.alter(msgspec.json.encode(dict(entity)).decode(), changed)


class QuotaTable:
    """The quotas of a moment, ready to be looked up for each request."""

    def __init__(self, entities: Mapping[Entity, Values]) -> None:
        self.entities = entities
        self._limits: dict[Quota, dict[tuple[str | None, ...], float]] = {}
        for entity, values in entities.items():
            for quota in Quota:
                if quota in values:
                    self._limits.setdefault(quota, {})[_key(entity)] = values[quota]
        self.quotas = frozenset(self._limits)
        """Those that are set on anybody."""

    def limit(self, quota: Quota, user: str, client_id: str) -> Limit | None:
        """Return the quota that counts for a client, None if none does."""
        limits = self._limits.get(quota)
        if not limits:
            return None
        for key in _levels(user, client_id):
            bound = limits.get(key)
            if bound is not None:
                by_user, by_client = key[0] != _ANY, key[1] != _ANY
                return Limit(bound, user if by_user else "", client_id if by_client else "")
        return None

    def address_limit(self, address: str) -> float | None:
        """Return how many connections a second an address may make, None for any number."""
        limits = self._limits.get(Quota.CONNECTION_CREATION_RATE, {})
        return limits.get((address,), limits.get((None,)))


_ANY = ""
"""In a key, for a type that the entity does not have; no name is empty."""


def _key(entity: Entity) -> tuple[str | None, ...]:
    """Return the address of an entity, or its user and client id; None is a default."""
    names = dict(entity)
    if IP in names:
        return (names[IP] and _address(names[IP]),)
    return names.get(USER, _ANY), names.get(CLIENT_ID, _ANY)


def _levels(user: str, client_id: str) -> Iterable[tuple[str | None, str | None]]:
    """Yield the keys of the entities that a client belongs to, the most specific first.

    No default is meant for a client that gives no id, as in Kafka.
    """
    if not client_id:
        return product((user, None), (_ANY,))
    return product((user, None, _ANY), (client_id, None, _ANY))


def _address(text: str | None) -> str | None:
    """Return an address as connections have it, None if it is none."""
    try:
        return canonical_address(text or "")
    except ValueError:
        return None


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
