"""A broker under Sentinels, by real processes: a planned failover costs its producers nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import processes, reading
from tests.support.broker import korvet_broker
from tests.support.load import Load
from tests.support.sentinels import watched

pytestmark = pytest.mark.slow


def test_a_planned_failover_costs_an_idempotent_producer_nothing(tmp_path: Path) -> None:
    # One replica: it confirms nothing any more when it has become the master.
    with watched(replicas=1, down_ms=60_000) as setup:
        flags = ("--redis-url", setup.url, "--set", "replicas=1")
        with korvet_broker(tmp_path, *flags, workers=1) as broker:
            load = Load(broker.bootstrap, "orders", 2)
            reading.create_topic(broker.bootstrap, load.topic, 2)
            load.start()
            processes.wait_until(lambda: len(load.acknowledged) > 500, "records are acknowledged")
            setup.fail_over()
            before = len(load.acknowledged)
            processes.wait_until(lambda: len(load.acknowledged) > before + 500, "they are again")
            load.end()
            load.check(reading.read_all(broker.bootstrap, load.topic, range(2), load.sent))
            assert "Traceback" not in broker.log()
