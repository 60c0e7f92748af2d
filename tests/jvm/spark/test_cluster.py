"""The lake's jobs on a standalone cluster: what they do, and what a kill of any process there costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from korvet.config.sources import with_password
from korvet.lake.source import LakeSource, SourceTopic
from korvet.lake.tasks import ArchiveTask, TaskOutcome, archive_ranges
from korvet.spark import jobs
from korvet.spark.session import session
from tests.cli.commands import TextResult, korvet_process
from tests.jvm.spark.cluster import CONFIGS, ENVIRONMENT, Cluster, cluster, executor_of
from tests.lake_processes.test_killed import DRIVER_POINTS, check_killed
from tests.support.archives import FORMATS, Topics, all_kinds, topics_in, where
from tests.support.processes import parent, wait_until
from tests.support.redis_cluster import RedisCluster
from tests.support.secured_redis import PASSWORD, SecuredRedis, secured_redis

ROOT = Path(__file__).parents[3]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SECONDS_MAX = 240

pytestmark = pytest.mark.timeout(2 * SECONDS_MAX)


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def spark(running: Cluster) -> Iterator[SparkSession]:
    """Give an application with two executors."""
    with session("tests", master=running.url, configs=CONFIGS) as started:
        yield started
    running.wait_until_idle()


@pytest.fixture
def two_executors(running: Cluster, spark: SparkSession) -> None:
    """Wait until both are there, after a test before this has killed processes."""
    wait_until(lambda: len(running.executors()) == 2, "two executors", SECONDS_MAX)


def kill_once(victim: str, killed: Path) -> None:
    """Kill the Python worker that runs this, or its parent, at the first call."""
    try:
        killed.touch(exist_ok=False)
    except FileExistsError:
        return
    pid = os.getpid()
    of = {"worker": pid, "daemon": parent(pid), "executor": executor_of(pid)}
    os.kill(of[victim], signal.SIGKILL)
    while victim == "executor":
        # It ends with the daemon, which sees that nobody is there any more; until then it is to do nothing.
        signal.pause()


@pytest.mark.usefixtures("two_executors")
def test_both_executors_archive_and_a_task_reads_one_node_of_a_redis_cluster(
    spark: SparkSession, redis_cluster: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with topics_in(redis_cluster.url, tmp_path / "lake") as topics:
        topic = topics.make("orders", "batch", partitions=8)
        all_kinds(topics, topic)
        ran = tmp_path / "ran"
        ran.mkdir()

        def noted(source: LakeSource, tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
            read = sorted(task.partition.index for task in tasks)
            (ran / "-".join(map(str, (executor_of(os.getpid()), *read)))).touch()
            return archive_ranges(source, tasks)

        monkeypatch.setattr(jobs, "archive_ranges", noted)
        [done] = jobs.archive_rounds(spark, topics.source)
        assert done is not None
        assert (done.records, done.failures) == (8 * 1520, [])
        topics.check(topic)
        of = {partition.index: redis_cluster.node_of(partition.stream) for partition in topic.partitions}
        executors, tasks = set(), []
        for item in ran.iterdir():
            executor, *read = map(int, item.name.split("-"))
            executors.add(executor)
            tasks.append(read)
        assert len(executors) == 2
        assert sorted(index for read in tasks for index in read) == sorted(of)
        assert all(len({of[index] for index in read}) == 1 for read in tasks)
        topics.trim(topic.partitions[0], topics.bounds(topic.partitions[0]).high_watermark)
        all_kinds(topics, topic)
        options = {"redis.url": redis_cluster.url, "lake": topics.lake, "topic": topic.name}
        assert spark.read.format("korvet").options(**options).load().count() == 2 * 8 * 1520


@pytest.mark.usefixtures("two_executors")
@pytest.mark.parametrize("victim", ["worker", "daemon", "executor"])
@pytest.mark.parametrize("place", ["before the write", "after the write"])
def test_a_kill_on_an_executor_costs_another_try_and_no_record(
    spark: SparkSession,
    topics: Topics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    victim: str,
    place: str,
) -> None:
    topic = topics.make("orders", "batch", partitions=4)
    all_kinds(topics, topic)
    killed = tmp_path / "killed"

    def once_killed(source: LakeSource, tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        outcomes = archive_ranges(source, tasks) if place == "after the write" else []
        kill_once(victim, killed)
        return outcomes or archive_ranges(source, tasks)

    monkeypatch.setattr(jobs, "archive_ranges", once_killed)
    [done] = jobs.archive_rounds(spark, topics.source)
    assert done is not None
    assert killed.exists()
    assert (done.records, done.failures) == (4 * 1520, [])
    topics.check(topic)


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_killed_driver_loses_and_repeats_nothing(running: Cluster, topics: Topics, point: str) -> None:
    before = running.executors()
    check_killed(topics, point, 1, running.url)
    wait_until(lambda: running.executors() <= before, "its executors are gone", SECONDS_MAX)


def files_of(topics: Topics) -> SourceTopic:
    """Make a topic with six files in each of two partitions."""
    topic = topics.make("orders", "batch", partitions=2)
    for _ in range(6):
        all_kinds(topics, topic)
        assert topics.archiver().round(topics.run).failures == []
    return topic


def test_executors_without_korvet_are_one_clear_error(running: Cluster, topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")
    # The interpreter itself, without what is installed in its environment here.
    bare = {"PYSPARK_PYTHON": str(Path(sys.base_prefix) / "bin" / "python3")}
    archive = ("lake", "archive", *where(topics), "--master", running.url)
    result = korvet_process(*archive, environ=bare, seconds_max=SECONDS_MAX)
    assert result.returncode == 1
    [*_, last] = result.stderr.splitlines()
    assert last.startswith("Error: the job failed: a worker's Python has no korvet")


def submitted(running: Cluster, topics: Topics, command: str, *arguments: str) -> Any:
    """Run a command of the lake by spark-submit; returns what it has printed as JSON."""
    configs = [part for name, value in CONFIGS.items() for part in ("--conf", f"{name}={value}")]
    result = subprocess.run(
        [
            *(str(SUBMIT), "--master", running.url, *configs, "--conf", "spark.ui.enabled=false"),
            *(str(ROOT / "korvet" / "__main__.py"), "lake", command, *where(topics), "--json", *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_spark_submit_runs_the_commands_on_the_cluster(running: Cluster, topics: Topics) -> None:
    topic = files_of(topics)
    all_kinds(topics, topic)
    done, log = submitted(running, topics, "archive")
    assert (done["records"], done["failures"]) == (2 * 1520, [])
    assert "Connected to Spark cluster" in log
    topics.check(topic)
    merged, log = submitted(running, topics, "compact")
    assert [(item["files_before"], item["files_after"]) for item in merged] == [(7, 1)] * 2
    assert "Connected to Spark cluster" in log
    topics.check(topic)
    counted, log = submitted(running, topics, "query", "select count(*) as c from orders")
    assert counted == {"c": 7 * 2 * 1520}
    assert "Connected to Spark cluster" in log
    # Those that need no Spark run all the same.
    verified, _ = submitted(running, topics, "verify")
    assert [item["findings"] for item in verified] == [[], []]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRedis]:
    with secured_redis(tmp_path_factory.mktemp("secured")) as running:
        yield running


def archive(running: Cluster, directory: Path, url: str, password_file: Path) -> TextResult:
    """Archive as docs/lake/security.md says, by a file of settings."""
    settings = {
        "redis.url": url,
        "redis.password.file": str(password_file),
        "lake.path": str(directory / "lake"),
    }
    config = directory / "lake.toml"
    config.write_text("".join(f'"{name}" = "{value}"\n' for name, value in settings.items()))
    line = ("lake", "archive", "--config", str(config), "--master", running.url)
    return korvet_process(*line, seconds_max=SECONDS_MAX)


@pytest.mark.usefixtures("two_executors")
def test_executors_use_tls_and_the_user_of_redis_acl(
    running: Cluster, spark: SparkSession, secured: SecuredRedis, tmp_path: Path
) -> None:
    with topics_in(with_password(secured.url, str(secured.password_file)), tmp_path / "lake") as topics:
        result = [topics.make(item, item, partitions=2, number=at) for at, item in enumerate(FORMATS)]
        for topic in result:
            all_kinds(topics, topic)
        done = archive(running, tmp_path, secured.url, secured.password_file)
        assert done.returncode == 0, done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        for topic in result:
            topics.check(topic)
            # What is archived comes from the lake, and this from Redis.
            all_kinds(topics, topic)
            options = {
                "redis.url": secured.url,
                "redis.password.file": str(secured.password_file),
                "lake": topics.lake,
                "topic": topic.name,
            }
            rows = spark.read.format("korvet").options(**options).load().collect()
            assert sorted(
                (row.partition, row.offset, row.value) for row in rows if row.value is not None
            ) == [
                (partition.index, offset, value)
                for partition in topic.partitions
                for offset, _, _, value, _ in topics.produced[topic.id, partition.index]
                if value is not None
            ]


def test_a_wrong_login_at_redis_is_one_clear_error(
    running: Cluster, spark: SparkSession, secured: SecuredRedis, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong-password"
    wrong.write_text("not-the-password\n")
    for url, file, message in (
        (secured.url, wrong, "refused the connection (AUTH): WRONGPASS invalid username-password pair"),
        (secured.anonymous_url, secured.password_file, "if it requires a client certificate, redis.url must"),
    ):
        done = archive(running, tmp_path, url, file)
        assert done.returncode == 1
        [error] = [line for line in done.stderr.splitlines() if not line.startswith("starting Spark")]
        assert error.startswith("Error: ")
        assert message in error
        options = {
            "redis.url": url,
            "redis.password.file": str(file),
            "lake": str(tmp_path),
            "topic": "orders",
        }
        with pytest.raises(AnalysisException) as refused:
            spark.read.format("korvet").options(**options).load().count()
        assert message in str(refused.value)
        assert file.read_text().strip() not in str(refused.value) + done.stderr + done.stdout
