"""A consumer that fetches in a session, as clients do: it names new and moved partitions, and remembers the others."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from korvet.errors import ErrorCode
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from korvet.protocol.schema import Message
from tests.support.batches import read

FOREVER_MS = 60_000
"""Longer than a client waits for an answer: what is answered was found without waiting, or was announced."""


class Place(NamedTuple):
    """A partition: its topic by the name, or by the id where the session has ids."""

    topic: str | bytes
    partition: int


class Connection(Protocol):
    """What a session is of: a client, or a worker's handlers called as by one."""

    def call(self, request: Message, version: int) -> Any:
        """Serve a request, and return its response."""


class Consumer:
    """A session of one connection. `positions` are to be fetched from next, `known` are bounds as last answered."""

    def __init__(self, client: Connection, version: int = 12) -> None:
        self.client, self.version = client, version
        self.id, self.epoch = 0, 0
        self.positions: dict[Place, int] = {}
        self.known: dict[Place, tuple[int, int]] = {}
        self.records: dict[Place, list[bytes | None]] = {}
        self.named: dict[Place, int] = {}
        """What the broker knows of the session."""

    def seek(self, topic: str | bytes, index: int, offset: int = 0) -> Place:
        """Fetch a partition from an offset on."""
        place = Place(topic, index)
        self.positions[place] = offset
        return place

    def request(self, wait_ms: int = 0, **fields: Any) -> FetchRequest:
        """Return the next request."""
        if self.epoch == 0:
            self.named = {}
        changed = {
            place: offset for place, offset in self.positions.items() if self.named.get(place) != offset
        }
        gone = [place for place in self.named if place not in self.positions]
        self.named = dict(self.positions)
        topics: dict[str | bytes, FetchTopic] = {}
        size = fields.pop("partition_max_bytes", 1 << 20)
        for (topic, index), offset in changed.items():
            named = topics.setdefault(topic, FetchTopic(**_named(topic), partitions=[]))
            named.partitions.append(
                FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=size)
            )
        return FetchRequest(
            session_id=self.id,
            session_epoch=self.epoch,
            max_wait_ms=wait_ms,
            topics=list(topics.values()),
            forgotten_topics_data=[
                ForgottenTopic(**_named(topic), partitions=[index]) for topic, index in gone
            ],
            **{"min_bytes": 1} | fields,
        )

    def fetch(self, wait_ms: int = 0, **fields: Any) -> dict[Place, Any]:
        """Fetch once; returns what was answered, and moves on."""
        return self.take(self.client.call(self.request(wait_ms, **fields), self.version))

    def take(self, answer: Any) -> dict[Place, Any]:
        """Take an answer as clients do."""
        assert answer.error_code == ErrorCode.NONE
        result = {
            Place(topic.topic if self.version < 13 else topic.topic_id, partition.partition_index): partition
            for topic in answer.responses
            for partition in topic.partitions
        }
        assert len(result) == sum(len(response.partitions) for response in answer.responses)
        # Java's consumer drops a full answer that lacks partitions, and any that has others than it has asked for.
        assert (
            result.keys() == self.positions.keys() if self.epoch == 0 else result.keys() <= self.named.keys()
        )
        self.id = answer.session_id
        self.epoch = self.epoch + 1 if self.id else 0
        for place, item in result.items():
            self.known[place] = (item.high_watermark, item.log_start_offset)
            records = read(item.records)
            self.records.setdefault(place, []).extend(record.value for record in records)
            if records and place in self.positions:
                self.positions[place] = records[-1].offset + 1
        return result

    def values(self, place: Place) -> list[bytes | None]:
        """Return what was read of a partition, and forget it."""
        return self.records.pop(place, [])


def _named(topic: str | bytes) -> dict[str, Any]:
    return {"topic": topic} if isinstance(topic, str) else {"topic": "", "topic_id": topic}


def sessionless(client: Connection, place: Place, version: int = 12) -> Any:
    """Fetch the bounds of a partition without a session."""
    asked = [FetchPartition(partition=place.partition, fetch_offset=0, partition_max_bytes=0)]
    topics = [FetchTopic(**_named(place.topic), partitions=asked)]
    [answer] = client.call(FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics), version).responses
    return answer.partitions[0]
