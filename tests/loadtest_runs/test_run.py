"""Whole runs of `python -m loadtest.locust`: a good one passes, and what goes wrong under it makes it fail."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from redis import Redis

from korvet.redis.url import socket_of
from tests.support import processes
from tests.support.broker import korvet_broker

_REPOSITORY = Path(__file__).parents[2]
_END_SECONDS_MAX = 100.0
# None of it is about time: operations have to happen, and to succeed.
_LIMITS = """
[every]
failure_ratio_max = 0.0
redis_left_mib_max = 16
[every.p99_ms_max]
"producer: deliver (record)" = 1e6
"producer: deliver (batch)" = 1e6
"consumer: end to end (record)" = 1e6
"""
_EVERY_USER = """
"consumer: end to end (batch)" = 1e6
"group: end to end (record)" = 1e6
"group: join" = 1e6
"group: commit" = 1e6
"reader: list offsets" = 1e6
"reader: fetch from an offset (record)" = 1e6
"admin: metadata" = 1e6
"""
_WORKER = re.compile(r"supervisor started child=worker-\d+ pid=(\d+)")
_FEW = ("--users", "3", "--mix", "producer=1,consumer=2", "--topics", "2", "--partitions", "1")


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    """Return a file of thresholds."""
    file = tmp_path / "limits.toml"
    file.write_text(_LIMITS)
    return file


@contextlib.contextmanager
def running(limits: Path, *flags: str, minutes: float = 60) -> Iterator[subprocess.Popen[str]]:
    """Start a run, longer than any test unless `minutes` are given; ends it with all that belongs to it."""
    command = [
        sys.executable,
        "-m",
        "loadtest.locust",
        "--minutes",
        str(minutes),
        "--thresholds",
        str(limits),
    ]
    run = subprocess.Popen(
        processes.dying_with_tests([*command, *flags]),
        cwd=_REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with run:
        try:
            yield run
        finally:
            left = processes.descendants(run.pid)
            run.kill()
            for pid in left:
                processes.kill(pid)


def interrupt(run: subprocess.Popen[str]) -> str:
    """End a run as Ctrl-C does, and return what it printed."""
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=_END_SECONDS_MAX)
    return output


def await_own_broker(run: subprocess.Popen[str]) -> str:
    """Wait until a run has started its broker, and return where that listens."""
    result: list[str] = []

    def started() -> bool:
        for pid in processes.descendants(run.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                result.extend(word.removeprefix("listen=") for word in words if word.startswith("listen="))
        return bool(result)

    processes.wait_until(started, "the run's own broker")
    return result[0]


def await_records(bootstrap: str) -> TopicPartition:
    """Wait until a partition of format record holds some, and return it with the offset behind them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "log_level": 0})
    result: list[TopicPartition] = []

    def there() -> bool:
        # Until the broker is up, and until it has the topic, this fails.
        with contextlib.suppress(KafkaException):
            names = consumer.list_topics(timeout=1).topics
            for name in filter(re.compile(r"loadtest-\d+-\d+-0").fullmatch, names):
                partition = TopicPartition(name, 0)
                _, partition.offset = consumer.get_watermark_offsets(partition, timeout=10, cached=False)
                if partition.offset > 0:
                    result.append(partition)
        return bool(result)

    try:
        processes.wait_until(there, "records")
    finally:
        consumer.close()
    return result[0]


def test_a_run_with_every_user_passes_and_leaves_nothing(limits: Path, tmp_path: Path) -> None:
    limits.write_text(_LIMITS + _EVERY_USER)
    flags = ("--users", "12", "--set", "group.initial.rebalance.delay.ms=0", "--directory", str(tmp_path))
    with running(limits, *flags, minutes=0.09) as run:
        output, _ = run.communicate(timeout=_END_SECONDS_MAX)
    assert run.returncode == 0, output
    counted = re.search(
        r"Sequences: ([\d,]+) records of .* 0 of those sent never acknowledged: no fault", output
    )
    assert counted, output
    assert int(counted[1].replace(",", "")) > 0
    assert "BROKEN" not in output
    assert output.splitlines()[-1] == "PASSED"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["limits.toml"]


