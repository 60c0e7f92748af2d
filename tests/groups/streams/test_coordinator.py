"""Members of streams groups on a real server: they join, get tasks step by step, and leave."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from korvet.errors import ErrorCode
from korvet.groups.offsets import Commit, Committer
from korvet.groups.streams.types import GroupStatus, MemberTasks
from korvet.protocol.types import TopicPartition
from tests.groups.consumer.support import NAME, grow_topic
from tests.groups.streams.support import Application, Runner, settle, statuses
from tests.groups.streams.topologies import WORD_COUNT, subtopology, topology
from tests.groups.support import KEYS, refused

PROCESS_ID = "ProcessId must have no slash, quote, backslash or control character."
ALL_ACTIVE = {"0": [0, 1, 2], "1": [0, 1, 2]}


def test_the_first_member_gets_all_tasks_with_its_first_heartbeat(at: Application) -> None:
    at.create_all()
    one = Runner(at, "p/a")
    answer = one.join()
    assert (answer.member_id, answer.epoch, answer.heartbeat_ms, answer.statuses) == ("p/a", 2, 5000, ())
    assert (one.active, one.standby) == (ALL_ACTIVE, {})
    assert (one.beat().tasks, one.beat().tasks) == (None, None)
    result = at.described()
    assert result.topology == WORD_COUNT
    assert {name: item.partitions for name, item in result.internal.items()} == {
        "by-word": 3,
        "counts-changelog": 3,
    }


def test_without_source_topics_members_have_no_tasks_and_know_why(at: Application) -> None:
    one = Runner(at, "p/a")
    answer = one.join()
    assert answer.statuses == ((GroupStatus.MISSING_SOURCE_TOPICS, "Source topics lines are missing."),)
    assert (answer.tasks, answer.missing) == (MemberTasks(), ())
    assert at.state() == "NotReady"
    assert statuses(one.beat()) == [GroupStatus.MISSING_SOURCE_TOPICS]
    assert statuses(one.beat()) == [GroupStatus.MISSING_SOURCE_TOPICS]


def test_internal_topics_that_are_missing_are_to_be_created_and_then_there_are_tasks(
    at: Application, other: Application
) -> None:
    at.create("lines", 3)
    one = Runner(at, "p/a")
    answer = one.join()
    assert statuses(answer) == [GroupStatus.MISSING_INTERNAL_TOPICS]
    assert {item.name: item.partitions for item in answer.missing} == {"by-word": 3, "counts-changelog": 3}
    assert one.active == {}
    other.create("by-word", 3)
    other.create("counts-changelog", 3)
    answer = one.beat()
    assert (answer.statuses, one.active) == ((), ALL_ACTIVE)
    settle(one)
    assert at.state() == "Stable"


def test_topics_with_other_numbers_of_partitions_take_the_tasks_away(at: Application) -> None:
    at.create_all()
    one = Runner(at, "p/a")
    one.join()
    settle(one)
    grow_topic(at, "lines", 4)
    answer = one.beat()
    assert statuses(answer) == [GroupStatus.INCORRECTLY_PARTITIONED_TOPICS]
    assert one.active == {}


def test_the_first_assignment_waits_for_more_members(at: Application) -> None:
    at.create_all()
    at.set_configs(streams_initial_rebalance_delay_ms="60000")
    one, two = Runner(at, "p/a"), Runner(at, "q/a")
    answer = one.join()
    assert (answer.epoch, answer.tasks, statuses(answer)) == (
        *(1, MemberTasks()),
        [GroupStatus.ASSIGNMENT_DELAYED],
    )
    assert statuses(one.beat()) == statuses(two.join()) == [GroupStatus.ASSIGNMENT_DELAYED]
    at.raw.hset(KEYS.group_state(NAME), "delayed_until", 1)
    settle(one, two)
    assert sorted(sum(map(len, item.active.values())) for item in (one, two)) == [3, 3]
    assert Runner(at, "r/a").join().statuses == (), "who joins later waits for nothing"


def test_a_change_of_the_number_of_standbys_is_a_new_assignment(at: Application, other: Application) -> None:
    at.create_all()
    one, two = Runner(at, "p/a"), Runner(other, "/a")
    one.join()
    two.join()
    settle(one, two)
    at.set_configs(streams_num_standby_replicas="1")
    other.configs.refresh()
    settle(one, two)
    assert one.standby.keys() == two.standby.keys() == {"1"}, "subtopology 0 has no state"
    assert {("1", item) for item in two.standby["1"]} == {item for item in one.tasks.active if item[0] == "1"}
    at.set_configs(streams_num_standby_replicas="0")
    other.configs.refresh()
    settle(one, two)
    assert (one.standby, two.standby) == ({}, {})


def test_a_member_is_given_its_tasks_again_if_an_answer_was_lost(at: Application) -> None:
    at.create_all()
    one = Runner(at, "p/a")
    one.join()
    lost = one.tasks
    one.tasks = MemberTasks()
    answer = one.send(tasks=MemberTasks())
    assert answer.tasks == lost


def test_a_member_may_come_with_its_epoch_before_if_it_has_no_more_than_its_tasks(at: Application) -> None:
    at.create_all()
    one, two = Runner(at, "p/a"), Runner(at, "q/a")
    one.join()
    settle(one)
    before = one.epoch
    two.join()
    settle(one, two)
    assert one.send(epoch=before, tasks=one.tasks).epoch == one.epoch
    of_both = MemberTasks(active=one.tasks.active | two.tasks.active)
    for wrong in ({"epoch": before, "tasks": of_both}, {"epoch": before}, {"epoch": one.epoch + 1}):
        refused("FENCED_MEMBER_EPOCH", partial(one.send, **wrong))


def test_a_member_with_another_topology_is_refused(at: Application) -> None:
    at.create_all()
    Runner(at, "p/a").join()
    for epoch in (0, 1):
        two = Runner(at, "q/a", topology(subtopology("0", "lines"), epoch=epoch))
        assert refused("INVALID_REQUEST", two.join).message == "Topology updates are not supported yet."


def test_a_member_with_an_earlier_topology_knows_that_it_has_one(at: Application) -> None:
    at.create_all()
    Runner(at, "p/a", msgspec.structs.replace(WORD_COUNT, epoch=3)).join()
    answer = Runner(at, "q/a", topology(subtopology("0", "lines"))).join()
    assert answer.statuses == (
        (GroupStatus.STALE_TOPOLOGY, "The member's topology epoch 0 is behind the group's topology epoch 3."),
    )


def test_all_know_of_a_member_that_asks_all_to_end(at: Application, other: Application) -> None:
    at.create_all()
    one, two, three = Runner(at, "p/a"), Runner(other, "q/a"), Runner(at, "r/a")
    one.join()
    two.join()
    settle(one, two)
    assert statuses(one.send(asks_to_end=True)) == [GroupStatus.SHUTDOWN_APPLICATION]
    answer = two.beat()
    assert answer.statuses == (
        (
            GroupStatus.SHUTDOWN_APPLICATION,
            "Streams group member p/a encountered a fatal error and requested a shutdown for the entire application.",
        ),
    )
    assert statuses(three.join()) == [GroupStatus.SHUTDOWN_APPLICATION]
    for item in (one, two, three):
        item.leave()
    assert at.store.streams.common(NAME).ends_by == "", "before anybody joins again"
    assert one.join().statuses == ()


def test_a_member_that_asks_all_to_end_as_it_leaves_must_be_one(at: Application) -> None:
    at.create_all()
    one, two = Runner(at, "p/a"), Runner(at, "q/a")
    one.join()
    two.join()
    settle(one, two)
    refused("UNKNOWN_MEMBER_ID", lambda: Runner(at, "r/a").leave(asks_to_end=True))
    assert at.store.streams.common(NAME).ends_by == ""
    one.leave(asks_to_end=True)
    assert statuses(two.beat()) == [GroupStatus.SHUTDOWN_APPLICATION]
    two.leave(asks_to_end=True)
    assert two.join().statuses == ()


def test_a_member_that_comes_again_brings_the_topology_that_was_not_noted(at: Application) -> None:
    at.create_all()
    one = Runner(at, "p/a")
    one.join()
    # What is left if its worker is killed after it has written the member.
    at.raw.hdel(KEYS.group_state(NAME), "topology", "delayed_until")
    one.join()
    settle(one)
    assert one.active == ALL_ACTIVE


def test_members_of_any_id_leave_and_their_tasks_are_the_others(at: Application) -> None:
    at.create_all()
    at.set_configs(streams_num_standby_replicas="1")
    one, two = Runner(at, 'p/"a\\\n'), Runner(at, "qé/a")
    one.join()
    two.join()
    settle(one, two)
    assert two.standby
    at.let_pass(two.member_id)
    settle(one)
    assert one.active == ALL_ACTIVE
    one.leave()
    assert at.state() == "Empty"


def test_endpoints_have_the_partitions_of_their_tasks(at: Application) -> None:
    at.create_all(2)
    one = Runner(at, "p/a", endpoint=("here", 1))
    two = Runner(at, "q/a", endpoint=("there", 2))
    plain = Runner(at, "r/a")
    result = one.join().by_endpoint
    assert [(item.endpoint, item.active, item.standby) for item in result or ()] == [
        (("here", 1), {"by-word": [0, 1], "lines": [0, 1]}, {})
    ]
    two.join()
    plain.join()
    settle(one, two, plain)
    plain.endpoints = -1
    answer = plain.beat()
    partitions = Counter(
        (topic, index)
        for item in answer.by_endpoint or ()
        for topic, indexes in item.active.items()
        for index in indexes
    )
    of_plain = {({"0": "lines", "1": "by-word"}[name], index) for name, index in plain.tasks.active}
    every = {(topic, index) for topic in ("lines", "by-word") for index in range(2)}
    assert partitions == dict.fromkeys(every - of_plain, 1)
    assert plain.beat().by_endpoint is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"group": ""}, "GroupId can't be empty."),
        ({"rack": ""}, "RackId can't be empty."),
        ({"rebalance_ms": None}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        ({"process_id": "p/q"}, PROCESS_ID),
        ({"process_id": 'p"q'}, PROCESS_ID),
        ({"process_id": "p\\q"}, PROCESS_ID),
        ({"process_id": "p\nq"}, PROCESS_ID),
        ({"tasks": MemberTasks(active=frozenset({("0", 1)}))}, "Tasks must be empty when (re-)joining."),
        ({"epoch": -2}, "InstanceId can't be null."),
        ({"epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"epoch": 5}, "Topology can only be provided when (re-)joining."),
    ],
)
def test_requests_that_no_member_may_send_are_refused(
    at: Application, fields: dict[str, Any], problem: str
) -> None:
    assert refused("INVALID_REQUEST", lambda: Runner(at, "p/a").join(**fields)).message == problem


def test_tasks_that_there_are_not_are_refused(at: Application) -> None:
    at.create_all()
    one = Runner(at, "p/a")
    one.join()
    error = refused("INVALID_REQUEST", lambda: one.send(tasks=MemberTasks(active=frozenset({("7", 0)}))))
    assert error.message == "Subtopology 7 does not exist in the topology."
    refused("INVALID_REQUEST", lambda: one.send(tasks=MemberTasks(standby=frozenset({("1", 3)}))))


def test_members_commit_with_their_epoch_alone(at: Application) -> None:
    at.create_all()
    one = Runner(at, "p/a")
    one.join()
    topic = at.domain.topics.get("lines")

    def commit(epoch: int, *, knows_epochs: bool = True) -> None:
        by = Committer(NAME, epoch, "p/a", knows_epochs=knows_epochs)
        at.offsets.commit(by, [Commit(topic.partition(0), 5, -1, "")])

    commit(one.epoch)
    refused("UNSUPPORTED_VERSION", lambda: commit(one.epoch, knows_epochs=False))
    refused("STALE_MEMBER_EPOCH", lambda: commit(one.epoch - 1))


def test_offsets_of_topics_that_tasks_read_stay(at: Application) -> None:
    at.create_all()
    at.create("other", 1)
    one = Runner(at, "p/a")
    one.join()
    topics = [at.domain.topics.get(name) for name in ("lines", "by-word", "other")]
    by = Committer(NAME, one.epoch, "p/a")
    at.offsets.commit(by, [Commit(topic.partition(0), 5, -1, "") for topic in topics])
    partitions = [TopicPartition(topic.name, 0) for topic in topics]

    def refusals() -> list[ErrorCode | None]:
        return [error.code if error else None for error in at.admin.delete_offsets(NAME, partitions)]

    used = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert refusals() == [used, used, None]
    one.leave()
    assert refusals() == [None, None, None]
    assert at.offsets.stored(NAME) == []
