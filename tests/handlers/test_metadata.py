"""Metadata of topics that a worker keeps as bytes: changes, and the topics that each principal gets.

`scene` has answered before a change, `other` has kept nothing: both have to give the same answer after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from korvet.cluster.registration import Registration
from korvet.config.listeners import DEFAULT_LISTENER
from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation
from korvet.security.session import Session
from tests.handlers import apis
from tests.handlers.rows.topics import NOT_ASKED_FOR, created, described, gone, grown, moved
from tests.handlers.scene import ALICE, ROOT, TOPIC, Scene

VERSIONS = range(apis.Metadata.api.versions[1] + 1)
ELSEWHERE = Session("10.0.0.1:1", "ELSEWHERE", ROOT.principal)
"""On a listener that no broker has."""
BROKER = 7

Change = Callable[[Scene, Registration], object]


def everything(scene: Scene, version: int = 12, session: Session = ROOT, **fields: Any) -> Any:
    return scene.ask(apis.Metadata, version, session, topics=None if version else [], **fields)


def names(answer: Any) -> set[str]:
    return {topic.name for topic in answer.topics}


@pytest.fixture
def registration(scene: Scene) -> Registration:
    """Create topics, one of them of many partitions, beside another broker, and have all of them kept."""
    registered = scene.other_broker(BROKER)
    scene.create("orders", 2)
    scene.create("spread", 40)
    assert everything(scene) == everything(scene)
    return registered


def create(worker: Scene, _: Registration) -> None:
    worker.do(apis.CreateTopics, **created("new", 2))


def delete(worker: Scene, _: Registration) -> None:
    worker.do(apis.DeleteTopics, **gone())


def create_again(worker: Scene, registration: Registration) -> None:
    delete(worker, registration)
    worker.create("orders", 2)


def add_partitions(worker: Scene, _: Registration) -> None:
    worker.do(apis.CreatePartitions, **grown())


def move(worker: Scene, _: Registration) -> None:
    worker.do(apis.AlterPartitionReassignments, **moved([BROKER]))


def join(worker: Scene, _: Registration) -> None:
    worker.other_broker(BROKER + 1)


def leave(worker: Scene, registration: Registration) -> None:
    worker.brokers.unregister(registration, 0)


@pytest.mark.parametrize(
    "change", [create, delete, create_again, add_partitions, move, join, leave], ids=lambda it: it.__name__
)
def test_a_change_by_another_worker_is_in_the_next_answer(
    scene: Scene, other: Scene, registration: Registration, change: Change
) -> None:
    before = everything(scene).topics
    change(other, registration)
    after = everything(scene)
    assert after == everything(other)
    assert after.topics != before


@pytest.mark.usefixtures("registration")
@pytest.mark.embedded
def test_a_later_epoch_of_the_leaders_is_in_the_next_answer(scene: Scene) -> None:
    epochs = scene.services.epochs
    later = epochs.refresh(scene.storage.appends.node_of(""), epochs.current("") + 1)
    partitions = [partition for topic in everything(scene).topics for partition in topic.partitions]
    assert {partition.leader_epoch for partition in partitions} == {later}


def test_a_broker_is_at_its_new_address(scene: Scene, registration: Registration) -> None:
    scene.brokers.unregister(registration, 0)
    there = {DEFAULT_LISTENER: registration.listeners[DEFAULT_LISTENER]._replace(host="new.example")}
    scene.brokers.register(Registration(broker_id=BROKER, listeners=there, incarnation="restarted"), 60_000)
    hosts = {broker.node_id: broker.host for broker in everything(scene).brokers}
    assert hosts[BROKER] == "new.example"


@pytest.mark.usefixtures("registration")
def test_each_version_has_its_own_bytes(scene: Scene, other: Scene) -> None:
    for version in VERSIONS:
        first, second, named = (
            everything(scene, version),
            everything(scene, version),
            scene.ask(apis.Metadata, version, **described("orders", "spread")),
        )
        assert first == second == everything(other, version)
        assert named.topics == first.topics


@pytest.mark.usefixtures("registration")
def test_a_leader_without_the_callers_listener_is_none_to_that_caller_alone(scene: Scene) -> None:
    for version, error in ((5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)):
        for session, missing in ((ROOT, False), (ELSEWHERE, True)) * 2:
            partitions = [
                partition
                for topic in everything(scene, version, session).topics
                for partition in topic.partitions
            ]
            assert {partition.error_code for partition in partitions} == {
                error if missing else ErrorCode.NONE
            }
            assert (-1 in {partition.leader_id for partition in partitions}) is missing


@pytest.mark.usefixtures("registration")
def test_what_one_caller_may_see_is_not_given_to_another(scene: Scene) -> None:
    scene.allow(AclOperation.DESCRIBE, TOPIC)
    for _ in range(2):
        assert names(everything(scene)) == {"orders", "spread"}
        assert names(everything(scene, session=ALICE)) == {"orders"}
    by_name = scene.ask(apis.Metadata, 12, ALICE, **described("orders", "spread")).topics
    assert {topic.name: topic.error_code for topic in by_name} == {
        "orders": ErrorCode.NONE,
        "spread": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    scene.revoke_all()
    assert names(everything(scene, session=ALICE)) == set()
    scene.allow(AclOperation.DESCRIBE, TOPIC, "spread")
    assert names(everything(scene, session=ALICE)) == {"spread"}


@pytest.mark.usefixtures("registration")
def test_what_a_caller_may_do_is_said_to_who_asks_for_it_alone(scene: Scene) -> None:
    scene.allow(AclOperation.DESCRIBE, TOPIC)
    asking = {"include_topic_authorized_operations": True}

    def operations(session: Session, **fields: Any) -> int:
        topics = {topic.name: topic for topic in everything(scene, session=session, **fields).topics}
        result: int = topics["orders"].topic_authorized_operations
        return result

    for _ in range(2):
        assert operations(ALICE) == operations(ROOT) == NOT_ASKED_FOR
        assert operations(ALICE, **asking) == 1 << AclOperation.DESCRIBE
        assert operations(ROOT, **asking) & 1 << AclOperation.DELETE
