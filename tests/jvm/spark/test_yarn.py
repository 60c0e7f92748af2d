"""The lake's jobs and pipelines on YARN, in client mode: by `--master yarn`, and by spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.jvm.spark.yarn import Yarn, yarn
from tests.support.archives import FORMATS, Topics, all_kinds, topics_in, where

ROOT = Path(__file__).parents[3]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SECONDS_MAX = 240

pytestmark = pytest.mark.timeout(2 * SECONDS_MAX)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    directory = tmp_path_factory.mktemp("yarn")
    with yarn(directory) as started, pytest.MonkeyPatch.context() as patch:
        settings = {
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.yarn.am.memory": "512m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # Where Spark lies on each machine; by default it is copied for each application.
            "spark.yarn.jars": f"local:{Path(pyspark.__file__).with_name('jars')}/*",
            "spark.yarn.stagingDir": (directory / "staging").as_uri(),
        }
        (directory / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
        patch.setenv("HADOOP_CONF_DIR", str(started.conf))
        patch.setenv("SPARK_CONF_DIR", str(directory))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        yield started


@pytest.fixture
def topics(redis_url: str, tmp_path: Path) -> Iterator[Topics]:
    with topics_in(redis_url, tmp_path / "lake") as found:
        yield found


def ran(*command: str) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    print(result)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_archive(running: Yarn, topics: Topics) -> None:
    found = [topics.make(each, each, partitions=2, number=at) for at, each in enumerate(FORMATS)]
    for topic in found:
        all_kinds(topics, topic)
    ran(sys.executable, "-m", "korvet", "lake", "archive", *where(topics), "--master", "yarn")
    for topic in found:
        topics.check(topic)
    assert running.applications() == {"korvet lake archive": "SUCCEEDED"}
