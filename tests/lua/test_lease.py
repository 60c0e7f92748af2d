"""lua/shared/lease.lua in every script that has it: what comes after the end of its sender's lease is not done."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from korvet.redis import scripts
from tests.lua.support import now_ms, run_until

LEASED = {
    "row/replace",
    *(f"consumer/{name}" for name in ("heartbeat", "leave", "update")),
    *(f"group/{name}" for name in ("commit", "commit_transaction", "delete", "forget")),
    *(f"group/{name}" for name in ("heartbeat", "join", "leave", "sync")),
    *(f"share/{name}" for name in ("acknowledge", "acquire", "alter", "delete")),
    "streams/raise_endpoints",
    *(f"topic/{name}" for name in ("claim", "create")),
    *(f"transaction/{name}" for name in ("init", "add", "end")),
}
LATE = r"STALE_BROKER_EPOCH the lease of the sender ended 1\d{4} ms ago"
CREATE = ("orders", '{"id":"id"}', 1000, 10, 0)


def test_all_that_clients_change_of_groups_and_topics_needs_a_lease() -> None:
    """What is left may come late: steps of a deletion, ends of sessions, and reads."""
    assert {script.name for script in scripts.all_scripts() if script.leased} == LEASED


@pytest.mark.parametrize("name", sorted(LEASED))
def test_after_the_end_of_the_lease_nothing_is_read_or_written(raw_redis: Any, name: str) -> None:
    with pytest.raises(redis.ResponseError, match=LATE):
        run_until(raw_redis, name, [], [], lease_end_ms=now_ms(raw_redis) - 10_000)
    assert raw_redis.dbsize() == 0


@pytest.mark.parametrize("left_ms", [60_000, None])
def test_until_then_or_without_a_lease_it_is_done(raw_redis: Any, left_ms: int | None) -> None:
    end = 0 if left_ms is None else now_ms(raw_redis) + left_ms
    keys = ["korvet:topics", "{korvet:topics}:changes"]
    assert run_until(raw_redis, "topic/create", keys, CREATE, lease_end_ms=end).startswith(b'{"id":"id",')
    assert raw_redis.hexists("korvet:topics", "orders")
