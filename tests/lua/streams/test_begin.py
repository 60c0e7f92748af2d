"""lua/streams/begin, and what the scripts of consumer groups do for a streams group (KIP-1071)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.consumer.support import CONSUMER_KEYS, ConsumerGroup
from tests.lua.group.support import CHANNEL, GROUP, Group
from tests.lua.support import announced, refused, run, unchanged


class StreamsGroup(ConsumerGroup):
    """The group `g` as a streams group."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, "streams")

    def begin(self, topology: str = "", delay_ms: int | str = "", ends_by: str = "") -> int:
        reply: int = run(self.client, "streams/begin", CONSUMER_KEYS, (CHANNEL, topology, delay_ms, ends_by))
        return reply

    def compute(self, epoch: int, assignor: str) -> int:
        assert self.claim()[0] == 1
        given = (CHANNEL, self.kind, "t", epoch, 1, assignor, "", "digest")
        reply: int = run(self.client, "consumer/assign", CONSUMER_KEYS, given)
        return reply


@pytest.fixture
def group(raw_redis: Any) -> StreamsGroup:
    """Give a group with a member `a`."""
    made = StreamsGroup(raw_redis)
    made.update("a", 0)
    return made


def test_the_first_member_brings_the_topology_and_begins_an_epoch(group: StreamsGroup) -> None:
    with announced(group.client, CHANNEL, b"2 NotReady"):
        assert group.begin("{1}", 5000) == 1
    assert (group.field("topology"), group.field("generation"), group.field("type")) == (
        *("{1}", "2"),
        "streams",
    )
    delayed_until = int(group.field("delayed_until") or 0)
    assert 0 <= group.now_ms() + 5000 - delayed_until < 5000


def test_a_topology_stays_and_so_does_who_asks_all_to_end_until_the_group_is_empty(
    group: StreamsGroup,
) -> None:
    group.begin("{1}")
    group.begin("{2}", ends_by="a")
    group.begin(ends_by="b")
    assert (group.field("topology"), group.field("ends_by")) == ("{1}", "a")
    assert group.field("delayed_until") is None
    group.leave(("a", "", -1))
    assert (group.field("topology"), group.field("ends_by")) == ("{1}", None)
    assert group.field("generation") == "5"
    group.begin(ends_by="a")
    assert group.field("ends_by") is None


def test_a_group_whose_topics_are_missing_is_not_ready(group: StreamsGroup) -> None:
    group.begin("{1}")
    assert group.compute(2, "") == 1
    assert group.field("state") == "NotReady"
    group.update("a", epoch=2, bumps=True)
    assert group.field("state") == "NotReady"
    group.compute(3, "sticky")
    assert group.field("state") == "Reconciling"
    group.update("a", epoch=3, bumps=False)
    assert group.field("state") == "Stable"
    group.begin()
    assert group.field("state") == "Assigning"
    group.leave(("a", "", -1))
    assert group.field("state") == "Empty"


def test_a_member_that_knows_other_endpoints_has_news(group: StreamsGroup) -> None:
    group.stable("b", "c")
    epoch = int(group.field("assignment_epoch") or 0)
    group.update("b", 0, epoch=epoch, bumps=False)
    assert (group.heartbeat("b", epoch), group.heartbeat("b", epoch, endpoints="0")) == (1, 1)
    assert group.heartbeat("b", epoch, endpoints="-1") == 0
    group.client.hset(GROUP, "endpoints", 4)
    assert (group.heartbeat("b", epoch), group.heartbeat("b", epoch, endpoints="4")) == (1, 1)
    assert group.heartbeat("b", epoch, endpoints="0") == 0


def test_no_other_group_has_a_topology(raw_redis: Any) -> None:
    of_consumers, streams = ConsumerGroup(raw_redis), StreamsGroup(raw_redis)
    assert streams.begin("{1}") == 0
    assert raw_redis.exists(GROUP) == 0
    of_consumers.update("a", 0)
    with unchanged(raw_redis):
        assert streams.begin("{1}", 0, "a") == 0


def test_an_empty_group_becomes_a_classic_one_with_the_next_member_and_back(group: StreamsGroup) -> None:
    group.begin("{1}", 0, "a")
    group.client.hset(GROUP, "endpoints", 1)
    group.leave(("a", "", -1))
    classic = Group(group.client)
    classic.join()
    assert not {b"type", b"topology", b"delayed_until", b"ends_by", b"endpoints"} & set(
        group.client.hkeys(GROUP)
    )
    classic.leave(("new", ""))
    assert group.update("a", 0, assignment_epoch=int(group.field("generation") or 0))[0] == 1
    assert (group.field("type"), group.field("topology")) == ("streams", None)


@pytest.mark.parametrize(("field", "value"), [("generation", "x"), ("size", "x"), ("stable", "")])
def test_a_damaged_group_is_named_and_stays(group: StreamsGroup, field: str, value: str) -> None:
    group.client.hset(GROUP, field, value)
    with refused(group.client, f"KAFKA_STORAGE_ERROR {GROUP}"):
        group.begin("{1}", 0, "a")


def test_endpoints_rise_only_in_a_streams_group(group: StreamsGroup) -> None:
    for endpoints in (1, 2):
        assert run(group.client, "streams/raise_endpoints", [GROUP], []) == endpoints
    group.client.hset(GROUP, "endpoints", "x")
    with refused(group.client, "KAFKA_STORAGE_ERROR"):
        run(group.client, "streams/raise_endpoints", [GROUP], [])
    for kind in ("share", None):
        group.client.delete(GROUP)
        if kind:
            group.client.hset(GROUP, "type", kind)
        with unchanged(group.client):
            assert run(group.client, "streams/raise_endpoints", [GROUP], []) == 0
    group.client.delete(GROUP)
    group.client.set(GROUP, "x")
    with refused(group.client, "KAFKA_STORAGE_ERROR"):
        run(group.client, "streams/raise_endpoints", [GROUP], [])
