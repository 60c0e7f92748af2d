"""What is under kills: a broker, a lake in a directory or a store, Spark here or on a cluster, and the lake's commands.

A command that was killed is started again at once, as systemd would, also while its Java or its executors still end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeAlias

import redis
from pyarrow.fs import FileSelector

from korvet.lake.files import log_entry
from korvet.lake.table import ArchiveTable, Lake
from tests.jvm.spark import jars
from tests.jvm.spark.cluster import CONFIGS, ENVIRONMENT, Cluster, cluster
from tests.stores import s3
from tests.support import reading
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import descendants, die_with_tests, kill, parent, wait_until
from tests.support.records import PARTITIONS

Where: TypeAlias = Literal["local", "cluster", "none"]
"""Spark in the driver's process with two threads, a standalone cluster of two workers, or the archiver without it."""

Store: TypeAlias = Literal["directory", "s3"]

TOPICS = {"records": "record", "batches": "batch"}
"""A topic in each format."""

SECONDS_MAX = 900.0
"""In which work goes on after a kill: Spark starts within it, also where the machine is busy."""

_END_SECONDS_MAX = 60.0
_ROOT = Path(__file__).parents[2]
_TOPIC_CONFIGS = {
    "remote.storage.enable": "true",
    # Records carry any time; and what is archived is soon in the lake only.
    "retention.ms": "-1",
    "local.retention.bytes": "65536",
}
# Started again and again: compiling code well takes longer than going without.
_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_QUICK = {
    "spark.driver.memory": "512m",
    "spark.driver.defaultJavaOptions": _JVM,
    "spark.executor.defaultJavaOptions": _JVM,
}
_JAVA = b"org.apache.spark.deploy.SparkSubmit"
_PLANNER = b"-m\0pyspark.sql.streaming.python_streaming_source_runner"
_PYTHON = re.compile(rb"-m\0(korvet\.spark|pyspark)\.daemon\0")


