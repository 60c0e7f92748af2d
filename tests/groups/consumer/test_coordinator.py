"""Members of groups of the consumer protocol on a real server: they join, step towards their targets, and leave."""

from __future__ import annotations

from functools import partial
from typing import Any

import gevent
import pytest
from gevent.event import Event

from korvet.errors import ErrorCode
from korvet.groups.consumer import coordinator
from korvet.groups.consumer.types import MemberReport
from korvet.groups.offsets import Commit, Committer
from korvet.protocol.types import TopicPartition
from tests.groups.consumer.support import NAME, REBALANCE_MS, Client, Consumers, delete_topic, settle
from tests.groups.support import KEYS, join_request, refused
from tests.support.virtual_clock import VirtualClock


def test_the_first_member_gets_all_partitions_with_its_first_heartbeat(at: Consumers) -> None:
    one = Client(at, "one", "orders", rack="a")
    answer = one.join()
    assert (answer.member_id, answer.epoch, answer.heartbeat_ms) == ("one", 1, 5000)
    at.store.schedule.flush()
    due_ms = at.raw.zscore(KEYS.groups, NAME)
    assert due_ms <= at.raw.zscore(KEYS.group_deadlines(NAME), "one"), "the keeper looks at it in time"
    assert one.has() == {"orders": [0, 1, 2, 3]}
    assert one.beat().assigned is None
    assert at.describe().members[0].row.rack == "a"


def test_very_many_partitions_come_with_one_answer(at: Consumers) -> None:
    at.create("many", 4500)
    one = Client(at, "one", "many")
    one.join()
    assert one.has() == {"many": list(range(4500))}


def test_who_does_not_revoke_within_its_rebalance_timeout_is_removed(at: Consumers) -> None:
    one, two = Client(at, "one", "orders", rebalance_ms=7_000), Client(at, "two", "orders")
    one.join()
    two.join()
    one.send()
    one.beat()
    assert at.deadline_in_ms("one") > 40_000, "it has revoked in time"
    two.leave()
    settle(one)
    two.join()
    one.send()
    # It still sends heartbeats, and says that it owns all.
    at.let_pass("one", 2_000)
    one.send(owned=at.owned("orders", 0, 1, 2, 3))
    assert at.deadline_in_ms("one") <= 7_000
    at.let_pass("one")
    two.beat()
    two.beat()
    assert two.has() == {"orders": [0, 1, 2, 3]}
    refused("UNKNOWN_MEMBER_ID", one.send)


def test_epochs_that_are_not_the_members_fence_it(at: Consumers) -> None:
    one, two = Client(at, "one", "orders"), Client(at, "two", "orders")
    one.join()
    two.join()
    one.send()
    assert one.send(owned=at.owned("orders", 0, 1)).epoch == 2
    assert one.send(epoch=1, owned=at.owned("orders", 0, 1)).epoch == 2, "the response was lost"
    for fields in ({}, {"owned": at.owned("orders", 0, 1, 2)}):
        refused("FENCED_MEMBER_EPOCH", partial(one.send, epoch=1, **fields))
    settle(one, two)
    for epoch in (1, 3):
        refused("FENCED_MEMBER_EPOCH", partial(two.send, epoch=epoch))
    one.epoch = 1
    refused("FENCED_MEMBER_EPOCH", one.send)
    assert one.send(epoch=0, rebalance_ms=REBALANCE_MS, owned=frozenset(), names=("orders",)).epoch == 2
    assert len(one.assigned) == 2


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"member_id": ""}, "INVALID_REQUEST", "MemberId can't be empty."),
        ({"group": ""}, "INVALID_REQUEST", "GroupId can't be empty."),
        ({"instance": ""}, "INVALID_REQUEST", "InstanceId can't be empty."),
        ({"rack": ""}, "INVALID_REQUEST", "RackId can't be empty."),
        ({"rebalance_ms": None}, "INVALID_REQUEST", "RebalanceTimeoutMs must be provided"),
        ({"owned": None}, "INVALID_REQUEST", "TopicPartitions must be empty"),
        ({"owned": frozenset({("id", 0)})}, "INVALID_REQUEST", "TopicPartitions must be empty"),
        ({"names": None}, "INVALID_REQUEST", "must be non-null when (re-)joining"),
        ({"epoch": -2}, "INVALID_REQUEST", "InstanceId can't be null."),
        ({"epoch": -3}, "INVALID_REQUEST", "MemberEpoch is invalid."),
        ({"assignor": "sticky"}, "UNSUPPORTED_ASSIGNOR", "Supported assignors: uniform, range."),
        ({"regex": "("}, "INVALID_REGULAR_EXPRESSION", "no regular expression"),
        ({"names": ("o" * (1 << 20),)}, "INVALID_REQUEST", "bytes of metadata"),
    ],
)
def test_what_kafka_refuses_is_refused(
    at: Consumers, fields: dict[str, Any], code: str, message: str
) -> None:
    error = refused(code, lambda: Client(at, "one", "orders").join(**fields))
    assert message in error.message
    assert not at.raw.exists(KEYS.group_state(NAME))


