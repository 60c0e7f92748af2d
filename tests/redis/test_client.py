"""The clients of workers and of threads that may block: right replies for the right caller, errors that say why."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from korvet_core import RespReader, pack_command

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.redis import replies
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.client import Redis
from korvet.redis.replies import RespError, error_of, name_of
from korvet.redis.scripts import Script
from tests.support import redis_servers
from tests.support.proxy import turn, until


@pytest.fixture
def shared(redis_url: str) -> Iterator[Redis]:
    """Give a client for many greenlets."""
    with contextlib.closing(Redis(redis_url, timeout_ms=10_000, connect_timeout_ms=10_000)) as made:
        yield made


@pytest.fixture(params=[Redis, blocking_redis])
def connection(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Redis]:
    with contextlib.closing(request.param(redis_url, timeout_ms=10_000, connect_timeout_ms=10_000)) as made:
        yield made


@pytest.fixture(scope="module")
def own_url() -> Iterator[str]:
    """Give a server whose configuration these tests may change."""
    with redis_servers.embedded_server() as url:
        yield url


@pytest.fixture
def admin(own_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_url) as client:
        yield client
        client.replicaof("NO", "ONE")
        for name, value in (
            ("maxmemory", "0"),
            ("min-replicas-to-write", "0"),
            ("requirepass", ""),
            ("replica-serve-stale-data", "yes"),
            ("maxclients", "1000"),
        ):
            client.config_set(name, value)
        client.acl_deluser("korvet")
        client.flushall()


@pytest.fixture(params=[Redis, blocking_redis])
def connect(
    request: pytest.FixtureRequest, own_url: str, admin: redis.Redis
) -> Iterator[Callable[[str], Redis]]:
    """Give a way to connect to the own server with other credentials or options."""
    made: list[Redis] = []

    def connected(credentials: str = "", query: str = "") -> Redis:
        url = own_url.replace("unix://", f"unix://{credentials}") + query
        made.append(request.param(url, timeout_ms=10_000, connect_timeout_ms=10_000))
        return made[-1]

    yield connected
    for one in made:
        one.close()


def client_ids(raw: redis.Redis) -> set[str]:
    return {client["id"] for client in raw.client_list()}


def script(source: str) -> Script:
    return Script("test", source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_any_bytes_pass_unchanged(redis_server: str, values: list[bytes]) -> None:
    made = Redis(redis_server, timeout_ms=10_000, connect_timeout_ms=10_000)
    assert [made.call("ECHO", value) for value in values] == values
    assert made.pipeline([("ECHO", value) for value in values]) == values
    made.close()


def test_a_large_reply_lets_other_greenlets_run(shared: Redis) -> None:
    shared.call("SET", "large", b"x" * 50_000_000)
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            turn()

    counting = gevent.spawn(count)
    reading = gevent.spawn(shared.call, "GET", "large")
    reading.join()
    counting.kill()
    # Without the pauses the reader would take all of it in a few turns: 50 MB are some 400 reads.
    assert turns > 40


def test_a_pipeline_keeps_errors_in_their_places(connection: Redis) -> None:
    with pytest.raises(RespError, match="wrong number of arguments"):
        connection.call("LPUSH", "k")
    first, error, last = connection.pipeline([("SET", "k", 1), ("LPUSH", "k", 1), ("GET", "k")])
    assert (first, last) == (b"OK", b"1")
    assert isinstance(error, RespError)
    assert error.name == "WRONGTYPE"
    assert connection.pipeline([]) == []
    assert connection.pipeline([("PING",)]) == [b"PONG"]


def test_a_transaction_returns_its_replies_with_errors_in_place(connection: Redis) -> None:
    first, error = connection.transaction([("SET", "k", 1), ("LPUSH", "k", 1)])
    assert first == b"OK"
    assert isinstance(error, RespError)
    assert connection.transaction([]) == []


def test_a_transaction_that_cannot_be_queued_does_nothing_and_says_why(connection: Redis) -> None:
    with pytest.raises(RespError, match="wrong number of arguments") as caught:
        connection.transaction([("SET", "k", 1), ("LPUSH", "k")])
    assert caught.value.name == "ERR"
    assert connection.call("EXISTS", "k") == 0


def test_kafka_errors_inside_an_exec_stay_in_their_place(connection: Redis) -> None:
    refuse = "return redis.error_reply('UNKNOWN_MEMBER_ID seven')"
    (error,) = connection.transaction([("EVAL", refuse, 0)])
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_script_that_redis_does_not_have_is_loaded_and_run(connection: Redis) -> None:
    twice = script("redis.call('INCR', KEYS[1]) return {KEYS[1], ARGV[1]}")
    assert connection.script(twice, ["n"], [5]) == [b"n", b"5"]
    connection.call("SCRIPT", "FLUSH")
    assert connection.script(twice, ["n"], [6]) == [b"n", b"6"]
    assert connection.script(twice, ["n"], [7]) == [b"n", b"7"]
    assert connection.call("GET", "n") == b"3"


def test_scripts_that_every_connection_loads_first_are_never_overtaken(
    redis_url: str, raw_redis: redis.Redis
) -> None:
    push = script("redis.call('RPUSH', KEYS[1], ARGV[1]) return ARGV[1]")
    connection = Redis(redis_url, timeout_ms=5000, connect_timeout_ms=5000, load=[push])
    for made in (1, 2):
        raw_redis.delete("l")
        first = connection.begin_scripts([(push, ["l"], [1])])
        until(lambda: not connection.node_of("l").busy)
        raw_redis.script_load(push.source)
        second = connection.begin_scripts([(push, ["l"], [2])])
        assert [*first.result(), *second.result()] == [b"1", b"2"]
        assert raw_redis.lrange("l", 0, -1) == [b"1", b"2"]
        assert connection.node_of("l").connections == made
        raw_redis.script_flush()
        connection.reconnect("for the test")
    connection.close()


def test_scripts_keep_errors_in_their_places(connection: Redis) -> None:
    refuse = script("return redis.error_reply('UNKNOWN_MEMBER_ID ' .. ARGV[1])")
    works = script("return ARGV[1]")
    for _ in range(2):
        error, value = connection.scripts([(refuse, [], ["seven"]), (works, [], ["eight"])])
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.UNKNOWN_MEMBER_ID
        assert value == b"eight"
    with pytest.raises(KafkaError) as caught:
        connection.script(refuse, [], ["seven, group 9"])
    assert (caught.value.code, caught.value.message) == (ErrorCode.UNKNOWN_MEMBER_ID, "seven, group 9")


def test_a_script_that_cannot_be_compiled_says_so(connection: Redis) -> None:
    broken = script("this is no Lua")
    with pytest.raises(RespError, match="compiling"):
        connection.script(broken, [], [])
    error, value = connection.scripts([(broken, [], []), (script("return 1"), [], [])])
    assert "compiling" in str(error)
    assert value == 1


def test_an_argument_that_redis_cannot_take_sends_nothing(connection: Redis) -> None:
    connection.call("PING")
    with pytest.raises(TypeError):
        connection.pipeline([("SET", "k", 1), ("SET", "k", bytearray(b"2"))])  # type: ignore[list-item]  # the point of the test
    assert connection.call("EXISTS", "k") == 0


@pytest.mark.parametrize("word", sorted(replies._UNAVAILABLE))
def test_every_refusal_for_the_servers_state_is_unavailability(word: str) -> None:
    error = replies.error_of(f"{word} what the server says")
    assert isinstance(error, StorageUnavailableError)
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert f"{word} what the server says" in error.message


def lone_replica(admin: redis.Redis) -> None:
    admin.config_set("replica-serve-stale-data", "no")
    admin.replicaof("127.0.0.1", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "command", "error"),
    [
        (lambda admin: admin.config_set("maxmemory", "1"), ("SET", "k", "v"), "OOM"),
        (lambda admin: admin.replicaof("127.0.0.1", "1"), ("SET", "k", "v"), "READONLY"),
        (lambda admin: admin.config_set("min-replicas-to-write", "1"), ("SET", "k", "v"), "NOREPLICAS"),
        (lambda admin: admin.config_set("requirepass", "s3cret"), ("PING",), "NOAUTH"),
        (lambda admin: admin.config_set("maxclients", "1"), ("PING",), "max number of clients"),
        (lone_replica, ("GET", "k"), "MASTERDOWN"),
    ],
)
def test_a_server_that_refuses_for_its_state_is_unavailable(
    connect: Callable[..., Redis], admin: redis.Redis, change: Any, command: tuple[str, ...], error: str
) -> None:
    change(admin)
    connection = connect()
    with pytest.raises(StorageUnavailableError, match=error):
        connection.call(*command)
    with pytest.raises(StorageUnavailableError, match=error):
        connection.transaction([command])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("credentials", "user"), [(":p%40ss%20word@", b"default"), ("korvet:s3cret@", b"korvet")]
)
def test_the_credentials_of_the_url_are_used(
    connect: Callable[..., Redis], admin: redis.Redis, credentials: str, user: bytes
) -> None:
    admin.config_set("requirepass", "p@ss word")
    admin.acl_setuser("korvet", enabled=True, passwords="+s3cret", keys=["*"], categories=["+@all"])
    assert connect(credentials).call("ACL", "WHOAMI") == user


@pytest.mark.slow
def test_a_wrong_password_is_named_as_such_and_not_shown(
    connect: Callable[..., Redis], admin: redis.Redis
) -> None:
    admin.config_set("requirepass", "s3cret")
    with pytest.raises(StorageUnavailableError, match="WRONGPASS") as caught:
        connect("default:wr0ng@").call("PING")
    assert "wr0ng" not in str(caught.value)


@pytest.mark.slow
def test_a_forbidden_command_is_named_as_such(connect: Callable[..., Redis], admin: redis.Redis) -> None:
    admin.acl_setuser("korvet", enabled=True, passwords="+s3cret", keys=["*"], commands=["+get"])
    restricted = connect("korvet:s3cret@")
    # This user may not even give its connection a name; that alone keeps nobody away.
    assert restricted.call("GET", "k") is None
    with pytest.raises(StorageUnavailableError, match="NOPERM"):
        restricted.call("SET", "k", "v")


@pytest.mark.slow
def test_the_chosen_database_is_used(connect: Callable[..., Redis], own_url: str) -> None:
    connect(query="?db=3").call("SET", "k", "v")
    with redis.Redis.from_url(own_url, db=3) as client:
        assert client.get("k") == b"v"


@pytest.mark.slow
def test_a_database_that_does_not_exist_is_named(connect: Callable[..., Redis]) -> None:
    with pytest.raises(StorageUnavailableError, match="out of range"):
        connect(query="?db=999").call("PING")


def test_the_connection_carries_korvets_name(connection: Redis, raw_redis: redis.Redis) -> None:
    connection.call("PING")
    assert "korvet" in {client["name"] for client in raw_redis.client_list()}


def test_one_connection_serves_all_greenlets(shared: Redis, raw_redis: redis.Redis) -> None:
    before = client_ids(raw_redis)
    asked = [gevent.spawn(shared.call, "ECHO", str(number)) for number in range(500)]
    gevent.joinall(asked)
    assert [one.value for one in asked] == [str(number).encode() for number in range(500)]
    assert len(client_ids(raw_redis) - before) == 1


def test_nothing_connects_before_the_first_call(redis_url: str, raw_redis: redis.Redis) -> None:
    before = client_ids(raw_redis)
    made = Redis(redis_url, timeout_ms=1000, connect_timeout_ms=1000)
    assert client_ids(raw_redis) <= before
    made.close()
    with pytest.raises(StorageUnavailableError, match="closed"):
        made.call("PING")


def test_what_redis_does_not_answer_is_refused_and_takes_no_reply_of_another_caller(redis_url: str) -> None:
    connection = Redis(redis_url, timeout_ms=10_000, connect_timeout_ms=10_000)
    for unanswered in ([], [()], [("PING",), ()]):
        before = connection.begin_pipeline([("ECHO", "before")])
        with pytest.raises(ValueError, match=r"no commands|no words"):
            connection.begin_pipeline(unanswered)
        assert connection.call("ECHO", "after") == b"after"
        assert before.result() == [b"before"]
    connection.close()


def test_packed_commands_are_what_redis_reads() -> None:
    assert pack_command(("GET", b"k", 1)) == b"*3\r\n$3\r\nGET\r\n$1\r\nk\r\n$1\r\n1\r\n"


def test_any_number_of_attributes_may_stand_before_a_reply() -> None:
    reader = RespReader(error_of)
    reader.feed(b"*2\r\n" + b"|1\r\n+a\r\n|0\r\n:1\r\n" * 300_000 + b"+OK\r\n|0\r\n:2\r\n")
    assert reader.next_reply(None) == [b"OK", 2]


@pytest.mark.slow
def test_a_reply_for_which_there_is_no_memory_is_an_error_and_not_the_end_of_the_process() -> None:
    program = """
