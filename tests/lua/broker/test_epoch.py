"""lua/broker/epoch.lua against a real server: one epoch for each history, and none twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.lua.support import refused, run
from tests.support.processes import wait_until
from tests.support.redis_servers import DurableServer, embedded_server

pytestmark = pytest.mark.slow

KEY = "korvet:epoch"
YEAR_2026 = 1767225600


@pytest.fixture
def server() -> Iterator[Any]:
    with embedded_server() as url, redis.Redis.from_url(url) as client:
        yield client


def ask(client: Any, floor: int = -1, floor_history: str = "") -> tuple[str, int]:
    history, epoch = run(client, "broker/epoch", (KEY,), (floor, floor_history))
    return history.decode(), int(epoch)


def begin_history(client: Any) -> None:
    """Make the server a replica of nobody, and a master again, with all connections alive."""
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    client.execute_command("REPLICAOF", "NO", "ONE")


def test_every_worker_gets_the_same_epoch_of_a_history(server: Any) -> None:
    before = int(server.time()[0]) - YEAR_2026
    history, epoch = ask(server)
    assert history == server.info("replication")["master_replid"]
    assert before <= epoch <= before + 60
    assert ask(server) == ask(server, epoch, history) == (history, epoch)


def test_a_server_that_was_a_replica_has_a_later_epoch(server: Any) -> None:
    history, epoch = ask(server)
    begin_history(server)
    later, second = ask(server)
    assert (later != history, second > epoch) == (True, True)
    begin_history(server)
    assert ask(server)[1] > second


@pytest.mark.parametrize("persistence", [("yes", ""), ("no", "3600 1")], ids=["append-only file", "snapshot"])
def test_a_restart_begins_another_history(persistence: tuple[str, str]) -> None:
    appendonly, save = persistence
    with DurableServer("--appendonly", appendonly, "--save", save) as durable:
        with redis.Redis.from_url(durable.url) as client:
            first = ask(client)
            if save:
                client.save()
        durable.crash()
        with redis.Redis.from_url(durable.url) as client:
            second = ask(client)
        durable.crash()  # the snapshot does not have the second epoch, nor has the worker that asks
        with redis.Redis.from_url(durable.url) as client:
            # Two crashes in one second are what the clock does not tell apart.
            wait_until(lambda: int(client.time()[0]) - YEAR_2026 > second[1], "the next second")
            third = ask(client)
    assert len({first[0], second[0], third[0]}) == 3
    assert first[1] < second[1] < third[1]


def test_an_epoch_that_redis_has_lost_is_not_given_again_if_a_worker_knows_it(server: Any) -> None:
    history, epoch = ask(server)
    server.flushall()
    assert ask(server, epoch + 5000, "another history") == (history, epoch + 5001)
    # It is stored for this history, but a worker knows a later one of another.
    assert ask(server, epoch + 9000, "another history")[1] == epoch + 9001
    server.hset(KEY, mapping={"history": "another", "epoch": 2**30})
    assert ask(server)[1] == 2**30 + 1


def test_what_is_no_number_or_used_up_is_refused(server: Any) -> None:
    for wrong in ("", "nan", "-1", "1.5", "2147483648"):
        server.hset(KEY, mapping={"history": "another", "epoch": wrong})
        with refused(server, "KAFKA_STORAGE_ERROR korvet:epoch is malformed"):
            ask(server)
    server.hset(KEY, "epoch", 2**31 - 1)
    with refused(server, "KAFKA_STORAGE_ERROR .* used up"):
        ask(server)


def test_a_replica_gives_no_epoch(server: Any) -> None:
    ask(server)
    server.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(redis.ReadOnlyError):
        ask(server)
    server.config_set("replica-read-only", "no")
    with pytest.raises(redis.ResponseError, match="replica"):
        ask(server)
