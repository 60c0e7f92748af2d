"""What of a request of transactions is served to those who have only some of the rights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from korvet.protocol.messages.describe_transactions import DescribeTransactionsRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.list_transactions import ListTransactionsRequest
from tests.handlers.cases import DESCRIBE, TOPIC, TRANSACTIONAL_ID, WRITE
from tests.handlers.rights import ALICE, ROOT, Served


@pytest.fixture
def served(redis_url: str) -> Iterator[Served]:
    """Give the handlers of a worker on an empty Redis, with two topics."""
    made = Served(redis_url)
    for name in ("orders", "secret"):
        made.create(name)
    yield made
    made.storage.close()


def begin(served: Served, name: str, session: Any = ALICE) -> tuple[int, int]:
    answer = served.call(
        InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000), session=session
    )
    assert answer.error_code == ErrorCode.NONE
    return answer.producer_id, answer.producer_epoch


def add(served: Served, by: tuple[int, int], *topics: str, session: Any = ALICE) -> list[int]:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=by[0],
        v3_and_below_producer_epoch=by[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=each, partitions=[0]) for each in topics],
    )
    results = served.call(request, 3, session).results_by_topic_v3_and_below
    return [each.partition_error_code for topic in results for each in topic.results_by_partition]


def test_none_joins_if_a_topic_may_not_be_written_whether_it_exists_or_not(served: Served) -> None:
    served.allow(WRITE, TRANSACTIONAL_ID, "tx")
    served.allow(WRITE, TOPIC, "orders")
    by = begin(served, "tx")
    failed, not_attempted = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert add(served, by, "orders", "secret", "unknown") == [not_attempted, failed, failed]
    [state] = served.call(
        DescribeTransactionsRequest(transactional_ids=["tx"]), session=ROOT
    ).transaction_states
    assert (state.transaction_state, state.topics) == ("Empty", [])
    assert add(served, by, "orders") == [ErrorCode.NONE]


def test_topics_of_a_transaction_are_shown_to_those_who_may_describe_them(served: Served) -> None:
    assert add(served, begin(served, "tx", ROOT), "orders", "secret", session=ROOT) == [ErrorCode.NONE] * 2
    served.allow(DESCRIBE, TRANSACTIONAL_ID, "tx")
    served.allow(DESCRIBE, TOPIC, "orders")
    asked = DescribeTransactionsRequest(transactional_ids=["tx", "other"])
    states = {each.transactional_id: each for each in served.call(asked).transaction_states}
    assert [each.topic for each in states["tx"].topics] == ["orders"]
    assert states["other"].error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_ids_are_listed_to_those_who_may_describe_them(served: Served) -> None:
    for name in ("tx", "other"):
        begin(served, name, ROOT)
    served.allow(DESCRIBE, TRANSACTIONAL_ID, "tx")

    def listed(session: Any) -> list[str]:
        answer = served.call(ListTransactionsRequest(), session=session)
        return [each.transactional_id for each in answer.transaction_states]

    assert listed(ALICE) == ["tx"]
    assert listed(ROOT) == ["other", "tx"]