def test_without_a_group_only_a_join_creates_one(at: Consumers) -> None:
    one = Client(at, "one", "orders")
    asks = (partial(one.send, epoch=1), partial(one.send, epoch=1, names=("orders",)), one.leave)
    for ask in asks:
        refused("GROUP_ID_NOT_FOUND", ask)
    Client(at, "two", "orders").join()
    for ask in asks:
        refused("UNKNOWN_MEMBER_ID", ask)


def test_a_regular_expression_matches_topics_as_they_come(at: Consumers) -> None:
    one, two = Client(at, "one", regex="o.*s|bill[s]?"), Client(at, "two", "orders")
    one.join()
    two.join()
    at.create("bills", 2)
    at.create("bills2", 2)
    settle(one, two)
    assert one.has()["bills"] == [0, 1]
    assert sorted(one.has()["orders"] + two.has()["orders"]) == [0, 1, 2, 3]
    delete_topic(at, "bills")
    settle(one, two)
    assert "bills" not in one.has()
    one.send(regex="", names=("bills2",))
    settle(one, two)
    assert (one.has(), two.has()) == ({"bills2": [0, 1]}, {"orders": [0, 1, 2, 3]})


def test_the_assignor_is_the_one_that_most_members_name(at: Consumers) -> None:
    at.create("bills", 4)
    names = ("orders", "bills")
    one, two = Client(at, "one", *names, assignor="range"), Client(at, "two", *names)
    one.join()
    two.join()
    settle(one, two)
    assert at.describe().assignor == "range"
    assert one.has() == {"orders": [0, 1], "bills": [0, 1]}
    assert two.has() == {"orders": [2, 3], "bills": [2, 3]}


def test_the_session_of_a_group_may_have_another_length(at: Consumers) -> None:
    at.configs.alter(NAME, lambda _row: {"consumer.session.timeout.ms": "60000"})
    at.configs.alter(NAME, lambda row: row | {"consumer.heartbeat.interval.ms": "15000"})
    one = Client(at, "one", "orders")
    assert one.join().heartbeat_ms == 15_000
    one.beat()
    assert 50_000 < at.deadline_in_ms("one") <= 60_000


