"""The master dies or falls silent under a producer, and Sentinels promote a replica: nothing acknowledged is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import ops, processes, reading
from tests.support.broker import korvet_broker
from tests.support.load import Load
from tests.support.redis_servers import RedisServer
from tests.support.sentinels import watched

PARTITIONS = 2
DOWN_MS = 2000


@pytest.mark.parametrize(
    "go",
    [pytest.param(RedisServer.kill, marks=pytest.mark.smoke), RedisServer.freeze],
    ids=["killed", "silent"],
)
def test_the_loss_of_a_master_costs_an_idempotent_producer_only_time(
    tmp_path: Path, go: Callable[[RedisServer], None]
) -> None:
    # With acks=all one of two replicas has each record, and Sentinels promote the one that has more.
    with watched(replicas=2, down_ms=DOWN_MS) as setup:
        flags = ("--redis-url", setup.url, "--set", "replicas=1", "--set", "redis.timeout.ms=2000")
        with korvet_broker(tmp_path, *flags) as broker:
            workers = broker.worker_pids()
            load = Load(broker.bootstrap, "orders", PARTITIONS)
            reading.create_topic(broker.bootstrap, load.topic, PARTITIONS)
            load.start()
            processes.wait_until(lambda: len(load.acknowledged) > 1000, "records are acknowledged")
            old = setup.master()
            setup.sentinels[2].kill()  # a quorum of two is left
            go(old)
            gone_at = time.monotonic()
            setup.wait_switched(old)
            switched_at = time.monotonic()
            before = len(load.acknowledged)
            processes.wait_until(
                lambda: len(load.acknowledged) > before + 1, "records are acknowledged again"
            )
            back_at = time.monotonic()
            processes.wait_until(lambda: len(load.acknowledged) > before + 1000, "and so on")
            load.end()
            print(  # noqa: T201 - the figure of docs/durability.md
                f"Sentinels agreed after {switched_at - gone_at:.1f} s (down-after {DOWN_MS} ms), "
                f"producers went on {back_at - switched_at:.1f} s later"
            )
            load.check(reading.read_all(broker.bootstrap, load.topic, range(PARTITIONS), load.sent))
            assert broker.worker_pids() == workers
            processes.wait_until(
                lambda: '"redis": "ok"' in ops.page(broker, "/readyz"), "ops found the master"
            )
            assert "Traceback" not in broker.log()
