"""What workers have used of a quota, in memory that they share: rates as Kafka's, token buckets, connections."""

from __future__ import annotations

import itertools
import math
import os
import sys
from hashlib import blake2b

import pytest

from korvet.config.settings import Settings
from korvet.security.usage import BUCKETS, WAYS, Rate, Usage, UsageTable, Windows, entry_key

KEY = entry_key("producer_byte_rate", "alice", "")
BEGIN = 5_000_000.0


def table(workers: int = 2, number: int = 11, size_ms: int = 1000) -> UsageTable:
    made = UsageTable(workers, 2, Windows(number, size_ms))
    for row in range(workers):
        made.start(row)
    return made


def test_the_first_window_counts_as_if_there_had_been_nothing_before() -> None:
    usage = table().worker(0)
    usage.record(KEY, 1000, BEGIN)
    assert usage.rate(KEY, BEGIN) == Rate(100.0, 10_000)
    assert usage.rate(KEY, BEGIN + 500) == pytest.approx(Rate(1000 / 10.5, 10_500))


def test_a_rate_is_over_the_samples_that_overlap_its_span() -> None:
    usage = table(number=3).worker(0)
    for second in range(6):
        usage.record(KEY, 100, BEGIN + 1000 * second)
        usage.record(KEY, 20, BEGIN + 1000 * second + 900)
    # The samples that began at 3, 4 and 5 seconds; that of 2 ended 3 windows before.
    assert usage.rate(KEY, BEGIN + 5950) == pytest.approx(Rate(360 / 2.95, 2950))
    assert usage.rate(KEY, BEGIN + 5950 + 2950) == Rate(0.0, 2000)


def test_what_is_taken_back_was_never_used() -> None:
    usage = table().worker(0)
    usage.record(KEY, 3, BEGIN)
    usage.record(KEY, -1, BEGIN)
    assert usage.rate(KEY, BEGIN).value == 0.2


@pytest.mark.parametrize(
    ("value", "bound", "throttle_ms"),
    [(1500, 100, 5000), (1000, 100, 0), (2000, 100, 10_000), (1, 0, math.inf)],
)
def test_the_throttle_brings_the_rate_down_to_its_bound(value: int, bound: int, throttle_ms: float) -> None:
    usage = table().worker(0)
    usage.record(KEY, value, BEGIN)
    result = usage.rate(KEY, BEGIN).throttle_ms(bound)
    assert result == throttle_ms
    if 0 < throttle_ms < math.inf:
        # After the wait, with nothing else used, the rate is the bound: O * W / (W + X) = T.
        assert usage.rate(KEY, BEGIN).value * 10_000 / (10_000 + result) == pytest.approx(bound)


def test_workers_share_a_rate_and_keep_their_own_entries() -> None:
    shared = table()
    one, other = shared.worker(0), shared.worker(1)
    one.record(KEY, 600, BEGIN)
    other.record(KEY, 900, BEGIN + 100)
    other.record(entry_key("producer_byte_rate", "bob", ""), 5, BEGIN)
    assert one.rate(KEY, BEGIN + 100) == other.rate(KEY, BEGIN + 100)
    assert one.rate(KEY, BEGIN + 100).value == pytest.approx(1500 / 10.1)


@pytest.mark.slow
def test_another_process_sees_what_is_used() -> None:
    shared = table()
    pid = os.fork()
    if not pid:
        shared.worker(1).record(KEY, 500, BEGIN)
        os._exit(0)
    os.waitpid(pid, 0)
    assert shared.worker(0).rate(KEY, BEGIN).value == 50


def test_a_full_bucket_gives_the_place_of_the_entry_that_was_used_longest_ago() -> None:
    usage = table().worker(0)
    keys = [KEY % BUCKETS + BUCKETS * item for item in range(1, WAYS + 2)]
    for at, key in enumerate(keys):
        usage.record(key, 10, BEGIN + at)
        usage.record(keys[0], 10, BEGIN + at)
    now = BEGIN + len(keys)
    assert [bool(usage.rate(key, now).value) for key in keys] == [True, False] + [True] * (WAYS - 1)
    # An entry begins with nothing of the one whose place it took.
    assert usage.rate(keys[-1], BEGIN + len(keys) - 1).value == 1


