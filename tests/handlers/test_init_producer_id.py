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


@pytest.mark.parametrize("version", [0, 5])
def test_transactions_are_refused(client: Client, version: int) -> None:
    request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    answer = client.call(request, version)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, -1)
