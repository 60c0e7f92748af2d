"""EndTxn by bytes: transactions end, in each of Kafka's two protocols."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from tests.handlers.transactions import Producer
from tests.support.topic_client import Client

VERSIONS = pytest.mark.parametrize("version", range(6))
RESULTS = pytest.mark.parametrize("committed", [True, False])


@VERSIONS
@RESULTS
def test_a_transaction_ends_and_an_end_that_is_sent_again_is_answered_alike(
    two_clients: tuple[Client, Client], topic: str, version: int, *, committed: bool
) -> None:
    one, other = two_clients
    one.create(topic)
    producer = Producer(one, topic)
    assert producer.add(topic, 0) == [ErrorCode.NONE]
    # From version 5 on the response has the identity for the next transaction (KIP-890).
    then = (producer.producer_id, 1) if version >= 5 else (-1, -1)
    for client in (one, other):
        producer.client = client
        answer = producer.end(committed=committed, version=version)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.NONE, *then)
    assert producer.end(committed=not committed, version=version).error_code == ErrorCode.INVALID_TXN_STATE
    state = producer.described()
    assert state.transaction_state == ("CompleteCommit" if committed else "CompleteAbort")
    assert (state.producer_epoch, state.topics) == (1 if version >= 5 else 0, [])


@VERSIONS
@RESULTS
def test_without_a_transaction(client: Client, topic: str, version: int, *, committed: bool) -> None:
    producer = Producer(client, topic)
    answer = producer.end(committed=committed, version=version)
    if version >= 5 and not committed:
        # A producer that does not know what became of a request to add partitions (KIP-890).
        assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 1)
    else:
        assert (answer.error_code, answer.producer_id) == (ErrorCode.INVALID_TXN_STATE, -1)


@VERSIONS
def test_a_producer_that_was_fenced(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    old = Producer(client, topic)
    old.add(topic, 0)
    new = Producer(client, topic)
    assert new.described().transaction_state == "Empty"
    assert new.epoch == 2
    # PRODUCER_FENCED is known from version 2 on (KIP-588).
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.end(committed=True, version=version).error_code == code
    old.name = f"{topic}-unknown"
    answer = old.end(committed=True, version=version)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    old.name = ""
    assert old.end(committed=True, version=version).error_code == ErrorCode.INVALID_REQUEST
