"""Pipelines that keep state, killed at random moments from a seed or out of disk: their tables hold the truth.

Plain Python computes it from what was produced. TEST_KORVET_PIPELINE_SEED and TEST_KORVET_PIPELINE_KILLS make longer
runs of it.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deltalake import DeltaTable

from tests.jvm.spark import jars
from tests.jvm.spark.test_pipeline_runs import SECONDS_MAX, completed, running
from tests.support.archives import Topics
from tests.support.batches import Record
from tests.support.processes import descendants, kill, wait_until

SEED = int(os.environ.get("TEST_KORVET_PIPELINE_SEED", "1"))
KILLS = int(os.environ.get("TEST_KORVET_PIPELINE_KILLS", "1"))
DELAY_S_MAX = 3.0
"""After a batch has begun: some are planned then, some read, some written, some are done."""
RECORDS = 200
BATCH_RECORDS = 40
IDS = 500
CUSTOMERS = 7

pytestmark = pytest.mark.timeout((KILLS + 2) * 2 * SECONDS_MAX)

Order = dict[str, Any]
Rows = Counter[tuple[Any, ...]]


class Work(NamedTuple):
    """A transformation, the target's further settings, the columns of its table, and what they should hold."""

    transform: str
    target: str
    columns: tuple[str, ...]
    truth: Callable[[Sequence[Order], Sequence[Order]], Rows]


def sums(orders: Sequence[Order], _: Sequence[Order]) -> Rows:
    counts = Counter(order["customer"] for order in orders)
    amounts: Counter[int] = Counter()
    for order in orders:
        amounts[order["customer"]] += order["amount"]
    return Counter((customer, count, amounts[customer]) for customer, count in counts.items())


def joined(orders: Sequence[Order], payments: Sequence[Order]) -> Rows:
    paid: dict[int, list[int]] = {}
    for payment in payments:
        paid.setdefault(payment["id"], []).append(payment["amount"])
    return Counter(
        (order["id"], order["amount"], amount) for order in orders for amount in paid.get(order["id"], ())
    )


def distinct(orders: Sequence[Order], _: Sequence[Order]) -> Rows:
    return Counter({(order["id"], order["customer"]) for order in orders})


def numbered(orders: Sequence[Order], _: Sequence[Order]) -> Rows:
    counts = Counter(order["customer"] for order in orders)
    return Counter((customer, number) for customer, count in counts.items() for number in range(1, count + 1))


PROCESSOR = """
import pandas as pd
from pyspark.sql.streaming import StatefulProcessor

class Numbers(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "n BIGINT")

    def handleInputRows(self, key, rows, timers):
        [before] = self.count.get() if self.count.exists() else [0]
        end = before + sum(map(len, rows))
        self.count.update((end,))
        yield pd.DataFrame({"customer": key[0], "number": range(before + 1, end + 1)})

    def close(self):
        pass

def transform(orders):
    keyed = orders.selectExpr("value.customer AS customer").groupBy("customer")
    return keyed.transformWithStateInPandas(Numbers(), "customer BIGINT, number BIGINT", "Append", "None")
"""

DISTINCT = """
def transform(orders):
    return orders.selectExpr("value.id AS id", "value.customer AS customer").dropDuplicates(["id"])
"""

WORKS = {
    "aggregate": Work(
        'sql = "SELECT value.customer, count(*) AS orders, sum(value.amount) AS amount FROM orders GROUP BY 1"',
        'mode = "merge"\nkey = ["customer"]',
        ("customer", "orders", "amount"),
        sums,
    ),
    "join": Work(
        'sql = "SELECT o.value.id, o.value.amount, p.value.amount AS paid'
        ' FROM orders o JOIN payments p ON o.value.id = p.value.id"',
        "",
        ("id", "amount", "paid"),
        joined,
    ),
    "deduplication": Work('python = "distinct.py"', "", ("id", "customer"), distinct),
    "transformWithState": Work('python = "numbers.py"', "", ("customer", "number"), numbered),
}


def pipeline(directory: Path, work: Work, trigger: str) -> Path:
    """Write a pipeline's file, with a session as users have it but for the jars."""
    names = ("orders", "payments") if "payments" in work.transform else ("orders",)
    (directory / "numbers.py").write_text(PROCESSOR)
    (directory / "distinct.py").write_text(DISTINCT)
    sources = "".join(
        f"""
[sources.{name}]
topics = ["{name}"]
max_records_per_trigger = {BATCH_RECORDS}
[sources.{name}.value]
format = "json"
schema = "id BIGINT, customer BIGINT, amount BIGINT"
"""
        for name in names
    )
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    file = directory / "work.toml"
    file.write_text(
        f"""
name = "killed"
{sources}
[transform]
{work.transform}
[target]
type = "delta"
path = "tables/work"
{work.target}
[trigger]
{trigger}
[spark]
master = "local[2,4]"
[spark.conf]
"spark.jars" = "{",".join(map(str, jars.prepare()))}"
"spark.sql.streaming.stateStore.providerClass" = "{provider}"
"""
    )
    return file


