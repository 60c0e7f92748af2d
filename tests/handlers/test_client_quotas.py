"""DescribeClientQuotas and AlterClientQuotas: entities, values, filters, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from korvet.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from korvet.redis.keys import Keys
from tests.handlers.scene import Scene

Pairs = tuple[tuple[str, str | None], ...]
Component = tuple[str, int, str | None]
NAME, DEFAULT, ANY = range(3)
ALICE: Pairs = (("user", "alice"),)
BOTH: Pairs = (("client-id", "app"), ("user", "alice"))
OTHER: Pairs = (("client-id", "other"),)
HIGH = 1e12
RATE = ("producer_byte_rate", HIGH)


@pytest.fixture
def scene(redis_url: str) -> Iterator[Scene]:
    """Give a worker's handlers on an empty Redis."""
    with closing(Scene(redis_url)) as made:
        yield made


def entry(entity: Pairs, *ops: tuple[str, float | None]) -> dict[str, Any]:
    """Return the changes of one entity; None removes a quota."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
    }


def alter(scene: Scene, *entries: dict[str, Any], **fields: Any) -> list[Any]:
    results: list[Any] = scene.ask(AlterClientQuotasRequest, entries=list(entries), **fields).entries
    return results


def describe(scene: Scene, *components: Component, **fields: Any) -> Any:
    wanted = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    return scene.ask(DescribeClientQuotasRequest, components=wanted, **fields)


def described(scene: Scene, *components: Component, **fields: Any) -> dict[Pairs, dict[str, float]]:
    """Return the quotas of the entities that a filter matches."""
    response = describe(scene, *components, **fields)
    assert (response.error_code, response.error_message) == (0, None)
    return {
        tuple((each.entity_type, each.entity_name) for each in found.entity): {
            quota.key: quota.value for quota in found.values
        }
        for found in response.entries
    }


def test_quotas_are_set_and_removed_whatever_the_order_of_the_types(scene: Scene) -> None:
    for entity, *ops in (
        (ALICE, RATE, ("request_percentage", 1e6)),
        (ALICE, ("request_percentage", None), ("consumer_byte_rate", HIGH)),
        (BOTH[::-1], RATE),
        (BOTH, ("consumer_byte_rate", HIGH)),
    ):
        [result] = alter(scene, entry(entity, *ops))
        assert (result.error_code, result.error_message) == (0, None)
        assert [(each.entity_type, each.entity_name) for each in result.entity] == list(entity)
    both = {"producer_byte_rate": HIGH, "consumer_byte_rate": HIGH}
    assert described(scene) == {ALICE: both, BOTH: both}
    alter(scene, *(entry(each, *dict.fromkeys(both).items()) for each in (ALICE, BOTH)))
    assert described(scene) == {}


def test_what_is_only_validated_is_not_set(scene: Scene) -> None:
    results = alter(scene, entry(ALICE, RATE), entry(BOTH, (RATE[0], 0.5)), validate_only=True)
    assert [each.error_code for each in results] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert described(scene) == {}


@pytest.mark.parametrize("key", ["principal", "x\n2026-01-01T00:00:00.000Z INFO worker-1 forged"])
def test_a_key_that_is_removed_is_no_field_of_the_audit_log(scene: Scene, key: str) -> None:
    """As in Kafka any key may be removed; a line of the log has no part of a client's choice but values."""
    [result] = alter(scene, entry(ALICE, (key, None)))
    assert (result.error_code, result.error_message) == (0, None)


