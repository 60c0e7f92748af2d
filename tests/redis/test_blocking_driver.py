"""The client of threads that may block, over one server, TLS, Sentinels and a cluster: nothing of it uses gevent.

What both clients answer is tested in test_client.py and test_cluster.py.
"""

from __future__ import annotations

import gc
import hashlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
import redis
from gevent._hub_local import get_hub_if_exists

from korvet.config.sources import with_password
from korvet.errors import OutcomeUnknownError, StorageUnavailableError
from korvet.lake.source import LakeSource
from korvet.pending import Pending
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.client import Redis
from korvet.redis.replies import Reply, RespError
from korvet.redis.scripts import Script
from korvet.redis.slots import slot_of
from tests.support import redis_servers
from tests.support.archives import topics_in
from tests.support.processes import wait_until
from tests.support.redis_cluster import RedisCluster
from tests.support.secured_redis import secured_redis
from tests.support.sentinels import watched


def client(url: str, timeout_ms: int = 10_000) -> Redis:
    return blocking_redis(url, timeout_ms=timeout_ms, connect_timeout_ms=4000)


@pytest.fixture
def connection(redis_url: str) -> Iterator[Redis]:
    made = client(redis_url)
    yield made
    made.close()


def is_there(connection: Redis, *command: str) -> bool:
    """Tell whether a command, PING where none is given, is answered."""
    try:
        return connection.call(*command or ("PING",)) in (b"PONG", b"OK")
    except StorageUnavailableError:
        return False


