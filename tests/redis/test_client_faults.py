"""The shared connection under faults of a real network: nothing is sent twice, no reply reaches the wrong caller."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import gevent.server
import pytest
import redis

from korvet.config.sources import with_password
from korvet.errors import StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.observer import Observer
from tests.support.proxy import Proxy, proxy, turn, until
from tests.support.secured_redis import PASSWORD, secured_redis

pytestmark = pytest.mark.slow

TLS = Path(__file__).parents[1] / "support" / "tls"
CERTIFICATE, KEY = TLS / "certificate.pem", TLS / "key.pem"
# How long a test waits for what must come; never how long it takes.
PATIENCE_S = 20.0

Connect = Callable[..., Redis]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Give a way to make connections; afterwards none of them may think that anything is in flight."""
    made: list[Redis] = []

    def connected(url: str, timeout_ms: int = 10_000, **others: Any) -> Redis:
        others.setdefault("connect_timeout_ms", timeout_ms)
        made.append(Redis(url, timeout_ms=timeout_ms, **others))
        return made[-1]

    yield connected
    for one in made:
        one.close()
        turn()
        [node] = one.nodes()
        assert node.under_way == (0, 0, 0)


def eventually(connection: Redis, *command: str) -> object:
    """Ask until Redis answers."""
    replies: list[object] = []

    def answers() -> bool:
        with contextlib.suppress(StorageUnavailableError):
            replies.append(connection.call(*command))
        return bool(replies)

    until(answers)
    return replies[0]


def unavailable(connection: Redis, *command: str) -> str:
    with pytest.raises(StorageUnavailableError) as caught:
        connection.call(*command)
    return caught.value.message


def in_flight(connection: Redis) -> int:
    """Return how many commands were sent whose replies have not come."""
    [node] = connection.nodes()
    return node.under_way[0]


def waiting_for_room(connection: Redis) -> int:
    """Return how many callers wait until less is in flight."""
    [node] = connection.nodes()
    return node.waiting[0]


@pytest.mark.parametrize(
    ("direction", "limits"), [("to_server", range(0, 160, 3)), ("to_client", range(0, 900, 17))]
)
def test_a_cut_at_any_byte_is_survived(
    network: Proxy, connect: Connect, raw_redis: redis.Redis, direction: str, limits: range
) -> None:
    commands = [("INCR", "n"), ("ECHO", "a" * 10)]
    succeeded = failed = 0
    # The handshake is 73 bytes and its reply some 700; the steps lead through it and through the commands' own bytes.
    for limit in limits:
        connection = connect(network.url)
        setattr(network, f"cut_after_{direction}", getattr(network, f"bytes_{direction}") + limit)
        try:
            increased, echoed = connection.pipeline(commands)
            assert isinstance(increased, int)
            assert echoed == b"a" * 10
            succeeded += 1
        except StorageUnavailableError:
            failed += 1
        setattr(network, f"cut_after_{direction}", None)
        assert eventually(connection, "ECHO", str(limit)) == str(limit).encode()
    assert succeeded > 0
    assert failed > 0
    assert succeeded <= int(raw_redis.get("n") or 0) <= succeeded + failed


def test_many_callers_share_one_attempt_to_connect(network: Proxy, connect: Connect) -> None:
    connection = connect(network.url, timeout_ms=400)
    network.silence()
    asked = [gevent.spawn(unavailable, connection, "PING") for _ in range(50)]
    gevent.joinall(asked)
    assert network.connections == 1
    assert all("did not answer within" in str(message.value) for message in asked)


def test_a_caller_killed_while_connecting_does_not_stop_the_others(network: Proxy, connect: Connect) -> None:
    connection = connect(network.url)
    network.silence()
    begun = gevent.spawn(connection.call, "ECHO", "first")
    waiting = gevent.spawn(connection.call, "ECHO", "second")
    until(lambda: network.connections == 1)
    begun.kill()
    network.speak()
    assert waiting.get() == b"second"
    assert network.connections == 1


def test_a_redis_that_is_away_fails_fast_and_is_found_again(redis_url: str, connect: Connect) -> None:
    with proxy(redis_url) as network:
        connection = connect(network.url, timeout_ms=60_000)
        connection.call("PING")
    # Its timeout is a minute: what fails here fails because the connection is refused.
    messages = [unavailable(connection, "PING") for _ in range(20)]
    assert any("cannot be reached: Connection refused" in message for message in messages)


