"""Workers are killed while they hold a JoinGroup or a SyncGroup that waits for others: the retry lands with another.

No member is lost or doubled by it, and none has to join once more than in any case. Two brokers on one Redis, the
first of two workers; members by bytes choose whom they talk to, real ones find their own way.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import redis

from tests.handlers.groups import Member
from tests.support import processes, reading, redis_servers
from tests.support.broker import Broker, korvet_cluster
from tests.support.connections import connected
from tests.support.crowd import Crowd
from tests.support.group_watch import coordinator
from tests.support.processes import wait_until
from tests.support.topic_client import Client
from tests.support.wire_client import ClosedByBrokerError, clients_of_two_workers, worker_of

PARTITIONS = 4
REBALANCE_IN_PROGRESS = 27


@pytest.fixture(scope="module")
def cluster_redis() -> Iterator[str]:
    """Give the URL of the brokers' Redis."""
    with redis_servers.server() as url:
        yield url


@pytest.fixture(scope="module")
def cluster(cluster_redis: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Run two brokers of two workers."""
    flags = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "group.min.session.timeout.ms=1000")
    directory = tmp_path_factory.mktemp("parked")
    with korvet_cluster(directory, cluster_redis, *flags, brokers=2, workers=2) as running:
        yield running


@pytest.fixture
def brokers(cluster: list[Broker]) -> list[Broker]:
    """Give the brokers with all their workers, though a test has killed some."""
    wait_until(lambda: all(all_accept(item) for item in cluster), "all workers accept")
    return cluster


def all_accept(broker: Broker) -> bool:
    """Tell whether both workers of a broker accept connections."""
    with contextlib.suppress(OSError, AssertionError, ClosedByBrokerError):
        pids = broker.worker_pids()
        if len(pids) == 2:
            with clients_of_two_workers(broker.address, pids, Client):
                return True
    return False


class Seen:
    """A group of the test's own, as Redis holds it."""

    def __init__(self, redis: redis.Redis, group: str) -> None:
        self.group = group
        self._redis = redis
        self._key = f"{{korvet:group:{group}:offsets}}"

    def wait_for_parked(self, count: int) -> None:
        """Wait until that number of members wait for others."""
        wait_until(
            lambda: self._redis.zcount(f"{self._key}:deadlines", "+inf", "+inf") == count, f"{count} wait"
        )

    def ids(self) -> set[str]:
        """Return the ids of the members."""
        fields: Any = self._redis.hkeys(f"{self._key}:members")
        return {field.decode()[2:] for field in fields if field.startswith(b"m:")}


@pytest.fixture
def seen(request: pytest.FixtureRequest, cluster_redis: str) -> Iterator[Seen]:
    """Give a group that has no members yet."""
    group = "".join(item if item.isalnum() else "-" for item in request.node.name)
    with redis.Redis.from_url(cluster_redis) as client:
        yield Seen(client, group)


@pytest.fixture
def there(brokers: list[Broker]) -> Iterator[Client]:
    """Give a connection to the broker whose workers live."""
    with Client(brokers[1].address) as client:
        yield client


@pytest.fixture
def elsewhere(brokers: list[Broker]) -> Iterator[Client]:
    """Give another one."""
    with Client(brokers[1].address) as client:
        yield client


class Doomed:
    """A connection to a worker that is to be killed."""

    def __init__(self, broker: Broker) -> None:
        self.client = Client(broker.address)
        self._pid = worker_of(self.client, broker.worker_pids())

    def kill_worker(self) -> None:
        """Kill it, and wait until the connection is closed without an answer."""
        processes.kill(self._pid)
        with pytest.raises(ClosedByBrokerError):
            self.client.receive_frame()
        self.client.close()

    def kill_worker_unheard(self) -> None:
        """Kill it, and read nothing that it may have answered."""
        processes.kill(self._pid)
        self.client.close()


@pytest.fixture
def doomed(brokers: list[Broker]) -> Doomed:
    return Doomed(brokers[0])


def settles(leader: Member, other: Member, seen: Seen, generation: int) -> None:
    """Check that both come to the generation, and that the group has no third member."""
    assert (leader.generation, other.generation) == (generation, generation)
    assert leader.sync({leader.id: b"one", other.id: b"two"}).assignment == b"one"
    assert other.sync().assignment == b"two"
    assert (leader.heartbeat(), other.heartbeat()) == (0, 0)
    assert seen.ids() == {leader.id, other.id}


def subscription(topic: str) -> bytes:
    """Subscribe to a topic, in Kafka's consumer protocol."""
    return struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + struct.pack(">i", -1)


def assignment(topic: str, partitions: Iterable[int]) -> bytes:
    """Assign partitions of a topic, in Kafka's consumer protocol."""
    given = list(partitions)
    start = struct.pack(">hih", 0, 1, len(topic)) + topic.encode()
    return start + struct.pack(f">i{len(given)}ii", len(given), *given, -1)


@pytest.mark.parametrize("first", ["the retry", "the leader"])
@pytest.mark.parametrize("fields", [{}, {"group_instance_id": "i"}], ids=["dynamic", "static"])
def test_a_join_parked_on_a_worker_that_is_killed_lands_when_it_is_retried(
    doomed: Doomed, there: Client, elsewhere: Client, seen: Seen, first: str, fields: Any
) -> None:
    leader = Member(there, seen.group)
    leader.join()
    leader.sync({leader.id: b""})
    other = Member(doomed.client, seen.group, **fields)
    other.begin_join()
    seen.wait_for_parked(1)
    doomed.kill_worker()
    other.client = elsewhere
    if first == "the retry":
        before = seen.ids()
        other.begin_join()
        if fields:
            wait_until(lambda: seen.ids() != before, "it has started again")
        reported = leader.join()
    else:
        reported = leader.join()
        other.begin_join()
    if fields and first == "the leader":
        # A static member that starts again while the others sync makes them all rejoin.
        wait_until(
            lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS, "the leader gets REBALANCE_IN_PROGRESS"
        )
        reported = leader.join()
    assert len(reported.members) == 2
    other.end_join()
    settles(leader, other, seen, other.generation)


def test_a_join_of_an_old_client_lands_too_and_what_it_left_goes_with_its_session(
    doomed: Doomed, there: Client, elsewhere: Client, seen: Seen
) -> None:
    leader = Member(there, seen.group)
    leader.join()
    leader.sync({leader.id: b""})
    # Before version 4 a member does not get its id first, so its retry is another member, as with Kafka.
    other = Member(doomed.client, seen.group, session_timeout_ms=5000)
    other.begin_join(version=3)
    seen.wait_for_parked(1)
    doomed.kill_worker()
    other.fields["session_timeout_ms"] = 30_000
    other.client = elsewhere
    other.begin_join(version=3)
    seen.wait_for_parked(2)
    assert len(leader.join().members) == 3
    other.end_join(version=3)
    leader.sync({leader.id: b"one", other.id: b"two"})
    assert other.sync().assignment == b"two"
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS, "the session of what it left ends")
    other.begin_join(version=3)
    assert len(leader.join().members) == 2
    other.end_join(version=3)
    settles(leader, other, seen, 3)


