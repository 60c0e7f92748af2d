"""Fixtures that every test may use: one private Redis per session, emptied before each test that asks for it."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis as redis_py

from korvet.redis.client import Redis
from tests.support import process_guard, redis_servers
from tests.support import redis_cluster as clusters
from tests.support.authority import Authority
from tests.support.broker import forget_logs, logs_of_test
from tests.support.domain import Domain, domain
from tests.support.identity_provider import Provider, identity_provider
from tests.support.log_bench import LAYOUTS, Bench
from tests.support.proxy import Proxy, proxy
from tests.support.virtual_clock import VirtualClock
from tests.tiers import counts
from tests.tiers.parts import SLOW_FOLDERS

# No test asserts on time: on a busy machine any example may take long.
hypothesis.settings.register_profile("korvet", deadline=None)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("korvet")

collect_ignore = [*SLOW_FOLDERS]

# A shell that starts the tests in the background lets them, and all that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the runner of the tiers ask for counts."""
    counts.add_option(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests whose network can be cut, as it leads to one server, and those that ask for a Spark."""
    for item in items:
        for fixture, mark in (("network", "embedded"), ("spark", "spark")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test start processes only if it is marked, or is in a folder whose subject they are."""
    here = Path(__file__).parent
    if item.get_closest_marker("slow") or any(item.path.is_relative_to(here / name) for name in SLOW_FOLDERS):
        return (yield)
    with process_guard.forbidden(item.nodeid):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Forget what brokers of other tests have logged."""
    forget_logs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what each broker logged during a test that failed."""
    report = yield
    if report.failed:
        report.sections += [(f"log of the {name}", text) for name, text in logs_of_test()]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many seconds the tests of each directory took; with several processes they overlap."""
    counts.write(terminalreporter)
    seconds = defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("::")[0].rpartition("/")[0]] += report.duration
    terminalreporter.section("seconds of tests by directory")
    for directory, taken in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.line(f"{taken:8.1f}  {directory}")


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Put the process's logging back: what a test configures is global."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def clock() -> VirtualClock:
    """Give a clock whose time the test moves."""
    return VirtualClock()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give the CA of a file's certificates."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """Give the provider of a file's tokens."""
    with identity_provider() as running:
        yield running


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """Give the URL of this session's private Redis, not emptied."""
    with contextlib.ExitStack() as running:
        with process_guard.allowed():
            url = running.enter_context(redis_servers.server())
        yield url


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """Give the URL of a private Redis that holds nothing: no keys, no scripts, default configuration."""
    with redis_servers.connected(redis_server) as client:
        client.flushall()
        client.script_flush()
    return redis_server


@pytest.fixture
def raw_redis(redis_url: str) -> Iterator[redis_py.Redis]:
    """Give a plain redis-py client on an empty private Redis: what any Redis user would hold."""
    with redis_servers.connected(redis_url) as client:
        yield client


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    """Give the connection that a worker has."""
    client = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield client
    client.close()


@pytest.fixture(params=LAYOUTS)
def bench(redis: Redis, raw_redis: Any, request: pytest.FixtureRequest) -> Bench:
    """Give a log store in each layout."""
    return Bench(redis, raw_redis, request.param)


@pytest.fixture
def record_bench(redis: Redis, raw_redis: Any) -> Bench:
    """Give a log store in format `record`."""
    return Bench(redis, raw_redis, "record")


@pytest.fixture
def batch_bench(redis: Redis, raw_redis: Any) -> Bench:
    """Give a log store in format `batch`."""
    return Bench(redis, raw_redis, "batch")


@pytest.fixture(scope="session")
def cluster_server() -> Iterator[clusters.RedisCluster]:
    """Give this session's private Redis Cluster, not emptied: three masters without replicas."""
    with clusters.redis_cluster() as running:
        yield running


@pytest.fixture
def redis_cluster(cluster_server: clusters.RedisCluster) -> Iterator[clusters.RedisCluster]:
    """Give a private Redis Cluster that holds nothing, for tests that kill no node; it is put in order."""
    cluster_server.empty()
    yield cluster_server
    cluster_server.put_back()


@pytest.fixture
def network(redis_url: str) -> Iterator[Proxy]:
    """Give a way to the server that can be cut."""
    with proxy(redis_url) as running:
        yield running


@pytest.fixture
def here(redis_url: str) -> Iterator[Domain]:
    """Give one worker's view of an empty Redis."""
    with domain(redis_url) as made:
        yield made


@pytest.fixture
def there(redis_url: str) -> Iterator[Domain]:
    """Give another worker's view of it."""
    with domain(redis_url) as made:
        yield made
