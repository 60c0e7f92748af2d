"""A replica that becomes the master: what was confirmed of a share group is there, with its locks and counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.log.replication import Replicas
from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.share.store import SharePartitions
from korvet.share.types import RELEASE
from tests.share.support import GROUP, Part, code_of
from tests.support import redis_servers
from tests.support.log_bench import Bench

pytestmark = pytest.mark.slow

TIMEOUT_MS = 30_000
KEYS = Keys("korvet")


def connected(stack: ExitStack, url: str) -> Redis:
    client = Redis(url, timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS)
    stack.callback(client.close)
    return client


@pytest.fixture(params=["record-redis", "record-ranges", "batch-ranges"])
def replicated(request: pytest.FixtureRequest) -> Iterator[tuple[ExitStack, Part, Any, Replicas]]:
    """Give a part on a master, its replica, and what waits for that."""
    storage_format, _, kind = request.param.partition("-")
    with redis_servers.master() as master, master.replica() as replica, ExitStack() as stack:
        client = connected(stack, master.url)
        replicas = Replicas(
            lambda: connected(stack, master.url), client, KEYS, replicas=1, timeout_ms=TIMEOUT_MS
        )
        yield stack, Part(Bench(client, master.client, storage_format), kind), replica, replicas


def test_what_was_acknowledged_is_not_delivered_again(
    replicated: tuple[ExitStack, Part, Any, Replicas],
) -> None:
    stack, part, replica, replicas = replicated
    offsets = [part.bench.append(b"v%d" % n) for n in range(8)]
    part.begin(offsets[0])
    part.take("m1", 4)
    part.take("m2", 2)
    part.acknowledged(offsets[4], member="m2", type_=RELEASE)
    done = replicas.confirm_call(
        lambda: part.acknowledged(offsets[0], offsets[2]), ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert not done
    before = part.state()

    replica.replicaof("NO", "ONE")
    there = connected(stack, f"unix://{replica.connection_pool.connection_kwargs['path']}")
    part.bench.logs, part.store, part.raw = LogStore(there, there, KEYS), SharePartitions(there), replica
    assert part.state() == before
    assert code_of(part.acknowledge(offsets[2])) is ErrorCode.INVALID_RECORD_STATE
    assert part.take("m3", 1) == [(offsets[4], 2)]
    assert not part.acknowledged(offsets[1], offsets[3])
    part.expire()
    assert part.take("m3") == [(offsets[4], 3), (offsets[5], 2), (offsets[6], 1), (offsets[7], 1)]
    assert replica.hexists(part.share, f"h:{GROUP}")