def test_a_record_that_vanishes_from_redis_makes_a_run_fail(limits: Path, tmp_path: Path) -> None:
    with korvet_broker(tmp_path) as broker, running(limits, "--host", broker.bootstrap, *_FEW) as run:
        topic = await_records(broker.bootstrap).topic
        with Redis(unix_socket_path=str(socket_of(broker.data_dir))) as redis:
            [(first, _)] = redis.xrange(f"korvet:{topic}:0", count=1)
            assert redis.xdel(f"korvet:{topic}:0", first) == 1
        output = interrupt(run)
    assert run.returncode == 1, output
    assert "loadtest: 1 records lost" in output
    assert re.search(rf"^  lost: record \d+ of key \w+-\d in {topic}$", output, re.MULTILINE), output
    assert output.splitlines()[-1] == "FAILED"


def test_a_broker_that_is_killed_under_a_run_makes_it_fail(limits: Path, tmp_path: Path) -> None:
    flags = ("--delivery-timeout", "2", "--csv", str(tmp_path / "found"), *_FEW)
    with korvet_broker(tmp_path) as broker, running(limits, "--host", broker.bootstrap, *flags) as run:
        await_records(broker.bootstrap)
        broker.kill()
        failures = tmp_path / "found_failures.csv"
        processes.wait_until(lambda: failures.read_text().count("\n") > 1, "failures in locust's table")
        output = interrupt(run)
    assert run.returncode == 1, output
    assert "loadtest: locust ended with exit code 1" in output
    assert re.search(r"failures +<= 0\.00% .* BROKEN$", output, re.MULTILINE), output
    assert "the records cannot be read back" in output


def test_a_server_and_a_worker_that_are_killed_lose_nothing_but_the_run_says_so(
    limits: Path, tmp_path: Path
) -> None:
    with running(limits, "--directory", str(tmp_path), "--set", "workers=2", *_FEW) as run:
        await_records(await_own_broker(run))
        [log] = tmp_path.glob("korvet-loadtest-*/broker.log")
        data = log.parent / "data"
        with Redis(unix_socket_path=str(socket_of(data))) as redis:
            # By default it may put off a write while the disk is busy, and answer before it.
            redis.config_set("appendfsync", "always")
        processes.kill(int((data / "server.lock").read_text()))
        processes.wait_until(lambda: "started the embedded server" in log.read_text(), "a new server")
        first, _ = _WORKER.findall(log.read_text())
        processes.kill(int(first))
        processes.wait_until(lambda: len(_WORKER.findall(log.read_text())) == 3, "a new worker")
        output = interrupt(run)
    assert run.returncode == 1, output
    assert "0 of those sent never acknowledged: no fault" in output
    assert "loadtest: 1 of the broker's processes ended and were replaced" in output
    said = r"^loadtest: the broker has logged \d+ errors, the first: supervisor the embedded server ended"
    assert re.search(said, output, re.MULTILINE), output


def test_a_port_for_the_page_that_is_taken_is_one_clear_error(limits: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(limits, "--web", "--web-port", str(port)) as run:
            output, _ = run.communicate(timeout=_END_SECONDS_MAX)
    assert run.returncode == 1
    assert output == f"loadtest: port {port} is in use; --web-port takes another one\nFAILED\n"


def test_what_is_beside_locust_does_not_import_it_for_it_patches_the_standard_library() -> None:
    program = "import loadtest.locust.__main__, sys; print({'locust', 'gevent.monkey'} & sys.modules.keys())"
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, cwd=_REPOSITORY, text=True) == "set()\n"


def test_flags_that_cannot_be_end_a_run_at_once(limits: Path) -> None:
    limits.write_text("[every]\nfailures = 1\n")
    with running(limits) as run:
        output, _ = run.communicate(timeout=_END_SECONDS_MAX)
    assert (run.returncode, output) == (2, f"loadtest: {limits}: [every] has an unknown key failures\n")
