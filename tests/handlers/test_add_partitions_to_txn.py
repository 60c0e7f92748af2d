"""AddPartitionsToTxn by bytes: what joins a transaction, and what the others of a request get then."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from tests.handlers.transactions import Producer
from tests.support.topic_client import Client

VERSIONS = pytest.mark.parametrize("version", range(6))
UNKNOWN, NOT_ATTEMPTED = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED


@VERSIONS
def test_partitions_join_a_transaction(client: Client, topic: str, version: int) -> None:
    client.create(topic, 3)
    producer = Producer(client, topic)
    assert producer.add(topic, 0, 2, version=version) == [ErrorCode.NONE] * 2
    assert producer.add(topic, 2, 1, version=version) == [ErrorCode.NONE] * 2
    state = producer.described()
    assert (state.transaction_state, state.producer_id) == ("Ongoing", producer.producer_id)
    assert [(each.topic, each.partitions) for each in state.topics] == [(topic, [0, 1, 2])]


@VERSIONS
def test_none_joins_if_one_cannot(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    producer = Producer(client, topic)
    asked = [(topic, [0, 1]), (f"{topic}-unknown", [0])]
    assert producer.add_all(asked, version=version) == [NOT_ATTEMPTED, UNKNOWN, UNKNOWN]
    assert producer.described().transaction_state == "Empty"


@pytest.mark.parametrize("version", [3, 5])
def test_partitions_that_are_named_twice_or_do_not_exist(client: Client, topic: str, version: int) -> None:
    client.create(topic, 2)
    producer = Producer(client, topic)
    assert producer.add_all([(topic, [1, 1]), (topic, [0, 1])], version=version) == [ErrorCode.NONE] * 4
    for wrong in (-1, 2, 2**31 - 1):
        assert producer.add(topic, 0, wrong, version=version) == [NOT_ATTEMPTED, UNKNOWN]
    many = list(range(2, 100_000))
    assert set(producer.add(topic, *many, version=version)) == {UNKNOWN}
    assert producer.add_all([], version=version) == []


@VERSIONS
def test_a_producer_that_was_fenced(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    old = Producer(client, topic)
    Producer(client, topic)
    # PRODUCER_FENCED is known from version 2 on (KIP-588).
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.add(topic, 0, version=version) == [code]
    old.producer_id = 1
    assert old.add(topic, 0, version=version) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    old.name = ""
    assert old.add(topic, 0, version=version) == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_brokers_verify_what_has_joined(client: Client, topic: str, version: int, code: ErrorCode) -> None:
    client.create(topic, 2)
    producer = Producer(client, topic)

    def verified(partition: int) -> list[int]:
        return producer.add_all([(topic, [partition])], version=version, verify_only=True)

    assert verified(0) == [code]
    assert producer.described().transaction_state == "Empty"
    producer.add(topic, 0)
    assert verified(0) == [ErrorCode.NONE]
    assert verified(1) == [code]


def test_brokers_ask_for_many_transactions(client: Client) -> None:
    answer = client.call(AddPartitionsToTxnRequest(transactions=[]), 5)
    assert (answer.error_code, answer.results_by_transaction) == (ErrorCode.NONE, [])