import resource
from korvet_core import RespReader

reader, size = RespReader(str), 192 << 20
reader.feed(b"$%d\\r\\n" % size)
reader.feed(bytes(size))
reader.feed(b"\\r\\n")
with open("/proc/self/statm") as pages:
    used = int(pages.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + size // 2, used + size // 2))
try:
    reader.next_reply(None)
except MemoryError:
    print("no memory")
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "no memory\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("UNKNOWN_MEMBER_ID group g has no member m", "UNKNOWN_MEMBER_ID"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "WRONGTYPE"),
        ("ERR user_script:14: attempt to perform arithmetic", "ERR"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "OOM"),
        ("READONLY You can't write against a read only replica.", "READONLY"),
        ("LOADING Redis is loading the dataset in memory", "UNAVAILABLE"),
        ("EXECABORT Transaction discarded because of: LOADING Redis is loading", "UNAVAILABLE"),
        ("EXECABORT Transaction discarded because of previous errors.", "EXECABORT"),
        ("NOPERM this user has no permissions to run the 'get' command", "UNAVAILABLE"),
        ("user_script:1: any text of a script", "OTHER"),
        ("A" * 1000, "OTHER"),
        ("", "OTHER"),
    ],
)
def test_an_error_has_a_name(text: str, name: str) -> None:
    assert name_of(error_of(text)) == name


def test_a_redis_that_is_away_has_one_too() -> None:
    assert name_of(StorageUnavailableError("it closed the connection")) == "UNAVAILABLE"
