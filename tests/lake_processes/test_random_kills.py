"""Archivers and compactors killed at random moments from a seed, while records come, leave Redis and are consumed.

TEST_KORVET_LAKE_SEED and TEST_KORVET_LAKE_KILLS make longer runs of it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from korvet.lake.table import Lake
from tests.cli.commands import korvet
from tests.support import reading
from tests.support.archives import FORMATS
from tests.support.broker import korvet_broker
from tests.support.engines import READERS, received
from tests.support.load import Load
from tests.support.partition_state import log_of
from tests.support.processes import descendants, dying_with_tests, kill, wait_until
from tests.support.records import PARTITIONS, Received

SEED = int(os.environ.get("TEST_KORVET_LAKE_SEED", "1"))
KILLS = int(os.environ.get("TEST_KORVET_LAKE_KILLS", "1"))
SECONDS_MAX = 300.0
"""In which work goes on after a kill, also where the machine is busy."""
SETTINGS = {"lake.interval.ms": 0, "lake.upkeep.interval.ms": 0, "log.retention.check.interval.ms": 500}
# What is archived is soon in the lake only.
CONFIGS = {"remote.storage.enable": "true", "local.retention.bytes": "16384"}


class Command:
    """A process that is started again at once whenever it has ended, as systemd would."""

    def __init__(self, log: Path, *program: str) -> None:
        self._log = log
        self._program = program
        self._started: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process; one that was not killed may only end because it had nothing left to do."""
        process = self._started
        code = None if process is None else process.poll()
        assert code in (None, 0, 1, -signal.SIGKILL), self._log.read_text()[-2000:]
        if process is None or code is not None:
            with self._log.open("ab") as log:
                process = self._started = subprocess.Popen(
                    dying_with_tests([sys.executable, "-m", *self._program]), stdout=log, stderr=log
                )
        return process.pid

    def end(self) -> None:
        """End it with all that it has started."""
        if self._started is not None:
            for pid in (self._started.pid, *descendants(self._started.pid)):
                kill(pid)
            self._started.wait()


@contextmanager
def ended(command: Command) -> Iterator[Command]:
    try:
        yield command
    finally:
        command.end()


STATES = [f"{{korvet:{topic}:{at}}}:state" for topic in FORMATS for at in range(PARTITIONS)]


def archived(url: str) -> int:
    """Return the sum of the offsets up to which partitions are archived: it grows with each round, up to `log_ends`."""
    with redis.Redis.from_url(url) as client:
        return sum(int(client.hget(state, "archived") or 0) for state in STATES)


def log_ends(url: str) -> int:
    """Return the sum of the ends of all logs."""
    with redis.Redis.from_url(url) as client:
        return sum(log_of(client, state).next_offset for state in STATES)


def consumed(bootstrap: str, load: Load, all_sent: threading.Event) -> list[Received]:
    """Read a topic from its beginning while it is produced to, archived, trimmed and compacted."""
    result: list[Received] = []
    with reading.consumer(bootstrap, load.topic, range(PARTITIONS)) as running:
        while not all_sent.is_set():
            result += map(reading.as_received, running.consume(1000, timeout=0.2))
        return result + reading.read(running, load.sent - len(result), SECONDS_MAX)


def kill_one(victim: str, commands: Mapping[str, Command], url: str, seconds: float) -> None:
    """Kill a process some time after work has gone on."""
    before = archived(url)

    def at_work() -> bool:
        there = [command.pid for command in commands.values()]
        return bool(there) and archived(url) > before

    wait_until(at_work, "work goes on", SECONDS_MAX)
    time.sleep(seconds)
    kill(commands[victim].pid)


@pytest.mark.timeout(2 * SECONDS_MAX)
def test_kills_at_random_lose_and_repeat_nothing(tmp_path: Path) -> None:
    lake, chance = Lake(str(tmp_path / "lake")), random.Random(SEED)
    settings = SETTINGS | {"lake.path": lake.path}
    with korvet_broker(tmp_path, settings=settings) as broker, ExitStack() as running:
        for topic in FORMATS:
            reading.create_topic(broker.bootstrap, topic, PARTITIONS, CONFIGS | {"storage.format": topic})
        place = ("--redis-url", broker.redis_url, "--lake", lake.path)
        archive = ("tests.support.kill_points", "archive", "none", broker.redis_url, lake.path)
        compact = ("korvet", "lake", "compact", "--interval", "0.5", *place)
        commands = {
            "archive": running.enter_context(ended(Command(tmp_path / "archive.log", *archive))),
            "compact": running.enter_context(ended(Command(tmp_path / "compact.log", *compact))),
        }
        loads = [Load(broker.bootstrap, topic, PARTITIONS) for topic in FORMATS]
        all_sent = threading.Event()
        pool = running.enter_context(ThreadPoolExecutor(len(loads)))
        for load in loads:
            load.start()
        read = [pool.submit(consumed, broker.bootstrap, load, all_sent) for load in loads]
        order = ["archive", "archive", "compact"] * KILLS
        chance.shuffle(order)
        for victim in order:
            kill_one(victim, commands, broker.redis_url, chance.uniform(0, 1))
        for load in loads:
            load.end()
        all_sent.set()
        wait_until(
            lambda: commands["archive"].pid and archived(broker.redis_url) == log_ends(broker.redis_url),
            "all is archived",
            SECONDS_MAX,
        )
        commands["archive"].end()
        for load, item in zip(loads, read, strict=True):
            load.check(item.result())
            load.check(reading.read_all(broker.bootstrap, load.topic, range(PARTITIONS), load.sent))
            [of] = [table for table in lake.tables() if table.topic == load.topic]
            for engine in READERS.values():
                load.check(received(engine(lake.uri(of), None)))
        assert all(
            not item["findings"] for item in json.loads(korvet("lake", "verify", "--json", *place).stdout)
        )
