"""Which quota counts for a client: KIP-55's eight levels as a table, and with whom it is shared."""

from __future__ import annotations

import itertools

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.security.client_quotas import ClientQuotas, Mutations
from korvet.security.quotas import Limit, Quota, QuotaStore, QuotaTable, parse_entity
from korvet.security.usage import UsageTable, Windows
from tests.support.virtual_clock import VirtualClock

RATE = Quota.PRODUCER_BYTE_RATE
LEVELS: list[tuple[dict[str, str | None], tuple[str, str]]] = [
    ({"user": "alice", "client-id": "app"}, ("alice", "app")),
    ({"user": "alice", "client-id": None}, ("alice", "app")),
    ({"user": "alice"}, ("alice", "")),
    ({"user": None, "client-id": "app"}, ("alice", "app")),
    ({"user": None, "client-id": None}, ("alice", "app")),
    ({"user": None}, ("alice", "")),
    ({"client-id": "app"}, ("", "app")),
    ({"client-id": None}, ("", "app")),
]
"""The entities that alice's client app belongs to, the most specific first, and who shares the quota of each."""


def table(*entities: tuple[dict[str, str | None], float]) -> QuotaTable:
    return QuotaTable({parse_entity(list(names.items())): {RATE: value} for names, value in entities})


@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=len(LEVELS))))
def test_of_all_quotas_that_match_the_most_specific_one_counts(present: tuple[bool, ...]) -> None:
    levels = [
        (level, bound) for bound, (level, there) in enumerate(zip(LEVELS, present, strict=True)) if there
    ]
    others: list[tuple[dict[str, str | None], float]] = [
        ({"user": "bob"}, 1000),
        ({"client-id": "other"}, 1001),
        ({"user": "alice", "client-id": "other"}, 1002),
        ({"user": None, "client-id": "other"}, 1003),
    ]
    result = table(*((names, bound) for (names, _), bound in levels), *others).limit(RATE, "alice", "app")
    if not levels:
        assert result is None
    else:
        (_, shared_by), bound = levels[0]
        assert result == Limit(bound, *shared_by)


def test_a_client_without_an_id_belongs_to_users_alone() -> None:
    assert table(*((names, 1.0) for names, _ in LEVELS)).limit(RATE, "alice", "") == Limit(1.0, "alice", "")
    assert table((LEVELS[-1][0], 1.0)).limit(RATE, "alice", "") is None


def test_quotas_of_one_kind_say_nothing_about_another() -> None:
    result = table(({"user": "alice"}, 5.0))
    assert result.quotas == {RATE}
    assert result.limit(Quota.CONSUMER_BYTE_RATE, "alice", "app") is None


@pytest.mark.parametrize(
    ("address", "rate"), [("10.0.0.1", 5.0), ("10.0.0.2", 7.0), ("2001:db8::1", 6.0), ("::1", 7.0)]
)
def test_an_address_has_its_own_rate_or_the_default_one(address: str, rate: float) -> None:
    connections = Quota.CONNECTION_CREATION_RATE
    given = {"::ffff:10.0.0.1": 5.0, "2001:DB8:0::1": 6.0, None: 7.0}
    result = QuotaTable({(("ip", name),): {connections: value} for name, value in given.items()})
    assert result.address_limit(address) == rate
    assert QuotaTable({}).address_limit(address) is None


def of_workers(redis: Redis, number: int, clock: VirtualClock) -> list[ClientQuotas]:
    usage = UsageTable(number, 1, Windows(11, 1000))
    for row in range(number):
        usage.start(row)
    return [
        ClientQuotas(QuotaStore(redis, Keys("korvet")), usage.worker(row), Windows(11, 1000), clock=clock)
        for row in range(number)
    ]


def test_two_workers_share_one_quota(redis: Redis) -> None:
    clock = VirtualClock()
    one, other = of_workers(redis, 2, clock)
    one.alter(parse_entity([("user", "alice")]), {RATE: 1000.0})
    assert other.charge(RATE, "alice", "app", 20_000) == 0  # not refreshed yet
    other.refresh()
    assert one.charge(RATE, "alice", "app", 6000) == 0
    assert other.charge(RATE, "alice", "other", 6000) == 2000
    assert other.charge(RATE, "bob", "app", 10**9) == 0
    clock.advance(11)
    assert one.charge(RATE, "alice", "app", 6000) == 0


def test_a_request_percentage_throttles_for_one_window_at_most(redis: Redis) -> None:
    [quotas] = of_workers(redis, 1, VirtualClock())
    alice = parse_entity([("user", "alice")])
    quotas.alter(alice, {Quota.REQUEST_PERCENTAGE: 1.0, RATE: 1.0})
    assert quotas.charge(Quota.REQUEST_PERCENTAGE, "alice", None, 500) == 1000
    assert quotas.charge(RATE, "alice", None, 500) == 490_000
    assert quotas.value_max(RATE, "alice", None) == 10
    assert quotas.value_max(Quota.CONSUMER_BYTE_RATE, "alice", None) is None
    quotas.alter(alice, {Quota.REQUEST_PERCENTAGE: None, RATE: None})
    assert quotas.charge(RATE, "alice", None, 500) == 0


def test_mutations_are_refused_once_tokens_are_owed_and_permissive_ones_are_only_throttled(
    redis: Redis,
) -> None:
    clock = VirtualClock()
    [quotas] = of_workers(redis, 1, clock)
    quotas.alter(parse_entity([("user", "alice")]), {Quota.CONTROLLER_MUTATION_RATE: 2.0})
    strict = Mutations(quotas, "alice", "app", strict=True)
    strict.take(30)
    assert strict.throttle_ms == 0
    with pytest.raises(KafkaError) as refused:
        strict.take(1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert strict.throttle_ms == 4000  # 8 are owed
    permissive = Mutations(quotas, "alice", "app", strict=False)
    permissive.take(2)
    assert permissive.throttle_ms == 5000
    unlimited = Mutations(quotas, "bob", "app", strict=True)
    unlimited.take(10**6)
    unlimited.take(1)
    assert unlimited.throttle_ms == 0


def test_values_that_no_request_could_set_do_not_count_and_are_logged_once(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody has written them to Redis; a bound of 0 would be divided by."""
    [quotas] = of_workers(redis, 1, VirtualClock())
    row = '{"controller_mutation_rate":0,"producer_byte_rate":1000,"request_percentage":-1,"later_rate":5}'
    rows = ('{"user":"alice"}', row, '{"user":"carol"}', '{"consumer_byte_rate":0.5}')
    redis.call("HSET", Keys("korvet").quotas, *rows)
    quotas.alter(parse_entity([("user", "bob")]), {RATE: 1.0})
    assert [dict(entity) for entity in sorted(quotas.table.entities)] == [{"user": "alice"}, {"user": "bob"}]
    Mutations(quotas, "alice", "app", strict=False).take(10)
    assert quotas.charge(RATE, "alice", "app", 12_000) == 2000
    assert quotas.charge(Quota.REQUEST_PERCENTAGE, "alice", "app", 500) == 0
    # A change leaves the others as they are stored: another version may know them.
    quotas.alter(parse_entity([("user", "alice")]), {RATE: 2000.0})
    assert "later_rate" in str(redis.call("HGET", Keys("korvet").quotas, '{"user":"alice"}'))
    said = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert sorted(said) == [
        "Invalid configuration key later_rate",
        "Quota controller_mutation_rate must be greater than 0",
        "Quota request_percentage must be greater than 0",
        "consumer_byte_rate cannot be a fractional value.",
    ]
