"""TxnOffsetCommit by bytes: what a transaction commits counts at its end, and OffsetFetch knows what is stable."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.end_txn import EndTxnRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from korvet.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.handlers.groups import Member
from tests.support.topic_client import Client

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
IMPLICIT, EXPLICIT = 5, 3
"""Versions of TxnOffsetCommit: that which adds the group itself, and one before."""


class Producer(NamedTuple):
    """A transactional producer on one connection, which commits offsets of a group."""

    client: Client
    name: str
    id: int
    epoch: int

    @classmethod
    def of(cls, client: Client, name: str) -> Producer:
        """Begin with a new epoch."""
        answer = client.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4)
        assert answer.error_code == 0
        return cls(client, name, answer.producer_id, answer.producer_epoch)

    def add(self, group: str) -> int:
        """Add the group to the transaction."""
        answer = self.client.call(
            AddOffsetsToTxnRequest(
                transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, group_id=group
            ),
            3,
        )
        return int(answer.error_code)

    def commit(
        self,
        group: str,
        topic: str,
        *offsets: int,
        version: int = IMPLICIT,
        metadata: str | None = None,
        **of: Any,
    ) -> list[int]:
        """Commit an offset of each partition from 0 on in the transaction; returns their errors."""
        partitions = [
            TxnOffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=3,
                committed_metadata=metadata,
            )
            for index, offset in enumerate(offsets)
        ]
        given = {"producer_id": self.id, "producer_epoch": self.epoch} | of
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)],
            **given,
        )
        [named] = self.client.call(request, version).topics
        assert (named.name, len(named.partitions)) == (topic, len(offsets))
        return [each.error_code for each in named.partitions]

    def end(self, *, committed: bool = True, version: int = 5) -> Producer:
        """End the transaction, and return the producer of the next one."""
        answer = self.client.call(
            EndTxnRequest(
                transactional_id=self.name,
                producer_id=self.id,
                producer_epoch=self.epoch,
                committed=committed,
            ),
            version,
        )
        assert answer.error_code == 0
        if version < 5:
            return self
        return self._replace(id=answer.producer_id, epoch=answer.producer_epoch)


def fetch(
    client: Client,
    group: str,
    topic: str | None,
    *,
    stable: bool = True,
    version: int = 8,
    partitions: int = 1,
) -> list[tuple[int, int]]:
    """Return offset and error of each partition; of all that has offsets if there is no topic."""
    indexes = list(range(partitions))
    topics = None if topic is None else [OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)]
    if version < 8:
        request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=stable)
        found = client.call(request, version).topics
    else:
        groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
        [answer] = client.call(OffsetFetchRequest(groups=groups, require_stable=stable), version).groups
        found = answer.topics
    return [(one.committed_offset, one.error_code) for each in found for one in each.partitions]


@pytest.mark.parametrize("version", range(6))
def test_another_worker_returns_it_once_the_transaction_is_committed(
    two_clients: tuple[Client, Client], topic: str, version: int
) -> None:
    here, there = two_clients
    here.create(topic, 2)
    producer = Producer.of(here, topic)
    if version < IMPLICIT:
        assert producer.add(topic) == 0
    assert producer.commit(topic, topic, 5, 2**62, version=version, metadata="note") == [0, 0]
    assert fetch(there, topic, topic, stable=False, partitions=2) == [(-1, 0), (-1, 0)]
    assert fetch(there, topic, topic, partitions=2) == [(-1, UNSTABLE), (-1, UNSTABLE)]
    producer.end(version=version)
    assert fetch(there, topic, topic, partitions=2) == [(5, 0), (2**62, 0)]


def test_what_is_aborted_never_counts(client: Client, topic: str) -> None:
    client.create(topic)
    producer = Producer.of(client, topic)
    producer.commit(topic, topic, 5)
    producer = producer.end()
    producer.commit(topic, topic, 9)
    assert fetch(client, topic, topic, stable=False) == [(5, 0)]
    assert fetch(client, topic, topic) == [(-1, UNSTABLE)]
    assert fetch(client, topic, None) == [(-1, UNSTABLE)]
    producer.end(committed=False)
    assert fetch(client, topic, topic) == [(5, 0)]
    assert fetch(client, topic, None) == [(5, 0)]


@pytest.mark.parametrize("version", range(7, 10))
def test_versions_that_ask_for_stable_offsets(client: Client, topic: str, version: int) -> None:
    client.create(topic, 2)
    Producer.of(client, topic).commit(topic, topic, 5)
    assert fetch(client, topic, topic, version=version, partitions=2) == [(-1, UNSTABLE), (-1, 0)]
    assert fetch(client, topic, topic, version=version, stable=False) == [(-1, 0)]
    assert fetch(client, topic, None, version=version) == []


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_a_group_that_was_not_added_is_refused_before_version_5(
    client: Client, topic: str, version: int, code: ErrorCode
) -> None:
    client.create(topic)
    producer = Producer.of(client, topic)
    assert producer.commit(topic, topic, 5, version=version) == [code]
    assert producer.add(f"{topic}-other") == 0
    assert producer.commit(topic, topic, 5, version=version) == [code]
    assert fetch(client, topic, topic) == [(-1, 0)]


@pytest.mark.parametrize("version", [EXPLICIT, IMPLICIT])
def test_a_producer_that_was_replaced_is_refused(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    former = Producer.of(client, topic)
    former.add(topic)
    Producer.of(client, topic)
    assert former.commit(topic, topic, 5, version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    other_id = former._replace(id=7)
    assert other_id.commit(topic, topic, 5, version=version) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_each_partition_has_its_own_error(client: Client, topic: str) -> None:
    client.create(topic)
    producer = Producer.of(client, topic)
    assert producer.commit(topic, topic, 5, 6) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.commit(topic, topic, 7, metadata="x" * 4097) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    producer.end()
    assert fetch(client, topic, topic) == [(5, 0)]


def test_an_empty_group_id_is_refused(client: Client, topic: str) -> None:
    client.create(topic)
    assert Producer.of(client, topic).commit("", topic, 5) == [ErrorCode.INVALID_GROUP_ID]


def test_a_member_of_a_former_generation_is_refused(client: Client, topic: str) -> None:
    """So a consumer that was replaced cannot commit what the next one has read already (KIP-447)."""
    client.create(topic)
    producer = Producer.of(client, topic)
    none: Any = {"generation_id": 3, "member_id": "m"}
    assert producer.commit(topic, topic, 5, **none) == [ErrorCode.ILLEGAL_GENERATION]
    member = Member(client, topic)
    member.join()
    member.sync({member.id: b""})
    former: Any = {"generation_id": member.generation - 1, "member_id": member.id}
    assert producer.commit(topic, topic, 5, **former) == [ErrorCode.ILLEGAL_GENERATION]
    unknown: Any = {"generation_id": member.generation, "member_id": "m"}
    assert producer.commit(topic, topic, 5, **unknown) == [ErrorCode.UNKNOWN_MEMBER_ID]
    now: Any = {"generation_id": member.generation, "member_id": member.id}
    assert producer.commit(topic, topic, 6, **now) == [0]
    assert producer.commit(topic, topic, 7) == [0]
    producer.end()
    assert fetch(client, topic, topic) == [(7, 0)]


def test_a_deleted_group_takes_with_it_what_is_to_be_committed(client: Client, topic: str) -> None:
    client.create(topic)
    producer = Producer.of(client, topic)
    producer.commit(topic, topic, 5)
    [deleted] = client.call(DeleteGroupsRequest(groups_names=[topic]), 2).results
    assert deleted.error_code == 0
    assert fetch(client, topic, topic) == [(-1, 0)]
    producer.end()
    assert fetch(client, topic, topic) == [(-1, 0)]


def test_a_second_init_aborts_what_was_to_be_committed(client: Client, topic: str) -> None:
    client.create(topic)
    Producer.of(client, topic).commit(topic, topic, 5)
    Producer.of(client, topic)
    assert fetch(client, topic, topic) == [(-1, 0)]
