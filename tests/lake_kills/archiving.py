"""`korvet lake archive` under kills, with compaction and expiry beside it."""

from __future__ import annotations

import json
from collections import Counter

from tests.lake_kills.killing import Found, Run, Target, kill_at_random
from tests.lake_kills.producing import Sending
from tests.lake_kills.readers import READERS, by_spark, received, spark_of
from tests.lake_kills.system import SECONDS_MAX, TOPICS, System
from tests.support import reading
from tests.support.processes import wait_until
from tests.support.records import PARTITIONS, check_exactly


def archive(system: System, run: Run, *, with_spark: bool = True) -> Found:
    """Kill its processes while records come; then check all that was acknowledged; `with_spark` needs Maven."""
    program = ("tests.lake_kills.small_rounds",) if run.once else ("korvet",)
    if system.where == "none":
        program = ("tests.lake_kills.without_spark",)
    often = () if run.once else ("--interval", "0.05")
    with (
        system.command("archive", "--master", system.master, *often, program=program) as archiving,
        system.command("compact", "--interval", "1") as compacting,
        system.command("expire", "--interval", "2") as expiring,
    ):
        # Without --interval it has done what there was, and is started again.
        target = Target(archiving, system.known, (0,) if run.once else (), lambda: _phase(system))
        targets = {"": target, "compact": Target(compacting, system.known)}
        with Sending(system.broker.bootstrap, list(TOPICS), run.rate) as sending:
            counts = kill_at_random(system, run, targets)
        if run.once:
            wait_until(lambda: archiving.code is not None, "archive ends", SECONDS_MAX)
            archiving.start_again()
        system.wait_until_archived()
        if run.once:
            # One that is ended has not done its work, and says so by its code.
            wait_until(lambda: archiving.code is not None, "archive ends", SECONDS_MAX)
        violations = [
            f"{command.program} ended with {code}:\n{command.log()[-2000:]}"
            for command in (archiving, compacting, expiring)
            if (code := command.end())
        ]
    counts["records"] = sum(map(len, sending.acknowledged.values()))
    return Found(
        counts + _files(system), violations + sending.errors + check(system, sending, with_spark=with_spark)
    )


def _phase(system: System) -> str:
    behind = any(each.committed > each.known for each in system.ages())
    return "between a commit and Redis' knowing it" if behind else ""


def _files(system: System) -> Counter[str]:
    """Count the files of the tables, and those that no commit ever named: a kill came before it."""
    counts = Counter[str]()
    for topic, table in system.tables().items():
        stored, named = system.data_files(topic), system.named_files(topic)
        counts["files of the tables"] += len(table.files())
        counts["files that no commit named"] += len(stored - named)
    return counts


def check(system: System, sending: Sending, *, with_spark: bool) -> list[str]:
    """Return what is wrong with what is archived: every record once, in order, every field as it was sent."""
    violations: list[str] = []
    for topic, table in system.tables().items():
        for name, read in READERS.items():
            try:
                rows = received(read(table.uri, system.lake.storage_options))
                check_exactly(sending.sent, rows, sending.acknowledged[topic])
            except AssertionError as error:
                violations.append(f"{topic} as {name} reads it: {str(error)[:500]}")
        count = len(sending.acknowledged[topic])
        try:
            with reading.consumer(system.broker.bootstrap, topic, range(PARTITIONS)) as running:
                check_exactly(
                    sending.sent, reading.read(running, count, SECONDS_MAX), sending.acknowledged[topic]
                )
        except AssertionError as error:
            violations.append(f"{topic} as a consumer reads it: {str(error)[:500]}")
    if set(system.tables()) != set(TOPICS):
        violations.append(f"only these have tables: {sorted(system.tables())}")
    verified = system.run("verify", "--json")
    if verified.returncode or any(each["findings"] for each in json.loads(verified.stdout)):
        violations.append(f"verify: {verified.stdout}{verified.stderr}")
    # What was found until here is seen also if Spark does not start.
    print(*(violations or ["read as it was sent, by all but Spark"]), sep="\n", flush=True)
    return violations + (check_by_spark(system, sending) if with_spark else [])


def check_by_spark(system: System, sending: Sending) -> list[str]:
    """Return the same as Delta Lake on Spark reads it."""
    violations = []
    with spark_of(system) as driver:
        for topic, table in system.tables().items():
            try:
                rows = received(driver.run(by_spark, system.by_hadoop(table.uri)))
                check_exactly(sending.sent, rows, sending.acknowledged[topic])
            except AssertionError as error:
                violations.append(f"{topic} as Delta Lake on Spark reads it: {str(error)[:500]}")
    return violations