class Command:
    """A command of the lake that is started again whenever it was killed."""

    def __init__(self, directory: Path, environment: dict[str, str], program: list[str]) -> None:
        self.program = program
        self._environment = environment
        self._log = directory / f"{program[program.index('lake') + 1]}.log"
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self.program,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                env=os.environ | self._environment,
                preexec_fn=die_with_tests,
            )

    @property
    def pid(self) -> int:
        """The process of the command, which is Spark's driver if it uses Spark."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def log(self) -> str:
        """Return what all of its processes have written."""
        return self._log.read_text(errors="replace")

    def start_again(self) -> int:
        """Start it again once it has ended; returns the code with which it has."""
        code = self._process.wait(SECONDS_MAX)
        self._process = self._started()
        return code

    def end(self) -> int:
        """End it in an orderly way unless it has ended; returns its code."""
        self._process.terminate()
        code = self._process.wait(SECONDS_MAX)
        # One that was started again just now has not begun: it ends as any process does.
        return 0 if code == -signal.SIGTERM else code


class Ages(NamedTuple):
    """How far a partition is: in its log, in its table, and in what Redis knows of that."""

    end: int
    committed: int
    known: int


class System:
    """A running one."""

    def __init__(self, directory: Path, broker: Broker, lake: Lake, running: Cluster | None) -> None:
        self.directory = directory
        self.broker = broker
        self.lake = lake
        self.cluster = running
        self.where: Where = "local" if running is None else "cluster"
        options = ",".join(f"{name}={value}" for name, value in (lake.storage_options or {}).items())
        self._environment = {"KORVET_LAKE_STORAGE_OPTIONS": options} | ENVIRONMENT
        self._environment["SPARK_CONF_DIR"] = str(
            _spark_configs(directory, {} if running is None else CONFIGS)
        )
        self._redis = redis.Redis.from_url(broker.redis_url)

    @classmethod
    @contextlib.contextmanager
    def started(cls, directory: Path, where: Where, store: Store) -> Iterator[Self]:
        """Give one with its topics, and nothing in them; all of it ends with the block."""
        with contextlib.ExitStack() as running:
            lake, options = Lake(str(directory / "lake")), ""
            if store == "s3":
                objects = running.enter_context(s3.store())
                lake, options = Lake(f"s3://{s3.BUCKET}/lake", objects.options), objects.setting
            config = directory / "korvet.toml"
            config.write_text(f'"lake.path" = "{lake.path}"\n"lake.storage.options" = "{options}"\n')
            alone = ("lake.interval.ms=0", "lake.upkeep.interval.ms=0", "log.retention.check.interval.ms=500")
            flags = [word for each in alone for word in ("--set", each)]
            broker = running.enter_context(korvet_broker(directory, "--config", str(config), *flags))
            spark = None
            if where == "cluster":
                spark = running.enter_context(cluster(directory))
            for topic, kept in TOPICS.items():
                configs = _TOPIC_CONFIGS | {"storage.format": kept}
                reading.create_topic(broker.bootstrap, topic, PARTITIONS, configs)
            system = cls(directory, broker, lake, spark)
            system.where = where
            yield system

    @property
    def master(self) -> str:
        """Spark's, as commands take it; here a task is tried as often as on a cluster."""
        return "local[2,4]" if self.cluster is None else self.cluster.url

    def jars(self) -> list[Path]:
        """Return what Spark needs to read and write tables of Delta Lake here; Maven fetches it."""
        return [*jars.prepare(), *([] if self.lake.storage_options is None else jars.prepare(jars.S3))]

    @staticmethod
    def by_hadoop(uri: str) -> str:
        """Return a URI as Spark takes it: Hadoop's client of S3 has a name of its own."""
        return f"s3a{uri.removeprefix('s3')}" if uri.startswith("s3://") else uri

    @contextlib.contextmanager
    def command(self, *words: str, program: tuple[str, ...] = ("korvet",)) -> Iterator[Command]:
        """Run a command of the lake until the block ends; then none of its processes is left."""
        where = ("--redis-url", self.broker.redis_url, "--lake", self.lake.path)
        line = [sys.executable, "-m", *program, "lake", *words, *where]
        running = Command(self.directory, self._environment, line)
        try:
            yield running
        finally:
            left = descendants(running.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.end()
            for pid in {running.pid, *left}:
                kill(pid)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the lake to its end."""
        where = ("--redis-url", self.broker.redis_url, "--lake", self.lake.path)
        return subprocess.run(
            [sys.executable, "-m", "korvet", "lake", *words, *where],
            env=os.environ | self._environment,
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def processes_of(self, victim: str, command: Command) -> list[int]:
        """Return the processes of a command that are what `victim` says, as many as there are now."""
        if victim == "driver":
            return [command.pid] if command.code is None else []
        if victim == "executor":
            return sorted(self.cluster.executors()) if self.cluster is not None else []
        above = [command.pid] if self.cluster is None else self.cluster.executors()
        below = sorted({pid for each in above for pid in descendants(each)})
        if victim == "java":
            return [pid for pid in descendants(command.pid) if _JAVA in _line(pid)]
        if victim == "planner":
            return [pid for pid in descendants(command.pid) if _PLANNER in _line(pid)]
        python = [pid for pid in below if _PYTHON.search(_line(pid))]
        # They are forks of the daemon.
        return [pid for pid in python if parent(pid) in python]

    def tables(self) -> dict[str, ArchiveTable]:
        """Return the tables that are there, by topic."""
        found = {of.topic: self.lake.open(of) for of in self.lake.tables()}
        return {topic: table for topic, table in found.items() if table is not None}

    def ages(self) -> list[Ages]:
        """Return how far each partition is."""
        tables = self.tables()
        found = []
        for topic in TOPICS:
            for index in range(PARTITIONS):
                values = self._redis.hmget(f"{{korvet:{topic}:{index}}}:state", ["next", "archived"])
                end, known = (int(value or 0) for value in values)
                committed = tables[topic].next_offset(index) if topic in tables else None
                found.append(Ages(end, committed or 0, known))
        return found

    def data_files(self, topic: str) -> set[str]:
        """Return the files of records below a table, by their paths there."""
        [of] = [each for each in self.lake.tables() if each.topic == topic]
        found = self.lake.filesystem(of).get_file_info(FileSelector("", recursive=True))
        return {
            each.path for each in found if each.path.startswith("partition=") and each.extension == "parquet"
        }

    def named_files(self, topic: str) -> set[str]:
        """Return the files that a commit of a table has added, ever."""
        [of] = [each for each in self.lake.tables() if each.topic == topic]
        files = self.lake.filesystem(of)
        logs = files.get_file_info(FileSelector("_delta_log"))
        numbers = (int(each.base_name[:-5]) for each in logs if each.base_name.endswith(".json"))
        lines = (line for number in numbers for line in log_entry(files, number).splitlines())
        actions = (json.loads(line) for line in lines)
        return {each["add"]["path"] for each in actions if "add" in each}

    def known(self) -> int:
        """Return a number that grows whenever Redis learns that more is archived."""
        return sum(
            int(self._redis.hget(f"{{korvet:{topic}:{index}}}:state", "archived") or 0)
            for topic in TOPICS
            for index in range(PARTITIONS)
        )

    def wait_until_archived(self) -> None:
        """Wait until all that is there is archived."""
        wait_until(
            lambda: all(each.known >= each.end for each in self.ages()), "all is archived", SECONDS_MAX
        )


def _spark_configs(directory: Path, configs: dict[str, str]) -> Path:
    """Write Spark's settings of all applications, as an operator would; returns their directory."""
    found = directory / "spark-conf"
    found.mkdir()
    lines = (f"{name} {value}\n" for name, value in (_QUICK | configs).items())
    (found / "spark-defaults.conf").write_text("".join(lines))
    return found


def _line(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
