"""Members of share groups on a real server: they join, get their targets at once, and leave."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from korvet.groups.expiry import ExpiredOffsets, OffsetExpiry
from tests.groups.consumer.support import NAME
from tests.groups.consumer.support import Client as Consumer
from tests.groups.share.support import Client, Shares
from tests.groups.support import KEYS, refused


def test_the_first_member_gets_all_partitions_with_its_first_heartbeat(at: Shares) -> None:
    one = Client(at, "one", "orders")
    answer = one.join(rack="r1")
    assert (answer.member_id, answer.epoch, answer.heartbeat_ms) == ("one", 1, 5000)
    assert one.has() == {"orders": [0, 1, 2, 3]}
    at.store.schedule.flush()
    assert at.raw.zscore(KEYS.groups, NAME) <= at.raw.zscore(KEYS.group_deadlines(NAME), "one")
    assert one.send().assigned is None
    assert at.describe().members[0].row.rack == "r1"


def test_a_heartbeat_renews_the_session_of_45_seconds(at: Shares) -> None:
    one = Client(at, "one", "orders")
    one.join()
    for send in (one.send, partial(one.send, names=("orders",))):
        at.let_pass("one", 30_000)
        assert at.deadline_in_ms("one") < 16_000
        send()
        assert at.deadline_in_ms("one") > 44_000


def test_a_member_whose_session_has_just_ended_is_none_and_one_of_before_an_outage_goes_on(
    at: Shares,
) -> None:
    one = Client(at, "one", "orders")
    one.join()
    for late_ms, ask in (
        (10_000, one.send),
        (500, partial(refused, "UNKNOWN_MEMBER_ID", one.send)),
        (500, partial(refused, "UNKNOWN_MEMBER_ID", partial(one.send, names=("orders",)))),
    ):
        at.raw.zincrby(KEYS.group_deadlines(NAME), -at.deadline_in_ms("one") - late_ms, "one")
        ask()
        assert late_ms == 500 or at.deadline_in_ms("one") > 0
        epoch = one.epoch
        assert one.join().epoch == (epoch if late_ms > 500 else epoch + 2)
    at.raw.zincrby(KEYS.group_deadlines(NAME), -at.deadline_in_ms("one") - 500, "one")
    assert one.join().epoch == 7, "it was removed"


def test_a_plain_heartbeat_is_one_script_that_changes_nothing_but_the_session(
    at: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Client(at, "one", "orders")
    one.join()
    one.send()  # the worker compares the topics with those of the assignment
    monkeypatch.setattr(at.shares, "heartbeat", lambda _report: pytest.fail("it has no news"))
    assert one.send().epoch == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"member_id": "m" * 37}, "MemberId has more than 36 characters."),
        ({"group": ""}, "GroupId can't be empty."),
        ({"rack": ""}, "RackId can't be empty."),
        ({"names": None}, "SubscribedTopicNames must be set in first request."),
        ({"names": ()}, "SubscribedTopicNames must be set in first request."),
        ({"epoch": -2}, "MemberEpoch is invalid."),
        ({"names": ("o" * (1 << 20),)}, "bytes of metadata"),
    ],
)
def test_what_kafka_refuses_is_refused(at: Shares, fields: dict[str, Any], message: str) -> None:
    one = Client(at, "one", "orders")
    assert message in refused("INVALID_REQUEST", lambda: one.join(**fields)).message
    assert not at.raw.exists(KEYS.group_state(NAME))


def test_a_member_of_another_epoch_is_fenced_but_for_the_one_before(at: Shares) -> None:
    one, two = Client(at, "one", "orders"), Client(at, "two", "orders")
    one.join()
    two.join()
    assert one.send().epoch == 2
    assert one.send(epoch=1).epoch == 2, "the response with its new epoch was lost"
    Client(at, "three", "orders").join()
    one.send()
    for epoch in (1, 4):
        for names in (None, ("orders",)):
            refused("FENCED_MEMBER_EPOCH", partial(one.send, epoch=epoch, names=names))
    had = one.assigned
    assert one.join().epoch == 3, "who was fenced joins again under its id"
    assert one.assigned == had
    assert at.describe().fields.epoch == 3


def test_an_empty_group_stays_until_it_is_deleted(at: Shares) -> None:
    one = Client(at, "one", "orders")
    one.join()
    refused("NON_EMPTY_GROUP", lambda: at.admin.delete(NAME))
    one.leave()
    at.raw.hset(KEYS.group_state(NAME), "since", 1)
    expiry = OffsetExpiry(at.offsets, at.store, 1, 1)
    assert expiry.expire([NAME]) == (ExpiredOffsets(0, 0), [])
    assert at.state() == "Empty"
    assert [
        (list_group.group, list_group.state, list_group.kind)
        for list_group in at.admin.list_groups([], ["share"])
    ] == [(NAME, "Empty", "share")]
    at.admin.delete(NAME)
    refused("GROUP_ID_NOT_FOUND", lambda: at.admin.delete(NAME))
    keys = (KEYS.group_state(NAME), KEYS.group_members(NAME), KEYS.group_assignments(NAME))
    assert at.raw.exists(*keys) == 0


def test_the_configs_of_a_group_count_for_its_members(at: Shares) -> None:
    def alter(at: Shares, **configs: str) -> None:
        row = {name.replace("_", "."): value for name, value in configs.items()}
        at.configs.alter(NAME, lambda _row: row)

    alter(at, share_session_timeout_ms="50000", share_heartbeat_interval_ms="6000")
    one = Client(at, "one", "orders")
    assert one.join().heartbeat_ms == 6000
    assert at.deadline_in_ms("one") > 49_000
    for wrong in ("44999", "60001"):
        refused("INVALID_CONFIG", partial(alter, at, share_session_timeout_ms=wrong))
    close = Shares(at.domain, at.raw, group_share_min_session_timeout_ms=1)
    error = refused("INVALID_CONFIG", partial(alter, close, share_session_timeout_ms="5000"))
    assert error.message == "share.session.timeout.ms must be greater than share.heartbeat.interval.ms"


def test_a_group_that_changes_its_type_under_a_request_is_left_alone(
    at: Shares, other: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer creates the group between what the request reads and what it writes."""
    one, consumer = Client(at, "one", "orders"), Consumer(other, "consumer", "orders")
    read = at.shares.store.read

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(at.shares.store, "read", read)
        view = read(*args)
        consumer.join()
        return view

    monkeypatch.setattr(at.shares.store, "read", meanwhile)
    refused("GROUP_ID_NOT_FOUND", one.join)
    assert consumer.beat().epoch == 1
