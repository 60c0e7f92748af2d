"""DescribeAcls, CreateAcls and DeleteAcls: results in the order of the request, and what the audit log has of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
import redis

from korvet import turns
from korvet.errors import ErrorCode
from korvet.protocol.schema import Message
from korvet.protocol.types import AclOperation, PatternType
from korvet.redis.keys import Keys
from tests.handlers import apis
from tests.handlers.rows.security import CREATION, EVERYTHING
from tests.handlers.scene import Scene
from tests.handlers.table import Fields
from tests.support.proxy import Proxy, until

ACLS = Keys("korvet").acls


def creation(name: str, pattern: PatternType = PatternType.LITERAL, **fields: Any) -> Fields:
    return CREATION | {"resource_name": name, "resource_pattern_type": pattern} | fields


def create(scene: Scene, *creations: Fields) -> list[tuple[int, str | None]]:
    answer = scene.ask(apis.CreateAcls, creations=list(creations))
    return [(result.error_code, result.error_message) for result in answer.results]


def described(scene: Scene) -> list[tuple[str, int, int]]:
    """Return of each resource pattern its name, its type and the number of its rules."""
    answer = scene.do(apis.DescribeAcls, **EVERYTHING)
    return [
        (resource.resource_name, resource.pattern_type, len(resource.acls)) for resource in answer.resources
    ]


def deleted(scene: Scene, *filters: Fields) -> list[tuple[int, list[str]]]:
    answer = scene.ask(apis.DeleteAcls, filters=[EVERYTHING | condition for condition in filters])
    return [
        (filter_result.error_code, [acl.resource_name for acl in filter_result.matching_acls])
        for filter_result in answer.filter_results
    ]


def test_what_is_created_is_answered_in_its_order_and_described_together(scene: Scene) -> None:
    ok, bad = (0, None), (ErrorCode.INVALID_REQUEST, "Invalid operation ANY")
    asked = [
        creation("orders"),
        creation("orders", operation=AclOperation.ANY),
        creation("orders", operation=AclOperation.WRITE),
        creation("orders"),
        creation("ord", PatternType.PREFIXED),
        creation("*"),
    ]
    assert create(scene, *asked) == [ok, bad, ok, ok, ok, ok]
    assert sorted(described(scene)) == [("*", 3, 1), ("ord", 4, 1), ("orders", 3, 2)]


def test_an_acl_that_several_filters_match_is_in_the_result_of_each(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    create(scene, creation("orders"), creation("other"))
    filters: list[Fields] = [
        {"resource_name_filter": "orders"},
        {"operation": AclOperation.UNKNOWN},
        {"principal_filter": "User:bob"},
        {"resource_name_filter": "orders"},
        {"resource_name_filter": "nothing"},
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO, "korvet.audit"):
        result = deleted(scene, *filters)
    assert result == [
        (0, ["orders"]),
        (ErrorCode.INVALID_REQUEST, []),
        (0, ["orders", "other"]),
        (0, ["orders"]),
        (0, []),
    ]
    assert described(scene) == []
    [line] = [vars(record)["korvet_fields"] for record in caplog.records if record.name == "korvet.audit"]
    assert line["done"].count("User:bob") == len(("orders", "other"))


def test_others_have_their_turn_while_very_many_acls_are_read_matched_and_deleted(
    scene: Scene, raw_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the ACLs are about one pattern, half about one each."""
    half = 3200
    row = '[{"principal":"User:bob","host":"*","operation":"READ","permission":"ALLOW"}]'
    raw_redis.hset(ACLS, mapping={f"TOPIC:LITERAL:t{number}": row for number in range(half)})
    some = [creation("orders", principal=f"User:{number}") for number in range(half)]
    assert {code for code, _ in create(scene, *some)} == {0}
    given: list[float] = []
    monkeypatch.setattr(turns, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(turns, "gevent", SimpleNamespace(sleep=given.append))
    [(_, names), nothing] = deleted(scene, {"resource_name_filter": "orders"}, {"resource_name_filter": "no"})
    assert (len(names), nothing) == (half, (0, []))
    steps = (
        ("all are gone through", 2),
        ("those of the pattern", 1),
        ("what is left: its row and rules", 2),
        ("what is deleted: listed, encoded, noted", 3),
        ("what is left and what is deleted, by the second filter", 2),
    )
    assert len(given) * turns.CALLS_PER_LOOK // half >= sum(count for _, count in steps)


@pytest.fixture
def cut_off(network: Proxy) -> Iterator[Scene]:
    """Give a worker whose way to Redis can be cut, and that waits for each answer of Redis."""
    made = Scene(network.url)
    network.delay_s = 0.005
    yield made
    made.close()


def audited(
    scene: Scene, caplog: pytest.LogCaptureFixture, kind: type[Message], **fields: Any
) -> tuple[set[str], str]:
    """Return the topics of what a request has done and what it has not, as the audit log's line about it says."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "korvet.audit"):
        scene.ask(kind, **fields)
    [line] = [vars(record)["korvet_fields"] for record in caplog.records if record.name == "korvet.audit"]
    done = line["done"].split(", ") if "done" in line else []
    return {item.rpartition(":")[2] for item in done}, line["failed"]


@pytest.mark.parametrize("api", ["CreateAcls", "DeleteAcls"])
def test_the_audit_log_has_what_was_done_before_redis_went_away(
    cut_off: Scene, network: Proxy, raw_redis: Any, caplog: pytest.LogCaptureFixture, api: str
) -> None:
    """Redis may have done one more, without an answer."""
    topics = {f"topic-{number:02}" for number in range(15)}
    creations = [creation(topic) for topic in sorted(topics)]

    def left() -> set[str]:
        return {hkey.decode().rpartition(":")[2] for hkey in raw_redis.hkeys(ACLS)}

    def cut() -> None:
        until(lambda: 5 <= len(left()) <= 10)
        network.refuse()

    if api == "DeleteAcls":
        create(cut_off, *creations)
    cutting = gevent.spawn(cut)
    if api == "CreateAcls":
        done, failed = audited(cut_off, caplog, apis.CreateAcls, creations=creations)
        changed = left()
        assert "TOPIC:LITERAL:topic-14 KAFKA_STORAGE_ERROR" in failed
    else:
        done, failed = audited(cut_off, caplog, apis.DeleteAcls, filters=[EVERYTHING])
        changed = topics - left()
        assert failed == "filter KAFKA_STORAGE_ERROR"
    cutting.get()
    assert done <= changed
    assert 4 <= len(done) >= len(changed) - 1


def test_a_change_that_fails_as_a_whole_is_in_the_audit_log(
    cut_off: Scene, network: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    network.refuse()
    done, failed = audited(cut_off, caplog, apis.CreateAcls, creations=[creation("orders")])
    assert not done
    assert failed == "ALLOW User:bob from * READ on TOPIC:LITERAL:orders KAFKA_STORAGE_ERROR"
