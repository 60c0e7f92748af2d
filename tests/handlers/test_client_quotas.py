"""DescribeClientQuotas and AlterClientQuotas: entities, values, filters, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.redis.keys import Keys
from tests.handlers import apis
from tests.handlers.rows import security
from tests.handlers.scene import Scene

Pairs = tuple[tuple[str, str | None], ...]
Component = tuple[str, int, str | None]
NAME, DEFAULT, ANY = range(3)
ALICE: Pairs = (("user", "alice"),)
BOTH: Pairs = (("client-id", "app"), ("user", "alice"))
OTHER: Pairs = (("client-id", "other"),)
HIGH = 1e12
RATE = ("producer_byte_rate", HIGH)


def entry(entity: Pairs, *ops: tuple[str, float | None]) -> dict[str, Any]:
    """Return the changes of one entity; None removes a quota."""
    return {
        "entity": security.entity(*entity),
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
    }


def alter(scene: Scene, *entries: dict[str, Any], **fields: Any) -> list[Any]:
    results: list[Any] = scene.ask(apis.AlterClientQuotas, entries=list(entries), **fields).entries
    return results


def described(scene: Scene, *components: Component, strict: bool = False) -> dict[Pairs, dict[str, float]]:
    """Return the quotas of the entities that a filter matches."""
    wanted = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    response = scene.do(apis.DescribeClientQuotas, components=wanted, strict=strict)
    return {
        tuple((item.entity_type, item.entity_name) for item in result.entity): {
            quota.key: quota.value for quota in result.values
        }
        for result in response.entries
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
        assert [(item.entity_type, item.entity_name) for item in result.entity] == list(entity)
    both = {"producer_byte_rate": HIGH, "consumer_byte_rate": HIGH}
    assert described(scene) == {ALICE: both, BOTH: both}
    alter(scene, *(entry(item, *dict.fromkeys(both).items()) for item in (ALICE, BOTH)))
    assert described(scene) == {}


def test_what_is_only_validated_is_not_set(scene: Scene) -> None:
    results = alter(scene, entry(ALICE, RATE), entry(BOTH, (RATE[0], 0.5)), validate_only=True)
    assert [result.error_code for result in results] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert described(scene) == {}


@pytest.mark.parametrize("key", ["principal", "x\n2026-01-01T00:00:00.000Z INFO worker-1 forged"])
def test_a_key_that_is_removed_is_no_field_of_the_audit_log(scene: Scene, key: str) -> None:
    """As in Kafka any key may be removed; a line of the log has no part of a client's choice but values."""
    [result] = alter(scene, entry(ALICE, (key, None)))
    assert (result.error_code, result.error_message) == (0, None)


def test_what_cannot_be_set_is_refused_whole_and_the_others_are_set(scene: Scene) -> None:
    bad, good = alter(scene, entry(ALICE, RATE, ("no_such_rate", 5)), entry(OTHER, RATE))
    assert (bad.error_code, good.error_code) == (ErrorCode.INVALID_REQUEST, ErrorCode.NONE)
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
    for item in ENTITIES:
        alter(scene, entry(item, ("connection_creation_rate", 5) if item[0][0] == "ip" else RATE))

    def result(*components: Component, strict: bool = False) -> set[int]:
        return {ENTITIES.index(item) for item in described(scene, *components, strict=strict)}

    assert result() == set(range(7))
    assert result(strict=True) == set()
    assert result(("user", NAME, "alice")) == {0, 1}
    assert result(("user", NAME, "alice"), strict=True) == {0}
    assert result(("user", DEFAULT, None)) == {2}
    assert result(("user", ANY, None)) == {0, 1, 2, 3}
    assert result(("user", ANY, None), strict=True) == {0, 2}
    assert result(("client-id", NAME, "app")) == {1, 4}
    assert result(("user", ANY, None), ("client-id", DEFAULT, None)) == {3}
    assert result(("ip", ANY, None)) == {5, 6}
    assert result(("ip", NAME, "10.0.0.2")) == set()


def test_a_row_that_cannot_be_read_is_left_out(scene: Scene) -> None:
    for name in ("no json", '{"group":"g"}', '{"user":"carol"}'):
        row = "no json" if "carol" in name else '{"producer_byte_rate":1.0}'
        scene.raw.hset(Keys("korvet").quotas, name, row)
    alter(scene, entry(ALICE, RATE))
    assert described(scene) == {ALICE: dict([RATE])}