class Producer:
    """Makes orders and payments, whose ids repeat, and remembers them."""

    def __init__(self, topics: Topics, chance: random.Random) -> None:
        self._topics = topics
        self._chance = chance
        self._partitions = {
            name: topics.make(name, "batch", partitions=2, number=number).partitions
            for number, name in enumerate(("orders", "payments"))
        }
        self.orders: list[Order] = []
        self.payments: list[Order] = []

    def produce(self) -> None:
        for name, made in (("orders", self.orders), ("payments", self.payments)):
            for partition in self._partitions[name]:
                # The customer follows from the id: a distinct pair is a distinct id.
                ids = [self._chance.randrange(IDS) for _ in range(RECORDS // 2)]
                values = [
                    {"id": id_, "customer": id_ % CUSTOMERS, "amount": self._chance.randrange(100)}
                    for id_ in ids
                ]
                self._topics.produce(partition, *(Record(json.dumps(value).encode()) for value in values))
                made.extend(values)


def begun(topics: Topics) -> int:
    """Return how many batches have begun."""
    offsets = Path(topics.lake) / "_pipelines/killed/checkpoint/main/offsets"
    return sum(file.name.isdigit() for file in offsets.glob("*"))


def victims(process: subprocess.Popen[str]) -> dict[str, list[int]]:
    """Return what may be killed, by kind."""
    below = descendants(process.pid)
    java = [pid for pid in below if program_of(pid) == "java"]
    return {"driver": [process.pid], "java": java, "worker": sorted(below - {*java})}


def program_of(pid: int) -> str:
    """Return the name of a process' program, "" once it has ended."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except FileNotFoundError:
        return ""


@pytest.mark.parametrize("name", WORKS)
def test_a_pipeline_with_state_that_is_killed_at_random_has_the_rows_that_plain_python_computes(
    topics: Topics, tmp_path: Path, name: str
) -> None:
    work, chance = WORKS[name], random.Random(SEED)
    producer = Producer(topics, chance)
    file = pipeline(tmp_path, work, 'interval = "100ms"')
    kinds = chance.sample(["driver", "java", "worker"], 3)
    for number in range(KILLS):
        kind = kinds[number % len(kinds)]
        producer.produce()
        before = begun(topics)
        with running(topics, file) as process:
            wait_until(
                lambda: process.poll() is not None or begun(topics) > before,  # noqa: B023 - called here
                "a batch has begun",
                SECONDS_MAX,
            )
            assert process.poll() is None, process.communicate()
            time.sleep(chance.uniform(0, DELAY_S_MAX))
            # A worker lives as long as its task.
            wait_until(lambda: victims(process)[kind], f"a {kind} lives", SECONDS_MAX)  # noqa: B023 - called here
            kill(chance.choice(victims(process)[kind]), signal.SIGKILL)
            # A task whose worker is gone is tried again; what else it meets may end the process.
            time.sleep(chance.uniform(0, DELAY_S_MAX))
        print(f"kill {number}: {kind}, after {begun(topics)} batches")  # noqa: T201 - of a failed test
    check(topics, tmp_path, work, producer)


def check(topics: Topics, directory: Path, work: Work, producer: Producer) -> None:
    """Let a pipeline read all that there is and more, and compare its table with the truth."""
    producer.produce()
    completed(topics, pipeline(directory, work, "available_now = true"))
    table = DeltaTable(Path(topics.lake) / "tables" / "work").to_pyarrow_table().select(work.columns)
    rows = Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert rows == work.truth(producer.orders, producer.payments)


@pytest.mark.parametrize("size", [100, 600])
def test_a_full_disk_ends_a_pipeline_with_one_line_and_once_it_has_room_no_row_is_missing_or_twice(
    topics: Topics, tmp_path: Path, size: int
) -> None:
    work, producer = WORKS["deduplication"], Producer(topics, random.Random(SEED))
    producer.produce()
    with running(topics, pipeline(tmp_path, work, 'interval = "100ms"')) as process:
        wait_until(lambda: process.poll() is not None or begun(topics) > 1, "it runs", SECONDS_MAX)
        assert process.poll() is None, process.communicate()
        [java] = victims(process)["java"]
        # No file gets larger: offsets, state, rows and Delta's log are cut off at different sizes.
        resource.prlimit(java, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        producer.produce()
        _, errors = process.communicate(timeout=SECONDS_MAX)
    lines = [line for line in errors.splitlines() if line.startswith("Error: ")]
    assert (process.returncode, len(lines)) == (1, 1), errors
    assert "File too large" in lines[0]
    check(topics, tmp_path, work, producer)


def test_a_pipeline_goes_on_if_only_checksums_of_delta_lakes_log_find_no_room(
    topics: Topics, tmp_path: Path
) -> None:
    work, producer = WORKS["deduplication"], Producer(topics, random.Random(SEED))
    log, size = Path(topics.lake) / "tables" / "work" / "_delta_log", 5000
    producer.produce()
    with running(topics, pipeline(tmp_path, work, 'interval = "100ms"')) as process:
        wait_until(lambda: process.poll() is not None or begun(topics) > 1, "it runs", SECONDS_MAX)
        assert process.poll() is None, process.communicate()
        [java] = victims(process)["java"]
        resource.prlimit(java, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        producer.produce()
        # Delta Lake writes a version's checksum after its commit, and does without it.
        wait_until(
            lambda: (
                process.poll() is not None
                or any(file.stat().st_size == size for file in log.glob(".*.crc.*.tmp"))
            ),
            "a checksum is cut off",
            SECONDS_MAX,
        )
        assert process.poll() is None, process.communicate()
    check(topics, tmp_path, work, producer)