@pytest.mark.parametrize("first", [pytest.param("the retry", marks=pytest.mark.smoke), "the leader"])
def test_a_sync_parked_on_a_worker_that_is_killed_lands_when_it_is_retried(
    doomed: Doomed, there: Client, elsewhere: Client, seen: Seen, first: str
) -> None:
    leader, other = Member(there, seen.group), Member(doomed.client, seen.group)
    leader.join()
    leader.sync({leader.id: b""})
    other.begin_join()
    seen.wait_for_parked(1)
    leader.join()
    other.end_join()
    other.begin_sync()
    seen.wait_for_parked(1)
    doomed.kill_worker()
    parts = {leader.id: b"one", other.id: b"two"}
    other.client = elsewhere
    if first == "the retry":
        other.begin_sync()
        assert leader.sync(parts).assignment == b"one"
    else:
        assert leader.sync(parts).assignment == b"one"
        other.begin_sync()
    assert other.end_sync().assignment == b"two"
    settles(leader, other, seen, 2)


def test_a_leader_whose_worker_is_killed_rejoins_and_brings_the_assignments(
    brokers: list[Broker], there: Client, elsewhere: Client, seen: Seen
) -> None:
    doomed = Doomed(brokers[0])
    leader, other = Member(doomed.client, seen.group), Member(there, seen.group)
    leader.join()
    leader.sync({leader.id: b""})
    other.begin_join()
    seen.wait_for_parked(1)
    leader.begin_join()
    other.end_join()
    # The leader never reads that it has joined, nor later what its own part is.
    doomed.kill_worker_unheard()
    leader.client = elsewhere
    other.begin_sync()
    seen.wait_for_parked(1)
    reported = leader.join()
    assert (reported.leader, len(reported.members)) == (leader.id, 2)
    wait_until(lambda: all_accept(brokers[0]), "another worker")
    again = Doomed(brokers[0])
    leader.client = again.client
    leader.begin_sync({leader.id: b"one", other.id: b"two"})
    assert other.end_sync().assignment == b"two"
    again.kill_worker_unheard()
    leader.client = elsewhere
    settles(leader, other, seen, 2)


@pytest.mark.parametrize("parked", ["join", "sync"])
@pytest.mark.parametrize("kind", ["confluent", "kafka-python", "aiokafka"])
def test_a_real_member_parked_on_a_worker_that_is_killed_comes_to_its_part(
    brokers: list[Broker], seen: Seen, kind: str, parked: str
) -> None:
    group = seen.group
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    reading.create_topic(bootstrap, group, PARTITIONS)
    kept = coordinator(brokers, group)
    [elsewhere] = [broker for broker in brokers if broker is not kept]
    with Client(elsewhere.address) as client, Crowd(bootstrap, group, session_ms=30_000) as crowd:
        leader = Member(client, group, protocols={"range": subscription(group)})
        leader.join()
        leader.sync({leader.id: assignment(group, range(PARTITIONS))})
        crowd.host(kind, "real")
        seen.wait_for_parked(1)
        if parked == "sync":
            leader.join()
            seen.wait_for_parked(1)
        members = seen.ids()
        [real] = members - {leader.id}
        killed = [pid for pid in kept.worker_pids() if connected(pid, crowd.host_pids())]
        assert killed
        for pid in killed:
            processes.kill(pid)
        if parked == "join":
            leader.join()
        leader.sync({leader.id: assignment(group, [0, 1]), real: assignment(group, [2, 3])})
        wait_until(lambda: crowd.problems or crowd.owned() == {"real": {2, 3}}, "it has its part")
        crowd.check_problems()
        assert leader.heartbeat() == 0
        assert (leader.generation, seen.ids()) == (2, members)
