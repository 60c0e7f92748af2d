"""A worker's lease, by Redis' clock: what is late after a gap, and the fence that scripts check."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, cast

import gevent
import gevent.server
import gevent.socket
import pytest
from korvet_core import RespReader

from korvet.errors import LeaseEndedError
from korvet.groups.offsets import Commit, Committer, OffsetStore
from korvet.handlers.registry import HANDLERS, Caller, Handler
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.schema import Message
from korvet.redis.client import Redis, RedisNode
from korvet.redis.keys import Keys
from korvet.redis.replies import time_ms
from korvet.redis.slots import SLOTS
from korvet.server import serving_lease
from korvet.server.serving_lease import Look, ServingLease, gap_of
from tests.support.dispatching import connected, dispatcher, opened_sockets
from tests.support.log_bench import Bench
from tests.support.proxy import Proxy, until
from tests.support.redis_cluster import redis_cluster
from tests.support.redis_servers import now_ms
from tests.support.wire_client import request_frame

pytestmark = pytest.mark.slow

LEASE_MS, LONG_LEASE_MS = 1000, 600_000
KEYS = Keys("korvet")


def test_what_came_before_a_late_renewal_is_late(redis: Redis, raw_redis: Any) -> None:
    before = now_ms(raw_redis)
    lease = ServingLease(redis, LEASE_MS)
    lease.renew()
    looked = now_ms(raw_redis)
    assert redis.nodes()[0].lease_end_ms in range(before + LEASE_MS, looked + LEASE_MS + 1)
    came = time.monotonic()
    assert not lease.is_late(came)
    until(lambda: now_ms(raw_redis) > looked + LEASE_MS)
    came = time.monotonic()
    assert lease.is_late(came)
    assert lease.not_after_ms(came) in range(before, looked + 1)
    assert redis.nodes()[0].lease_end_ms > now_ms(raw_redis)
    assert lease.is_late(came), "what came before the renewal is read after it"
    new = time.monotonic()
    assert not lease.is_late(new)


def test_all_that_lies_in_sockets_at_a_late_renewal_is_late(redis: Redis, raw_redis: Any) -> None:
    """The event loop comes to 64 sockets at once, and the answer of Redis may be among the first."""
    lease = ServingLease(redis, LEASE_MS)
    lease.renew()
    looked = now_ms(raw_redis)
    fences: list[float] = []

    def handle(_request: Message, caller: Caller, _api: object) -> Message:
        fences.append(caller.not_after_ms)
        return DescribeClusterResponse(cluster_id="")

    handler = Handler(DescribeClusterRequest, handle, HANDLERS[60].refuse)
    by = dispatcher(redis, {60: handler}, lease=lease)
    request = request_frame(DescribeClusterRequest(include_cluster_authorized_operations=False), 0)
    with opened_sockets() as sockets, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(connected(by, sockets))[1] for _ in range(200)]
        until(lambda: now_ms(raw_redis) > looked + LEASE_MS)
        renewing = gevent.spawn(lease.renew)
        for _ in range(5):
            gevent.sleep(0)  # looks at no socket
        time.sleep(0.05)
        for client in clients:
            client.sendall(request)
        renewing.join()
        until(lambda: len(fences) == len(clients))
    assert all(fences), "each is known to be late"


def test_a_lease_that_is_kept_makes_nothing_late(redis: Redis, raw_redis: Any) -> None:
    lease = ServingLease(redis, LEASE_MS)
    lease.renew()
    first_end = redis.nodes()[0].lease_end_ms
    keeping = gevent.spawn(lease.keep)
    until(lambda: redis.nodes()[0].lease_end_ms > first_end + LEASE_MS / 2)
    came = time.monotonic()
    assert not lease.is_late(came)
    assert not lease.is_late(came - LEASE_MS / 1000 / 2)
    before, came, after = now_ms(raw_redis), time.monotonic(), now_ms(raw_redis)
    until(lambda: now_ms(raw_redis) > after + LEASE_MS)
    assert lease.is_late(came), "it waited for longer than a lease"
    # The answer of Redis that gives its clock may have taken a while.
    assert before - LEASE_MS < lease.not_after_ms(came) <= after
    keeping.kill()


def test_a_node_that_hangs_ends_the_lease_of_no_other_one() -> None:
    with redis_cluster(masters=2) as cluster:
        redis = Redis(cluster.url, timeout_ms=60_000, connect_timeout_ms=60_000)
        lease = ServingLease(redis, LEASE_MS)
        lease.renew()
        hung, other = (redis.node_named(node.address) for node in cluster.nodes)
        cluster.nodes[0].freeze()
        keeping = gevent.spawn(lease.keep)
        end = hung.lease_end_ms
        until(lambda: other.lease_end_ms > end + 2 * LEASE_MS)
        assert not lease.is_late(time.monotonic())
        assert hung.lease_end_ms <= end + LEASE_MS
        cluster.nodes[0].thaw()
        until(lambda: hung.lease_end_ms > time_ms(hung.call("TIME")))
        keeping.kill()
        redis.close()


class ClockNode:
    """One of two nodes of a cluster, which does nothing but tell the time."""

    def __init__(self) -> None:
        self.seconds = 0
        self.answers = True
        self.delay_s = 0.0
        self.others: list[ClockNode] = []
        self.server = gevent.server.StreamServer(("127.0.0.1", 0), self._serve)
        self.server.start()

    def _serve(self, client: gevent.socket.socket, _address: object) -> None:
        reader = RespReader(str)
        while data := client.recv(65536):
            reader.feed(data)
            while command := cast("list[bytes]", reader.next_reply(None)):
                if command == [b"TIME"] and not self.answers:
                    return
                if command == [b"TIME"]:
                    gevent.sleep(self.delay_s)
                client.sendall(self._reply(*command))

    def _reply(self, word: bytes, *_: bytes) -> bytes:
        if word == b"TIME":
            seconds = str(int(time.time()) + self.seconds)
            return f"*2\r\n${len(seconds)}\r\n{seconds}\r\n$1\r\n0\r\n".encode()
        if word == b"CLUSTER":
            half = SLOTS // len(self.others)
            rows = (
                f"*3\r\n:{place * half}\r\n:{(place + 1) * half - 1}\r\n"
                f"*3\r\n$9\r\n127.0.0.1\r\n:{item.server.server_port}\r\n$2\r\nid\r\n"
                for place, item in enumerate(self.others)
            )
            return f"*{len(self.others)}\r\n{''.join(rows)}".encode()
        return b"+OK\r\n"


@contextlib.contextmanager
def two_clocks(seconds_apart: int = 0) -> Iterator[tuple[Redis, ClockNode, ClockNode]]:
    first, second = nodes = [ClockNode(), ClockNode()]
    for node in nodes:
        node.others = nodes
    second.seconds = seconds_apart
    url = f"redis+cluster://127.0.0.1:{first.server.server_port}"
    redis = Redis(url, timeout_ms=5000, connect_timeout_ms=5000)
    yield redis, first, second
    redis.close()
    for node in nodes:
        node.server.stop()


def test_a_node_that_is_always_slower_than_another_keeps_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_lease, "SLOW_NODE_SECONDS", 0.0)
    with two_clocks() as (redis, _, second):
        lease = ServingLease(redis, LONG_LEASE_MS)
        second.delay_s = 0.05
        slow = redis.node_named(f"127.0.0.1:{second.server.server_port}")
        before = slow.lease_end_ms
        keeping = gevent.spawn(lease.keep)
        until(lambda: slow.lease_end_ms > before)
        keeping.kill()


def test_only_nodes_that_answered_the_last_time_tell_how_long_ago_that_was() -> None:
    one, other, third = (cast("RedisNode", name) for name in ("one", "other", "third"))
    before = {one: Look(1000, 0.0, 7), other: Look(1000, 0.0, 7), third: Look(0, 0.0, 6)}
    # The machine was suspended between the answers of one and of the other.
    later = {one: Look(1001, 0.0, 8), other: Look(61_000, 0.0, 8), third: Look(61_000, 0.0, 8)}
    assert gap_of(before, later) == 60_000
    assert gap_of(before, {third: Look(2000, 0.0, 8)}) == 1000
    assert gap_of({}, later) == 0


def test_nodes_whose_clocks_differ_make_nothing_late() -> None:
    with two_clocks(seconds_apart=3600) as (redis, first, second):
        lease = ServingLease(redis, LONG_LEASE_MS)
        lease.renew()
        came = time.monotonic()
        first.answers = False
        lease.renew()
        assert not lease.is_late(came)
        # A late commit to a group of either node replaces none that was made since.
        assert lease.not_after_ms(came) <= time.time() * 1000
        second.seconds += LONG_LEASE_MS // 1000 + 1
        lease.renew()
        assert lease.is_late(came)


def test_a_commit_that_lay_on_the_way_until_the_lease_had_ended_is_not_done(
    network: Proxy, raw_redis: Any
) -> None:
    here = Redis(network.url, timeout_ms=60_000, connect_timeout_ms=10_000)
    bench = Bench(here, raw_redis, "record")
    offsets = OffsetStore(here, KEYS, mirror=False)
    by = Committer("billing")

    def commit(offset: int) -> None:
        assert offsets.commit(by, [Commit(bench.partition, offset, -1, "")]) == [None]

    lease = ServingLease(here, LEASE_MS)
    lease.renew()
    commit(20)
    written = raw_redis.hgetall(KEYS.group_offsets("billing"))
    looked = now_ms(raw_redis)
    network.silence()
    late = gevent.spawn(commit, 10)
    until(lambda: now_ms(raw_redis) > looked + LEASE_MS)
    network.speak()
    with pytest.raises(LeaseEndedError, match="STALE_BROKER_EPOCH"):
        late.get()
    assert raw_redis.hgetall(KEYS.group_offsets("billing")) == written
    assert lease.is_late(time.monotonic()), "the refusal alone says so, whatever the worker's own clock does"
    commit(30)
    here.close()


def test_without_redis_nobody_waits_for_a_lease_twice(network: Proxy) -> None:
    here = Redis(network.url, timeout_ms=2000, connect_timeout_ms=2000)
    lease = ServingLease(here, LEASE_MS)
    network.silence()
    assert lease.is_late(time.monotonic())
    waiting = gevent.spawn(lease.is_late, time.monotonic())
    gevent.sleep(0)
    assert waiting.ready()
    network.speak()
    keeping = gevent.spawn(lease.keep)
    until(lambda: not lease.is_late(time.monotonic()))
    assert here.nodes()[0].lease_end_ms > time_ms(here.call("TIME"))
    keeping.kill()
    here.close()
