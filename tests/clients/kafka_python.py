"""kafka-python."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import kafka
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import InvalidProducerEpochError, KafkaError, ProducerFencedError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from tests.clients.client_library import Config, FencedError, Library, Place, RefusedError, Written, logged
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import Received, Sample

_MILLISECONDS_MAX = int(WAIT_SECONDS_MAX * 1000)
_NAMES = {
    "message.max.bytes": "max_request_size",
    "topic.metadata.refresh.interval.ms": "metadata_max_age_ms",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
}
_VALUES = {("compression.type", "none"): None, ("auto.offset.reset", "error"): "none"}

T = TypeVar("T")


class _Tokens(AbstractTokenProvider):  # type: ignore[misc] # kafka-python carries no types
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def token(self) -> str:
        return self._token()


def _configured(bootstrap: str, config: Config) -> dict[str, Any]:
    given = {
        _NAMES.get(name, name.replace(".", "_")): _VALUES.get((name, value), value)
        for name, value in config.items()
        if name != "oauth"
    }
    if "oauth" in config:
        given["sasl_oauth_token_provider"] = _Tokens(config["oauth"])
    return {"bootstrap_servers": bootstrap, **given}


def _answered(call: Callable[[], T]) -> T:
    try:
        return call()
    except KafkaError as error:
        raise RefusedError(error.errno, str(error)) from error


class _Producer:
    def __init__(self, bootstrap: str, config: Config) -> None:
        own = {"linger.ms": 20, "batch.size": 256 * 1024}
        given = _configured(bootstrap, own | dict(config))
        self._client = kafka.KafkaProducer(max_block_ms=_MILLISECONDS_MAX, **given)

    def send(self, topic: str, records: Sequence[Sample]) -> list[Written | int]:
        sent = [
            self._client.send(
                topic,
                record.value,
                record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        # Not by flush: kafka-python 3.0 raises there for a batch that it has split.
        return [_outcome(future) for future in sent]

    def init(self) -> None:
        self._client.init_transactions()

    def begin(self) -> None:
        self._client.begin_transaction()

    def send_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        given = {
            kafka.TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
            for place, offset in offsets.items()
        }
        self._client.send_offsets_to_transaction(given, group)

    def end(self, *, commit: bool) -> None:
        try:
            if commit:
                self._client.commit_transaction()
            else:
                self._client.abort_transaction()
        except (ProducerFencedError, InvalidProducerEpochError) as error:
            raise FencedError from error

    def close(self) -> None:
        self._client.close(timeout=0)


def _outcome(future: Any) -> Written | int:
    try:
        done = future.get(WAIT_SECONDS_MAX)
    except KafkaError as error:
        return int(error.errno)
    return Written(done.partition, done.offset, done.timestamp)


class _Consumer:
    def __init__(self, bootstrap: str, config: Config) -> None:
        own = {"auto.offset.reset": "earliest", "group.id": None, "enable.auto.commit": False}
        self._client = kafka.KafkaConsumer(**_configured(bootstrap, own | dict(config)))

    def assign(self, topic: str, offsets: Mapping[int, int | None]) -> None:
        places = {kafka.TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        self._client.assign(list(places))
        for place, offset in places.items():
            if offset is not None:
                self._client.seek(place, offset)

    def subscribe(self, topic: str) -> None:
        self._client.subscribe([topic])

    def poll(self, seconds: float) -> list[Received]:
        polled = _answered(lambda: self._client.poll(int(seconds * 1000), max_records=10_000))
        return [
            Received(
                record.partition,
                record.offset,
                record.key,
                record.value,
                tuple(record.headers),
                record.timestamp,
            )
            for records in polled.values()
            for record in records
        ]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        place = kafka.TopicPartition(topic, partition)
        return self._client.beginning_offsets([place])[place], self._client.end_offsets([place])[place]

    def by_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        place = kafka.TopicPartition(topic, partition)
        answer = self._client.offsets_for_times({place: timestamp})[place]
        return None if answer is None else int(answer.offset)

    def commit(self) -> None:
        self._client.commit()

    def committed(self, topic: str, partition: int) -> int | None:
        offset: int | None = self._client.committed(kafka.TopicPartition(topic, partition))
        return offset

    def close(self) -> None:
        self._client.close()


class _Admin:
    def __init__(self, bootstrap: str) -> None:
        self._client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        made = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        _answered(lambda: self._client.create_topics([made], timeout_ms=_MILLISECONDS_MAX))

    def delete(self, topic: str) -> None:
        _answered(lambda: self._client.delete_topics([topic]))

    def partitions(self, topic: str) -> int:
        [described] = self._client.describe_topics([topic])
        assert (topic in self._client.list_topics()) == (described["error_code"] == 0)
        return len(described["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        _answered(lambda: self._client.create_partitions({topic: partitions}))

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        place = kafka.TopicPartition(topic, partition)
        results = _answered(lambda: self._client.delete_records({place: offset}))
        return int(results[place]["low_watermark"])

    def set_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        [answer] = _answered(lambda: self._client.alter_configs([resource])).values()
        # An error is not raised.
        if named := re.search(r"\w+Error", str(answer[topic])):
            raise RefusedError(getattr(kafka.errors, named[0]).errno, str(answer[topic]))

    def config(self, topic: str, name: str) -> str:
        # Without `config_filter` only configs that are set are returned.
        [described] = self._client.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic)]
        ).values()
        return str(described[topic][name]["value"])

    def groups(self) -> set[str]:
        return {group["group_id"] for group in self._client.list_groups()}

    def brokers(self) -> set[tuple[str, int]]:
        return {(broker["host"], broker["port"]) for broker in self._client.describe_cluster()["brokers"]}

    def close(self) -> None:
        self._client.close()


def _refusal(bootstrap: str, config: Config) -> str:
    with logged("kafka") as lines:
        try:
            kafka.KafkaAdminClient(bootstrap_timeout_ms=2000, **_configured(bootstrap, config)).close()
        except KafkaError as error:
            return "\n".join([*lines, str(error)])
    raise AssertionError("it is let in")


KAFKA_PYTHON = Library("kafka-python", _Producer, _Consumer, _Admin, _refusal, null_headers=False)
