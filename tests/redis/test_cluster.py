"""The client over a real Redis Cluster: where requests go, also while slots move and nodes are away."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import gevent
import pytest
from korvet_core import RawReply, pack_command

from korvet.errors import NodeAwayError, OutcomeUnknownError, StorageUnavailableError
from korvet.redis import scripts
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.slots import SLOTS, slot_of, spread_tags
from tests.support.processes import wait_until
from tests.support.proxy import until
from tests.support.redis_cluster import ClusterNode, RedisCluster
from tests.support.redis_cluster import redis_cluster as started_cluster

pytestmark = pytest.mark.slow

KEYS = Keys("korvet")
STREAMS = [KEYS.stream("orders", index) for index in range(12)]


Connect = Callable[..., Redis]
of_both = pytest.mark.parametrize("connect", [Redis, blocking_redis])


@pytest.fixture(params=[Redis, blocking_redis])
def client(request: pytest.FixtureRequest, redis_cluster: RedisCluster) -> Iterator[Redis]:
    connected = request.param(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=2000)
    yield connected
    connected.close()


A, B, C = range(3)


@pytest.mark.parametrize(
    "masters",
    [
        [*[A] * 5461, *[B] * 5461, *[C] * 5462],
        [A, *[None] * 100, *[B] * 10_000, *[C] * 6_283],  # one has a single slot, and some have no master
        [A, B, C, C] * 4096,
    ],
)
def test_tags_spread_evenly_over_the_masters_that_have_slots(masters: list[int | None]) -> None:
    def counts(tags: list[str]) -> list[int]:
        result = Counter(masters[slot_of(f"{{{tag}}}")] for tag in tags)
        return sorted(result[item] for item in (A, B, C))

    tags: list[str] = []
    for more in (7, 1, 0, 100):
        tags += spread_tags(masters, tags, more, f"seed {len(tags)}")
        assert counts(tags)[-1] - counts(tags)[0] <= 1
    assert len(tags) == 108
    # Those that lie unevenly by now stay, and the new ones even it out.
    lopsided = [tag for tag in tags if masters[slot_of(f"{{{tag}}}")] is not A]
    assert counts(lopsided) == [0, 36, 36]
    assert counts([*lopsided, *spread_tags(masters, lopsided, 40, "")]) == [37, 37, 38]


def test_topics_of_one_partition_do_not_all_go_to_one_master() -> None:
    masters: list[int | None] = [A, B, C, C] * 4096
    firsts = {masters[slot_of(f"{{{spread_tags(masters, [], 1, seed)[0]}}}")] for seed in map(str, range(50))}
    assert firsts == {A, B, C}


def test_a_cluster_without_a_master_spreads_nothing() -> None:
    with pytest.raises(StorageUnavailableError):
        spread_tags([None] * SLOTS, [], 1, "")


def test_a_pipeline_goes_to_the_nodes_of_its_keys(client: Redis, redis_cluster: RedisCluster) -> None:
    assert client.pipeline([("SET", key, key) for key in STREAMS]) == [b"OK"] * len(STREAMS)
    assert client.pipeline([("GET", key) for key in STREAMS]) == [key.encode() for key in STREAMS]
    sizes = [node.client.dbsize() for node in redis_cluster.masters()]
    assert sum(sizes) == len(STREAMS)
    assert all(sizes)
    reads = [command for key in STREAMS for command in (("MULTI",), ("GET", key), ("TYPE", key), ("EXEC",))]
    result = client.pipeline([("TIME",), *reads])
    assert result[4::4] == [[key.encode(), b"string"] for key in STREAMS]
    raw = client.begin_raw([pack_command(command) for command in reads]).result()
    replies = [bytes(reply) for reply in raw[3::4] if isinstance(reply, RawReply)]
    assert replies == [b"*2\r\n$%d\r\n%s\r\n+string\r\n" % (len(key), key.encode()) for key in STREAMS]


def test_scripts_go_to_the_nodes_of_their_keys(client: Redis) -> None:
    lease = scripts.get("keeper/lease")
    keys = [(f"{{{stream}}}:lease", f"{{{stream}}}:fence") for stream in STREAMS]
    taken = client.scripts([(lease, item, ("me", 10_000)) for item in keys])
    assert taken == [[1, b"1"]] * len(STREAMS)


def test_a_node_that_left_the_cluster_does_not_empty_the_map(redis_cluster: RedisCluster) -> None:
    node = redis_cluster.nodes[0]
    with contextlib.closing(ClusterNode()) as alone:
        url = f"redis+cluster://{alone.address},{node.address}"
        with contextlib.closing(Redis(url, timeout_ms=2000, connect_timeout_ms=2000)) as client:
            for _ in range(3):  # each begins with another node
                client.driver.read_map()
                assert client.nodes()[0].name == node.address


@of_both
def test_a_request_follows_its_slot(redis_cluster: RedisCluster, connect: Connect) -> None:
    client = connect(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=2000)
    [key] = [stream for stream in STREAMS if redis_cluster.node_of(stream) is redis_cluster.nodes[0]][:1]
    assert client.call("INCR", key) == 1
    redis_cluster.move_slot(slot_of(key), redis_cluster.nodes[1])
    assert client.call("INCR", key) == 2
    assert client.node_of(key).name == redis_cluster.nodes[1].address
    client.close()


@of_both
def test_a_change_that_follows_its_slot_is_known_to_have_gone_to_the_node_that_took_it(
    redis_cluster: RedisCluster, connect: Connect
) -> None:
    client = connect(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=2000)
    keys = ("{x}:lease", "{x}:fence")
    old = client.node_of(keys[0])
    new = next(item for item in redis_cluster.nodes if item.address != old.name)
    redis_cluster.move_slot(slot_of(keys[0]), new)
    asked: list[str] = []
    with client.before_writes(lambda node: asked.append(node.name)) as writes:
        assert client.script(scripts.get("keeper/lease"), keys, ("me", 60_000)) == [1, b"1"]
        assert client.script(scripts.get("keeper/lease"), keys, ("me", 60_000)) == [1, b"1"]
        client.announce([keys[0]])
    # Before the first one nobody knew of the move.
    assert asked == [old.name, new.address, new.address]
    histories = {name: client.node_named(name).history for name in (old.name, new.address)}
    assert writes.sent() == set(histories.items())
    client.close()


@of_both
def test_a_master_that_another_client_has_learned_of_is_found(connect: Connect) -> None:
    """A client that only waits for replicas sends nothing that could show a stale map."""
    with started_cluster(masters=1, replicas=1) as cluster:
        client = connect(cluster.url, timeout_ms=5000, connect_timeout_ms=2000)
        [old] = cluster.masters()
        [new] = cluster.replicas_of(old)
        client.tag_of(old.address)
        new.call("CLUSTER", "FAILOVER", "TAKEOVER")
        wait_until(lambda: cluster.masters() == [new], "the replica is promoted")
        cluster.wait_ok()

        def is_found(find: Callable[[str], object]) -> bool:
            with contextlib.suppress(StorageUnavailableError):
                return bool(find(new.address))
            return False

        until(lambda: is_found(client.tag_of))
        until(lambda: is_found(client.node_named))
        client.close()


@of_both
def test_nodes_that_are_to_be_called_by_hostnames_and_have_none_are_found(
    redis_cluster: RedisCluster, connect: Connect
) -> None:
    first, second, _ = redis_cluster.nodes
    with redis_cluster.configured("cluster-preferred-endpoint-type", "hostname"):
        # The one seed has another name, which is not that of the other nodes.
        client = connect(f"redis+cluster://localhost:{first.port}", timeout_ms=5000, connect_timeout_ms=2000)
        assert [node.name for node in client.nodes()] == [node.address for node in redis_cluster.nodes]
        key = next(stream for stream in STREAMS if redis_cluster.node_of(stream) is first)
        assert client.call("INCR", key) == 1
        redis_cluster.move_slot(slot_of(key), second)
        assert client.call("INCR", key) == 2
        client.close()


def test_a_script_waits_for_a_slot_on_its_way(redis_cluster: RedisCluster) -> None:
    client = Redis(redis_cluster.url, timeout_ms=10_000, connect_timeout_ms=2000)
    slot, to = (
        slot_of("{x}:lease"),
        next(n for n in redis_cluster.nodes if n is not redis_cluster.node_of("{x}")),
    )
    client.script(scripts.get("keeper/lease"), ("{x}:lease", "{x}:fence"), ("me", 60_000))
    source = redis_cluster.begin_move(slot, to)
    source.client.config_resetstat()
    redis_cluster.move_keys(source, to, [b"{x}:lease"])
    asked = gevent.spawn(
        client.script, scripts.get("keeper/lease"), ("{x}:lease", "{x}:fence"), ("me", 60_000)
    )
    refused = "errorstat_TRYAGAIN"
    until(lambda: source.client.info("errorstats").get(refused, {"count": 0})["count"] > 1)
    assert not asked.ready()
    redis_cluster.end_move(slot, source, to)
    assert asked.get() == [1, b"1"]
    client.close()


def test_a_node_that_hangs_is_waited_for_once(redis_cluster: RedisCluster) -> None:
    client = Redis(redis_cluster.url, timeout_ms=1500, connect_timeout_ms=1500)
    client.pipeline([("SET", key, "1") for key in STREAMS])
    hung = redis_cluster.node_of(STREAMS[0])
    hung.freeze()
    with pytest.raises(OutcomeUnknownError):
        client.call("GET", STREAMS[0])
    with pytest.raises(NodeAwayError):
        client.call("GET", STREAMS[0])
    # From now on nobody waits for it, whether an attempt to connect is under way or not.
    began = client.node_of(STREAMS[0])
    for _ in range(100):
        with pytest.raises(NodeAwayError):
            client.call("GET", STREAMS[0])
    assert client.is_away(STREAMS[0])
    assert began.connections == 1
    hung.thaw()
    until(lambda: not client.is_away(STREAMS[0]))
    assert client.call("GET", STREAMS[0]) == b"1"
    client.close()
