"""docs/lake/declarative-pipelines.md: its project as the page has it, run by Spark's own command against a broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.broker import Broker, korvet_broker
from tests.support.docs import PAGES
from tests.support.reading import create_topic, partitions_to_end, produce

pytestmark = pytest.mark.spark

PAGE = PAGES["docs/lake/declarative-pipelines.md"]
FILES = re.compile(r"^`([\w./-]+)`(?:(?!^```).)*^```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
[COMMAND] = re.findall(r"^    (spark-pipelines .*)$", PAGE, re.MULTILINE)
SECONDS_MAX = 600.0
"""Of one run: Spark, its server and their first queries, while the machine is busy."""


def write_project(directory: Path, broker: Broker) -> None:
    """Write the files of the page for this broker."""
    here = {
        "/srv/orders": str(directory),
        "redis://127.0.0.1:6379": broker.redis_url,
        "127.0.0.1:9092": broker.bootstrap,
    }
    files = dict(FILES.findall(PAGE))
    assert set(files) == {"spark-pipeline.yml", "transformations/orders.py", "transformations/tables.sql"}
    for name, text in files.items():
        for shown, meant in here.items():
            text = text.replace(shown, meant)  # noqa: PLW2901 - one text, changed step by step
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)


def run(directory: Path, *flags: str) -> None:
    """Run the command of the page in the environment of the tests."""
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    path = f"{Path(sys.executable).parent}:{environ['PATH']}"
    done = subprocess.run(
        [*COMMAND.split(), *flags],
        cwd=directory,
        env=environ | {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(2 * SECONDS_MAX + 60)
def test_a_project_reads_a_topic_into_tables_and_writes_rows_to_a_topic_once(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with korvet_broker(tmp_path, "--set", "storage.format=batch", workers=1) as broker:
        for topic in ("orders", "large-orders"):
            create_topic(broker.bootstrap, topic, 2)
        write_project(project, broker)
        for number in range(2):
            orders = [
                {"id": 10 * number + item, "customer": "ann", "amount": 60.0 * item} for item in range(3)
            ]
            produce(broker.bootstrap, "orders", *({"value": json.dumps(order)} for order in orders))
            run(project)
        written = partitions_to_end(
            broker.bootstrap, [("large-orders", index) for index in range(2)], "read_committed"
        )
        run(project, "--full-refresh-all")
        again = partitions_to_end(
            broker.bootstrap, [("large-orders", index) for index in range(2)], "read_committed"
        )
    rows = [(item.key, json.loads(item.value or b"")) for part in written.values() for item in part]
    assert sorted(rows, key=str) == [(b"ann", {"id": id_, "amount": 120.0}) for id_ in (12, 2)]
    customers = pq.read_table(project / "spark-warehouse" / "customers").to_pylist()
    assert customers == [{"customer": "ann", "orders": 6, "amount": 360.0}]
    # A full refresh reads all again; what a sink has written stays, and comes once more.
    assert pq.read_table(project / "spark-warehouse" / "orders").num_rows == 6
    assert sum(map(len, again.values())) == 2 * len(rows)
