"""korvet/admin/producer.py: batches appended once each by a real broker, also where an answer was lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.connection import Connection
from korvet.admin.errors import BrokerError, ConnectionFailedError
from korvet.admin.offsets import CommittedOffset
from korvet.admin.producer import IdempotentProducer, Identity, TransactionalProducer, new_identity
from korvet.admin.types import TopicPartition, settled
from korvet.errors import ErrorCode
from korvet.protocol.messages.end_txn import EndTxnRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.produce import ProduceRequest
from korvet.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.support import reading
from tests.support.batches import batch, values
from tests.support.in_process import InProcessBroker
from tests.support.topic_client import Client


def log(client: Client, topic: str, partition: int = 0) -> list[bytes | None]:
    return values(client.fetch(topic, partition=partition).records)


def test_batches_go_to_their_partitions_one_behind_the_other(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    producer = IdempotentProducer(admin, new_identity(admin))
    assert producer.send({first: batch(b"1", b"2"), second: batch(b"3")}) == {first: 0, second: 0}
    assert producer.send({first: batch(b"4")}) == {first: 2}
    assert producer.send({}) == {}
    assert (log(client, name), log(client, name, 1)) == ([b"1", b"2", b"4"], [b"3"])
    assert producer.sequences == {first: 3, second: 1}
    [known] = settled(admin.partitions.producers([first]))[first]
    assert (known.producer_id, known.epoch, known.last_sequence) == (*producer.identity, 2)


def test_identities_are_never_the_same(admin: AdminClient) -> None:
    assert len({new_identity(admin) for _ in range(3)}) == 3


def lose_answers(monkeypatch: pytest.MonkeyPatch, of: Any, count: int) -> list[Any]:
    """Lose the first answers to requests of a type; returns a list that gets what was lost."""
    lost: list[Any] = []
    usual: Callable[..., Any] = Connection.call

    @wraps(usual)
    def losing(connection: Connection, request: Any, *rest: Any) -> Any:
        answer = usual(connection, request, *rest)
        if isinstance(request, of) and len(lost) < count:
            lost.append(answer)
            raise ConnectionFailedError("the answer is lost")
        return answer

    monkeypatch.setattr(Connection, "call", losing)
    return lost


def test_a_batch_whose_answer_was_lost_is_appended_once(
    admin: AdminClient, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TopicPartition(topic, 0)
    producer = IdempotentProducer(admin, new_identity(admin))
    lost = lose_answers(monkeypatch, ProduceRequest, 2)
    assert producer.send({place: batch(b"1", b"2")}) == {place: 0}
    assert producer.send({place: batch(b"3")}) == {place: 2}
    assert len(lost) == 2
    assert log(client, topic) == [b"1", b"2", b"3"]


def test_a_producer_goes_on_with_the_sequence_it_is_given(
    admin: AdminClient, client: Client, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    identity = new_identity(admin)
    settled(IdempotentProducer(admin, identity).send({place: batch(b"1", b"2")}))
    again = IdempotentProducer(admin, identity)
    # The same sequences are the same records, also with other bytes.
    assert again.send({place: batch(b"x", b"y")}) == {place: 0}
    gap = IdempotentProducer(admin, identity, {place: 3})
    refused = gap.send({place: batch(b"4")})[place]
    assert isinstance(refused, BrokerError)
    assert refused.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert gap.sequences == {place: 3}
    wrapping = IdempotentProducer(admin, Identity(identity.producer_id + 1_000_000, 0), {place: 2**31 - 1})
    settled(wrapping.send({place: batch(b"5", b"6")}))
    assert wrapping.sequences == {place: 1}
    assert log(client, topic) == [b"1", b"2", b"5", b"6"]


def test_each_partition_has_the_reason_of_its_refusal(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, max_message_bytes="100")
    client.create(f"{name}-compact", cleanup_policy="compact")
    producer = IdempotentProducer(admin, new_identity(admin))
    small, beyond = TopicPartition(name, 0), TopicPartition(name, 1)
    missing, compact = TopicPartition(f"{name}-x", 0), TopicPartition(f"{name}-compact", 0)
    keyless = batch(b"1")
    outcomes = producer.send({small: batch(b"v" * 200), beyond: keyless, missing: keyless, compact: keyless})
    messages = {place: str(outcome) for place, outcome in outcomes.items()}
    assert messages[small].startswith("MESSAGE_TOO_LARGE: a batch of ")
    assert messages[beyond] == f"UNKNOWN_TOPIC_OR_PARTITION: partition {name}:1 does not exist"
    assert messages[missing].endswith(": UNKNOWN_TOPIC_OR_PARTITION: there is no such topic or partition")
    assert messages[compact].startswith("INVALID_RECORD: ")
    assert "key" in messages[compact]
    assert producer.sequences == {}


def committed(broker: InProcessBroker, topic: str) -> list[bytes | None]:
    """Return the values that a consumer with read_committed finds now."""
    return [item.value for item in reading.read_to_end(broker.bootstrap, topic, 1, "read_committed")[0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "lossy", [InitProducerIdRequest, ProduceRequest, TxnOffsetCommitRequest, EndTxnRequest]
)
def test_records_and_offsets_are_committed_together_and_once(
    broker: InProcessBroker, admin: AdminClient, topic: str, monkeypatch: pytest.MonkeyPatch, lossy: type
) -> None:
    place, group = TopicPartition(topic, 0), f"group-of-{topic}"
    lost = lose_answers(monkeypatch, lossy, 2)
    producer = TransactionalProducer(admin, topic, 60_000)
    for number in (1, 2):
        settled(producer.send({place: batch(b"%d" % number)}))
        assert len(committed(broker, topic)) == number - 1
        producer.commit(group, {place: CommittedOffset(number, metadata="as given")})
        assert admin.offsets.committed(group) == {place: CommittedOffset(number, metadata="as given")}
    # Offsets alone, and nothing at all.
    producer.commit(group, {place: CommittedOffset(9)})
    producer.abort()
    settled(producer.send({place: batch(b"aborted")}))
    producer.abort()
    assert committed(broker, topic) == [b"1", b"2"]
    assert admin.offsets.committed(group) == {place: CommittedOffset(9)}
    assert len(lost) == 2


def test_a_producer_of_the_same_transactional_id_fences_the_one_before(
    broker: InProcessBroker, admin: AdminClient, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    first = TransactionalProducer(admin, topic, 60_000)
    settled(first.send({place: batch(b"left open")}))
    second = TransactionalProducer(admin, topic, 60_000)
    settled(second.send({place: batch(b"1")}))
    with pytest.raises(BrokerError, match="INVALID_PRODUCER_EPOCH"):
        settled(first.send({place: batch(b"too late")}))
    with pytest.raises(BrokerError, match="INVALID_PRODUCER_EPOCH"):
        first.commit("group", {place: CommittedOffset(1)})
    with pytest.raises(BrokerError, match="PRODUCER_FENCED"):
        first.abort()
    second.commit("group", {place: CommittedOffset(2)})
    assert committed(broker, topic) == [b"1"]


def test_a_group_that_takes_no_offsets_is_an_error_before_the_end(
    broker: InProcessBroker, admin: AdminClient, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    producer = TransactionalProducer(admin, topic, 60_000)
    settled(producer.send({place: batch(b"1")}))
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        producer.commit("group", {place: CommittedOffset(1), TopicPartition(topic, 7): CommittedOffset(1)})
    producer.abort()
    assert committed(broker, topic) == []


def test_a_timeout_above_that_of_the_brokers_is_refused(admin: AdminClient, name: str) -> None:
    with pytest.raises(BrokerError, match="INVALID_TRANSACTION_TIMEOUT"):
        TransactionalProducer(admin, name, 900_001)
