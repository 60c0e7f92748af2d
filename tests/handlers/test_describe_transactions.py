"""DescribeTransactions and ListTransactions by bytes."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.describe_transactions import DescribeTransactionsRequest
from korvet.protocol.messages.list_transactions import ListTransactionsRequest
from tests.handlers.transactions import TIMEOUT_MS, Producer
from tests.support.topic_client import Client


def test_each_id_is_described_once(client: Client, topic: str) -> None:
    client.create(topic, 2)
    producer = Producer(client, topic)
    producer.add(topic, 1)
    asked = [topic, f"{topic}-unknown", topic]
    one, unknown = client.call(DescribeTransactionsRequest(transactional_ids=asked), 0).transaction_states
    assert (one.error_code, one.transactional_id, one.transaction_state) == (0, topic, "Ongoing")
    assert (one.producer_id, one.producer_epoch) == (producer.producer_id, 0)
    assert one.transaction_timeout_ms == TIMEOUT_MS
    assert one.transaction_start_time_ms > 0
    assert [(each.topic, each.partitions) for each in one.topics] == [(topic, [1])]
    assert (unknown.error_code, unknown.transactional_id) == (
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        f"{topic}-unknown",
    )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_ids_are_listed_by_state_and_producer(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    producer, idle = Producer(client, topic), Producer(client, f"{topic}-idle")
    producer.add(topic, 0)

    def listed(**filters: object) -> list[tuple[str, int, str]]:
        answer = client.call(ListTransactionsRequest(**filters), version)  # type: ignore[arg-type]  # of any field
        assert answer.error_code == ErrorCode.NONE
        return [
            (each.transactional_id, each.producer_id, each.transaction_state)
            for each in answer.transaction_states
            if each.transactional_id.startswith(topic)
        ]

    ongoing, empty = (topic, producer.producer_id, "Ongoing"), (idle.name, idle.producer_id, "Empty")
    assert listed() == [ongoing, empty]
    assert listed(state_filters=["Ongoing", "PrepareCommit"]) == [ongoing]
    assert listed(producer_id_filters=[idle.producer_id]) == [empty]
    assert listed(state_filters=["Nonsense"]) == []


def test_states_that_kafka_does_not_have_are_named(client: Client) -> None:
    answer = client.call(ListTransactionsRequest(state_filters=["Dead", "Nonsense", "Empty"]), 1)
    assert answer.unknown_state_filters == ["Nonsense"]


@pytest.mark.parametrize("pattern", [None, "", ".*"])
def test_ids_are_listed_by_a_pattern(client: Client, topic: str, pattern: str | None) -> None:
    names = {Producer(client, f"{topic}-{each}").name for each in ("a", "b")}

    def listed(pattern: str | None) -> set[str]:
        answer = client.call(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
        assert answer.error_code == ErrorCode.NONE
        return {each.transactional_id for each in answer.transaction_states}

    assert listed(pattern) >= names
    assert listed(f"{topic}-[ab]") == names
    assert listed(f"{topic}-b") == {f"{topic}-b"}
    assert listed(topic) == set()


def test_a_pattern_that_does_not_compile_is_refused(client: Client, topic: str) -> None:
    Producer(client, topic)
    answer = client.call(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.transaction_states == []


def test_transactions_are_listed_that_are_open_for_long(client: Client, topic: str) -> None:
    client.create(topic)
    Producer(client, topic).add(topic, 0)
    long = ListTransactionsRequest(state_filters=["Ongoing"], duration_filter=3_600_000)
    assert topic not in [each.transactional_id for each in client.call(long, 1).transaction_states]
