"""Members that do anything in any order, and workers that are killed: in the end each member has its target."""

from __future__ import annotations

import random

import pytest

from korvet.errors import ErrorCode, KafkaError
from tests.groups.consumer.support import NAME
from tests.groups.consumer.test_model import Calm, changes_of_topics
from tests.groups.share.support import Client, Shares
from tests.groups.support import KEYS

FENCED = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
STEPS = 120


def step(client: Client, rng: random.Random) -> None:
    try:
        if client.epoch <= 0:
            client.join()
        elif rng.random() < 0.1:
            client.fields["names"] = rng.choice([("orders",), ("bills",), ("orders", "bills")])
            client.send(names=client.fields["names"])
        elif rng.random() < 0.1:
            kept = client.epoch, client.assigned
            client.send()
            client.epoch, client.assigned = kept  # the answer is lost: it says all that it knows
            client.send(names=client.fields["names"])
        elif rng.random() < 0.1:
            client.leave()
        elif rng.random() < 0.1 and client.at.raw.zscore(KEYS.group_deadlines(NAME), client.member_id):
            client.at.let_pass(client.member_id)  # it finds out with its next heartbeat
        else:
            client.send()
    except KafkaError as error:
        if error.code not in FENCED:
            raise
        client.epoch = 0


def check(at: Shares, *clients: Client) -> None:
    """Expect that all members have their targets, as they see it themselves, and that somebody has each partition."""
    for _ in range(2):
        for client in clients:
            client.at.domain.topics.refresh()  # as a worker does that is notified
            client.send()
    described = at.describe()
    assert described.fields.epoch == described.fields.assignment_epoch
    assert described.fields.state == "Stable"
    members = {member.member_id: member for member in described.members}
    assert members.keys() == {client.member_id for client in clients}
    for client in clients:
        stored = members[client.member_id]
        assert client.epoch == stored.progress.epoch == described.fields.epoch
        assert stored.progress.assigned == stored.target
        assert client.has() == described.by_name(stored.target)
        assert client.has().keys() <= set(stored.row.names)
    owned = {(topic, index) for client in clients for topic, own in client.has().items() for index in own}
    assert owned == at.subscribed(described.members)
    stored_rows = {field.decode()[0] for field in at.raw.hkeys(KEYS.group_assignments(NAME))}
    assert stored_rows <= {"c", "t"}


@pytest.mark.parametrize("seed", range(8))
def test_in_the_end_each_member_has_its_target_whatever_they_did(
    at: Shares, other: Shares, seed: int
) -> None:
    rng = random.Random(seed)
    clients = [Client((at, other)[number % 2], f"member-{number}", "orders") for number in range(6)]
    for _ in range(STEPS):
        if rng.random() < 0.05:
            changes_of_topics(rng.choice([at, other]), rng)
            continue
        client = rng.choice(clients)
        client.at = rng.choice([at, other])
        step(client, rng)
    for item in clients * 2:
        step(item, Calm())
    check(at, *clients)
