"""Members that do anything in any order, on two workers: no two ever use a partition, and in the end all is shared.

A member uses its partitions until it has reported their revocation. Answers that it may not know count too: answers
get lost, members of both protocols come and go, and topics do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.types import Owned
from tests.groups.consumer.support import NAME, REBALANCE_MS, Client, Consumers, delete_topic, grow_topic
from tests.groups.consumer.test_migration import ClassicClient
from tests.groups.support import KEYS

FENCED = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.ILLEGAL_GENERATION,
}
STEPS = 120


class Calm(random.Random):
    """Has members do nothing but what they are asked to."""

    def random(self) -> float:
        """Return what none of the rare steps is for."""
        return 0.99


class New:
    """A member of the consumer protocol."""

    def __init__(self, at: Consumers, name: str) -> None:
        self.client = Client(at, name, "orders")
        self.is_member = False

    def uses(self) -> Owned:
        return self.client.owned | self.client.assigned if self.is_member else frozenset()

    def step(self, rng: random.Random) -> None:
        try:
            if not self.is_member:
                self.is_member = True
                self.client.join()
            elif rng.random() < 0.1:
                names = rng.choice([("orders",), ("bills",), ("orders", "bills")])
                self.client.send(names=names)
            elif rng.random() < 0.15:
                self.lose_an_answer()
            elif rng.random() < 0.1:
                self.client.leave()
                self.is_member = False
            else:
                self.client.beat()
        except KafkaError as error:
            self.is_member = _stays(error)

    def lose_an_answer(self) -> None:
        """Send what a client would, and get no answer: it will ask again, with all that it knows."""
        kept = self.client.epoch, self.client.assigned
        self.client.send(owned=self.client.owned)
        self.client.epoch, self.client.assigned = kept
        self.client.send(
            rebalance_ms=REBALANCE_MS, names=self.client.fields["names"], owned=self.client.owned
        )


class Old:
    """A member of the classic protocol."""

    def __init__(self, at: Consumers) -> None:
        self.client = ClassicClient(at, "orders", "bills")
        self.used: Owned = frozenset()
        self.is_member = False

    def uses(self) -> Owned:
        return self.used if self.is_member else frozenset()

    def sync(self) -> None:
        """Get the assignment; of a topic that was created again it is another one."""
        at = self.client.at
        at.domain.topics.refresh()
        every = [at.owned(topic, *indexes) for topic, indexes in self.client.sync().items()]
        self.used = frozenset[tuple[str, int]]().union(*every)

    def step(self, rng: random.Random) -> None:
        try:
            if not self.is_member:
                self.client = ClassicClient(self.client.at, "orders", "bills")
                self.client.join()
                self.is_member, self.used = True, frozenset()
                self.sync()
            elif rng.random() < 0.1:
                self.client.at.classic.leave(NAME, [(self.client.member_id, "")])
                self.is_member = False
            elif self.client.must_join():
                self.client.join()
                if rng.random() > 0.2:
                    self.sync()
        except KafkaError as error:
            if error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
                self.is_member = _stays(error)


def _stays(error: KafkaError) -> bool:
    """Return False: a member that is fenced joins again. Raises any other error."""
    if error.code not in FENCED:
        raise error
    return False


def changes_of_topics(at: Consumers, rng: random.Random) -> None:
    """Create, delete or grow a topic."""
    topic = rng.choice(["orders", "bills"])
    at.domain.topics.refresh()
    result = at.domain.topics.get_cached(topic)
    if result is None:
        at.create(topic, rng.randint(1, 5))
    elif rng.random() < 0.3:
        delete_topic(at, topic)
    elif len(result.partitions) < 8:
        grow_topic(at, topic, len(result.partitions) + 1)


def members(at: Consumers, other: Consumers, count_old: int) -> Iterator[New | Old]:
    for number in range(4):
        yield New((at, other)[number % 2], f"member-{number}")
    for number in range(count_old):
        yield Old((at, other)[number % 2])


def rest(at: Consumers, everybody: list[New | Old]) -> None:
    """Have nobody come or go any more, until the group is stable."""
    calm = Calm()
    for turn in range(30):
        for item in everybody:
            item.client.at.domain.topics.refresh()  # as a worker does that is notified
            item.step(calm)
        if turn and at.state() == "Stable":
            return
    raise AssertionError(at.describe())


@pytest.mark.parametrize("count_old", [0, 2])
@pytest.mark.parametrize("seed", range(12))
def test_no_two_members_use_a_partition_whatever_they_do(
    at: Consumers, other: Consumers, seed: int, count_old: int
) -> None:
    rng = random.Random(seed)
    everybody = list(members(at, other, count_old))
    everybody[0].is_member = True
    _join(everybody[0])  # it stays: without it the group would become a classic one, in which members wait
    for _ in range(STEPS):
        if rng.random() < 0.05:
            changes_of_topics(rng.choice([at, other]), rng)
        else:
            who = rng.choice(everybody)
            if who is everybody[0]:
                _beat(who)
            else:
                who.client.at = rng.choice([at, other])
                who.step(rng)
        used: list[Any] = [use for member in everybody for use in member.uses()]
        assert len(used) == len(set(used)), [item.uses() for item in everybody]
    rest(at, everybody)
    described = at.describe()
    every = at.subscribed(described.members)
    assigned = [
        (topic, index)
        for item in described.members
        for topic, indexes in described.by_name(item.progress.assigned).items()
        for index in indexes
    ]
    assert sorted(assigned) == sorted(every)
    owners = [field for field in at.raw.hkeys(KEYS.group_assignments(NAME)) if field.startswith(b"o:")]
    assert len(owners) == len(every)


def _join(member: New | Old) -> None:
    assert isinstance(member, New)
    member.client.join()


def _beat(member: New | Old) -> None:
    assert isinstance(member, New)
    member.client.beat()
