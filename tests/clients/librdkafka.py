"""librdkafka, by confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its package does not say what it exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.clients.client_library import END, Config, FencedError, Library, Place, RefusedError, Written
from tests.support import reading
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.records import Received, Sample

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)


def _configured(bootstrap: str, config: Config) -> dict[str, Any]:
    given = {"bootstrap.servers": bootstrap, "log_level": 0, **config}
    if (token := given.pop("oauth", None)) is not None:
        given["oauth_cb"] = lambda _config: (token(), time.time() + 600)
    return given


class _Producer:
    def __init__(self, bootstrap: str, config: Config) -> None:
        own: dict[str, Any] = {"linger.ms": 5}
        if "transaction.timeout.ms" in config:
            own["message.timeout.ms"] = config["transaction.timeout.ms"]
        self._client = confluent_kafka.Producer(_configured(bootstrap, own | dict(config)))

    def send(self, topic: str, records: Sequence[Sample]) -> list[Written | int]:
        outcomes: dict[int, Written | int] = {}
        # While it does not know the topic it holds records back, and may send the first of them alone.
        self._client.list_topics(topic, WAIT_SECONDS_MAX)
        for number, record in enumerate(records):

            def delivered(
                error: KafkaError | None, message: confluent_kafka.Message, number: int = number
            ) -> None:
                done = Written(message.partition() or 0, message.offset() or 0, message.timestamp()[1])
                outcomes[number] = done if error is None else error.code()

            self._client.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp=record.timestamp,
                headers=list(record.headers),
                on_delivery=delivered,
            )
            self._client.poll(0)
        assert self._client.flush(WAIT_SECONDS_MAX) == 0
        return [outcomes[number] for number in range(len(records))]

    def init(self) -> None:
        self._client.init_transactions(WAIT_SECONDS_MAX)

    def begin(self) -> None:
        self._client.begin_transaction()

    def send_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        # Of a group without members, as one whose consumers assign partitions themselves.
        consumer = confluent_kafka.Consumer(_configured("127.0.0.1:1", {"group.id": group}))
        given = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        self._client.send_offsets_to_transaction(given, consumer.consumer_group_metadata(), WAIT_SECONDS_MAX)
        consumer.close()

    def end(self, *, commit: bool) -> None:
        end = self._client.commit_transaction if commit else self._client.abort_transaction
        try:
            end(WAIT_SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].code() in _FENCED:
                raise FencedError from error
            raise RefusedError(error.args[0].code()) from error

    def close(self) -> None:
        self._client.purge()


class _Consumer:
    def __init__(self, bootstrap: str, config: Config) -> None:
        # It wants a group's name even where partitions are assigned.
        own = {"group.id": "unused", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        self._client = confluent_kafka.Consumer(_configured(bootstrap, own | dict(config)))

    def assign(self, topic: str, offsets: Mapping[int, int | None]) -> None:
        self._client.assign(
            [
                TopicPartition(topic, partition, OFFSET_BEGINNING if offset is None else offset)
                for partition, offset in offsets.items()
            ]
        )

    def subscribe(self, topic: str) -> None:
        self._client.subscribe([topic])

    def poll(self, seconds: float) -> list[Received]:
        first = self._client.poll(seconds)
        messages = [] if first is None else [first, *self._client.consume(10_000, 0)]
        for message in messages:
            if (error := message.error()) is not None:
                raise RefusedError(error.code(), error.str())
        return [reading.as_received(message) for message in messages]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        first, end = self._client.get_watermark_offsets(TopicPartition(topic, partition), WAIT_SECONDS_MAX)
        return first, end

    def by_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        asked = TopicPartition(topic, partition, timestamp)
        [answer] = self._client.offsets_for_times([asked], WAIT_SECONDS_MAX)
        return None if answer.offset == OFFSET_END else answer.offset

    def commit(self) -> None:
        assert not any(done.error for done in self._client.commit(asynchronous=False))

    def committed(self, topic: str, partition: int) -> int | None:
        [answer] = self._client.committed([TopicPartition(topic, partition)], WAIT_SECONDS_MAX)
        return None if answer.offset < 0 else answer.offset

    def close(self) -> None:
        self._client.close()


class _Admin:
    def __init__(self, bootstrap: str) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        _result(self._client.create_topics([NewTopic(topic, partitions, config=dict(configs or {}))]))

    def delete(self, topic: str) -> None:
        _result(self._client.delete_topics([topic]))

    def partitions(self, topic: str) -> int:
        described = self._client.list_topics(timeout=WAIT_SECONDS_MAX).topics.get(topic)
        return 0 if described is None else len(described.partitions)

    def grow(self, topic: str, partitions: int) -> None:
        _result(self._client.create_partitions([NewPartitions(topic, partitions)]))

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        below = TopicPartition(topic, partition, OFFSET_END if offset == END else offset)
        first: int = _result(self._client.delete_records([below])).low_watermark
        return first

    def set_config(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _result(self._client.incremental_alter_configs([resource]))

    def config(self, topic: str, name: str) -> str:
        return str(
            _result(self._client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))[name].value
        )

    def groups(self) -> set[str]:
        listed = self._client.list_consumer_groups(request_timeout=WAIT_SECONDS_MAX).result()
        assert listed.errors == []
        return {group.group_id for group in listed.valid}

    def brokers(self) -> set[tuple[str, int]]:
        listed = self._client.list_topics(timeout=WAIT_SECONDS_MAX).brokers.values()
        return {(str(broker.host), int(broker.port or 0)) for broker in listed}

    def close(self) -> None:
        pass


def _result(futures: Mapping[Any, Any]) -> Any:
    [future] = futures.values()
    try:
        return future.result(WAIT_SECONDS_MAX)
    except KafkaException as error:
        raise RefusedError(error.args[0].code(), error.args[0].str()) from error


def outcome(producer: confluent_kafka.Producer, topic: str) -> int:
    """Send a record to partition 0; returns the error code of the client or the broker."""
    errors: list[KafkaError | None] = []
    try:
        producer.produce(topic, b"v", partition=0, on_delivery=lambda error, _: errors.append(error))
    except KafkaException as refused:
        # The library remembers that it was refused.
        errors.append(refused.args[0])
    producer.flush(WAIT_SECONDS_MAX)
    [error] = errors
    return 0 if error is None else error.code()


def _refusal(bootstrap: str, config: Config) -> str:
    said: list[str] = []
    errors = {"error_cb": lambda error: said.append(f"{error.name()} {error.str()}")}
    producer = confluent_kafka.Producer(_configured(bootstrap, dict(config) | errors))
    wait_until(
        lambda: producer.poll(0.1) >= 0 and any("_ALL_BROKERS" not in text for text in said), "an error"
    )
    return "\n".join(said)


LIBRDKAFKA = Library("librdkafka", _Producer, _Consumer, _Admin, _refusal)