@pytest.mark.parametrize(
    ("entity", "ops", "said"),
    [
        ((), [RATE], "Invalid empty client quota entity"),
        ((("group", "g"),), [RATE], "Unhandled client quota entity type: group"),
        ((("user", ""),), [RATE], "Empty user not supported"),
        ((("user", "a"), ("user", "b")), [RATE], "more than once"),
        ((("ip", "10.0.0.1"), ("user", "a")), [("connection_creation_rate", 5)], "cannot be combined"),
        ((("ip", "no address"),), [("connection_creation_rate", 5)], "no address is not a valid IP."),
        ((("ip", "10.0.0.1"),), [RATE], "Invalid configuration key"),
        (ALICE, [("connection_creation_rate", 5)], "Invalid configuration key connection_creation_rate"),
        (ALICE, [RATE, ("no_such_rate", 5)], "Invalid configuration key no_such_rate"),
        (ALICE, [("producer_byte_rate", 1000.5)], "producer_byte_rate cannot be a fractional value."),
        (ALICE, [("producer_byte_rate", -1)], "must be greater than 0"),
        (ALICE, [("producer_byte_rate", 0)], "must be greater than 0"),
        (ALICE, [("request_percentage", math.nan)], "must be greater than 0"),
        (ALICE, [("request_percentage", math.inf)], "must be greater than 0"),
        (ALICE, [("request_percentage", 5), ("request_percentage", 6)], "Duplicate quota key"),
    ],
)
def test_what_cannot_be_set_is_refused_whole_and_the_others_are_set(
    scene: Scene, entity: Pairs, ops: list[tuple[str, float]], said: str
) -> None:
    bad, good = alter(scene, entry(entity, *ops), entry(OTHER, RATE))
    assert (bad.error_code, said in bad.error_message) == (ErrorCode.INVALID_REQUEST, True)
    assert good.error_code == 0
    assert described(scene) == {OTHER: dict([RATE])}


@pytest.mark.parametrize("again", [BOTH, BOTH[::-1]])
def test_an_entity_that_is_named_twice_is_not_altered(scene: Scene, again: Pairs) -> None:
    [result] = alter(scene, entry(BOTH, RATE), entry(again, (RATE[0], HIGH + 1)))
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert described(scene) == {}


ENTITIES: list[Pairs] = [
    ALICE,
    BOTH,
    (("user", None),),
    (("client-id", None), ("user", "bob")),
    (("client-id", "app"),),
    (("ip", "10.0.0.1"),),
    (("ip", None),),
]


def test_filters_match_by_name_default_or_any_and_strict_ones_nothing_besides(scene: Scene) -> None:
    for each in ENTITIES:
        alter(scene, entry(each, ("connection_creation_rate", 5) if each[0][0] == "ip" else RATE))

    def found(*components: Component, strict: bool = False) -> set[int]:
        return {ENTITIES.index(each) for each in described(scene, *components, strict=strict)}

    assert found() == set(range(7))
    assert found(strict=True) == set()
    assert found(("user", NAME, "alice")) == {0, 1}
    assert found(("user", NAME, "alice"), strict=True) == {0}
    assert found(("user", DEFAULT, None)) == {2}
    assert found(("user", ANY, None)) == {0, 1, 2, 3}
    assert found(("user", ANY, None), strict=True) == {0, 2}
    assert found(("client-id", NAME, "app")) == {1, 4}
    assert found(("user", ANY, None), ("client-id", DEFAULT, None)) == {3}
    assert found(("ip", ANY, None)) == {5, 6}
    assert found(("ip", NAME, "10.0.0.2")) == set()


@pytest.mark.parametrize(
    ("components", "code", "said"),
    [
        ([("", NAME, "a")], ErrorCode.INVALID_REQUEST, "Invalid empty entity type."),
        ([("user", ANY, None), ("user", NAME, "a")], ErrorCode.INVALID_REQUEST, "more than once"),
        ([("group", NAME, "a")], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([("user", NAME, None)], ErrorCode.INVALID_REQUEST, "no match string"),
        ([("user", DEFAULT, "a")], ErrorCode.INVALID_REQUEST, "and a match string"),
        ([("user", ANY, "a")], ErrorCode.INVALID_REQUEST, "and a match string"),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST, "Unknown match type 3"),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST, "should not be used with"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(
    scene: Scene, components: list[Component], code: ErrorCode, said: str
) -> None:
    response = describe(scene, *components)
    assert (response.error_code, response.entries) == (code, None)
    assert said in response.error_message


def test_a_row_that_cannot_be_read_is_left_out(scene: Scene) -> None:
    for name in ("no json", '{"group":"g"}', '{"user":"carol"}'):
        row = "no json" if "carol" in name else '{"producer_byte_rate":1.0}'
        scene.raw.hset(Keys("korvet").quotas, name, row)
    alter(scene, entry(ALICE, RATE))
    assert described(scene) == {ALICE: dict([RATE])}
