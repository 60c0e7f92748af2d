"""DescribeClientQuotas and AlterClientQuotas by bytes: entities, values, filters, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.redis.keys import Keys
from tests.handlers.quotas import ANY, DEFAULT, NAME, Pairs, alter, describe, described, entry, set_quotas
from tests.support.processes import wait_until
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow

ALICE: Pairs = (("user", "alice"),)
BOTH: Pairs = (("client-id", "app"), ("user", "alice"))
HIGH = 1e12
"""A byte rate that throttles nobody."""


@pytest.fixture(autouse=True)
def nothing_set(client: Client) -> Iterator[None]:
    yield
    for entity, values in described(client).items():
        set_quotas(client, entity, **dict.fromkeys(values))
    assert described(client) == {}


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_removed(client: Client, version: int) -> None:
    rates = (("producer_byte_rate", HIGH), ("request_percentage", 1e6))
    [result] = alter(client, entry(ALICE, *rates), version=version)
    assert (result.error_code, result.error_message) == (0, None)
    assert [(each.entity_type, each.entity_name) for each in result.entity] == list(ALICE)
    assert described(client, version=version) == {ALICE: dict(rates)}
    set_quotas(client, ALICE, request_percentage=None, consumer_byte_rate=HIGH)
    assert described(client) == {ALICE: {"producer_byte_rate": HIGH, "consumer_byte_rate": HIGH}}
    set_quotas(client, ALICE, producer_byte_rate=None, consumer_byte_rate=None, request_percentage=None)
    assert described(client) == {}


def test_types_may_be_given_in_any_order(client: Client) -> None:
    set_quotas(client, (("user", "alice"), ("client-id", "app")), producer_byte_rate=HIGH)
    set_quotas(client, BOTH, consumer_byte_rate=HIGH)
    assert described(client) == {BOTH: {"producer_byte_rate": HIGH, "consumer_byte_rate": HIGH}}


def test_what_is_only_validated_is_not_set(client: Client) -> None:
    good, bad = alter(
        client,
        entry(ALICE, ("producer_byte_rate", HIGH)),
        entry(BOTH, ("producer_byte_rate", 0.5)),
        validate_only=True,
    )
    assert (good.error_code, bad.error_code) == (0, ErrorCode.INVALID_REQUEST)
    assert described(client) == {}


@pytest.mark.parametrize("key", ["principal", "x\n2026-01-01T00:00:00.000Z INFO worker-1 forged"])
def test_a_key_that_is_removed_is_no_field_of_the_audit_log(client: Client, key: str) -> None:
    """As in Kafka any key may be removed; a line of the log has no part of a client's choice but values."""
    [result] = alter(client, entry(ALICE, (key, None)))
    assert (result.error_code, result.error_message) == (0, None)


@pytest.mark.parametrize(
    ("entity", "ops", "said"),
    [
        ((), [("producer_byte_rate", HIGH)], "Invalid empty client quota entity"),
        ((("group", "g"),), [("producer_byte_rate", HIGH)], "Unhandled client quota entity type: group"),
        ((("user", ""),), [("producer_byte_rate", HIGH)], "Empty user not supported"),
        ((("user", "a"), ("user", "b")), [("producer_byte_rate", HIGH)], "more than once"),
        ((("ip", "10.0.0.1"), ("user", "a")), [("connection_creation_rate", 5)], "cannot be combined"),
        ((("ip", "no address"),), [("connection_creation_rate", 5)], "no address is not a valid IP."),
        ((("ip", "10.0.0.1"),), [("producer_byte_rate", HIGH)], "Invalid configuration key"),
        (ALICE, [("connection_creation_rate", 5)], "Invalid configuration key connection_creation_rate"),
        (ALICE, [("no_such_rate", 5)], "Invalid configuration key no_such_rate"),
        (ALICE, [("producer_byte_rate", 1000.5)], "producer_byte_rate cannot be a fractional value."),
        (ALICE, [("producer_byte_rate", -1)], "must be greater than 0"),
        (ALICE, [("producer_byte_rate", 0)], "must be greater than 0"),
        (ALICE, [("request_percentage", math.nan)], "must be greater than 0"),
        (ALICE, [("request_percentage", math.inf)], "must be greater than 0"),
        (ALICE, [("request_percentage", 5), ("request_percentage", 6)], "Duplicate quota key"),
    ],
)
def test_what_cannot_be_set_is_refused_whole_and_the_others_are_set(
    client: Client, entity: Pairs, ops: list[tuple[str, float]], said: str
) -> None:
    other = (("client-id", "other"),)
    valid = [] if ops[0][0] == "connection_creation_rate" else [("consumer_byte_rate", HIGH)]
    bad, good = alter(client, entry(entity, *valid, *ops), entry(other, ("producer_byte_rate", HIGH)))
    assert (bad.error_code, said in bad.error_message) == (ErrorCode.INVALID_REQUEST, True)
    assert good.error_code == 0
    assert described(client) == {other: {"producer_byte_rate": HIGH}}


@pytest.mark.parametrize("again", [BOTH, BOTH[::-1]])
def test_an_entity_that_is_named_twice_is_not_altered(client: Client, again: Pairs) -> None:
    twice = [entry(BOTH, ("producer_byte_rate", HIGH)), entry(again, ("producer_byte_rate", HIGH + 1))]
    [result] = alter(client, *twice)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert described(client) == {}


def test_filters_match_by_name_default_or_any_and_strict_ones_nothing_besides(client: Client) -> None:
    entities: list[Pairs] = [
        ALICE,
        BOTH,
        (("user", None),),
        (("client-id", None), ("user", "bob")),
        (("client-id", "app"),),
        (("ip", "10.0.0.1"),),
        (("ip", None),),
    ]
    for each in entities:
        quota = "connection_creation_rate" if each[0][0] == "ip" else "consumer_byte_rate"
        set_quotas(client, each, **{quota: HIGH})

    def found(*components: tuple[str, int, str | None], strict: bool = False) -> set[int]:
        return {entities.index(each) for each in described(client, *components, strict=strict)}

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
    client: Client, components: list[tuple[str, int, str | None]], code: ErrorCode, said: str
) -> None:
    response = describe(client, *components)
    assert (response.error_code, response.entries) == (code, None)
    assert said in response.error_message


def test_a_row_that_cannot_be_read_is_left_out(
    client: Client, stored: redis.Redis, two_clients: tuple[Client, Client]
) -> None:
    names = ["no json", '{"group":"g"}', '{"user":"carol"}']
    key = Keys("korvet").quotas
    for name in names:
        stored.hset(key, name, "no json" if "carol" in name else '{"producer_byte_rate":1.0}')
    set_quotas(client, ALICE, producer_byte_rate=HIGH)
    for each in two_clients:
        wait_until(
            lambda each=each: described(each) == {ALICE: {"producer_byte_rate": HIGH}},  # type: ignore[misc]  # a default binds it
            "only what can be read is described",
        )
    stored.hdel(key, *names)
