"""Lag as the protocol lets a client know it, by logs of both storage formats."""

from __future__ import annotations

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.lag import lag_of, parse_lags
from korvet.admin.offsets import EARLIEST, LATEST
from korvet.admin.types import TIME_CODED_FROM, TopicPartition, settled
from tests.support.topic_client import Client


@pytest.mark.parametrize(
    ("committed", "start", "end", "lag"),
    [(0, 0, 0, 0), (2, 0, 5, 3), (5, 0, 5, 0), (0, 4, 5, 1), (9, 0, 5, 0), (0, 0, TIME_CODED_FROM, None)],
)
def test_lag_is_what_is_left_to_read(committed: int, start: int, end: int, lag: int | None) -> None:
    assert lag_of(committed, start, end) == lag


@pytest.mark.parametrize("bits", [8, 10, 12])
def test_a_log_with_offsets_of_times_is_known_by_its_end(
    admin: AdminClient, client: Client, name: str, bits: int
) -> None:
    client.create(name, storage_format="record", offset_sequence_bits=str(bits))
    place = TopicPartition(name, 0)
    first = client.append(name, *[b"value"] * 3)
    start = settled(admin.offsets.at({place: EARLIEST}))[place].offset
    end = settled(admin.offsets.at({place: LATEST}))[place].offset
    assert (start, end) == (first, first + 3)
    assert lag_of(0, start, end) is lag_of(first + 1, start, end) is None
    assert lag_of(end, start, end) == 0


def test_figures_are_read_with_any_name_and_sums_are_passed_over() -> None:
    page = """# HELP korvet_consumer_group_lag_records Records
# TYPE korvet_consumer_group_lag_records gauge
korvet_consumer_group_lag_records{group="a \\"b\\"\\\\\\n},x=1",partition="3",topic="orders"} 7.0
korvet_consumer_group_lag_records{group="a",partition="",topic="orders"} 9.0
korvet_consumer_group_lag_records{group="a",partition="0",topic="orders"} NaN
korvet_consumer_group_lag_records{group="a",partition="1",topic="orders"} +Inf
korvet_consumer_group_lag_records{group="big",partition="0",topic="orders"} 1.5e+09
korvet_log_records{partition="0",topic="orders"} 1.0
korvet_consumer_group_lag_seconds{group="big",partition="0",topic="orders"} 3600.25
korvet_consumer_group_lag_seconds{group="big",partition="1",topic="orders"} NaN
"""
    lags = parse_lags(page)
    assert lags.records == {
        ('a "b"\\\n},x=1', TopicPartition("orders", 3)): 7,
        ("big", TopicPartition("orders", 0)): 1_500_000_000,
    }
    assert lags.seconds == {("big", TopicPartition("orders", 0)): 3600.25}