def test_garbage_ends_the_connection_and_not_the_broker(network: Proxy, connect: Connect) -> None:
    connection = connect(network.url)
    connection.call("PING")
    blocked = gevent.spawn(unavailable, connection, "BLPOP", "none", "0")
    until(lambda: in_flight(connection))
    network.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert "not RESP" in blocked.get()
    assert eventually(connection, "ECHO", "after") == b"after"


def test_a_reply_that_nobody_asked_for_ends_the_connection(network: Proxy, connect: Connect) -> None:
    connection = connect(network.url)
    connection.call("PING")
    network.say(b"+SURPRISE\r\n")
    until(lambda: not connection.nodes()[0].connected)
    assert connection.call("ECHO", "after") == b"after"


def test_garbage_instead_of_a_handshake_is_reported(connect: Connect) -> None:
    def serve(client: gevent.socket.socket, _address: object) -> None:
        client.sendall(b"SSH-2.0-x\r\n")
        client.close()

    server = gevent.server.StreamServer(("127.0.0.1", 0), serve)
    server.start()
    connection = connect(f"redis://127.0.0.1:{server.server_port}")
    assert "not RESP" in unavailable(connection, "PING")
    server.stop()


def test_killed_callers_do_not_shift_the_replies_of_others(redis_url: str, connect: Connect) -> None:
    connection = connect(redis_url)
    chance = random.Random(7)
    for round_number in range(20):
        asked = [gevent.spawn(connection.call, "ECHO", f"{round_number}-{number}") for number in range(64)]
        turn()
        doomed = set(chance.sample(range(64), 20))
        gevent.killall([asked[number] for number in doomed])
        gevent.joinall(asked)
        for number in set(range(64)) - doomed:
            assert asked[number].value == f"{round_number}-{number}".encode()


def test_each_reply_belongs_to_its_request_while_connections_are_killed(
    redis_url: str, connect: Connect
) -> None:
    connection = connect(redis_url)
    answered = lost = 0
    stopped = False

    def hammer(worker: int) -> None:
        nonlocal answered, lost
        number = 0
        while not stopped:
            number += 1
            payload = f"{worker}-{number}" * (1 + number % 50)
            try:
                if number % 3:
                    assert connection.call("ECHO", payload) == payload.encode()
                else:
                    assert connection.pipeline([("ECHO", payload), ("PING",)]) == [payload.encode(), b"PONG"]
                answered += 1
            except StorageUnavailableError:
                lost += 1
                turn()

    hammers = [gevent.spawn(hammer, worker) for worker in range(64)]
    # Killed by a connection of the same event loop, so that the hammers go on meanwhile and are hit in mid-flight.
    killer = connect(redis_url)
    own = killer.call("CLIENT", "ID")
    kills = 0
    while lost < 500 or kills < 30:
        enough = answered + 64
        while answered < enough:
            turn()
        killer.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        kills += 1
        assert kills < 2000
    assert killer.call("CLIENT", "ID") == own
    stopped = True
    gevent.joinall(hammers, raise_error=True)


def test_no_more_than_the_limit_is_in_flight_and_callers_wait_their_turn(
    redis_url: str, connect: Connect, raw_redis: redis.Redis
) -> None:
    connection = connect(redis_url, commands_max=10)
    connection.call("PING")
    blocked = gevent.spawn(connection.call, "BLPOP", "go", "0")
    until(lambda: in_flight(connection))
    order: list[int] = []

    def push(number: int) -> None:
        connection.call("RPUSH", "order", str(number))
        order.append(number)

    waiting = [gevent.spawn(push, number) for number in range(100)]
    until(lambda: waiting_for_room(connection) == 91)
    assert in_flight(connection) == 10
    gevent.killall(waiting[50:60])
    raw_redis.rpush("go", "now")
    gevent.joinall(waiting)
    assert blocked.value == [b"go", b"now"]
    # What was begun is sent in its turn, whether or not anybody waits for it.
    assert [int(number) for number in raw_redis.lrange("order", 0, -1)] == list(range(100))
    assert order == [number for number in range(100) if number not in range(50, 60)]


