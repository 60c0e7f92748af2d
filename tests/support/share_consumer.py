"""A member of a share group that fetches and acknowledges by bytes, as clients do (KIP-932)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from korvet.errors import ErrorCode
from korvet.protocol.schema import Message
from korvet.share.types import ACCEPT
from tests.handlers import apis
from tests.support.batches import read
from tests.support.messages import message
from tests.support.topic_client import Client

FOREVER_MS = 60_000
"""Longer than a client waits for an answer: what is answered was found without waiting, or was announced."""


class Place(NamedTuple):
    """A partition, by the id of its topic."""

    topic_id: bytes
    partition: int = 0


class Ack(NamedTuple):
    """What became of offsets: one type for all, or one for each."""

    first: int
    last: int
    types: Sequence[int] = (ACCEPT,)


class Delivered(NamedTuple):
    """A record that was acquired, how often it was delivered, and where it lies."""

    value: bytes | None
    deliveries: int
    offset: int
    place: Place


Acks = Mapping[Place, Iterable[Ack]]


def acknowledged_topics(given: Mapping[Place, Iterable[Ack]]) -> list[dict[str, Any]]:
    """Return partitions with what is acknowledged of them, as requests have them."""
    by_topic: dict[bytes, list[dict[str, Any]]] = {}
    for place, acks in given.items():
        batches = [
            {"first_offset": ack.first, "last_offset": ack.last, "acknowledge_types": list(ack.types)}
            for ack in acks
        ]
        partition = {"partition_index": place.partition, "acknowledgement_batches": batches}
        by_topic.setdefault(place.topic_id, []).append(partition)
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in by_topic.items()]


class ShareConsumer:
    """A member on one connection. `epoch` is that of the next request of its session."""

    def __init__(
        self, client: Client, group: str, *topics: str, version: int = 2, joins: bool = True
    ) -> None:
        self.client, self.group, self.version = client, group, version
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.wanted: list[Place] = []
        self._named: set[Place] = set()
        if joins:
            self.join(*topics)

    def join(self, *topics: str) -> None:
        """Become a member of the group."""
        answer = self._heartbeat(subscribed_topic_names=list(topics))
        assert answer.error_code == 0, answer.error_message

    def _heartbeat(self, **fields: Any) -> Any:
        member = {"group_id": self.group, "member_id": self.id}
        return self.client.ask(apis.ShareGroupHeartbeat, 1, **member, **fields)

    def on(self, topic_id: bytes, *partitions: int) -> ShareConsumer:
        """Fetch these partitions from now on, partition 0 if none is named."""
        self.wanted = [Place(topic_id, partition) for partition in partitions or (0,)]
        return self

    def request(self, wait_ms: int = 0, acks: Acks | None = None, **fields: Any) -> Message:
        """Return the next request."""
        if self.epoch == 0:
            self._named = set()
        given: dict[Place, tuple[Ack, ...]] = {place: () for place in self.wanted if place not in self._named}
        given |= {place: tuple(some) for place, some in (acks or {}).items()}
        gone = self._named - set(self.wanted)
        self._named = set(self.wanted)
        values: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "share_session_epoch": self.epoch,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": acknowledged_topics(given),
            "forgotten_topics_data": [
                {"topic_id": item.topic_id, "partitions": [item.partition]} for item in gone
            ],
        }
        return message(apis.ShareFetch, values | fields, self.version)

    def send(self, wait_ms: int = 0, acks: Acks | None = None, **fields: Any) -> Any:
        """Fetch once; returns the response, and goes on to the next epoch."""
        answer = self.client.call(self.request(wait_ms, acks, **fields), self.version)
        self._note(answer.error_code)
        return answer

    def fetch(self, wait_ms: int = 0, acks: Acks | None = None, **fields: Any) -> dict[Place, Any]:
        """Fetch once, expect that to succeed; returns the partitions that were answered."""
        answer = self.send(wait_ms, acks, **fields)
        assert answer.error_code == 0, answer.error_message
        return {
            Place(topic.topic_id, partition.partition_index): partition
            for topic in answer.responses
            for partition in topic.partitions
        }

    def poll(self, wait_ms: int = 0, acks: Acks | None = None, **fields: Any) -> list[Delivered]:
        """Return what is acquired by one fetch, as a client finds it: records that are acquired alone."""
        result: list[Delivered] = []
        for place, item in self.fetch(wait_ms, acks, **fields).items():
            assert (item.error_code, item.acknowledge_error_code) == (0, 0), item
            result += delivered(place, item)
        return result

    def values(self, wait_ms: int = 0, **fields: Any) -> list[bytes | None]:
        """Return the values of what is acquired by one fetch."""
        return [item.value for item in self.poll(wait_ms, **fields)]

    def acknowledge(self, acks: Acks, **fields: Any) -> Any:
        """Acknowledge by a request of its own; returns the response."""
        values: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "share_session_epoch": self.epoch,
            "topics": acknowledged_topics(acks),
        }
        answer = self.client.ask(apis.ShareAcknowledge, self.version, **values | fields)
        self._note(answer.error_code)
        return answer

    def acknowledged(self, acks: Acks, **fields: Any) -> dict[Place, int]:
        """Acknowledge, expect the request to succeed; returns the error of each partition."""
        answer = self.acknowledge(acks, **fields)
        assert answer.error_code == 0, answer.error_message
        return {
            Place(topic.topic_id, partition.partition_index): partition.error_code
            for topic in answer.responses
            for partition in topic.partitions
        }

    def accept(self, records: Iterable[Delivered], kind: int = ACCEPT) -> None:
        """Acknowledge records one by one, expect that to succeed."""
        acks: dict[Place, list[Ack]] = {}
        for record in sorted(records, key=lambda record: (record.place, record.offset)):
            acks.setdefault(record.place, []).append(Ack(record.offset, record.offset, [kind]))
        assert self.acknowledged(acks) == dict.fromkeys(acks, 0)

    def leave(self) -> None:
        """End its session and leave the group."""
        self.epoch = -1
        self.fetch()
        assert self._heartbeat(member_epoch=-1).error_code == 0

    def _note(self, error_code: int) -> None:
        if error_code == ErrorCode.NONE:
            self.epoch = self.epoch + 1 if self.epoch >= 0 else 0


def delivered(place: Place, answer: Any) -> list[Delivered]:
    """Return the records of a partition that are acquired; each acquired range must have some."""
    records = {item.offset: item for item in read(bytes(answer.records))}
    result = []
    for acquired_record in answer.acquired_records:
        some = [
            offset
            for offset in records
            if acquired_record.first_offset <= offset <= acquired_record.last_offset
        ]
        assert some
        assert acquired_record.delivery_count > 0
        result += [
            Delivered(records[offset].value, acquired_record.delivery_count, offset, place) for offset in some
        ]
    return result