def test_members_that_join_at_once_wait_for_one_assignment(
    at: Consumers, other: Consumers, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, may_go_on = [], Event()
    compute = coordinator.ConsumerGroups._compute

    def compute_later(self: coordinator.ConsumerGroups, *args: Any) -> bool:
        computed.append(args[2])
        clock.wait(may_go_on)
        return compute(self, *args)

    monkeypatch.setattr(coordinator.ConsumerGroups, "_compute", compute_later)
    members = [Client((at, other)[number % 2], f"member-{number}", "orders") for number in range(8)]
    joining = [clock.spawn(member.join) for member in members]
    clock.run_until_idle()
    assert len(computed) == 1
    may_go_on.set()
    gevent.joinall(joining, raise_error=True, timeout=60)
    assert len(computed) <= 2, "one more for those that came while the first was computed"
    assert all(member.epoch > 0 for member in members)
    settle(*members)
    assert at.state() == "Stable"


def test_offsets_are_committed_with_the_members_epoch(at: Consumers) -> None:
    one, two = Client(at, "one", "orders"), Client(at, "two", "orders")
    one.join()
    topic = at.domain.topics.get("orders")

    def commit(epoch: int, member: str = "one") -> None:
        at.offsets.commit(Committer(NAME, epoch, member), [Commit(topic.partition(0), 5, -1, "")])

    at.let_pass("one", 30_000)
    commit(1)
    assert at.deadline_in_ms("one") < 16_000, "only a heartbeat renews a session, as in Kafka"
    refused("STALE_MEMBER_EPOCH", lambda: commit(0))
    refused("UNKNOWN_MEMBER_ID", lambda: commit(1, "nobody"))
    refused("UNKNOWN_MEMBER_ID", lambda: commit(-1, ""))
    readers = [(NAME, "one", 1), (NAME, "one", 2), (NAME, "nobody", 1)]
    codes = [error and error.code.name for error in at.offsets.check_readers(readers)]
    assert codes == [None, "STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"]
    two.join()
    settle(one, two)
    refused("STALE_MEMBER_EPOCH", lambda: commit(1))
    commit(2)
    one.leave()
    two.leave()
    commit(-1, "")


def test_an_empty_group_stays_one_of_its_protocol_until_a_classic_member_joins(at: Consumers) -> None:
    one = Client(at, "one", "orders")
    one.join()
    at.let_pass("one")
    before = at.raw.hgetall(KEYS.group_state(NAME))
    at.advance()
    at.store.resume_all([NAME])
    at.advance()
    assert at.raw.hgetall(KEYS.group_state(NAME)) == before
    assert [list_group.kind for list_group in at.admin.list_groups([], ["consumer"])] == ["consumer"]
    assert (at.describe().fields.state, at.describe().fields.epoch) == ("Empty", 2)
    refused("UNKNOWN_MEMBER_ID", one.beat)
    at.classic.join(join_request(NAME), lambda _name: True)
    assert [list_group.kind for list_group in at.admin.list_groups([], ["classic"])] == ["classic"]


def test_offsets_of_topics_that_members_are_subscribed_to_stay(at: Consumers) -> None:
    at.create("bills", 2)
    one = Client(at, "one", "orders")
    one.join()
    refs = [at.domain.topics.get(name).partition(0) for name in ("orders", "bills")]
    at.offsets.commit(Committer(NAME, 1, "one"), [Commit(ref, 5, -1, "") for ref in refs])
    outcomes = at.admin.delete_offsets(NAME, [TopicPartition(ref.topic, ref.index) for ref in refs])
    assert [None if outcome is None else outcome.code for outcome in outcomes] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        None,
    ]


def test_a_member_report_knows_what_is_new() -> None:
    plain: dict[str, Any] = {"group": NAME, "member_id": "one", "client_id": "", "client_host": ""}
    assert not MemberReport(**plain, epoch=1).has_news
    assert not MemberReport(**plain, epoch=1, instance="i").has_news
    assert MemberReport(**plain, epoch=0).has_news
    assert MemberReport(**plain, epoch=1, owned=frozenset()).has_news


def test_what_an_expression_matches_is_not_up_to_members_that_see_other_topics(
    at: Consumers, other: Consumers
) -> None:
    at.create("bills", 1)
    one = Client(at, "one", regex="ord.*")
    one.join()
    names, expression = Client(at, "two", "bills"), Client(other, "three", regex="b.*")
    for item in (names, expression):
        item.is_visible = lambda name: name == "bills"
        item.join()
        settle(one, item)
        assert one.has() == {"orders": [0, 1, 2, 3]}
    # It is one of theirs that hears first of the next topic, on its own worker and on that of all.
    at.create("orders2", 1)
    other.domain.topics.refresh()
    for at_worker in (other, at):
        expression.at = at_worker
        settle(names, expression)
    settle(one, names, expression)
    assert one.has() == {"orders": [0, 1, 2, 3], "orders2": [0]}
    epoch = one.epoch
    settle(one, names, expression)
    assert one.epoch == epoch


def test_a_new_member_matches_its_expression_itself_if_nobody_else_has_it(at: Consumers) -> None:
    one, two = Client(at, "one", regex="ord.*"), Client(at, "two", regex="ord.*")
    one.join()
    one.leave()
    at.create("orders2", 1)
    two.is_visible = lambda name: name == "orders2"
    two.join()
    assert two.has() == {"orders2": [0]}


def test_a_member_with_an_expression_has_plain_heartbeats_again(
    at: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [
        Client(at, "one", regex="ord.*"),
        Client(at, "two", "orders"),
        Client(at, "three", regex="o.*"),
    ]
    for member in members:
        member.join()
    settle(*members)
    monkeypatch.setattr(at.groups, "_join", lambda *_args: pytest.fail("it is read again"))
    for member in members:
        assert member.beat().epoch == 3
