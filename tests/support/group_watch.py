"""What the brokers say of a group while a test goes on: its members and their parts, and its committed offsets.

`GroupWatch` looks again and again, by bytes, through each broker in turn, and passes over what is away. It collects
what must never be: a partition of two members in a stable generation, a committed offset that goes back.
"""

from __future__ import annotations

import struct
import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

from korvet.errors import ErrorCode
from tests.handlers import apis
from tests.support.broker import Broker
from tests.support.crowd import Crowd
from tests.support.load import Load
from tests.support.processes import wait_until
from tests.support.wire_client import ClosedByBrokerError, WireClient

SECONDS_MAX = 60.0
ALL_READ_SECONDS_MAX = 180.0
"""Twelve clients in a few processes read what came while they joined again and again."""
_GENERATIONS_MAX = 500
_PAUSE_SECONDS = 0.03
_LOOKS_PER_CONNECTION = 10


class Part(NamedTuple):
    """A member as DescribeGroups shows it."""

    member_id: str
    instance: str
    partitions: list[int]


class Look(NamedTuple):
    """A group as DescribeGroups shows it; members by their client ids."""

    state: str
    members: dict[str, Part]

    def all_partitions(self) -> list[int]:
        """Return those of all members."""
        return sorted(partition for part in self.members.values() for partition in part.partitions)


