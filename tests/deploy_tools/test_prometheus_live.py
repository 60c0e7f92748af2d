"""A real Prometheus with these files watches a real broker with clients: dashboards show data, and alerts fire."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from korvet.cluster.pipelines import PipelineStatus, PipelineStore, QueryPosition, QueryStatus
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.keys import Keys
from tests.deploy.files import DEPLOY
from tests.deploy.test_prometheus import KAFKA_EXPORTER
from tests.faults.work import Work
from tests.support import processes
from tests.support.broker import Broker, korvet_broker
from tests.support.redis_servers import RedisServer

_VARIABLES = {"$__rate_interval": "1m", "$job": "korvet", "$topic": ".*", "$group": ".*"}
# What a broker shows only where something is wrong or refused, is trimmed or compacted, or archived: not this one.
_EMPTY = ("> 0", "korvet_lake_", "korvet_log_dirty_ratio", "korvet_log_trimmed", "korvet_throttle_seconds")


class Prometheus:
    """One that scrapes a broker and evaluates the rules each second; a context manager."""

    def __init__(self, directory: Path, target: str) -> None:
        program = shutil.which("prometheus")
        assert program, "prometheus is not on PATH (on Debian or Ubuntu: apt-get install prometheus)"
        shutil.copytree(DEPLOY / "prometheus", directory / "config")
        config: dict[str, Any] = yaml.safe_load((directory / "config/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"] = [item for item in config["scrape_configs"] if item["job_name"] == "korvet"]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        (directory / "config/prometheus.yml").write_text(yaml.safe_dump(config))
        self._address = f"127.0.0.1:{processes.free_port()}"
        self._log = (directory / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            processes.dying_with_tests(
                [
                    program,
                    f"--config.file={directory}/config/prometheus.yml",
                    f"--storage.tsdb.path={directory}/data",
                    f"--web.listen-address={self._address}",
                ]
            ),
            stdout=self._log,
            stderr=self._log,
        )

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def ask(self, expression: str) -> list[Any]:
        """Return the series that an expression has now."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://{self._address}/api/v1/query?{query}", timeout=30) as answer:
            data = json.load(answer)
        assert data["status"] == "success"
        return list(data["data"]["result"])

    def answers(self) -> bool:
        """Whether it has scraped the broker."""
        with contextlib.suppress(OSError):
            return bool(self.ask("up == 1"))
        return False

    def wait_for(self, alert: str) -> None:
        """Wait until an alert fires."""
        asked = f'ALERTS{{alertname="{alert}", alertstate="firing"}}'
        processes.wait_until(lambda: self.ask(asked), f"{alert} fires", 150.0)

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {item["metric"]["alertname"] for item in self.ask('ALERTS{alertstate="firing"}')}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Give the Redis under the broker."""
    with RedisServer("--appendonly", "yes", "--maxmemory", "2gb") as running:
        yield running


@pytest.fixture
def broker(tmp_path: Path, server: RedisServer) -> Iterator[Broker]:
    """Give a broker whose keeper collects statistics each second."""
    flags = ("--redis-url", server.url, "--set", "log.figures.interval.ms=1000")
    with korvet_broker(tmp_path / "broker", *flags) as running:
        yield running


@pytest.fixture
def prometheus(tmp_path: Path, broker: Broker) -> Iterator[Prometheus]:
    """Give a Prometheus that has scraped the broker."""
    directory = tmp_path / "prometheus"
    directory.mkdir()
    running = Prometheus(directory, broker.ops_address)
    try:
        processes.wait_until(running.answers, "Prometheus has scraped the broker")
        yield running
    finally:
        running.close()


def _expressions() -> Iterator[str]:
    for file in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", []):
                expression: str = target["expr"]
                for name, value in _VARIABLES.items():
                    expression = expression.replace(name, value)
                if not any(part in expression for part in _EMPTY):
                    yield expression


@pytest.mark.timeout(300)
def test_every_panel_and_name_of_kafka_exporter_shows_a_broker_with_clients_and_a_pipeline(
    broker: Broker, prometheus: Prometheus, server: RedisServer
) -> None:
    positions = {"orders": QueryPosition("id", {0: 1})}
    queries = {"main": QueryStatus(batch=1, ended_ms=1, duration_ms=1, positions=positions)}
    pipeline = PipelineStatus(
        name="a", state="running", since_ms=1, started_ms=1, holder="h/1/m/1", queries=queries
    )
    redis = blocking_redis(server.url, timeout_ms=5000, connect_timeout_ms=5000)
    with contextlib.closing(redis):
        PipelineStore(redis, Keys("korvet")).write(pipeline)
    with Work(broker.bootstrap):
        empty = [*_expressions(), *KAFKA_EXPORTER]

        def all_shown() -> bool:
            empty[:] = [expression for expression in empty if not prometheus.ask(expression)]
            return not empty

        with contextlib.suppress(AssertionError):
            processes.wait_until(all_shown, "every panel shows something", 90.0)
        assert empty == []


@pytest.mark.timeout(600)
def test_alerts_fire_as_things_go_wrong_one_after_the_other(
    broker: Broker, prometheus: Prometheus, server: RedisServer
) -> None:
    with Work(broker.bootstrap):
        assert prometheus.firing() == set()
        for _ in range(4):
            workers = set(broker.worker_pids())
            processes.kill(min(workers))
            processes.wait_until(partial(_has_another, broker, workers), "there is another worker")
        prometheus.wait_for("KorvetProcessesDie")
        server.client.config_set("maxmemory-policy", "allkeys-lru")
        prometheus.wait_for("KorvetRedisEvicts")
        server.client.config_set("maxmemory-policy", "noeviction")
    server.kill()
    prometheus.wait_for("KorvetRedisDown")
    broker.kill()
    prometheus.wait_for("KorvetBrokerDown")


def _has_another(broker: Broker, workers: set[int]) -> bool:
    return len(set(broker.worker_pids()) - workers) == 1
