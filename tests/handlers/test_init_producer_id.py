"""InitProducerId by bytes: ids that nobody else has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.support.broker import korvet_broker
from tests.support.topic_client import Client
from tests.support.wire_client import clients_of_two_workers

IDEMPOTENT = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)


@pytest.mark.parametrize("version", range(6))
def test_an_idempotent_producer_gets_an_id_with_epoch_0(client: Client, version: int) -> None:
    answer = client.call(IDEMPOTENT, version)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 0)
    assert answer.producer_id >= 0


def test_no_id_is_given_twice_by_any_worker(two_clients: tuple[Client, Client]) -> None:
    ids = [client.call(IDEMPOTENT, 4).producer_id for _ in range(1100) for client in two_clients]
    assert len(set(ids)) == len(ids)


def test_no_id_comes_back_when_redis_loses_what_was_written(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    with (
        korvet_broker(tmp_path, "--redis-url", redis_url, workers=2) as broker,
        clients_of_two_workers(broker.address, broker.worker_pids(), Client) as (before, after),
    ):
        ids = [before.call(IDEMPOTENT, 4).producer_id for _ in range(10)]
        raw_redis.flushall()
        ids += [after.call(IDEMPOTENT, 4).producer_id for _ in range(10)]
    assert len(set(ids)) == len(ids)


def test_a_producer_that_names_its_id_gets_a_new_one(client: Client) -> None:
    old = client.call(IDEMPOTENT, 4).producer_id
    again = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=old, producer_epoch=0
    )
    answer = client.call(again, 4)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 0)
    assert answer.producer_id not in (old, -1)


def transactional(name: str, **fields: int) -> InitProducerIdRequest:
    given = {"transaction_timeout_ms": 60_000} | fields
    return InitProducerIdRequest(transactional_id=name, **given)


@pytest.mark.parametrize("version", range(6))
def test_a_transactional_producer_has_one_id_and_another_epoch_each_time(
    two_clients: tuple[Client, Client], topic: str, version: int
) -> None:
    answers = [client.call(transactional(topic), version) for client in two_clients]
    assert [(each.error_code, each.producer_epoch) for each in answers] == [(0, 0), (0, 1)]
    assert len({each.producer_id for each in answers}) == 1


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_transactional_producer_that_names_its_epoch_gets_the_next_or_is_fenced(
    client: Client, topic: str, version: int
) -> None:
    producer_id = client.call(transactional(topic), version).producer_id
    named = transactional(topic, producer_id=producer_id, producer_epoch=0)
    for _ in range(2):
        answer = client.call(named, version)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, producer_id, 1)
    client.call(transactional(topic), version)
    fenced = client.call(named, version)
    # PRODUCER_FENCED is known from version 4 on (KIP-588).
    code = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert (fenced.error_code, fenced.producer_id, fenced.producer_epoch) == (code, -1, -1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_that_is_out_of_range(client: Client, topic: str, timeout_ms: int) -> None:
    answer = client.call(transactional(topic, transaction_timeout_ms=timeout_ms), 5)
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 0), (-2, -2)])
def test_an_identity_that_is_none(client: Client, topic: str, producer_id: int, epoch: int) -> None:
    answer = client.call(transactional(topic, producer_id=producer_id, producer_epoch=epoch), 5)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert client.call(transactional(""), 5).error_code == ErrorCode.INVALID_REQUEST
