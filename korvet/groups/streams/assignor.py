"""The sticky assignor of streams groups (KIP-1071): from members, tasks and the last target to the next one. Pure.

Members get as many tasks as the others, as far as tasks stay where they were: an active task first where it was active,
then where it was standby, which has its state. A standby task is in another process than the active one and than other
standbys of it, where it was before if that can be. So tasks of which there are too few processes have fewer standbys.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from korvet.groups.streams.types import MemberTasks
from korvet.turns import in_turns

_Task: TypeAlias = tuple[str, int]
_OwnerOf: TypeAlias = Callable[[_Task], str | None]


class TaskMember(NamedTuple):
    """A member: the process that it is a thread of, and what it was to have so far."""

    member_id: str
    process_id: str
    target: MemberTasks


class _Process:
    """A process, and what its members have got so far."""

    def __init__(self) -> None:
        self.members: dict[str, int] = {}
        self.tasks: set[_Task] = set()

    @property
    def load(self) -> float:
        return sum(self.members.values()) / len(self.members)

    @property
    def rank(self) -> tuple[int, float]:
        """The less, the sooner it gets the next task: members are to have the same, in whichever process."""
        return min(self.members.values()), self.load

    @property
    def least_loaded(self) -> str:
        return min(self.members, key=lambda member: (self.members[member], member))


class _TaskQuota:
    """The most tasks of a member for which all get about the same number: it falls as members reach it."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members

    @property
    def most(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def note(self, count: int) -> None:
        """Take note of a member that has got another task, and has that many now."""
        if count == self.most:
            self._tasks -= count
            self._members -= 1


def assign_tasks(
    members: Sequence[TaskMember], tasks: Mapping[str, int], stateful: Collection[str], standbys: int
) -> dict[str, MemberTasks]:
    """Return the tasks of each member.

    `tasks` is the number of tasks of each subtopology; those of `stateful` ones have that many standbys, if they can.
    """
    return _Assignment(members, tasks, stateful, standbys).assign() if members else {}


class _Assignment:
    """One assignment under way."""

    def __init__(
        self,
        members: Sequence[TaskMember],
        tasks: Mapping[str, int],
        stateful: Collection[str],
        standbys: int,
    ) -> None:
        self._standbys = standbys
        self._process_of = {item.member_id: item.process_id for item in members}
        self._processes: dict[str, _Process] = {}
        self._was_active: dict[_Task, str] = {}
        self._was_standby: dict[_Task, list[str]] = {}
        for member in sorted(members):
            process = self._processes.setdefault(member.process_id, _Process())
            process.members[member.member_id] = 0
            self._was_active |= dict.fromkeys(member.target.active, member.member_id)
            for task in in_turns(member.target.standby):
                self._was_standby.setdefault(task, []).append(member.member_id)
        self._active: dict[str, set[_Task]] = {item.member_id: set() for item in members}
        self._standby: dict[str, set[_Task]] = {item.member_id: set() for item in members}
        self._tasks = [(item, index) for item, count in sorted(tasks.items()) for index in range(count)]
        self._stateful = [task for task in in_turns(self._tasks) if task[0] in stateful]
        total = len(self._tasks)
        self._active_quota = _TaskQuota(total, len(members))
        self._quota = _TaskQuota(total + len(self._stateful) * standbys, len(members))

    def assign(self) -> dict[str, MemberTasks]:
        self._assign_active()
        if self._standbys:
            self._assign_standby()
        return {
            member: MemberTasks(frozenset(active), frozenset(self._standby[member]))
            for member, active in self._active.items()
        }

    def _assign_active(self) -> None:
        # By partition: members that leave tasks to others leave some of each subtopology.
        left = self._keep(sorted(self._tasks, key=_by_partition), self._was_active_of)
        left = self._keep(left, self._was_standby_of)
        heap = [(*process.rank, name) for name, process in self._processes.items()]
        heapq.heapify(heap)
        for task in in_turns(sorted(left)):
            *_, name = heap[0]
            process = self._processes[name]
            self._give_active(process.least_loaded, task)
            heapq.heapreplace(heap, (*process.rank, name))

    def _keep(self, tasks: Iterable[_Task], owner: _OwnerOf) -> list[_Task]:
        """Give tasks to those that had them, as far as these may have more; returns the others."""
        left = []
        for task in in_turns(tasks):
            member = owner(task)
            if member is not None and self._count(member) < self._active_quota.most:
                self._give_active(member, task)
            else:
                left.append(task)
        return left

    def _assign_standby(self) -> None:
        left: list[_Task] = []
        for task in in_turns(sorted(self._stateful, key=_by_partition, reverse=True)):
            before = [self._was_active.get(task), *self._least_loaded_first(self._was_standby.get(task, ()))]
            given = 0
            for member in before:
                may_have = member is not None and self._count(member) < self._quota.most
                if given < self._standbys and may_have and self._give_standby(str(member), task):
                    given += 1
            left += [task] * (self._standbys - given)
        heap = [(*process.rank, name) for name, process in self._processes.items()]
        heapq.heapify(heap)
        for task in in_turns(sorted(left, reverse=True)):
            passed = []
            while heap:
                entry = heapq.heappop(heap)
                process = self._processes[entry[2]]
                if self._give_standby(process.least_loaded, task):
                    passed.append((*process.rank, entry[2]))
                    break
                passed.append(entry)
            for entry in passed:
                heapq.heappush(heap, entry)

    def _was_active_of(self, task: _Task) -> str | None:
        return self._was_active.get(task)

    def _was_standby_of(self, task: _Task) -> str | None:
        return next(iter(self._least_loaded_first(self._was_standby.get(task, ()))), None)

    def _least_loaded_first(self, members: Iterable[str]) -> list[str]:
        return sorted(
            members,
            key=lambda member: (self._processes[self._process_of[member]].load, self._count(member), member),
        )

    def _count(self, member: str) -> int:
        return self._processes[self._process_of[member]].members[member]

    def _give_active(self, member: str, task: _Task) -> None:
        self._active[member].add(task)
        self._active_quota.note(self._give(member, task))

    def _give_standby(self, member: str, task: _Task) -> bool:
        """Give a standby task to a member; returns False if its process has the task already."""
        if task in self._processes[self._process_of[member]].tasks:
            return False
        self._standby[member].add(task)
        self._give(member, task)
        return True

    def _give(self, member: str, task: _Task) -> int:
        process = self._processes[self._process_of[member]]
        process.tasks.add(task)
        process.members[member] += 1
        self._quota.note(process.members[member])
        return process.members[member]


def _by_partition(task: _Task) -> tuple[int, str]:
    return task[1], task[0]
