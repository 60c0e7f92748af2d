"""The sticky assignor of tasks: each is active once, members have about the same, and nothing moves that need not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from korvet.groups.streams.assignor import TaskMember, assign_tasks
from korvet.groups.streams.types import MemberTasks, Tasks

Assigned = Mapping[str, MemberTasks]


def members(*names: str, before: Assigned | None = None) -> list[TaskMember]:
    """Return members, each named by its process and a thread of it: `p1/a`."""
    return [
        TaskMember(name, name.partition("/")[0], (before or {}).get(name, MemberTasks())) for name in names
    ]


def tasks_of(subtopology: str, *partitions: int) -> Tasks:
    return frozenset((subtopology, partition) for partition in partitions)


def check(assigned: Assigned, tasks: Mapping[str, int], stateful: set[str], standbys: int) -> None:
    """Fail unless each task is active once, with as many standbys in other processes as these allow."""
    every = {(item, index) for item, count in tasks.items() for index in range(count)}
    active = Counter(task for own in assigned.values() for task in own.active)
    assert active == dict.fromkeys(every, 1)
    held = Counter(
        (name.partition("/")[0], task) for name, own in assigned.items() for task in own.active | own.standby
    )
    assert set(held.values()) <= {1}
    processes = {name.partition("/")[0] for name in assigned}
    wanted = min(standbys, len(processes) - 1)
    standby = Counter(task for own in assigned.values() for task in own.standby)
    assert standby == {task: wanted for task in every if wanted and task[0] in stateful}


def loads(assigned: Assigned) -> list[int]:
    return sorted(len(own.active) for own in assigned.values())


def test_nobody_and_nothing_can_be_assigned() -> None:
    assert assign_tasks([], {"0": 3}, {"0"}, 1) == {}
    assert assign_tasks(members("p/a"), {}, set(), 1) == {"p/a": MemberTasks()}


def test_tasks_stay_where_they_were() -> None:
    tasks = {"0": 6, "1": 6}
    first = assign_tasks(members("p/a", "q/a", "r/a"), tasks, {"1"}, 1)
    again = assign_tasks(members("r/a", "q/a", "p/a", before=first), tasks, {"1"}, 1)
    assert again == first


def test_a_new_member_gets_its_share_and_no_more_moves() -> None:
    tasks = {"0": 6, "1": 6}
    first = assign_tasks(members("p/a", "q/a"), tasks, set(), 0)
    second = assign_tasks(members("p/a", "q/a", "r/a", before=first), tasks, set(), 0)
    assert loads(second) == [4, 4, 4]
    assert all(second[name].active <= first[name].active for name in first)


def test_tasks_of_a_member_that_left_go_where_their_state_is() -> None:
    before = {
        "p/a": MemberTasks(tasks_of("0", 0, 1), tasks_of("0", 5)),
        "q/a": MemberTasks(tasks_of("0", 2, 3), tasks_of("0", 4)),
    }
    assigned = assign_tasks(members("p/a", "q/a", before=before), {"0": 6}, {"0"}, 1)
    check(assigned, {"0": 6}, {"0"}, 1)
    assert assigned["p/a"].active == tasks_of("0", 0, 1, 5)
    assert assigned["q/a"].active == tasks_of("0", 2, 3, 4)


def test_standbys_are_spread() -> None:
    assigned = assign_tasks(members("p/a", "q/a", "r/a"), {"0": 6}, {"0"}, 1)
    assert sorted(len(own.standby) for own in assigned.values()) == [2, 2, 2]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_members_come_and_go_each_task_is_active_once_and_loads_are_even(seed: int) -> None:
    chance = random.Random(seed)
    tasks = {str(number): chance.randrange(1, 9) for number in range(chance.randrange(1, 5))}
    stateful = {task for task in tasks if chance.random() < 0.7}
    standbys = chance.randrange(3)
    everybody = [f"p{process}/{thread}" for process in range(5) for thread in range(3)]
    before: Assigned = {}
    for _ in range(20):
        present = chance.sample(everybody, chance.randrange(1, len(everybody) + 1))
        before = assign_tasks(members(*present, before=before), tasks, stateful, standbys)
        check(before, tasks, stateful, standbys)
        result = loads(before)
        if not standbys:
            assert result[-1] - result[0] <= 1
        assert assign_tasks(members(*present, before=before), tasks, stateful, standbys).keys() == set(
            present
        )
