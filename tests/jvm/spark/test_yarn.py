"""The lake's jobs and pipelines on YARN, in client mode: by `--master yarn`, and by spark-submit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from tests.jvm.spark import jars
from tests.jvm.spark.yarn import Yarn, yarn
from tests.support.archives import FORMATS, Topics, all_kinds, where

ROOT = Path(__file__).parents[3]
PYSPARK = Path(pyspark.__file__).parent
KORVET = (sys.executable, "-m", "korvet")
SECONDS_MAX = 240

pytestmark = pytest.mark.timeout(2 * SECONDS_MAX)

JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS = {
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.yarn.am.memory": "512m",
    "spark.driver.defaultJavaOptions": JAVA,
    "spark.executor.defaultJavaOptions": JAVA,
    "spark.yarn.am.extraJavaOptions": JAVA,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # By default all of these are copied for each application.
    "spark.yarn.jars": f"local:{PYSPARK}/jars/*",
    "spark.sql.shuffle.partitions": "2",
}
"""Spark's own defaults here, for both ways to start an application."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    directory = tmp_path_factory.mktemp("yarn")
    settings = SETTINGS | {"spark.yarn.stagingDir": (directory / "staging").as_uri()}
    defaults = (f"{name} {value}\n" for name, value in settings.items())
    (directory / "spark-defaults.conf").write_text("".join(defaults))
    with yarn(directory) as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(started.conf))
        patch.setenv("SPARK_CONF_DIR", str(directory))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        yield started


def run(*command: str) -> None:
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_archive(running: Yarn, topics: Topics) -> None:
    result = [topics.make(item, item, partitions=2, number=at) for at, item in enumerate(FORMATS)]
    for topic in result:
        all_kinds(topics, topic)
    run(*KORVET, "lake", "archive", *where(topics), "--master", "yarn")
    for topic in result:
        topics.check(topic)
    assert running.applications() == {"korvet lake archive": "SUCCEEDED"}


PIPELINE = """
name = "orders"
[sources.orders]
topics = ["orders"]
[sources.orders.value]
format = "json"
schema = "id BIGINT, amount DOUBLE"
[transform]
sql = "SELECT value.id, value.amount, partition, offset FROM orders"
[target]
type = "delta"
path = "tables/orders"
[trigger]
available_now = true
"""


def test_pipeline(running: Yarn, topics: Topics, tmp_path: Path) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    wanted = []
    for partition in topic.partitions:
        orders = [{"id": 2 * at + partition.index, "amount": at / 4} for at in range(500)]
        topics.produce(partition, *(json.dumps(order).encode() for order in orders))
        wanted += [item | {"partition": partition.index, "offset": at} for at, item in enumerate(orders)]
    file = tmp_path / "orders.toml"
    file.write_text(PIPELINE)
    needed = ",".join(map(str, jars.prepare()))
    arguments = ("lake", "pipeline", "run", str(file), *where(topics))
    submit = (str(PYSPARK / "bin" / "spark-submit"), "--master", "yarn", "--jars", needed)
    run(*submit, str(ROOT / "korvet" / "__main__.py"), *arguments)
    rows = DeltaTable(Path(topics.lake) / "tables" / "orders").to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda row: (row["partition"], row["offset"])) == wanted
    assert running.applications()["korvet pipeline orders"] == "SUCCEEDED"
