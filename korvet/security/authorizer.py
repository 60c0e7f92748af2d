"""The authorizer of a worker: ACLs in Redis, followed like topics, and the rights of each principal, cached.

Every change of an ACL empties the cache. While Redis is away the rights last read hold for authorizer.cache.max.age.ms;
then all is refused with an error that clients retry, except to super users. A row that cannot be read denies everybody
what it is about; one whose name cannot be read denies everything.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol, cast

import msgspec
from gevent.lock import RLock
from korvet_core import DataPath

from korvet.clock import CLOCK, Clock
from korvet.cluster.rows import RowStore
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.logs import Log
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.security import audit
from korvet.security.acls import (
    ANYONE,
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclFilter,
    AclIndex,
    ResourcePattern,
    Rule,
    bits,
    canonical_host,
    check,
)
from korvet.security.session import Principal, Session, parse_principals
from korvet.turns import in_turns

_log = Log(__name__)

FEED_MEMBER = "/acls"
"""Member of the change feed that stands for a change of ACLs: no topic can have that name."""
RULES_MAX = 10_000
"""ACLs about one resource pattern, which are one row."""
PATTERNS_MAX = 100_000
"""Resource patterns with ACLs: every worker has all of them in memory."""
DECISIONS_MAX = 200_000
"""Cached decisions of a worker; more, and the cache begins again."""
DECISION_CHARS = 250
"""Characters of a name that count as one decision: no name of a topic is longer."""
CALLERS_MAX = 20_000
"""Principals, each from one host, with cached decisions."""
_PROBE_NAME = "hardcode"
"""The name of a resource that Kafka asks for first, where a right on any resource of a type is enough."""

_ERRORS = {
    AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def refusal(resource: AclResourceType) -> KafkaError:
    code = _ERRORS[resource]
    return KafkaError(code, f"{code.name.replace('_', ' ').capitalize()}.")


def is_refusal(error: KafkaError) -> bool:
    return error.code in _ERRORS.values()


Decisions = dict[tuple[AclOperation, AclResourceType, str | None], bool]
"""By operation, type of resource, and name; None: with some resource of the type."""


class StoredRule(msgspec.Struct, frozen=True):
    """A rule as its row has it, with Kafka's names."""

    principal: str
    host: str
    operation: str
    permission: str

    def __post_init__(self) -> None:
        """Raise ValueError for names that this version does not know."""
        known = AclOperation.__members__.get(self.operation, AclOperation.ANY) > AclOperation.ANY
        if not known or self.permission not in ("ALLOW", "DENY"):
            raise ValueError(f"there is no {self.permission} {self.operation}")

    def rule(self) -> Rule:
        permission = AclPermissionType[self.permission]
        return Rule(self.principal, self.host, AclOperation[self.operation], permission)


class HistorySource(Protocol):
    """The histories of Redis' nodes."""

    def current(self, key: str, /) -> object:
        """Return what differs once the node that has a key has another history."""


