"""Appends on a malformed state: nothing is written, or stream and state agree. A script has no way back."""

from __future__ import annotations

from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.log.packed import KeptBatch, ProducerRow
from tests.lua.log.test_append_many import BATCH, batch_of
from tests.lua.support import ABORTED, EPOCH, INDEX, OPEN, STATE, STREAM, Appended, Log, contents

KEYS = (STREAM, STATE, INDEX, OPEN, ABORTED)
INT64 = st.integers(-1, 2**63 - 1)
KEPT = st.builds(KeptBatch, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
ROW = st.builds(
    ProducerRow,
    epoch=st.integers(-1, 1),
    next_sequence=st.integers(0, 4),
    last_ms=st.integers(0, 2**48 - 1),
    transaction=st.integers(-1, 3) | INT64,
    first_offset=INT64,
    batches=st.lists(KEPT, max_size=6),
).map(ProducerRow.pack)
PRODUCER = ROW | st.binary(max_size=100)
EPOCHS = st.sampled_from([f"{EPOCH}@0", f"{EPOCH - 1}@5 x", "@"]) | st.binary(max_size=20)
COUNTERS = {
    "first": st.integers(-1, 5),
    "lake_start": st.integers(-1, 5),
    "size_bytes": st.integers(0, 2**52),
    "records": st.integers(0, 2**52),
    "entries": st.integers(0, 2),
    "epoch": st.integers(-1, EPOCH),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.fixed_dictionaries({}, optional={"7": PRODUCER, "8": PRODUCER, "epochs": EPOCHS}),
    counters=st.fixed_dictionaries({}, optional=COUNTERS),
    of_another_type=st.sets(st.sampled_from([INDEX, OPEN, ABORTED])),
    drawn=st.lists(BATCH, min_size=1, max_size=4),
)
def test_an_append_is_whole_or_nothing_whatever_the_state_holds(
    log: Log, fields: dict[str, Any], counters: dict[str, int], of_another_type: set[str], drawn: list[Any]
) -> None:
    client = log.client
    client.flushdb()
    log.create()
    log.change(next_offset=5, **counters)
    if fields:
        client.hset(STATE, mapping=fields)
    for key in of_another_type:
        client.delete(key)
        client.set(key, "x")
    before, size = contents(client, KEYS), log.log.size_bytes
    batches = [batch_of(log, batch) for batch in drawn]
    offsets: list[int] = []
    try:
        outcomes = log.append_all(*batches)
    except redis.ResponseError as error:
        assert str(error).startswith("KAFKA_STORAGE_ERROR ")  # noqa: PT017 - or nothing is raised
        outcomes = []
    for batch, outcome in zip(batches, outcomes, strict=False):
        if isinstance(outcome, Appended) and outcome.outcome == b"APPENDED":
            offsets += range(outcome.base, outcome.base + batch.records)
            size += batch.size
            if batch.producer >= 0:
                ProducerRow.unpack(client.hget(STATE, batch.producer))
    assert log.offsets() == offsets
    if offsets:
        assert (log.next(), log.log.size_bytes) == (offsets[-1] + 1, size)
    else:
        assert contents(client, KEYS) == before
