"""A part against a model in memory: random members and acknowledgements, locks that end, a log that is trimmed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode
from korvet.redis.client import Redis
from korvet.share.types import RELEASE, RENEW, AckRange
from tests.share.support import GROUP, Kind, Part, code_of
from tests.support import redis_servers
from tests.support.log_bench import Bench, Layout

MEMBERS = st.sampled_from(["m1", "m2", "m3"])
CHOICE = st.integers(0, 2**40)
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(1, 6), min_size=1, max_size=4)),
    *[st.tuples(st.just("take"), MEMBERS, st.integers(1, 12))] * 3,
    *[st.tuples(st.just("acknowledge"), MEMBERS, CHOICE, st.lists(st.integers(0, 4), min_size=1, max_size=8))]
    * 3,
    st.tuples(st.just("acknowledge_wrongly"), MEMBERS, CHOICE, CHOICE),
    st.tuples(st.just("release"), MEMBERS),
    st.tuples(st.just("expire")),
    st.tuples(st.just("trim"), st.integers(0, 8)),
    st.tuples(st.just("convert")),
)

LAST_IN_FLIGHT_IS_TRIMMED = [
    ("append", [1]),
    ("take", "m1", 2),
    ("acknowledge", "m1", 0b10, [1]),
    ("release", "m1"),
    ("trim", 1),
]
LAST_IN_FLIGHT_IS_DELIVERED_AS_OFTEN_AS_MAY_BE = [
    *[("take", "m1", 1), ("expire",)] * 3,
    ("acknowledge_wrongly", "m1", 0, 0),
]
ALL_IN_FLIGHT_IS_TRIMMED = [("append", [6] * 6), ("take", "m1", 20), *[("trim", 8)] * 3, ("take", "m2", 20)]


class Model:
    """What the part must be: for each offset that is in flight its owner, "" for nobody, and its delivery count."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.offsets = [part.bench.append(b"first")]
        self.flight: dict[int, tuple[str, int]] = {}
        self.next = self.start = self.offsets[0]
        part.begin(self.start)

    def append(self, sizes: Sequence[int]) -> None:
        for size in sizes:
            base = self.part.bench.append(*[b"v"] * size)
            self.offsets += range(base, base + size)

    def available(self) -> list[tuple[int, int]]:
        again = [(offset, count + 1) for offset, (owner, count) in sorted(self.flight.items()) if not owner]
        room = self.part.policy.in_flight_max - len(self.flight)
        new = [(offset, 1) for offset in self.offsets if offset >= self.next][: max(room, 0)]
        return again + new

    def take(self, member: str, count: int) -> None:
        expected = self.available()[:count]
        assert self.part.take(member, count) == expected
        for offset, times in expected:
            self.flight[offset] = (member, times)
            self.next = max(self.next, offset + 1)

    def acknowledge(self, member: str, choice: int, types: Sequence[int]) -> None:
        has = [offset for offset, (owner, _) in sorted(self.flight.items()) if owner == member]
        picked = [offset for at, offset in enumerate(has) if choice >> at % 40 & 1]
        ranges = [AckRange(offset, offset, [types[at % len(types)]]) for at, offset in enumerate(picked)]
        released = False
        for offset, _, [type_] in ranges:
            count = self.flight[offset][1]
            if type_ == RENEW:
                continue
            if type_ == RELEASE and count < self.part.policy.delivery_limit:
                self.flight[offset] = ("", count)
                released = True
            else:
                del self.flight[offset]
        assert self.part.acknowledged(*ranges, member=member) == released

    def acknowledge_wrongly(self, member: str, choice: int, other: int) -> None:
        has = [offset for offset, (owner, _) in sorted(self.flight.items()) if owner == member]
        start = min(self.flight, default=self.next)
        offsets = (*self.offsets, self.offsets[-1] + 1)
        if wrong := [offset for offset in offsets if offset >= start and offset not in has]:
            picked = {offset for at, offset in enumerate(has) if choice >> at % 40 & 1}
            picked.add(one := wrong[other % len(wrong)])
            is_acquired = one < self.next or not self.flight
            code = ErrorCode.INVALID_RECORD_STATE if is_acquired else ErrorCode.INVALID_REQUEST
            assert code_of(self.part.acknowledge(*sorted(picked), member=member)) is code

    def release(self, member: str) -> None:
        self.part.release(member)
        self.end({offset for offset, (owner, _) in self.flight.items() if owner == member})

    def expire(self) -> None:
        if self.flight:
            self.part.expire()
            self.end(set(self.flight))

    def end(self, offsets: set[int]) -> None:
        for offset in offsets:
            _, count = self.flight[offset]
            self.flight[offset] = ("", count)
            if count >= self.part.policy.delivery_limit:
                del self.flight[offset]

    def trim(self, count: int) -> None:
        left = [offset for offset in self.offsets if offset >= self.start]
        self.start = left[count] if count < len(left) - 1 else left[-1]
        self.part.trim(self.start)
        self.next = max(self.next, self.start)
        self.flight = {offset: of for offset, of in self.flight.items() if offset >= self.start}

    def convert(self) -> None:
        self.part.begin(None, "ranges")
        self.part.kind = "ranges"


@pytest.fixture(
    scope="module", params=["record-redis", "dense-redis", "record-ranges", "dense-ranges", "batch-ranges"]
)
def made(request: pytest.FixtureRequest, redis_server: str) -> Iterator[tuple[Redis, Any, Layout, Kind]]:
    layout, _, kind = request.param.partition("-")
    client = Redis(redis_server, timeout_ms=60_000, connect_timeout_ms=10_000)
    with redis_servers.connected(redis_server) as raw:
        yield client, raw, layout, kind
    client.close()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, max_size=30))
@example(LAST_IN_FLIGHT_IS_TRIMMED)
@example(LAST_IN_FLIGHT_IS_DELIVERED_AS_OFTEN_AS_MAY_BE)
@example(ALL_IN_FLIGHT_IS_TRIMMED)
def test_a_part_is_what_the_model_is(made: tuple[Redis, Any, Layout, Kind], operations: list[Any]) -> None:
    client, raw, layout, kind = made
    raw.flushall()
    part = Part(Bench(client, raw, layout), kind)
    part.policy = part.policy._replace(in_flight_max=20)
    model = Model(part)
    for name, *args in operations:
        getattr(model, name)(*args)
    for member in ("m1", "m2", "m3"):
        model.release(member)
    while expected := model.available():
        model.take("m4", len(expected))
        model.release("m4")
    assert part.state() == (model.next, model.next, 0)
    assert raw.hget(part.share, f"h:{GROUP}") is not None
