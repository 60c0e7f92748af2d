"""AddOffsetsToTxn by bytes: a group joins a transaction."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from tests.handlers.transactions import Producer
from tests.support.topic_client import Client

VERSIONS = pytest.mark.parametrize("version", range(5))


@VERSIONS
def test_a_group_joins_a_transaction(client: Client, topic: str, version: int) -> None:
    producer = Producer(client, topic)
    for _ in range(2):
        assert producer.add_group(f"group-{topic}", version) == ErrorCode.NONE
    state = producer.described()
    assert (state.transaction_state, state.topics) == ("Ongoing", [])
    assert producer.end(committed=True).error_code == ErrorCode.NONE


@VERSIONS
def test_a_producer_that_was_fenced(client: Client, topic: str, version: int) -> None:
    old = Producer(client, topic)
    Producer(client, topic)
    # PRODUCER_FENCED is known from version 2 on (KIP-588).
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.add_group("group", version) == code
    assert old.add_group("", version) == ErrorCode.INVALID_GROUP_ID
