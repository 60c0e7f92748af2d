"""Groups of any name by bytes, from the first join to the deletion, over two workers and in /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.admin.lag import parse_lags
from korvet.admin.types import TopicPartition
from korvet.errors import ErrorCode
from tests.handlers.groups import Member
from tests.handlers.test_group_administration import delete, describe, listed
from tests.handlers.test_offset_commit import NOTHING, commit, fetch
from tests.support import ops
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import wait_until
from tests.support.topic_client import Client
from tests.support.wire_client import clients_of_two_workers

TOPIC = "orders"
RECORDS = 5
NAMES = [
    "größe ☃ \U0001f600",
    "{}",
    "}{a:offsets}:group",
    "%",
    "%25%7B%00",
    "\n",
    "\x00",
    "\x01\x7f\x80\u2028\ufeff",
    " ",
    '"\\',
    "korvet:groups",
    "x" * 32_767,
    "☃" * 10_922,
]


@pytest.fixture(scope="module")
def named_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker whose keeper looks at lags all the time, with a topic of five records."""
    values = ("group.initial.rebalance.delay.ms=0", "storage.format=batch", "log.figures.interval.ms=100")
    flags = [word for value in values for word in ("--set", value)]
    with korvet_broker(tmp_path_factory.mktemp("names"), *flags) as running:
        with Client(running.address) as client:
            client.create(TOPIC)
            client.append(TOPIC, *[b"value"] * RECORDS)
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def ends(named_broker: Broker) -> Iterator[tuple[Client, Client]]:
    """Give connections to both of its workers."""
    with clients_of_two_workers(named_broker.address, named_broker.worker_pids(), Client) as clients:
        yield clients


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_a_group_of_any_name_lives_and_is_deleted(
    ends: tuple[Client, Client], named_broker: Broker, name: str
) -> None:
    here, there = ends
    member = Member(here, name)
    assert member.join().error_code == ErrorCode.NONE
    assert member.sync({member.id: b"all"}).assignment == b"all"
    assert member.heartbeat() == ErrorCode.NONE
    by: dict[str, Any] = {"generation_id_or_member_epoch": member.generation, "member_id": member.id}
    assert commit(here, name, TOPIC, 2, **by) == [ErrorCode.NONE]
    assert fetch(there, name, TOPIC) == [(2, -1, "", ErrorCode.NONE)]
    assert listed(there, name) == {name: ("consumer", "Stable", "classic")}
    [found] = describe(there, name)
    assert (found.group_state, [each.member_id for each in found.members]) == ("Stable", [member.id])
    assert delete(there, name) == [(name, ErrorCode.NON_EMPTY_GROUP)]

    def lag() -> int | None:
        return parse_lags(ops.page(named_broker, "/metrics")).records.get((name, TopicPartition(TOPIC, 0)))

    wait_until(lambda: lag() == RECORDS - 2, "the lag is reported")
    assert member.leave() == ErrorCode.NONE
    assert delete(there, name) == [(name, ErrorCode.NONE)]
    assert fetch(here, name, TOPIC) == [NOTHING]
    assert listed(here, name) == {}
    wait_until(lambda: lag() is None, "the lag is gone")