def test_large_replies_wait_for_room_and_small_ones_do_not(
    redis_url: str, connect: Connect, raw_redis: redis.Redis
) -> None:
    connection = connect(redis_url, reply_bytes_max=10_000)
    connection.call("PING")
    blocked = gevent.spawn(connection.call, "BLPOP", "go", "0")
    until(lambda: in_flight(connection))

    def push(value: str, reply_bytes: int) -> None:
        connection.pipeline([("RPUSH", "order", value)], reply_bytes=reply_bytes)

    large = [gevent.spawn(push, f"large {number}", 4000) for number in range(10)]
    small = gevent.spawn(push, "small", 0)
    # Three reach the limit; they, the small one and the blocked one are in flight.
    until(lambda: in_flight(connection) == 5)
    assert connection.nodes()[0].under_way[2] == 12_000
    gevent.killall(large[4:6])  # they are sent in their turn all the same
    raw_redis.rpush("go", "now")
    gevent.joinall([small, *large])
    assert blocked.get() == [b"go", b"now"]
    waited = [f"large {number}".encode() for number in range(3, 10)]
    assert raw_redis.lrange("order", 0, -1) == [b"large 0", b"large 1", b"large 2", b"small", *waited]


def test_a_lost_connection_frees_the_room_of_its_replies(network: Proxy, connect: Connect) -> None:
    connection = connect(network.url, reply_bytes_max=1000)
    connection.call("PING")
    network.silence()

    def refused() -> None:
        with pytest.raises(StorageUnavailableError):
            connection.pipeline([("PING",)], reply_bytes=1000)

    first = gevent.spawn(refused)
    until(lambda: in_flight(connection))
    second = gevent.spawn(connection.pipeline, [("ECHO", "after")], reply_bytes=1000)
    until(lambda: connection.nodes()[0].waiting[1])
    assert connection.nodes()[0].under_way[2] == 1000
    network.cut()
    network.speak()
    first.get()
    assert second.get(timeout=PATIENCE_S) == [b"after"]


def test_closing_fails_what_is_in_flight(redis_url: str, connect: Connect) -> None:
    connection = connect(redis_url)
    blocked = gevent.spawn(unavailable, connection, "BLPOP", "none", "0")
    until(lambda: connection.nodes()[0].connected)
    connection.close()
    assert "closed by this broker" in blocked.get()


def test_tls_that_the_system_does_not_trust_is_refused(redis_url: str, connect: Connect) -> None:
    with proxy(redis_url, CERTIFICATE, KEY) as network:
        assert "certificate" in unavailable(connect(network.url), "PING").lower()


def test_a_server_that_requires_a_certificate_is_one_clear_error(tmp_path: Path, connect: Connect) -> None:
    with secured_redis(tmp_path) as secured:
        file = str(secured.password_file)
        assert connect(with_password(secured.url, file)).call("PING") == b"PONG"
        # By chance the alert, or a broken connection, is what is seen of the refusal.
        for _ in range(4):
            error = unavailable(connect(with_password(secured.anonymous_url, file)), "PING")
            assert "redis.url must name one by ssl_certfile and ssl_keyfile" in error
            assert PASSWORD not in error


def test_tls_for_another_name_is_refused_unless_allowed(redis_url: str, connect: Connect) -> None:
    with proxy(redis_url, CERTIFICATE, KEY) as network:
        other = f"{network.url.replace('127.0.0.1', 'localhost')}?ssl_ca_certs={CERTIFICATE}"
        assert "localhost" in unavailable(connect(other), "PING")
        assert connect(f"{other}&ssl_check_hostname=false").call("PING") == b"PONG"
        assert connect(f"{network.url}?ssl_cert_reqs=none").call("PING") == b"PONG"


def test_a_missing_authority_file_is_reported(redis_url: str, connect: Connect) -> None:
    with proxy(redis_url, CERTIFICATE, KEY) as network:
        message = unavailable(connect(f"{network.url}?ssl_ca_certs=/no/such/file"), "PING")
        assert "No such file" in message


def test_an_observer_that_raises_keeps_no_caller_waiting(connect: Connect) -> None:
    class Faulty(Observer):
        def connect_failed(self) -> None:
            raise RuntimeError("a fault of ours")

    with socket.socket() as unbound:
        unbound.bind(("127.0.0.1", 0))
        connection = connect(f"redis://127.0.0.1:{unbound.getsockname()[1]}", observer=Faulty())
        with gevent.Timeout(PATIENCE_S):
            assert "Connection refused" in unavailable(connection, "PING")
            # The core's other actions were done all the same: another attempt is made.
            until(lambda: "Connection refused" in unavailable(connection, "PING"))
