"""Static members of groups of the consumer protocol (KIP-345): who joins with their instance ids, and when."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from tests.groups.consumer.support import NAME, Client, Consumers, settle
from tests.groups.support import KEYS, refused


def test_a_static_member_that_will_be_back_keeps_its_partitions(at: Consumers) -> None:
    one, two = Client(at, "one", "orders", instance="i1"), Client(at, "two", "orders", instance="i2")
    one.join()
    two.join()
    settle(one, two)
    had, epoch = one.assigned, two.epoch
    refused("UNRELEASED_INSTANCE_ID", Client(at, "three", "orders", instance="i1").join)
    assert one.leave(-2).epoch == -2
    back = Client(at, "back", "orders", instance="i1")
    assert (back.join().epoch, back.assigned) == (epoch, had)
    assert (two.beat().epoch, two.beat().assigned) == (epoch, None)
    refused("FENCED_INSTANCE_ID", lambda: one.send(epoch=epoch))
    refused("FENCED_INSTANCE_ID", lambda: one.send(epoch=epoch, names=("orders",)))
    refused("FENCED_INSTANCE_ID", one.leave)
    assert [member.member_id for member in at.describe().members] == ["back", "two"]


def test_a_static_member_that_does_not_come_back_is_removed_at_its_sessions_end(at: Consumers) -> None:
    one, two = Client(at, "one", "orders", instance="i1"), Client(at, "two", "orders")
    one.join()
    two.join()
    settle(one, two)
    one.leave(-2)
    two.beat()
    assert len(two.assigned) == 2
    at.let_pass("one")
    settle(two)
    assert len(two.assigned) == 4
    refused("UNKNOWN_MEMBER_ID", lambda: Client(at, "one", instance="i1").leave())


def test_a_static_member_may_repeat_its_join(at: Consumers) -> None:
    """The response to the first one may be lost: the client has chosen the id itself."""
    one = Client(at, "one", "orders", instance="i1")
    one.join()
    assert (one.join().epoch, len(one.assigned)) == (1, 4)
    one.leave(-2)
    back = Client(at, "back", "orders", instance="i1")
    back.join()
    assert (back.join().epoch, len(back.assigned)) == (1, 4)


def test_of_two_that_join_at_once_with_one_instance_id_one_becomes_a_member(
    at: Consumers, other: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    Client(at, "first", "orders").join()
    one, two = Client(at, "one", "orders", instance="i"), Client(other, "two", "orders", instance="i")
    update = at.groups.store.update

    def after_the_other(*args: Any) -> Any:
        monkeypatch.undo()
        # It is a member, and there is no assignment with it yet.
        monkeypatch.setattr(other.groups, "assign", lambda *_args: (_ for _ in ()).throw(gevent.GreenletExit))
        with pytest.raises(gevent.GreenletExit):
            two.join()
        return update(*args)

    monkeypatch.setattr(at.groups.store, "update", after_the_other)
    refused("UNRELEASED_INSTANCE_ID", one.join)
    assert [member.member_id for member in at.describe().members] == ["first", "two"]


def test_a_static_member_that_joins_with_another_instance_id_has_the_old_one_no_more(at: Consumers) -> None:
    one = Client(at, "one", "orders", instance="i1")
    one.join()
    one.fields["instance"] = "i2"
    one.join()
    assert [member.row.instance for member in at.describe().members] == ["i2"]
    assert at.raw.hget(KEYS.group_members(NAME), "i:i1") is None
    one.leave()
    assert not at.raw.exists(KEYS.group_members(NAME))


def test_a_member_takes_the_place_of_a_static_one_that_is_away_and_gives_up_its_own(at: Consumers) -> None:
    one, two = Client(at, "one", "orders", instance="i"), Client(at, "two", "orders")
    three = Client(at, "three", "orders")
    for item in (one, two, three):
        item.join()
    settle(one, two, three)
    one.leave(-2)
    two.fields["instance"] = "i"
    two.join()
    settle(two, three)
    assert (len(two.assigned), len(three.assigned)) == (2, 2)
    assert [(member.member_id, member.row.instance) for member in at.describe().members] == [
        *(("three", ""), ("two", "i"))
    ]
    assert at.raw.hmget(KEYS.group_state(NAME), "size", "stable") == [b"2", b"2"]
    two.leave()
    settle(three)
    assert len(three.assigned) == 4
