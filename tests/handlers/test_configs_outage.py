"""Errors of requests about configs while Redis is away, in every version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.handlers.configs import (
    BROKER,
    TOPIC,
    alter,
    altered,
    change,
    describe,
    replace,
    reset,
    value,
    wanted,
)
from tests.support import redis_servers
from tests.support.batches import batch
from tests.support.broker import korvet_broker
from tests.support.topic_client import Client

AWAY = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture(scope="module")
def bereft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Give a connection to a broker whose Redis has gone, after settings of it were altered."""
    directory: Path = tmp_path_factory.mktemp("bereft")
    with ExitStack() as server, ExitStack() as broker:
        url = server.enter_context(redis_servers.server())
        flags = ("--redis-url", url, "--set", "redis.timeout.ms=500")
        running = broker.enter_context(korvet_broker(directory, *flags, workers=1))
        client = broker.enter_context(Client(running.address))
        client.create("known")
        change(client, BROKER, "", {"message.max.bytes": "90"})
        server.close()
        yield client


@pytest.mark.parametrize("version", range(1, 5))
def test_nothing_is_described(bereft: Client, version: int) -> None:
    results = describe(bereft, wanted(TOPIC, "known"), wanted(BROKER, "0"), version=version)
    assert [(each.error_code, bool(each.error_message), each.configs) for each in results] == [
        (AWAY, True, []),
        (AWAY, True, []),
    ]


@pytest.mark.parametrize("version", range(2))
def test_nothing_is_altered(bereft: Client, version: int) -> None:
    resources = (altered(TOPIC, "known", {"segment.ms": "5"}), altered(BROKER, "0", {"log.roll.ms": "5"}))
    for validate_only in (True, False):
        answers = alter(bereft, *resources, version=version, validate_only=validate_only)
        assert [(each.error_code, bool(each.error_message)) for each in answers] == [(AWAY, True)] * 2


@pytest.mark.parametrize("version", range(3))
def test_nothing_is_replaced(bereft: Client, version: int) -> None:
    answers = replace(bereft, reset(TOPIC, "known", {}), reset(BROKER, "", {}), version=version)
    assert [(each.error_code, bool(each.error_message)) for each in answers] == [(AWAY, True)] * 2


def test_topics_cannot_be_listed(bereft: Client) -> None:
    answer = bereft.call(ListConfigResourcesRequest(resource_types=[TOPIC]), 1)
    assert (answer.error_code, answer.config_resources) == (AWAY, [])


def test_what_was_altered_before_counts_on(bereft: Client) -> None:
    assert bereft.produce("known", batch(b"v" * 100)).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_when_redis_is_back_without_what_was_altered_the_start_counts(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, workers=1) as running, Client(running.address) as client:
        change(client, BROKER, "", {"message.max.bytes": "90"})
        with redis.Redis(unix_socket_path=str(running.data_dir / "server.sock")) as stored:
            stored.flushall()
        assert value(client, BROKER, "0", "message.max.bytes") == "1048588"