def script(source: str) -> Script:
    return Script("test", source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


# Its reply has arrived when it may take no more than half as much.
_TOO_LITTLE_MEMORY = """
import pathlib, resource
from korvet_core import RespReader
reader, size = RespReader(ValueError), 1 << 26
reader.feed(b"$%d\\r\\n" % size)
reader.feed(b"x" * size)
reader.feed(b"\\r\\n")
pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size // 2,) * 2)
try:
    reader.next_reply(None)
except MemoryError:
    print("refused")
"""

TWICE = script("redis.call('INCR', KEYS[1]) return {KEYS[1], ARGV[1]}")


def test_commands_pipelines_transactions_and_scripts_have_their_replies(connection: Redis) -> None:
    large = bytes(range(256)) * 40_000
    assert connection.call("SET", "k", memoryview(large)) == b"OK"
    first, error, last = connection.pipeline([("GET", "k"), ("LPUSH", "k", 1), ("STRLEN", "k")])
    assert (first, last) == (large, len(large))
    assert isinstance(error, RespError)
    assert connection.transaction([("SET", "k", 1), ("GET", "k")]) == [b"OK", b"1"]
    for argument in (b"5", b"6"):
        # It is loaded by the first call, and after each loss.
        assert connection.script(TWICE, ["n"], [argument]) == [b"n", argument]
        connection.call("SCRIPT", "FLUSH")
    with pytest.raises(RespError, match="WRONGTYPE"):
        connection.call("LPUSH", "k", 1)


def test_replies_that_nobody_takes_are_not_those_of_the_next_request(connection: Redis) -> None:
    first = connection.begin_pipeline([("ECHO", "1"), ("ECHO", "2")])
    second = connection.begin_pipeline([("ECHO", "3")])
    assert connection.call("ECHO", "4") == b"4"
    assert second.result() == [b"3"]
    assert first.result() == [b"1", b"2"]


def test_a_connection_that_was_lost_is_made_again(connection: Redis, raw_redis: redis.Redis) -> None:
    assert connection.call("PING") == b"PONG"
    own = connection.call("CLIENT", "ID")
    # While it is idle, which no request notices.
    raw_redis.client_kill_filter(_id=str(own))
    assert connection.call("PING") == b"PONG"
    assert connection.reconnected_at <= time.monotonic()
    # While a request is under way.
    own = connection.call("CLIENT", "ID")
    blocked = connection.begin_pipeline([("BLPOP", "nothing", 0)])
    wait_until(
        lambda: any(item["cmd"] == "blpop" for item in raw_redis.client_list()), "the request is there"
    )
    raw_redis.client_kill_filter(_id=str(own))
    with pytest.raises(OutcomeUnknownError, match="the outcome of the request is unknown"):
        blocked.result()
    assert connection.call("PING") == b"PONG"


def interrupt_after(seconds: float, work: Callable[[], object]) -> None:
    """Interrupt some work, as a user does."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_replies_to_a_request_that_was_interrupted_are_not_those_of_the_next_request(
    connection: Redis, raw_redis: redis.Redis
) -> None:
    interrupted = connection.begin_pipeline([("ECHO", "1"), ("BLPOP", "list", 0)])
    interrupt_after(0.05, interrupted.result)
    raw_redis.rpush("list", "2")
    assert connection.call("ECHO", "3") == b"3"
    assert interrupted.result() == [b"1", [b"list", b"2"]]


@pytest.mark.slow
def test_an_interruption_between_any_two_steps_gives_no_reply_to_another_request(redis_url: str) -> None:
    """Signals come at any moment of some thousand requests."""
    with closing(client(redis_url)) as connection:
        begun: list[tuple[bytes, Pending[list[Reply]]]] = []

        def work() -> None:
            for number in count():
                asked = str(number).encode()
                begun[:] = [(asked, connection.begin_pipeline([("ECHO", asked)]))]
                assert begun[0][1].result() == [asked]

        for _ in range(300):
            interrupt_after(random.uniform(0.0001, 0.003), work)
            for asked, pending in begun:
                assert pending.result() == [asked]
            assert connection.call("ECHO", "after") == b"after"


def test_clients_that_are_dropped_with_requests_begun_keep_no_descriptor(redis_url: str) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        client(redis_url).begin_pipeline([("ECHO", "nobody takes this")])
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_a_server_that_does_not_answer_or_is_away_is_one_error(redis_url: str) -> None:
    impatient = client(redis_url, timeout_ms=500)
    impatient.call("PING")
    with pytest.raises(OutcomeUnknownError, match="nothing was heard"):
        impatient.call("BLPOP", "nothing", 0)
    wait_until(lambda: is_there(impatient), "it answers over another connection")
    impatient.close()
    with pytest.raises(StorageUnavailableError, match="is closed"):
        impatient.call("PING")
    with pytest.raises(StorageUnavailableError, match="cannot be reached: No such file"):
        client("unix:///nowhere/server.sock").call("PING")


@pytest.mark.slow
def test_logins_and_tls_are_those_of_the_url(tmp_path: Path) -> None:
    with secured_redis(tmp_path) as secured:
        made = client(with_password(secured.url, str(secured.password_file)))
        assert made.call("HSET", "korvet:topics", "a", "b") == 1
        made.close()
        with pytest.raises(StorageUnavailableError, match=r"refused the connection .*WRONGPASS"):
            client(secured.url.replace("korvet@", "korvet:wrong@")).call("PING")
        untrusted = with_password(re.sub("ssl_ca_certs=[^&]*&?", "", secured.url), str(secured.password_file))
        with pytest.raises(StorageUnavailableError, match=r"(?i)cannot be reached: .*certificate"):
            client(untrusted).call("PING")
        with pytest.raises(StorageUnavailableError, match=r"redis\.url must name one by ssl_certfile"):
            client(secured.anonymous_url).call("PING")


@pytest.mark.slow
def test_the_master_is_that_which_sentinels_name() -> None:
    with watched(replicas=1, down_ms=60_000) as made:
        connection = client(made.url)
        assert connection.call("SET", "k", 1) == b"OK"
        before = made.master().port
        after = made.fail_over()
        assert after.port != before
        wait_until(lambda: is_there(connection, "SET", "k", "2"), "the new master is found")
        assert after.client.get("k") == b"2"
        connection.close()


@pytest.mark.slow
def test_requests_go_to_the_nodes_that_have_their_slots(redis_cluster: RedisCluster) -> None:
    connection = client(redis_cluster.url)
    keys = [f"key-{at}" for at in range(50)]
    assert connection.pipeline([("SET", key, key) for key in keys]) == [b"OK"] * 50
    assert len(connection.known_nodes()) == 3
    source = redis_cluster.owner(slot_of(keys[0]))
    to = next(master for master in redis_cluster.masters() if master is not source)
    redis_cluster.move_slot(slot_of(keys[0]), to)
    assert connection.pipeline([("GET", key) for key in keys]) == [key.encode() for key in keys]
    assert connection.node_of(keys[0]).name == to.address
    assert connection.scripts([(TWICE, [f"n-{at}"], [at]) for at in range(20)]) == [
        [f"n-{at}".encode(), str(at).encode()] for at in range(20)
    ]
    connection.close()


def test_threads_that_read_and_archive_have_no_event_loop_and_leave_no_files(
    redis_url: str, tmp_path: Path
) -> None:
    with topics_in(redis_url, tmp_path / "lake") as topics:
        topic = topics.make("orders", "batch")
        hubs: list[object] = []

        def work() -> None:
            assert topics.archiver().round(topics.run).failures == []
            with topics.source.opened() as stores:
                assert stores.held_bounds(topic.partitions)
            hubs.append(get_hub_if_exists())

        counts = []
        for _ in range(4):
            topics.produce(topic.partitions[0], b"1")
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            counts.append(len(list(Path("/proc/self/fd").iterdir())))
        assert hubs == [None] * 4
        # What a round left would add up; other threads of this process open a file now and then.
        assert counts[-1] - counts[0] < len(counts) - 1


@pytest.mark.slow
def test_what_replicas_have_is_known_without_an_event_loop() -> None:
    with redis_servers.master() as master, master.replica():
        held: list[object] = []

        def work() -> None:
            with LakeSource(redis_url=master.url, replicas=1).opened() as stores:
                partition = stores.logs.partition("orders", 0, "A" * 22, 10, "batch")
                held.append(stores.logs.visible_bounds([partition]))
            held.append(get_hub_if_exists())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert held[1:] == [None]


@pytest.mark.slow  # a process
def test_a_reply_for_which_there_is_no_memory_is_an_error_and_does_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TOO_LITTLE_MEMORY], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"
