"""Members of a streams group at random: whatever they do and whenever, no task is ever in two wrong places."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.groups.streams.support import Application, Runner, settle

PARTITIONS = 3
TASKS = {(subtopology, index) for subtopology in "01" for index in range(PARTITIONS)}
PROCESSES, THREADS = 3, 2


class Client(Runner):
    """A member that closes and opens tasks a while after an answer: what it runs it reports with a later heartbeat."""

    def __init__(self, at: Application, name: str) -> None:
        super().__init__(at, name)
        self.running = self.tasks

    def close(self) -> None:
        self.running = type(self.running)(
            self.running.active & self.tasks.active, self.running.standby & self.tasks.standby
        )

    def work(self) -> None:
        """Do what the last answer said, first of all to close tasks."""
        self.close()
        self.running = self.tasks

    def report(self) -> None:
        """Send a heartbeat, and say what it runs if that has changed."""
        reports, self.must_report = self.must_report and self.running == self.tasks, self.must_report
        if reports:
            self.must_report = False
        self.send(**({"tasks": self.running} if reports else {}))


def check(present: list[Client]) -> None:
    active = Counter(task for item in present for task in item.running.active)
    assert [task for task, count in active.items() if count > 1] == []
    held = Counter(
        (item.fields["process_id"], task)
        for item in present
        for task in (*item.running.active, *item.running.standby)
    )
    assert [key for key, count in held.items() if count > 1] == []


class Random:
    """What happens to a group."""

    def __init__(self, seed: int, *workers: Application) -> None:
        self.chance, self.workers = random.Random(seed), workers
        self.names = [f"p{process}/{thread}" for process in range(PROCESSES) for thread in range(THREADS)]
        self.present: list[Client] = []

    def step(self) -> None:
        kinds = {self.beat: 10, self.work: 10, self.join: 3, self.leave: 1, self.end: 1, self.configure: 1}
        [step] = self.chance.choices([*kinds], [*kinds.values()])
        step()
        check(self.present)

    def join(self) -> None:
        if absent := sorted(set(self.names) - {item.member_id for item in self.present}):
            joining = Client(self.chance.choice(self.workers), self.chance.choice(absent))
            joining.join()
            self.present.append(joining)

    def configure(self) -> None:
        self.workers[0].set_configs(streams_num_standby_replicas=str(self.chance.randrange(3)))
        for worker in self.workers:
            worker.configs.refresh()

    def beat(self) -> None:
        if self.present:
            beating = self.chance.choice(self.present)
            beating.at = self.chance.choice(self.workers)
            beating.report()

    def work(self) -> None:
        if self.present:
            self.chance.choice(self.present).work()

    def leave(self) -> None:
        if gone := self._gone():
            gone.leave()

    def end(self) -> None:
        if gone := self._gone():
            self.workers[0].let_pass(gone.member_id)

    def _gone(self) -> Client | None:
        """Take one out: it has stopped, or others count it out, and what it runs does not matter any more."""
        return self.present.pop(self.chance.randrange(len(self.present))) if self.present else None


@pytest.mark.parametrize("seed", range(12))
def test_no_task_is_in_two_wrong_places(at: Application, other: Application, seed: int) -> None:
    """A task is active once in the group, and once in a process."""
    at.create_all(PARTITIONS)
    happens = Random(seed, at, other)
    for _ in range(150):
        happens.step()
    happens.join()
    for _ in range(20):
        for item in happens.present:
            item.report()
            item.work()
            check(happens.present)
    settle(*happens.present)
    assert {task for item in happens.present for task in item.running.active} == TASKS
    assert at.state() == "Stable"
