"""Twelve real consumers share 24 partitions through two workers of each of two brokers, and come, go and are killed.

Whatever they do while a producer goes on: every record is delivered, no partition has two owners, all have one after
each rebalance, and no committed offset goes back.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.redis.keys import Keys
from tests.support import reading, redis_servers
from tests.support.broker import Broker, korvet_cluster
from tests.support.crowd import Crowd
from tests.support.group_watch import GroupWatch
from tests.support.load import Load

PARTITIONS = 24
PAUSE_MS = 20
SESSION_MS = 10_000
STATIC_SESSION_MS = 120_000
"""Within which a process starts, imports a client and joins, where the machine is busy."""
KEYS = Keys("korvet")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Run two brokers of two workers on one Redis, whose groups begin at once."""
    flags = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "group.min.session.timeout.ms=1000")
    directory = tmp_path_factory.mktemp("rebalances")
    with (
        redis_servers.server() as url,
        korvet_cluster(directory, url, *flags, brokers=2, workers=2) as running,
    ):
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest, brokers: list[Broker]) -> str:
    """Give a topic of the test's own, whose name is also its group's."""
    name = "".join(item if item.isalnum() else "-" for item in request.node.name)
    reading.create_topic(brokers[0].bootstrap, name, PARTITIONS)
    return name


@pytest.fixture
def load(brokers: list[Broker], topic: str) -> Iterator[Load]:
    """Give a producer under way."""
    running = Load(brokers[0].bootstrap, topic, PARTITIONS, pause_ms=PAUSE_MS)
    running.start()
    yield running
    running.end()


def bootstrap(brokers: list[Broker]) -> str:
    return ",".join(broker.bootstrap for broker in brokers)


def end_sessions(brokers: list[Broker], group: str, *members: str) -> None:
    """Let the time of members be over, and the keeper's turn have come."""
    with redis_servers.connected(brokers[0].redis_url) as stored:
        stored.zadd(KEYS.group_deadlines(group), dict.fromkeys(members, 1), xx=True)
        stored.zadd(KEYS.groups, {group: 1}, xx=True)


@pytest.mark.parametrize(
    ("kind", "assignor"),
    [
        ("confluent", "range"),
        ("confluent", "cooperative-sticky"),
        ("kafka-python", "range"),
        ("kafka-python", "cooperative-sticky"),
        ("aiokafka", "sticky"),
    ],
)
def test_members_that_join_leave_and_are_killed_cost_no_record(
    brokers: list[Broker], topic: str, load: Load, kind: str, assignor: str
) -> None:
    eager = assignor != "cooperative-sticky"
    with (
        Crowd(bootstrap(brokers), topic, session_ms=SESSION_MS, assignor=assignor) as crowd,
        GroupWatch(brokers, topic, PARTITIONS, eager=eager) as watch,
    ):
        crowd.host(kind, "a0", "a1", "a2", "a3")
        watch.settle(crowd)
        crowd.host(kind, "b0", "b1", "b2", "b3")
        doomed = crowd.host(kind, "c0", "c1", "c2", "c3")
        assert len(watch.settle(crowd).members) == 12
        crowd.end("a0", "b0")
        watch.settle(crowd)
        # These are killed while they are to join again.
        crowd.host(kind, "d0", "d1", "d2")
        watch.wait_for_rebalance("d0")
        crowd.kill(doomed)
        crowd.host(kind, "e0", "e1", "e2")
        assert len(watch.settle(crowd).members) == 12
        watch.finish(crowd, load)
        crowd.check(load.sent)


@pytest.mark.parametrize(
    ("kind", "assignor"),
    [("confluent", "cooperative-sticky"), ("kafka-python", "range"), ("aiokafka", "range")],
)
def test_static_members_that_are_killed_and_start_again_cost_no_rebalance(
    brokers: list[Broker], topic: str, load: Load, kind: str, assignor: str
) -> None:
    eager = assignor != "cooperative-sticky"
    with (
        Crowd(bootstrap(brokers), topic, session_ms=STATIC_SESSION_MS, assignor=assignor) as crowd,
        GroupWatch(brokers, topic, PARTITIONS, eager=eager) as watch,
    ):
        # The first one leads. It is killed too.
        leading = crowd.host(kind, "a0", "a1", static=True)
        watch.settle(crowd)
        doomed = crowd.host(kind, "b0", "b1", "b2", "b3", static=True)
        crowd.host(kind, "c0", "c1", "c2", "c3", "c4", "c5", static=True)
        before = watch.settle(crowd)
        generation = watch.generation()
        for host in (doomed, leading):
            names = list(host.names)
            crowd.kill(host)
            crowd.host(kind, *names, static=True)
            behind = watch.settle(crowd)
            for name, part in behind.members.items():
                assert part.partitions == before.members[name].partitions
                assert (part.member_id == before.members[name].member_id) == (name not in names)
            before = behind
        # Who is closed does not leave, and comes back to what it had.
        crowd.end("c0")
        crowd.host(kind, "c0", static=True)
        members = watch.settle(crowd).members
        assert members["c0"].partitions == before.members["c0"].partitions
        assert watch.generation() == generation
        # Its session ends where it does not come back.
        crowd.end("c1", "a0")
        end_sessions(brokers, topic, *(members[name].member_id for name in ("c1", "a0")))
        assert len(watch.settle(crowd).members) == 10
        assert watch.generation() > generation
        watch.finish(crowd, load)
        crowd.check(load.sent)


@pytest.mark.parametrize(
    ("assignor", "kinds"),
    [
        ("range", ("confluent", "kafka-python", "aiokafka")),
        ("cooperative-sticky", ("confluent", "kafka-python")),
    ],
)
def test_members_of_several_client_libraries_share_a_group_whichever_leads(
    brokers: list[Broker], topic: str, load: Load, assignor: str, kinds: tuple[str, ...]
) -> None:
    eager = assignor != "cooperative-sticky"
    with (
        Crowd(bootstrap(brokers), topic, session_ms=SESSION_MS, assignor=assignor) as crowd,
        GroupWatch(brokers, topic, PARTITIONS, eager=eager) as watch,
    ):
        hosts = []
        for kind in kinds:
            hosts.append(crowd.host(kind, *(f"{kind}-{number}" for number in range(12 // len(kinds)))))
            watch.settle(crowd)
        # The leader goes with its library, until one is left.
        for host in hosts[:-1]:
            crowd.end(*host.names)
            watch.settle(crowd)
        watch.finish(crowd, load)
        crowd.check(load.sent)