def test_names_that_share_a_bucket_by_their_public_hash_do_not_share_it_here() -> None:
    """Else a client could choose names that push out the entry of another, whose quota then counts from 0."""
    shared = "producer_byte_rate\0{}\0".format

    def bucket(name: str) -> int:
        digest = blake2b(shared(name).encode(), digest_size=8).digest()
        return int.from_bytes(digest, sys.byteorder, signed=True) % BUCKETS

    numbered = (f"user-{number}" for number in itertools.count())
    names = list(itertools.islice((item for item in numbered if bucket(item) == 7), 2 * WAYS))
    usage = table().worker(0)
    for at, name in enumerate(names):
        usage.record(entry_key("producer_byte_rate", name, ""), 10, BEGIN + at)
    now = BEGIN + len(names)
    assert all(usage.rate(entry_key("producer_byte_rate", item, ""), now).value for item in names)


def test_a_bucket_lends_tokens_once_and_then_refills() -> None:
    usage = table().worker(0)

    def take(value: float, seconds: float, *, strict: bool = True) -> float:
        return usage.take_tokens(KEY, 5, 50, value, BEGIN + seconds * 1000, strict=strict)

    assert take(80, 0) == 0  # 30 are owed now
    assert take(1, 1) == 25
    assert take(1, 6) == 0  # none is owed any more, and one is lent
    assert take(1, 6) == 1
    assert take(10, 6, strict=False) == 11
    assert take(1, 100) == 0  # full again, and no fuller
    assert take(50, 100, strict=False) == 1


def test_workers_share_a_bucket() -> None:
    shared = table()
    assert shared.worker(0).take_tokens(KEY, 1, 11, 20, BEGIN, strict=True) == 0
    assert shared.worker(1).take_tokens(KEY, 1, 11, 1, BEGIN, strict=True) == 9


def counts(usage: Usage, address: int = 7) -> tuple[int, int, int, int]:
    listeners = (usage.listener_connections(0), usage.listener_connections(1))
    return usage.connections(), *listeners, usage.address_connections(address)


def test_connections_are_counted_by_broker_listener_and_address() -> None:
    shared = table()
    one, other = shared.worker(0), shared.worker(1)
    one.connect(0, 7, 1)
    one.connect(1, 7, 1)
    other.connect(1, 7, 1)
    other.connect(1, 8, 1)
    assert counts(one) == counts(other) == (4, 1, 3, 3)
    one.connect(1, 7, -1)
    assert counts(other) == (3, 1, 2, 2)


def test_connections_of_a_worker_that_ended_count_no_more_and_what_it_used_does() -> None:
    shared = table()
    one, other = shared.worker(0), shared.worker(1)
    one.connect(0, 7, 1)
    other.connect(1, 7, 1)
    one.record(KEY, 500, BEGIN)
    shared.end(0)
    assert counts(other) == (1, 0, 1, 1)
    assert other.rate(KEY, BEGIN).value == 50
    shared.start(0)
    shared.worker(0).connect(0, 7, 1)
    assert counts(other) == (2, 1, 1, 2)


def test_a_worker_counts_all_of_its_own_addresses_even_if_its_row_is_full() -> None:
    usage = table().worker(0)
    addresses = [512 * item for item in range(1, 40)]
    for address in addresses * 2:
        usage.connect(0, address, 1)
    assert {usage.address_connections(address) for address in addresses} == {2}
    for address in addresses * 2:
        usage.connect(0, address, -1)
    assert {usage.address_connections(address) for address in addresses} == {0}
    assert usage.connections() == 0


def test_a_worker_beyond_the_table_counts_alone() -> None:
    shared = table(workers=1)
    shared.start(50)
    beyond = shared.worker(50)
    beyond.connect(0, 7, 1)
    beyond.record(KEY, 10, BEGIN)
    assert (counts(beyond), beyond.rate(KEY, BEGIN).value) == ((1, 1, 0, 1), 1)
    shared.end(50)
    assert counts(shared.worker(0)) == (0, 0, 0, 0)


def test_the_table_of_the_settings_has_their_windows_and_listeners() -> None:
    settings = Settings(quota_window_num=3, quota_window_size_seconds=2, listeners="A://:1,B://:2,C://:3")
    shared = UsageTable.of(settings, workers=1)
    assert shared.windows == Windows(3, 2000)
    shared.worker(0).connect(2, 7, 1)
    assert shared.worker(0).listener_connections(2) == 1
