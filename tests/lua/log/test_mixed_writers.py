"""Logs while Kafka producers, XADD by others, a Redis group and steps of the scripts come in any order."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from korvet.topics.entry_ids import DENSE
from tests.lua.support import INDEX, MOVING, STREAM, BatchLog, Log

GROUP = "billing"
FILL = "x" * 100_000
BYTES_PER_ROW = 524_288
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["append", "next", "*", "far", "top", "deleted"]), st.integers(1, 4)),
        st.tuples(st.just("step"), st.sampled_from([1, 2, 5])),
        st.tuples(st.just("read"), st.integers(1, 5)),
        st.tuples(st.just("acknowledge"), st.just(0)),
    ),
    max_size=40,
)
ANY_ORDER = settings(derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Mix:
    """What happened to one log; `written` are the values that it must hold, in their order."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.written: list[str] = []
        self.batch_bytes: dict[str, int] = {}
        self.deleted = 0
        self.served: list[Any] = []
        self.delivered = set[tuple[bytes, bytes]]()
        self.unacknowledged: list[bytes] = []
        log.client.xgroup_create(STREAM, GROUP, "0", mkstream=True)

    def run(self, steps: Sequence[tuple[str, int]]) -> None:
        """Do all steps, then append once more, and read to the end."""
        for number, (kind, count) in enumerate([*steps, ("append", 1)]):
            self.do(kind, [f"{number}.{at}" for at in range(count)], count)
            entries = self.log.client.xrange(STREAM, max=self.log.id_of(self.log.next() - 1))
            assert entries[: len(self.served)] == self.served
            self.served = entries
        while self.read(1000):
            pass

    def do(self, kind: str, values: Sequence[str], limit: int) -> None:
        if kind == "append":
            self.append(values, limit)
        elif kind == "step":
            (self.log.expel if isinstance(self.log, BatchLog) else self.log.renumber)(limit)
        elif kind == "read":
            self.read(limit)
        elif kind == "acknowledge":
            if self.unacknowledged:
                self.log.client.xack(STREAM, GROUP, *self.unacknowledged)
            self.unacknowledged = []
        else:
            for value in values:
                with contextlib.suppress(redis.ResponseError):  # the id is below the last one
                    self.add(kind, value)

    def append(self, values: Sequence[str], limit: int) -> None:
        if self.log.append(*values)[0] != b"APPENDED":
            self.log.settle(limit)
            self.log.appended(*values)
        self.written += values
        self.batch_bytes |= {**dict.fromkeys(values, 0), values[-1]: 100}

    def add(self, kind: str, value: str) -> None:
        far = self.log.id_of(self.log.next() + 1000)
        ids = {"next": f"{self.log.last_id().split('-')[0]}-*", "far": far, "top": f"{2**64 - 1}-1"}
        entry_id = self.log.external(ids.get(kind, "*"), value, "header.fill", FILL)
        if kind == "deleted":
            self.deleted += self.log.client.xdel(STREAM, entry_id)
        elif not isinstance(self.log, BatchLog):
            self.written.append(value)

    def read(self, count: int) -> bool:
        """Read on as the group; return whether there was anything."""
        answer: Any = self.log.client.xreadgroup(GROUP, "worker-1", {STREAM: ">"}, count=count)
        entries = answer[0][1] if answer else []
        self.delivered |= {(entry_id, fields.get(b"value", b"")) for entry_id, fields in entries}
        self.unacknowledged += [entry_id for entry_id, _ in entries]
        return bool(entries)


def is_indexed(mix: Mix) -> bool:
    """Tell whether the log knows its records and bytes, and each row of its index those before it."""
    counters, offsets, entries = mix.log.log, mix.log.offsets(), mix.log.client.xrange(STREAM)
    sizes = [
        mix.batch_bytes.get(fields[b"value"].decode(), sum(map(len, chain(*fields.items()))))
        for _, fields in entries
    ]
    totals = {0: (0, 0)} | {
        offset + 1: (offset + 1 if mix.log.bits == DENSE else number, size)
        for number, (offset, size) in enumerate(zip(offsets, accumulate(sizes), strict=True), 1)
    }
    rows = mix.log.client.zrange(INDEX, 0, -1, withscores=True)
    ends = {int(end): tuple(map(int, row.split(b":")[:2])) for row, end in rows}
    assert ends.items() <= totals.items()
    records, size = totals[mix.log.next()]
    assert (counters.records, counters.size_bytes) == (records, size)
    assert ends[max(ends)][1] // BYTES_PER_ROW == size // BYTES_PER_ROW
    return True


@pytest.mark.parametrize("bits", [DENSE, 1])
@ANY_ORDER
@example(steps=[("next", 2), ("step", 1), ("read", 1)])
@example(steps=[("next", 2), ("read", 1), ("deleted", 1), ("read", 1), ("step", 5)])
@example(steps=[("next", 2), ("*", 1), ("step", 4), ("next", 1), ("read", 2)])
@given(steps=STEPS)
def test_a_log_has_every_record_once_in_order_and_a_group_gets_each_at_its_dense_id(
    raw_redis: Any, bits: int, steps: list[tuple[str, int]]
) -> None:
    raw_redis.flushall()
    mix = Mix(Log(raw_redis, bits))
    mix.run(steps)
    log, info = mix.log, raw_redis.xinfo_stream(STREAM)
    assert log.values() == mix.written
    assert log.last_id() == log.id_of(log.next() - 1)
    assert info["entries-added"] == info["length"] + mix.deleted
    assert not raw_redis.exists(MOVING)
    assert log.log.moving == 0
    assert is_indexed(mix)
    if bits == DENSE:
        assert log.offsets() == list(range(log.offsets()[0], log.next()))
        records = {(entry_id, fields[b"value"]) for entry_id, fields in mix.served}
        delivered = {record for record in mix.delivered if record[0] in dict(records)}
        # A deleted entry leaves no gap: those after it may have been read under ids before theirs.
        assert records <= delivered if mix.deleted else records == delivered


@ANY_ORDER
@given(steps=STEPS)
def test_a_log_of_batches_serves_no_entry_of_another_client_between_any_two_appends(
    raw_redis: Any, steps: list[tuple[str, int]]
) -> None:
    raw_redis.flushall()
    mix = Mix(BatchLog(raw_redis))
    mix.run(steps)
    assert mix.log.values() == mix.written
    assert mix.log.offsets() == list(range(mix.log.offsets()[0], mix.log.next()))
