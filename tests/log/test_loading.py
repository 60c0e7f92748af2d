"""korvet/log/store.py: what a read says of a Redis that is loading its data."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis as redis_py

from korvet.errors import StorageUnavailableError
from korvet.log.types import Read
from korvet.redis.client import Redis
from tests.support.log_bench import LAYOUTS, Bench, Layout
from tests.support.processes import wait_until
from tests.support.redis_servers import embedded_server

SLOW = (
    "--key-load-delay",
    "1000",
    "--rdbcompression",
    "no",
    "--loading-process-events-interval-bytes",
    "1024",
)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_say_that_redis_is_loading_whether_they_are_a_transaction_or_not(layout: Layout) -> None:
    with (
        embedded_server(*SLOW, "--enable-debug-command", "yes") as url,
        redis_py.Redis.from_url(url) as raw,
        ThreadPoolExecutor(1) as threads,
    ):
        redis = Redis(url, timeout_ms=60_000, connect_timeout_ms=10_000)
        bench = Bench(redis, raw, layout)
        bench.append(b"a")
        debug: Any = raw.execute_command
        debug("DEBUG", "POPULATE", 1000, "key", 1024)
        reloaded = threads.submit(debug, "DEBUG", "RELOAD")
        wait_until(lambda: raw.info("persistence")["loading"], "it loads its data")
        [bounds] = bench.logs.bounds([bench.partition])
        [read] = bench.logs.read([Read(bench.partition, 0, 1)])
        reloaded.result()
        for error in (bounds, read):
            assert isinstance(error, StorageUnavailableError)
            assert error.message.startswith("Redis refused: it is still loading its data (LOADING ")
        redis.close()
