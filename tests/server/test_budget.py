"""The budget for records that are fetched: that ShareFetch takes of it, and returns all."""

from __future__ import annotations

from korvet.server.net.budget import Charge
from tests.support.domain import domain


def test_what_is_held_is_missing_to_others_until_it_is_sent(redis_url: str) -> None:
    with domain(redis_url) as worker:
        core = worker.log.appends.core
        whole = core.fetch_room
        first, second = Charge(core), Charge(core)
        first.reserve(4_000_000)
        second.reserve(4_000_000)
        assert first.room == second.room == core.fetch_room == whole - 2_000_000
        second.reserve(-3_000_000)
        assert first.room == whole - 1_250_000
        first.close()
        second.close()
        first.close()
        assert core.fetch_room == whole
