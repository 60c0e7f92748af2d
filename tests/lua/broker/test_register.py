"""lua/broker against a real server: one live broker for each id, by leases on Redis' clock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lua.support import now_ms, refused, run

BROKERS, FORMAT = "korvet:brokers", "{korvet:brokers}:format"
LEASE, FENCE = "korvet:keeper", "{korvet:keeper}:fence"
LEASE_MS = 60_000
DAY_MS = 86_400_000
OWN_FORMAT = ("0.2.0", 5, 4, 4, 4)
PAST = {"host": "old", "port": 9092, "incarnation": "old"}


def register(
    client: Any,
    broker_id: int = 1,
    port: int = 9092,
    incarnation: str = "a",
    lease_ms: int = LEASE_MS,
    own: str = "ask",
    *,
    data_format: tuple[str | int, ...] = OWN_FORMAT,
) -> int:
    """Register as a broker that serves, unless a state comes after the format."""
    listeners = json.dumps({"INSIDE": ["kafka.example", port], "OUT": ["out.example", 9094]})
    args = (broker_id, "kafka.example", port, incarnation, lease_ms, own, listeners, *data_format, "serving")[
        :13
    ]
    return int(run(client, "broker/register", (BROKERS, FORMAT), args))


def unregister(client: Any, broker_id: int = 1, incarnation: str = "a", listed_ms: int = LEASE_MS) -> int:
    return int(run(client, "broker/unregister", (BROKERS,), (broker_id, incarnation, listed_ms)))


def row(client: Any, broker_id: int = 1) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(client.hget(BROKERS, broker_id))
    return result


def put(client: Any, broker_id: int, until_ms: int, **changed: Any) -> None:
    client.hset(BROKERS, broker_id, json.dumps({**PAST, "started": 1, "until": until_ms, **changed}))


def test_a_broker_is_live_for_its_lease_by_the_clock_of_redis(raw_redis: Any) -> None:
    before = now_ms(raw_redis)
    assert register(raw_redis) == 1
    after = now_ms(raw_redis)
    result = row(raw_redis)
    assert (result["host"], result["port"], result["incarnation"]) == ("kafka.example", 9092, "a")
    assert result["listeners"] == {"INSIDE": ["kafka.example", 9092], "OUT": ["out.example", 9094]}
    assert before <= result["started"] <= after
    assert result["until"] == result["started"] + LEASE_MS


def test_a_broker_is_starting_until_it_registers_as_serving(raw_redis: Any) -> None:
    register(raw_redis, data_format=(*OWN_FORMAT, "starting"))
    assert row(raw_redis)["starting"] is True
    register(raw_redis)
    assert "starting" not in row(raw_redis)


def test_a_renewal_prolongs_the_lease_and_keeps_when_the_broker_started(raw_redis: Any) -> None:
    put(raw_redis, 1, now_ms(raw_redis) + 5, incarnation="a", started=123)
    register(raw_redis)
    result = row(raw_redis)
    assert result["started"] == 123
    assert result["until"] >= now_ms(raw_redis) + LEASE_MS - 1000


def test_the_id_of_a_live_broker_elsewhere_is_refused_with_its_address(raw_redis: Any) -> None:
    register(raw_redis)
    with refused(raw_redis, r"DUPLICATE_BROKER_REGISTRATION broker\.id 1 .* kafka\.example:9092"):
        register(raw_redis, port=9192, incarnation="b")


@pytest.mark.parametrize(
    ("left_ms", "there", "given"),
    [
        (LEASE_MS, {"host": "old", "incarnation": "a"}, {"port": 9192}),  # it comes with a new address
        (LEASE_MS, {"host": "kafka.example"}, {"incarnation": "b"}),  # another start at the same address
        (LEASE_MS, {}, {"own": "own"}),  # the only broker of a server, after its earlier start
        (-1, {}, {}),  # after the lease
    ],
)
def test_who_may_take_the_id_of_a_broker_over(
    raw_redis: Any, left_ms: int, there: dict[str, Any], given: dict[str, Any]
) -> None:
    put(raw_redis, 1, now_ms(raw_redis) + left_ms, **there)
    assert register(raw_redis, **given) == 1
    result = row(raw_redis)
    expected = ("kafka.example", given.get("port", 9092), given.get("incarnation", "a"))
    assert (result["host"], result["port"], result["incarnation"]) == expected
    assert (result["started"] > 1) == (there.get("incarnation") != "a")


@pytest.mark.parametrize("text", ["", "{", "7", "null", '"x"', "[]", "{}", '{"until":"x"}', "\xff"])
def test_the_id_of_a_row_that_cannot_be_read_is_free(raw_redis: Any, text: str) -> None:
    raw_redis.hset(BROKERS, 1, text.encode("latin-1"))
    assert register(raw_redis) == 1
    assert row(raw_redis)["incarnation"] == "a"


def test_free_ids_go_up_from_zero_past_those_that_others_have_or_had(raw_redis: Any) -> None:
    put(raw_redis, 0, now_ms(raw_redis) + LEASE_MS)
    put(raw_redis, 1, now_ms(raw_redis) - 1)
    raw_redis.hset(BROKERS, "2", "no row")
    raw_redis.hset(BROKERS, "nan", "no broker")
    assert register(raw_redis, -1) == 3
    assert register(raw_redis, -1, 9093, "b") == 4


def test_an_address_gets_the_id_that_it_had(raw_redis: Any) -> None:
    put(raw_redis, 5, now_ms(raw_redis) - 1, host="kafka.example")
    assert register(raw_redis, -1) == 5
    assert register(raw_redis, -1, incarnation="after a crash") == 5


def test_taking_a_free_id_forgets_brokers_that_are_gone_for_a_day(raw_redis: Any) -> None:
    put(raw_redis, 0, now_ms(raw_redis) - DAY_MS - 60_000)
    put(raw_redis, 1, now_ms(raw_redis) - DAY_MS + 60_000)
    assert register(raw_redis, -1) == 0
    assert sorted(raw_redis.hkeys(BROKERS)) == [b"0", b"1"]
    assert row(raw_redis, 0)["host"] == "kafka.example"


def test_only_the_start_that_registered_ends_a_registration(raw_redis: Any) -> None:
    register(raw_redis)
    assert unregister(raw_redis, incarnation="b") == 0
    assert row(raw_redis)["incarnation"] == "a"
    before = now_ms(raw_redis)
    assert unregister(raw_redis) == 1
    ended = row(raw_redis)
    assert before <= ended["until"] <= now_ms(raw_redis)
    assert ended["listed"] == ended["until"] + LEASE_MS
    assert unregister(raw_redis) == 0
    assert row(raw_redis) == ended


def test_the_id_of_a_broker_that_has_stopped_is_free_while_clients_find_it(raw_redis: Any) -> None:
    register(raw_redis)
    unregister(raw_redis)
    assert register(raw_redis, 1, port=9093, incarnation="b") == 1
    assert "listed" not in row(raw_redis)
    register(raw_redis, 0, port=9094)
    unregister(raw_redis, 0)
    assert register(raw_redis, -1, port=9095, incarnation="c") == 0


def test_the_row_of_a_broker_that_has_stopped_is_deleted_after_its_time(raw_redis: Any) -> None:
    put(raw_redis, 2, 1, listed=now_ms(raw_redis) - 1)
    put(raw_redis, 3, 1, listed=now_ms(raw_redis) + LEASE_MS)
    hour_ms = 3_600_000  # by which the clock has been set back
    put(raw_redis, 4, now_ms(raw_redis) + hour_ms, listed=now_ms(raw_redis) + hour_ms + LEASE_MS)
    register(raw_redis)
    assert sorted(raw_redis.hkeys(BROKERS)) == [b"1", b"3"]


def test_a_row_that_cannot_be_read_is_not_removed(raw_redis: Any) -> None:
    raw_redis.hset(BROKERS, 1, "no row")
    assert unregister(raw_redis) == 0
    assert raw_redis.hget(BROKERS, 1) == b"no row"


def test_a_look_returns_the_time_and_every_row(raw_redis: Any) -> None:
    before = now_ms(raw_redis)
    clock, *rows = run(raw_redis, "broker/look", (BROKERS,), ())
    assert before <= int(clock) <= now_ms(raw_redis)
    assert rows == []
    register(raw_redis)
    _, *rows = run(raw_redis, "broker/look", (BROKERS,), ())
    assert rows == [b"1", raw_redis.hget(BROKERS, 1)]


def test_a_look_at_the_lease_returns_its_holder_and_the_last_token(raw_redis: Any) -> None:
    assert run(raw_redis, "keeper/look", (LEASE, FENCE), ()) == [b"", b"0"]
    run(raw_redis, "keeper/lease", (LEASE, FENCE), ("1:x", 1000))
    assert run(raw_redis, "keeper/look", (LEASE, FENCE), ()) == [b"1:x", b"1"]


def test_a_registration_that_a_clock_set_back_made_long_ends_soon(raw_redis: Any) -> None:
    for broker_id, port in ((1, 9092), (2, 9093)):
        register(raw_redis, broker_id, port)
    rows = {field: json.loads(text) for field, text in raw_redis.hgetall(BROKERS).items()}
    hour_ms = 3_600_000
    raw_redis.hset(
        BROKERS, "1", json.dumps(rows[b"1"] | {"until": now_ms(raw_redis) + hour_ms}, separators=(",", ":"))
    )
    register(raw_redis, 2, 9093)
    result = {field: json.loads(text) for field, text in raw_redis.hgetall(BROKERS).items()}
    assert 0 < result[b"1"].pop("until") - now_ms(raw_redis) <= 2 * LEASE_MS
    assert result[b"1"] == {name: value for name, value in rows[b"1"].items() if name != "until"}


@pytest.mark.parametrize(("own_format", "lowest", "held"), [(6, 4, b"5"), (4, 4, b"5"), (6, 6, b"6")])
def test_the_data_keeps_its_format_unless_this_version_reads_no_logs_of_it(
    raw_redis: Any, own_format: int, lowest: int, held: bytes
) -> None:
    register(raw_redis)
    register(raw_redis, data_format=("0.3.0", own_format, own_format, own_format, lowest))
    assert raw_redis.hget(FORMAT, "format") == held
    assert (row(raw_redis)["version"], row(raw_redis)["format"]) == ("0.3.0", own_format)


@pytest.mark.parametrize(
    ("other", "left_ms", "mode", "lacking", "held"),
    [
        ({"version": "0.3.0", "format": 6}, LEASE_MS, "set", [], b"6"),
        ({"version": "0.3.0", "format": 7}, LEASE_MS, "validate", [], b"5"),
        ({"version": "0.2.0", "format": 5}, LEASE_MS, "set", [b"2", b"0.2.0", 5], b"5"),
        ({}, LEASE_MS, "set", [b"2", b"", 0], b"5"),  # a version that registers no format
        ({}, -1, "set", [], b"6"),
    ],
)
def test_the_format_is_raised_if_every_live_broker_has_it(
    raw_redis: Any, other: dict[str, Any], left_ms: int, mode: str, lacking: list[Any], held: bytes
) -> None:
    register(raw_redis)
    register(raw_redis, data_format=("0.3.0", 6, 6, 6, 4))
    put(raw_redis, 2, now_ms(raw_redis) + left_ms, **other)
    raw_redis.hset(BROKERS, 3, "no row")
    assert run(raw_redis, "broker/finalize", (BROKERS, FORMAT), ("0.3.0", 6, 6, 6, mode)) == lacking
    assert raw_redis.hget(FORMAT, "format") == held
    assert run(raw_redis, "broker/finalize", (BROKERS, FORMAT), ("0.3.0", 5, 5, 5, mode)) == []
    assert raw_redis.hget(FORMAT, "format") == held


def test_a_version_that_may_not_write_the_data_is_refused(raw_redis: Any) -> None:
    register(raw_redis)
    with refused(
        raw_redis, r"^UNSUPPORTED_VERSION the data was written by Korvet 0.2.0 \(format 5\), and 0.1.0"
    ):
        register(raw_redis, data_format=("0.1.0", 3, 3, 3, 3))