class AclStore:
    """The ACLs of one namespace: a row for each resource pattern, its rules in order.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys, epochs: HistorySource | None = None) -> None:
        self._rows = RowStore(redis, keys, keys.acls, FEED_MEMBER, list[StoredRule], by_row=True)
        self._keys = keys
        self._epochs = epochs
        self._misnamed: set[str] = set()

    def changed(self) -> tuple[tuple[bytes | None, bytes | None], object]:
        """Return what differs after each change, and the history of Redis, which differs if changes may be lost."""
        history = self._epochs.current(self._keys.topics) if self._epochs else None
        return self._rows.changed(), history

    def load(self) -> list[Acl]:
        """Return all ACLs; what cannot be read counts as one that denies everybody everything."""
        rows: dict[str, Sequence[StoredRule]] = {**self._rows.load_all()}
        for unreadable in self._rows.unreadable:
            rows[unreadable.decode("utf-8", "backslashreplace")] = [_DENY_ALL]
        acls = []
        misnamed = set()
        for name, rules in sorted(rows.items()):
            resource = _parse_row_name(name)
            if resource is None:
                misnamed.add(name)
            else:
                acls += [Acl(resource, rule.rule()) for rule in in_turns(rules)]
        for name in sorted(misnamed - self._misnamed):
            _log.error("ACLs with an unknown name: everything is denied", key=self._keys.acls, row=name)
        self._misnamed = misnamed
        if misnamed:
            acls += [
                Acl(ResourcePattern(item, PatternType.LITERAL, WILDCARD), _DENY_ALL.rule())
                for item in _ERRORS
            ]
        return acls

    def load_changed(self, epoch: bytes | None) -> dict[ResourcePattern, list[Rule]] | None:
        """Return the rules about each resource pattern that has changed since an epoch of `changed`.

        None if that is not known, so that `load` is due.
        """
        names = self._rows.changed_since(epoch)
        resources = [_parse_row_name(name) for name in names or ()]
        if not names or self._misnamed or None in resources:
            return None
        changed = {}
        for name, resource, row in zip(names, resources, self._rows.load(*names), strict=True):
            unreadable = name.encode() in self._rows.unreadable
            rules = [_DENY_ALL] if unreadable else row or ()
            changed[cast("ResourcePattern", resource)] = [rule.rule() for rule in in_turns(rules)]
        return changed

    def add(self, resource: ResourcePattern, rules: Sequence[Rule]) -> None:
        """Add rules that are not there yet; raises KafkaError INVALID_REQUEST if they are too many."""
        name = str(resource)

        def extended(row: list[StoredRule] | None) -> list[StoredRule]:
            if name.encode() in self._rows.unreadable:
                message = f"The ACLs about {name} cannot be read: delete them first."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            result = list(dict.fromkeys([*(row or ()), *map(_stored, rules)]))
            if len(result) > RULES_MAX:
                message = f"There may be {RULES_MAX} ACLs about one resource pattern."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            return result

        self._rows.alter(name, extended)

    def remove(self, resource: ResourcePattern, meant: AclFilter) -> list[Acl]:
        """Remove the rules about a resource pattern that are meant, and return them."""
        name = str(resource)
        removed: list[Acl] = []

        def reduced(row: list[StoredRule] | None) -> list[StoredRule] | None:
            unreadable = name.encode() in self._rows.unreadable
            rules = [_DENY_ALL] if unreadable else row or []
            gone = {rule: None for rule in in_turns(rules) if meant.matches(Acl(resource, rule.rule()))}
            if unreadable and not gone:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"The ACLs about {name} cannot be read.")
            removed[:] = [Acl(resource, item.rule()) for item in gone]
            return [rule for rule in rules if rule not in gone] or None

        self._rows.alter(name, reduced)
        return removed


_DENY_ALL = StoredRule(ANYONE, WILDCARD, "ALL", "DENY")


def _stored(rule: Rule) -> StoredRule:
    return StoredRule(rule.principal, rule.host, rule.operation.name, rule.permission.name)


def _parse_row_name(name: str) -> ResourcePattern | None:
    resource_type, pattern, resource = (*name.split(":", 2), "", "")[:3]
    if (
        AclResourceType.__members__.get(resource_type, AclResourceType.ANY) <= AclResourceType.ANY
        or pattern not in ("LITERAL", "PREFIXED")
        or not resource
    ):
        return None
    return ResourcePattern(AclResourceType[resource_type], PatternType[pattern], resource)


class Authorizer:
    """Decides, in one worker, what principals may do; and changes the ACLs for all."""

    def __init__(self, store: AclStore, settings: Settings, *, clock: Clock = CLOCK) -> None:
        self._store = store
        self._clock = clock
        self._max_age_s = settings.authorizer_cache_max_age_ms / 1000
        self._allow_without_acl = settings.allow_everyone_if_no_acl_found
        self._super_users = frozenset(parse_principals(settings.super_users))
        self._index = AclIndex()
        self._read_at: tuple[tuple[bytes | None, bytes | None], object] | None = None
        self._fresh_until = -math.inf
        self._decisions: dict[tuple[Principal, str], Decisions] = defaultdict(dict)
        self._decision_count = 0
        self._refreshing = RLock()
        self._core: DataPath[Any] | None = None

    def report_to(self, core: DataPath[Any]) -> None:
        """Report after each refresh until when rights count, and forget those that the core knows if they changed."""
        self._core = core
        core.forget_rights()
        core.trust_rights(self._fresh_until)

    def refresh(self) -> None:
        """Read the ACLs if they have changed, with one small command if not."""
        with self._refreshing:
            asked_at = self._clock.monotonic()
            at, former = self._store.changed(), self._read_at
            if at != former:
                # Not all of them, if it can be helped: a hundred thousand take seconds.
                epoch = former[0][0] if former is not None and former[1] == at[1] else None
                changed = self._store.load_changed(epoch)
                if changed is None:
                    self._index = AclIndex(self._store.load())
                else:
                    for resource, rules in changed.items():
                        self._index.replace(resource, rules)
                self._forget_decisions()
                self._read_at = at
            self._fresh_until = asked_at + self._max_age_s
            if self._core is not None:
                if at != former:
                    self._core.forget_rights()
                self._core.trust_rights(self._fresh_until)

    def rights(self, session: Session, api: str) -> Rights:
        if session.principal in self._super_users:
            return ALL_RIGHTS
        host = canonical_host(session.host)
        if len(self._decisions) >= CALLERS_MAX:
            self._forget_decisions()
        return Rights(self, session, host, api, self._decisions[session.principal, host])

    def check_fresh(self) -> None:
        """Raise StorageUnavailableError if the ACLs were last read too long ago."""
        if self._clock.monotonic() > self._fresh_until:
            raise StorageUnavailableError("the ACLs could not be read for authorizer.cache.max.age.ms")

    def decide(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        # A name may have 32 KiB of a client's choice, and its decision is kept with it.
        self._decision_count += 1 + len(name) // DECISION_CHARS
        if self._decision_count > DECISIONS_MAX:
            self._forget_decisions()
        decided = self._index.decide(str(principal), host, operation, resource, name)
        return self._allow_without_acl if decided is None else decided

    def decide_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResourceType
    ) -> bool:
        """Return whether the principal may do that with some resource of the type (KIP-679)."""
        return self.decide(principal, host, operation, resource, _PROBE_NAME) or self._index.decide_any(
            str(principal), host, operation, resource
        )

    def list_acls(self, meant: AclFilter) -> list[Acl]:
        """Return the ACLs that are meant, as of now; raises StorageUnavailableError."""
        self.refresh()
        return [list_acl for list_acl in self._index.list_acls() if meant.matches(list_acl)]

    def add(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        """Add ACLs; returns for each why it was not added. Every worker has them within milliseconds."""
        errors: dict[Acl, KafkaError] = {}
        rules: dict[ResourcePattern, list[Rule]] = {}
        for acl in acls:
            try:
                check(acl)
                rules.setdefault(acl.resource, []).append(acl.rule)
            except KafkaError as error:
                errors[acl] = error.without_frames()
        self.refresh()
        patterns = len(self._index.rules)
        for resource, chunk in rules.items():
            patterns += resource not in self._index.rules
            try:
                _check_number(patterns)
                self._store.add(resource, chunk)
            except KafkaError as error:
                errors |= {Acl(resource, rule): error.without_frames() for rule in chunk}
        self._follow()
        return [errors.get(item) for item in acls]

    def remove(self, meant: AclFilter) -> tuple[list[Acl], KafkaError | None]:
        """Remove the ACLs that are meant; returns those removed, and why others were not.

        Raises KafkaError INVALID_REQUEST, StorageUnavailableError if none is removed.
        """
        if 0 in (meant.type, meant.pattern, meant.operation, meant.permission):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The filter contains UNKNOWN elements.")
        removed: list[Acl] = []
        failure = None
        for resource in dict.fromkeys(list_acl.resource for list_acl in self.list_acls(meant)):
            try:
                removed += self._store.remove(resource, meant)
            except KafkaError as error:
                if not removed:
                    raise
                failure = error.without_frames()
                break
        self._follow()
        return removed, failure

    def _follow(self) -> None:
        """Read the ACLs after a change: it is made, and if Redis is away now it counts here when it does elsewhere."""
        with contextlib.suppress(StorageUnavailableError):
            self.refresh()

    def _forget_decisions(self) -> None:
        # Replaced and not emptied: a request under way may still write what it has decided into the former ones.
        self._decisions = defaultdict(dict)
        self._decision_count = 0


def _check_number(patterns: int) -> None:
    if patterns > PATTERNS_MAX:
        message = f"There may be ACLs about {PATTERNS_MAX} resource patterns."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


class Rights:
    """What the principal of one request may do; without an authorizer, everything."""

    __slots__ = ("_api", "_authorizer", "_decisions", "_host", "_session")

    def __init__(
        self,
        authorizer: Authorizer | None,
        session: Session,
        host: str = "",
        api: str = "",
        decisions: Decisions | None = None,
    ) -> None:
        self._authorizer = authorizer
        self._session = session
        self._host = host
        self._api = api
        self._decisions: Decisions = {} if decisions is None else decisions

    def check_fresh(self) -> None:
        """Raise StorageUnavailableError if the rights are not known any more."""
        if self._authorizer is not None:
            self._authorizer.check_fresh()

    def allows(
        self, operation: AclOperation, resource: AclResourceType, name: str, *, log: bool = True
    ) -> bool:
        """Whether it may do that; if not, and `log`, the audit log says so."""
        if self._authorizer is None:
            return True
        key = (operation, resource, name)
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = self._authorizer.decide(self._session.principal, self._host, *key)
            self._decisions[key] = allowed
        if log and not allowed:
            audit.denied(self._session, self._api, operation.name, resource.name, name)
        return allowed

    def allows_any(self, operation: AclOperation, resource: AclResourceType) -> bool:
        if self._authorizer is None:
            return True
        key = (operation, resource, None)
        if key not in self._decisions:  # all ACLs are gone through for it
            allowed = self._authorizer.decide_any(self._session.principal, self._host, operation, resource)
            self._decisions[key] = allowed
        return self._decisions[key]

    def allows_cluster(self, operation: AclOperation, *, log: bool = True) -> bool:
        return self.allows(operation, AclResourceType.CLUSTER, CLUSTER_NAME, log=log)

    def operations(self, resource: AclResourceType, name: str) -> int:
        """Return all that it may do with a resource, as a bit for each operation (KIP-430)."""
        return bits(item for item in OPERATIONS[resource] if self.allows(item, resource, name, log=False))


ALL_RIGHTS = Rights(None, Session(""))
"""Those of super users, and of everybody where there is no authorizer."""
