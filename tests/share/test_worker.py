"""The plain worker of docs/share-groups.md beside members of its group: each record goes to one of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.share.support import GROUP, Part
from tests.support.appends import at_rest
from tests.support.docs import PAGES
from tests.support.processes import wait_until
from tests.support.tutorial import section_of

pytestmark = pytest.mark.slow

RECORDS = 400
Worker = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(redis_url: str, queue: Part, tmp_path: Path) -> Iterator[Worker]:
    [code] = re.findall(
        r"```python\n(.*?)```", section_of(PAGES["docs/share-groups.md"], "Plain Redis workers"), re.DOTALL
    )
    (tmp_path / "worker.py").write_text(code)
    with ExitStack() as stack:

        def started(name: str) -> subprocess.Popen[str]:
            command = [sys.executable, str(tmp_path / "worker.py"), redis_url, queue.stream, GROUP, name]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            return process

        yield started


def end(worker: subprocess.Popen[str], queue: Part) -> list[str]:
    """Kill a worker, and return what it has printed; Redis gives it nothing more."""
    worker.kill()
    printed, _ = worker.communicate()
    wait_until(lambda: queue.raw.info("clients")["blocked_clients"] == 0, "its connection is closed")
    return printed.split()


def consumers(queue: Part) -> dict[bytes, int]:
    results: Any = queue.raw.xinfo_consumers(queue.stream, GROUP)
    return {result["name"]: result["pending"] for result in results}


def test_each_record_goes_to_one_of_workers_and_members(queue: Part, start: Worker) -> None:
    queue.begin(0)
    workers = []
    total = 0
    for number in range(RECORDS):
        if number == RECORDS // 4:
            workers = [start("w1"), start("w2")]
            wait_until(lambda: {b"w1", b"w2"} & consumers(queue).keys(), "a worker has read")
        value = b"%d" % number
        queue.bench.append(value if number % 2 else value.rjust(2000), config=at_rest("lz4"))
        if number % 10 == 0:
            for offset, count in queue.take("m1", 3):
                assert count == 1
                [record] = queue.bench.records(offset, 1)
                total += int(record.value or b"")
                queue.acknowledged(offset)
    end_offset = queue.bench.bounds().high_watermark
    wait_until(lambda: queue.state() == (end_offset, end_offset, 0), "all is done")
    for worker in workers:
        worker.kill()
    sums = [int((end(worker, queue) or ["0"])[-1]) for worker in workers]
    assert total > 0
    assert sum(sums) > 0
    assert total + sum(sums) == sum(range(RECORDS))


def test_what_a_member_releases_or_a_dead_one_had_goes_to_a_worker(queue: Part, start: Worker) -> None:
    offsets = [queue.bench.append(b"%d" % (1 << n)) for n in range(5)]
    queue.begin(offsets[0])
    queue.take("m1")
    queue.acknowledged(offsets[0])
    queue.acknowledged(offsets[1], type_=2)
    queue.policy = queue.policy._replace(lock_ms=30_000)
    queue.expire(offsets[2], offsets[3])
    worker = start("w1")
    wait_until(lambda: queue.state()[2] == 1, "the worker has worked")
    assert end(worker, queue) == ["2", "6", "14"]
    assert not queue.acknowledged(offsets[4])


def test_a_worker_that_comes_first_begins_the_group(queue: Part, start: Worker) -> None:
    queue.bench.append(b"1")
    worker = start("w1")
    wait_until(lambda: queue.raw.xinfo_groups(queue.stream), "the group is there")
    queue.bench.append(b"2")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "2\n"
    wait_until(lambda: consumers(queue)[b"w1"] == 0, "the worker has worked")
    assert end(worker, queue) == []
    begun = queue.begin(0)
    assert begun is not None
    last = queue.bench.append(b"4")
    assert queue.take() == [(last, 1)]
