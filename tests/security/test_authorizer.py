"""The authorizer of a worker on a real Redis: super users, changes, the cache, outages and unreadable rows."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from korvet.cluster import rows
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.security import authorizer as module
from korvet.security.acls import CLUSTER_NAME, Acl, AclFilter, AclIndex, ResourcePattern, Rule
from korvet.security.authorizer import ALL_RIGHTS, AclStore, Authorizer, Rights
from korvet.security.session import Principal, Session
from tests.support.proxy import Proxy
from tests.support.virtual_clock import VirtualClock

KEYS = Keys("korvet")
ALICE = Session("10.0.0.1:5000", principal=Principal("User", "alice"))
TOPIC, READ = AclResourceType.TOPIC, AclOperation.READ
ORDERS = ResourcePattern(TOPIC, PatternType.LITERAL, "orders")
READ_ORDERS = Acl(ORDERS, Rule("User:alice", "*", READ, AclPermissionType.ALLOW))


def an_authorizer(redis: Redis, **settings: Any) -> Authorizer:
    made = Authorizer(AclStore(redis, KEYS), Settings(**settings))
    made.refresh()
    return made


def may(authorizer: Authorizer, operation: AclOperation = READ, topic: str = "orders") -> bool:
    return authorizer.rights(ALICE, "Fetch").allows(operation, TOPIC, topic)


def test_nobody_but_super_users_may_do_anything_without_acls(redis: Redis) -> None:
    distinguished = Session("10.0.0.1:1", principal=Principal("User", "CN=root,OU=a:b"))
    authorizer = an_authorizer(redis, super_users="User:CN=root,OU=a:b; User:bob;")
    assert not may(authorizer)
    assert authorizer.rights(distinguished, "Fetch") is ALL_RIGHTS
    assert authorizer.rights(Session("h:1", principal=Principal("User", "bob")), "Fetch") is ALL_RIGHTS
    assert may(an_authorizer(redis, allow_everyone_if_no_acl_found=True))


def test_a_change_counts_at_once_where_it_is_made_and_after_a_refresh_elsewhere(redis: Redis) -> None:
    here, there = an_authorizer(redis), an_authorizer(redis)
    assert not may(here)
    assert not may(there)
    assert here.add([READ_ORDERS]) == [None]
    assert may(here)
    assert not may(there)
    there.refresh()
    assert may(there)
    assert there.remove(AclFilter(principal="User:alice")) == ([READ_ORDERS], None)
    assert not may(there)
    here.refresh()
    assert not may(here)


def test_rights_of_a_request_under_way_stay_and_the_next_request_has_the_new_ones(redis: Redis) -> None:
    authorizer = an_authorizer(redis)
    authorizer.add([READ_ORDERS])
    rights = authorizer.rights(ALICE, "Fetch")
    assert rights.allows(READ, TOPIC, "orders")
    authorizer.remove(AclFilter())
    assert rights.allows(READ, TOPIC, "orders")
    assert not may(authorizer)


def test_a_row_is_one_resource_pattern_in_kafkas_names(redis: Redis, raw_redis: Any) -> None:
    authorizer = an_authorizer(redis)
    prefixed = Acl(
        ResourcePattern(AclResourceType.GROUP, PatternType.PREFIXED, "a:b"),
        Rule("User:bob", "10.0.0.1", AclOperation.ALL, AclPermissionType.DENY),
    )
    assert authorizer.add([READ_ORDERS, READ_ORDERS, prefixed]) == [None, None, None]
    assert authorizer.add([READ_ORDERS]) == [None]
    assert raw_redis.hgetall(KEYS.acls) == {
        b"TOPIC:LITERAL:orders": b'[{"host":"*","operation":"READ","permission":"ALLOW","principal":"User:alice"}]',
        b"GROUP:PREFIXED:a:b": b'[{"host":"10.0.0.1","operation":"ALL","permission":"DENY","principal":"User:bob"}]',
    }
    assert authorizer.list_acls(AclFilter()) == [prefixed, READ_ORDERS]
    assert authorizer.remove(AclFilter(host="10.0.0.1")) == ([prefixed], None)
    assert raw_redis.hkeys(KEYS.acls) == [b"TOPIC:LITERAL:orders"]


def test_one_acl_that_cannot_be_does_not_keep_the_others_out(redis: Redis) -> None:
    authorizer = an_authorizer(redis)
    wrong = READ_ORDERS._replace(resource=ORDERS._replace(name=""))
    refusal, added = authorizer.add([wrong, READ_ORDERS])
    assert isinstance(refusal, KafkaError)
    assert refusal.code is ErrorCode.INVALID_REQUEST
    assert added is None
    with pytest.raises(KafkaError, match="UNKNOWN"):
        authorizer.remove(AclFilter(operation=AclOperation.UNKNOWN))


def test_acls_have_limits(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RULES_MAX", 2)
    monkeypatch.setattr(module, "PATTERNS_MAX", 1)
    authorizer = an_authorizer(redis)
    assert authorizer.add([READ_ORDERS]) == [None]
    others = [READ_ORDERS._replace(resource=ORDERS._replace(name=f"more-{n}")) for n in range(2)]
    assert all(isinstance(item, KafkaError) for item in authorizer.add(others))
    rules = [READ_ORDERS._replace(rule=READ_ORDERS.rule._replace(principal=f"User:{item}")) for item in "abc"]
    assert [type(item) for item in authorizer.add(rules)] == [KafkaError] * 3
    assert authorizer.list_acls(AclFilter()) == [READ_ORDERS]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("TOPIC:LITERAL:orders", b"{"),
        (
            "TOPIC:LITERAL:orders",
            b'[{"principal":"User:alice","host":"*","operation":"FLY","permission":"ALLOW"}]',
        ),
        (
            "TOPIC:LITERAL:orders",
            b'[{"principal":"User:alice","host":"*","operation":"ANY","permission":"DENY"}]',
        ),
        ("ANY:LITERAL:orders", b"[]"),
        ("TOPIC:PREFIXED:ord", b"[1]"),
        ("TOPIC:LITERAL:*", b""),
        ("topic:literal:payments", b"[]"),
        ("TOPIC:LITERAL:", b"[]"),
        (b"\xff", b"[]"),
    ],
)
def test_a_row_that_cannot_be_read_denies(
    redis: Redis, raw_redis: Any, row: str | bytes, text: bytes
) -> None:
    authorizer = an_authorizer(redis, allow_everyone_if_no_acl_found=True)
    wide = READ_ORDERS._replace(resource=ORDERS._replace(name="ord", pattern=PatternType.PREFIXED))
    assert authorizer.add([wide]) == [None]
    assert may(authorizer)
    raw_redis.hset(KEYS.acls, row, text)
    raw_redis.zadd(KEYS.topic_changes, {module.FEED_MEMBER: 10})
    authorizer.refresh()
    assert not may(authorizer)


def test_what_cannot_be_read_is_listed_and_deleted_but_nothing_is_added_to_it(
    redis: Redis, raw_redis: Any
) -> None:
    raw_redis.hset(KEYS.acls, str(ORDERS), b"{")
    authorizer = an_authorizer(redis)
    refusals = authorizer.add([READ_ORDERS])
    assert [refusal.code for refusal in refusals if refusal is not None] == [ErrorCode.INVALID_REQUEST]
    denies = Acl(ORDERS, Rule("User:*", "*", AclOperation.ALL, AclPermissionType.DENY))
    assert authorizer.remove(AclFilter(principal="User:alice")) == ([], None)
    assert authorizer.list_acls(AclFilter()) == [denies]
    assert authorizer.remove(AclFilter(name="orders")) == ([denies], None)
    assert raw_redis.hgetall(KEYS.acls) == {}
    assert authorizer.add([READ_ORDERS]) == [None]
    assert may(authorizer)


def test_rights_hold_for_a_stated_time_while_redis_is_away(
    network: Proxy, redis_url: str, request: pytest.FixtureRequest
) -> None:
    clock = VirtualClock()
    settings = Settings(authorizer_cache_max_age_ms=30_000, super_users="User:root")
    redis = Redis(network.url, timeout_ms=60_000, connect_timeout_ms=10_000)
    request.addfinalizer(redis.close)
    authorizer = Authorizer(AclStore(redis, KEYS), settings, clock=clock)
    rights = authorizer.rights(ALICE, "Fetch")
    with pytest.raises(StorageUnavailableError):
        rights.check_fresh()  # never read yet
    authorizer.refresh()
    authorizer.add([READ_ORDERS])
    network.lead_to("redis://127.0.0.1:1")
    network.cut()
    clock.advance(30)
    with pytest.raises(StorageUnavailableError):
        authorizer.refresh()
    rights = authorizer.rights(ALICE, "Fetch")
    rights.check_fresh()
    assert rights.allows(READ, TOPIC, "orders")
    clock.advance(0.001)
    with pytest.raises(StorageUnavailableError, match=r"authorizer\.cache\.max\.age\.ms"):
        rights.check_fresh()
    authorizer.rights(Session("h:1", principal=Principal("User", "root")), "Fetch").check_fresh()
    network.lead_to(redis_url)
    authorizer.refresh()
    rights.check_fresh()


def test_acls_are_read_again_when_redis_may_have_lost_changes(redis: Redis, raw_redis: Any) -> None:
    class Epochs:
        history = 1

        def current(self, _key: str) -> int:
            return self.history

    epochs = Epochs()
    authorizer = Authorizer(AclStore(redis, KEYS, epochs), Settings())
    authorizer.add([READ_ORDERS])
    assert may(authorizer)
    # The new master has the feed at the same place, and never had the row.
    raw_redis.delete(KEYS.acls)
    authorizer.refresh()
    assert may(authorizer)
    epochs.history = 2
    authorizer.refresh()
    assert not may(authorizer)


def test_the_cache_is_bounded(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECISIONS_MAX", 10)
    monkeypatch.setattr(module, "CALLERS_MAX", 5)
    authorizer = an_authorizer(redis)
    for number in range(100):
        authorizer.rights(Session(f"10.0.0.{number}:1"), "Fetch").allows(READ, TOPIC, f"t{number}")
        may(authorizer, topic=f"t{number}")
        cached = authorizer._decisions.values()
        assert sum(map(len, cached)) <= 10
        assert len(cached) <= 6


def test_long_names_of_a_clients_choice_do_not_fill_the_cache(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DECISIONS_MAX", 100)
    authorizer = an_authorizer(redis)
    for number in range(100):
        may(authorizer, topic=f"{number}".ljust(10_000))
        cached = [key[2] or "" for decisions in authorizer._decisions.values() for key in decisions]
        assert sum(map(len, cached)) <= 100 * module.DECISION_CHARS + 10_000


def test_operations_are_all_that_kafka_knows_for_the_resource(redis: Redis) -> None:
    authorizer = an_authorizer(redis)
    authorizer.add([READ_ORDERS])
    rights = authorizer.rights(ALICE, "Metadata")
    assert rights.operations(TOPIC, "orders") == 1 << 3 | 1 << 8
    assert rights.operations(AclResourceType.CLUSTER, CLUSTER_NAME) == 0
    assert ALL_RIGHTS.operations(AclResourceType.GROUP, "g") == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def test_a_right_on_any_topic_is_asked_for_as_kafka_does(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorizer = an_authorizer(redis)

    def rights() -> Rights:
        return authorizer.rights(ALICE, "InitProducerId")

    assert not rights().allows_any(AclOperation.READ, TOPIC)
    authorizer.add([READ_ORDERS])
    assert rights().allows_any(AclOperation.READ, TOPIC)
    assert not rights().allows_any(AclOperation.WRITE, TOPIC)
    # Without going through all ACLs a second time.
    monkeypatch.delattr(AclIndex, "decide_any")
    assert rights().allows_any(AclOperation.READ, TOPIC)


def test_a_refusal_is_in_the_audit_log(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    authorizer = an_authorizer(redis)
    with caplog.at_level(logging.INFO, "korvet.audit"):
        for _ in range(200):
            authorizer.rights(ALICE, "Audited").allows(READ, TOPIC, "secret\nplans")
        authorizer.rights(ALICE, "Other").allows(READ, TOPIC, "quiet", log=False)
    assert 0 < len(caplog.records) <= 100
    assert vars(caplog.records[0])["korvet_fields"] == {
        "principal": ALICE.principal,
        "peer": "10.0.0.1:5000",
        "listener": ALICE.listener,
        "api": "Audited",
        "operation": "READ",
        "resource": "TOPIC",
        "name": "secret\nplans",
    }


def about(topic: str, pattern: PatternType = PatternType.LITERAL, principal: str = "User:alice") -> Acl:
    """Allow somebody to read a topic, or all whose names begin so."""
    return Acl(ResourcePattern(TOPIC, pattern, topic), Rule(principal, "*", READ, AclPermissionType.ALLOW))


def test_a_change_among_many_acls_is_all_that_others_read(redis: Redis, network: Proxy) -> None:
    here = an_authorizer(redis)
    assert set(here.add([about(f"topic-{item}") for item in range(2000)])) == {None}
    far = Redis(network.url, timeout_ms=60_000, connect_timeout_ms=10_000)
    there = an_authorizer(far)
    before = network.bytes_to_client
    assert before > 100_000
    for change in (lambda: here.add([about("new")]), lambda: here.remove(AclFilter(name="new"))):
        change()
        there.refresh()
        assert may(there, topic="new") == may(here, topic="new")
        assert there.list_acls(AclFilter()) == here.list_acls(AclFilter())
    assert may(there, topic="topic-7")
    assert network.bytes_to_client - before < 2000
    far.close()


def test_what_is_read_change_by_change_is_what_is_read_at_once(
    redis: Redis, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CHANGES_MAX", 6)
    here, there = an_authorizer(redis), an_authorizer(redis)
    names = ["a", "ab", "abc", "b", "*"]
    acls = [
        about(name, pattern, principal)
        for name in names
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
        for principal in ("User:alice", "User:bob")
    ]
    chance = random.Random(7)
    for step in range(300):
        if chance.random() < 0.5:
            here.add(chance.sample(acls, chance.randint(1, 3)))
        else:
            resource, rule = chance.choice(acls)
            here.remove(AclFilter(name=resource.name, pattern=resource.pattern, principal=rule.principal))
        if step % 50 == 49:  # as after other changes
            raw_redis.zadd(KEYS.topic_changes, {f"t-{step}": step * 1000})
        if chance.random() < 0.5:
            there.refresh()
            fresh = an_authorizer(redis)
            assert there.list_acls(AclFilter()) == fresh.list_acls(AclFilter()) == here.list_acls(AclFilter())
            for name in [*names, "abcd", "c"]:
                assert may(there, topic=name) == may(fresh, topic=name) == may(here, topic=name)


def test_a_feed_that_was_restored_or_lost_has_all_acls_read_again(redis: Redis, raw_redis: Any) -> None:
    here, there = an_authorizer(redis), an_authorizer(redis)
    here.add([READ_ORDERS])
    here.add([about("more")])
    there.refresh()
    raw_redis.delete(KEYS.topic_changes, KEYS.acls)
    there.refresh()
    assert not may(there)
    here.add([about("other")])
    there.refresh()
    assert there.list_acls(AclFilter()) == [about("other")]