class GroupWatch:
    """One group; a context manager, in which it looks. `brokers` may change meanwhile."""

    def __init__(self, brokers: list[Broker], group: str, partitions: int, *, eager: bool = True) -> None:
        """In stable generations of an `eager` assignor all partitions have an owner, once `settle` has found it so.

        In the first ones a leader may still know of no partitions.
        """
        self.committed: dict[int, int] = {}
        self.problems: list[str] = []
        self.brokers = brokers
        self._group = group
        self._partitions = list(range(partitions))
        self._eager = eager
        self._has_settled = False
        self._last = Look("", {})
        self._turns = self._looks = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch of {group}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(SECONDS_MAX)

    def settle(self, crowd: Crowd) -> Look:
        """Wait until brokers and members agree that these share all partitions; returns the group."""
        since = -1

        def settled() -> bool:
            nonlocal since
            if not self._agrees(crowd):
                since = -1
            elif since < 0:
                since = self._looks
            # The second look from now on begins after now: what is compared is not older than what members say.
            return since >= 0 and self._looks > since + 1

        try:
            wait_until(
                lambda: self.problems or crowd.problems or settled(), "members share a topic", SECONDS_MAX
            )
        except AssertionError as error:
            raise AssertionError(f"{self._last}\n{crowd.owned()}\n{crowd.views()}") from error
        self.check()
        crowd.check_problems()
        self._has_settled = True
        return self._last

    def check(self) -> None:
        """Fail where anything was found that must not be."""
        assert not self.problems, "\n".join(self.problems)

    def finish(self, crowd: Crowd, load: Load) -> None:
        """End the producer, wait until all is delivered and committed, and check what was found on the way."""
        load.end()
        assert load.errors == []
        ends = {partition: offset + 1 for partition, offset in sorted(load.acknowledged)}

        def left() -> dict[int, tuple[int | None, int]]:
            return {
                item: (self.committed.get(item), end)
                for item, end in ends.items()
                if self.committed.get(item) != end
            }

        try:
            wait_until(
                lambda: crowd.problems or self.problems or (len(crowd.received) == load.sent and not left()),
                "all is delivered and committed",
                ALL_READ_SECONDS_MAX,
            )
        except AssertionError as error:
            raise AssertionError(
                f"{len(crowd.received)} of {load.sent} delivered; committed of {left()}"
            ) from error
        self.check()

    def wait_for_rebalance(self, joining: str) -> None:
        """Wait until a rebalance is under way, or this one that joins has come through it unseen."""
        wait_until(
            lambda: self._last.state == "PreparingRebalance" or joining in self._last.members,
            f"{self._group} has a rebalance",
            SECONDS_MAX,
        )

    def go_on(self) -> None:
        """Wait until the group has committed more than now in every partition."""
        now = dict(self.committed)

        def still() -> list[int]:
            return [
                partition
                for partition in self._partitions
                if self.committed.get(partition, 0) <= now.get(partition, 0)
            ]

        try:
            wait_until(lambda: self.problems or not still(), f"{self._group} goes on", SECONDS_MAX)
        except AssertionError as error:
            raise AssertionError(f"{still()} of {self.committed} stand still\n{self._last}") from error
        self.check()

    def generation(self) -> int:
        """Return the generation that the brokers say is the present one; the group must be at rest.

        A heartbeat is answered without an error in the present generation alone. It is sent again, as members do,
        while the broker rests after an attempt in vain to reach Redis.
        """
        deadline = time.monotonic() + SECONDS_MAX
        part = next(iter(self._last.members.values()))
        with WireClient(self.brokers[0].address) as client:
            for generation in range(1, _GENERATIONS_MAX):
                beat = {
                    "group_id": self._group,
                    "generation_id": generation,
                    "member_id": part.member_id,
                    "group_instance_id": part.instance or None,
                }
                while (
                    code := client.ask(apis.Heartbeat, 4, **beat).error_code
                ) == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                    assert time.monotonic() < deadline, "this broker does not reach Redis"
                    time.sleep(_PAUSE_SECONDS)
                if code == ErrorCode.NONE:
                    return generation
        raise AssertionError(f"no generation of {self._group} below {_GENERATIONS_MAX}")

    def ask(self) -> Look:
        """Look at the group now."""
        with WireClient(self.brokers[0].address) as client:
            look = _described(client, self._group)
        assert look, "nobody knows"
        return look

    def _agrees(self, crowd: Crowd) -> bool:
        look = self._last
        shown = {name: set(part.partitions) for name, part in look.members.items()}
        return (
            look.state == "Stable"
            and shown == crowd.owned()
            and all(shown.values())
            and look.all_partitions() == self._partitions
        )

    def _run(self) -> None:
        while not self._ending.is_set():
            broker = self.brokers[self._turns % len(self.brokers)]
            self._turns += 1
            try:
                with WireClient(broker.address) as client:
                    for _ in range(_LOOKS_PER_CONNECTION):
                        self._look(client)
                        if self._ending.wait(_PAUSE_SECONDS):
                            return
            except (OSError, ClosedByBrokerError):
                self._ending.wait(_PAUSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - any error fails the test
                self.problems.append(repr(error))

    def _look(self, client: WireClient) -> None:
        look = _described(client, self._group)
        if look:
            everything = look.all_partitions()
            if look.state == "Stable" and len(set(everything)) < len(everything):
                self.problems.append(f"two have the same partition: {look}")
            if (
                look.state == "Stable"
                and self._eager
                and self._has_settled
                and everything != self._partitions
            ):
                self.problems.append(f"not all partitions have an owner: {look}")
            self._last = look
            self._looks += 1
        for partition, offset in _committed(client, self._group).items():
            if offset < self.committed.get(partition, 0):
                self.problems.append(f"{partition} goes back from {self.committed[partition]} to {offset}")
            self.committed[partition] = offset


def coordinator(brokers: list[Broker], group: str) -> Broker:
    """Return the broker that clients get as the coordinator of a group; the brokers' ids are their places."""
    with WireClient(brokers[0].address) as client:
        [result] = client.ask(apis.FindCoordinator, 4, coordinator_keys=[group]).coordinators
    node_id: int = result.node_id
    return brokers[node_id]


def _described(client: WireClient, group: str) -> Look | None:
    [result] = client.ask(apis.DescribeGroups, 5, groups=[group]).groups
    if result.error_code:
        return None
    return Look(
        result.group_state,
        {
            member.client_id: Part(
                member.member_id,
                member.group_instance_id or "",
                assigned_partitions(member.member_assignment),
            )
            for member in result.members
        },
    )


def _committed(client: WireClient, group: str) -> dict[int, int]:
    [result] = client.ask(apis.OffsetFetch, 8, groups=[{"group_id": group, "topics": None}]).groups
    if result.error_code:
        return {}
    return {
        partition.partition_index: partition.committed_offset
        for topic in result.topics
        for partition in topic.partitions
        if not partition.error_code
    }


def assigned_partitions(assignment: bytes) -> list[int]:
    """Return the partitions of the one topic in an assignment of Kafka's consumer protocol."""
    if not assignment:
        return []
    _, topics = struct.unpack_from(">hi", assignment)
    if not topics:
        return []
    (size,) = struct.unpack_from(">h", assignment, 6)
    (count,) = struct.unpack_from(">i", assignment, 8 + size)
    return list(struct.unpack_from(f">{count}i", assignment, 12 + size))
