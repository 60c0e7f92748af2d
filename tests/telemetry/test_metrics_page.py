"""The page /metrics as a whole: Prometheus' text format, its conventions for names, and the documented names."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from korvet.config.settings import Settings
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.telemetry import page as metrics_page
from korvet.telemetry.process_table import ProcessTable
from tests.support import processes
from tests.support.batches import batch
from tests.support.broker import korvet_broker
from tests.support.docs import PAGES
from tests.support.ops import page
from tests.support.topic_client import Client

NAME = re.compile(r"korvet(?:_[a-z0-9]+)+")
OTHER_UNITS = re.compile(
    r"_(?:ms|milliseconds?|us|microseconds?|minutes?|hours?|days?|kb|kib|mb|mib|kilobytes|megabytes|percent)(?:_|$)"
)
"""Base units only: seconds, bytes, ratios."""


def faults(text: str) -> list[str]:
    lines = text.splitlines()
    result = []
    for kind in ("HELP", "TYPE"):
        names = [line.split()[2] for line in lines if line.startswith(f"# {kind} ")]
        result += [f"{name} has {kind} twice" for name in {item for item in names if names.count(item) > 1}]
    for family in text_string_to_metric_families(text):
        result += of_name(family)
        result += of_samples(family)
    return result


def of_name(family: Metric) -> list[str]:
    name, result = family.name, []
    if not NAME.fullmatch(name) or OTHER_UNITS.search(name):
        result.append(f"{name} is no name")
    if not family.documentation.endswith(".") or family.type not in ("counter", "gauge", "histogram"):
        result.append(f"{name}: {family.type}, {family.documentation!r}")
    # Where a unit is named it stands last.
    result += [f"{name}: not last is {unit}" for unit in ("seconds", "bytes", "ratio") if f"_{unit}_" in name]
    return result


def of_samples(family: Metric) -> list[str]:
    result, seen = [], set()
    for sample in family.samples:
        series = (sample.name, tuple(sorted(sample.labels.items())))
        if series in seen:
            result.append(f"{series} is there twice")
        seen.add(series)
        if (family.type == "counter") != sample.name.endswith("_total"):
            result.append(f"{sample.name} is a {family.type}")
        if family.type == "counter" and sample.value < 0:
            result.append(f"{sample.name} is negative")
        if family.type != "histogram" and {"le", "quantile"} & set(sample.labels):
            result.append(f"{sample.name} has a label that is Prometheus' own")
    return result


def test_the_lint_of_this_test_finds_what_is_wrong() -> None:
    twice = "# HELP korvet_a A.\n# TYPE korvet_a gauge\nkorvet_a 1\nkorvet_a 2\n"
    misnamed = "# HELP korvet_b_ms B\n# TYPE korvet_b_ms gauge\n"
    assert len(faults(twice + misnamed)) == 3


def documented() -> set[str]:
    """Return the names in the table of docs/reference/metrics.md."""
    table = PAGES["docs/reference/metrics.md"].split("<!-- table: metrics -->")[1].split("<!-- end -->")[0]
    return set(re.findall(r"^\| `(korvet_[a-z0-9_]+)` \|", table, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.embedded
def test_the_page_of_a_busy_broker_follows_the_conventions_and_the_documentation(tmp_path: Path) -> None:
    settings = ("log.figures.interval.ms=100", "group.initial.rebalance.delay.ms=0", "redis.timeout.ms=1000")
    flags = [word for setting in settings for word in ("--set", setting)]
    with korvet_broker(tmp_path, *flags) as broker:
        with Client(broker.address) as client:
            client.create("orders", 2)
            client.append("orders", b"a")
            client.produce("orders", batch(b"a"), version=3, acks=1)
            client.produce("nothing", batch(b"a"))
            client.fetch("orders")
            with Client(broker.address) as member:
                protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
                join = JoinGroupRequest(
                    group_id="a group",
                    session_timeout_ms=60_000,
                    rebalance_timeout_ms=60_000,
                    member_id="",
                    protocol_type="consumer",
                    protocols=[protocol],
                )
                assert member.call(join, 3).error_code == 0
                processes.wait_until(
                    lambda: 'korvet_consumer_group_members{group="a group"} 1.0' in page(broker, "/metrics"),
                    "the group is shown",
                )
            # A worker flushes its counts a moment later.
            processes.wait_until(
                lambda: 'korvet_topic_received_records_total{topic="orders"} 2.0' in page(broker, "/metrics"),
                "the records are counted",
            )
        text = page(broker, "/metrics")
        assert faults(text) == []
        families = {family.name: family for family in text_string_to_metric_families(text)}
        names = {f"{name}_total" if family.type == "counter" else name for name, family in families.items()}
        assert names <= documented()
        # Some families have no samples yet.
        silent = {name for name, family in families.items() if not family.samples}
        assert not [
            name for name in silent if name.startswith(("korvet_redis", "korvet_process", "korvet_topic"))
        ]
        server = broker.server_pid()
        processes.kill(server, signal.SIGSTOP)
        try:
            without = page(broker, "/metrics")
        finally:
            processes.kill(server, signal.SIGCONT)
        # With a Redis that hangs the page lacks only what Redis itself reports.
        assert '\nkorvet_redis_up{node=""} 0.0\n' in without
        assert "\nkorvet_redis_memory_used_bytes{" not in without
        assert 'korvet_topic_received_records_total{topic="orders"} 2.0' in without
        assert faults(without) == []
        processes.wait_until(
            lambda: '\nkorvet_redis_up{node=""} 1.0\n' in page(broker, "/metrics"), "it is back"
        )


def test_a_file_that_is_just_being_created_does_not_break_the_page(tmp_path: Path) -> None:
    """A worker creates its files in two steps; a page between them once failed."""
    (tmp_path / "counter_worker0.db").touch()
    (tmp_path / "gauge_livesum_worker0.db").symlink_to(tmp_path / "gone")
    settings = Settings(redis_url="redis://127.0.0.1:1/0", replicas=1, min_insync_replicas=3)
    page = generate_latest(metrics_page.registry(settings, ProcessTable(), tmp_path)).decode()
    assert "\nkorvet_child_restarts_total 0.0\n" in page
    # Nor does an unreachable Redis.
    assert '\nkorvet_redis_up{node=""} 0.0\n' in page
    assert '\nkorvet_redis_replicas_wanted{node=""} 2.0\n' in page
