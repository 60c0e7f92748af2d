"""aiokafka, whose clients share a loop in a thread."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

import aiokafka
import aiokafka.abc
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, ProducerFenced, for_code
from aiokafka.helpers import create_ssl_context
from aiokafka.structs import OffsetAndMetadata

from tests.clients.client_library import Config, FencedError, Library, Place, RefusedError, Written, logged
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import TIMESTAMP_FIRST_MS, Received, Sample

_NAMES = {
    "batch.size": "max_batch_size",
    "message.max.bytes": "max_request_size",
    "topic.metadata.refresh.interval.ms": "metadata_max_age_ms",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
_VALUES = {("compression.type", "none"): None, ("auto.offset.reset", "error"): "none"}
_FILES = {"ssl.ca.location": "cafile", "ssl.certificate.location": "certfile", "ssl.key.location": "keyfile"}

T = TypeVar("T")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _run(asked: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, once it has run in the loop."""
    try:
        limited = asyncio.wait_for(asked, WAIT_SECONDS_MAX)
        return asyncio.run_coroutine_threadsafe(limited, _loop()).result()
    except KafkaError as error:
        raise RefusedError(getattr(error, "errno", -1), f"{type(error).__name__} {error}") from error


class _Tokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc] # aiokafka carries no types
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token()


def _configured(bootstrap: str, config: Config) -> dict[str, Any]:
    given = {
        _NAMES.get(name, name.replace(".", "_")): _VALUES.get((name, value), value)
        for name, value in config.items()
        if name != "oauth" and name not in _FILES
    }
    if "oauth" in config:
        given["sasl_oauth_token_provider"] = _Tokens(config["oauth"])
    if "ssl.ca.location" in config:
        files = {_FILES[name]: value for name, value in config.items() if name in _FILES}
        given["ssl_context"] = create_ssl_context(**files)
    return {"bootstrap_servers": bootstrap, **given}


async def _started(kind: Any, given: dict[str, Any]) -> Any:
    client = kind(**given)
    try:
        await client.start()
    except BaseException:
        await (client.stop() if hasattr(client, "stop") else client.close())
        raise
    return client


class _Producer:
    def __init__(self, bootstrap: str, config: Config) -> None:
        own = {"linger.ms": 20, "batch.size": 256 * 1024}
        self._given = _configured(bootstrap, own | dict(config))
        self._transactional = "transactional.id" in config
        self._client: Any = None
        if not self._transactional:
            self.init()

    def send(self, topic: str, records: Sequence[Sample]) -> list[Written | int]:
        return _run(self._send(topic, records))

    async def _send(self, topic: str, records: Sequence[Sample]) -> list[Written | int]:
        futures: list[Any] = []
        for record in records:
            try:
                future = await self._client.send(
                    topic,
                    record.value,
                    record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                    headers=list(record.headers),
                )
            except KafkaError as error:
                future = asyncio.get_running_loop().create_future()
                future.set_exception(error)
            futures.append(future)
        ends = await asyncio.gather(*futures, return_exceptions=True)
        return [_outcome(end) for end in ends]

    def init(self) -> None:
        self._client = _run(_started(aiokafka.AIOKafkaProducer, self._given))

    def begin(self) -> None:
        _run(self._client.begin_transaction())

    def send_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        given = {
            aiokafka.TopicPartition(*place): OffsetAndMetadata(offset, "")
            for place, offset in offsets.items()
        }
        _run(self._client.send_offsets_to_transaction(given, group))

    def end(self, *, commit: bool) -> None:
        try:
            _run(self._client.commit_transaction() if commit else self._client.abort_transaction())
        except RefusedError as error:
            if isinstance(error.__cause__, ProducerFenced):
                raise FencedError from error
            raise

    def close(self) -> None:
        if self._client is None:
            return
        if not self._transactional:
            _run(self._client.stop())
            return
        # stop() would abort what is open: the connections alone are closed.
        _run(self._client._sender.close())
        _run(self._client.client.close())
        self._client._closed = True


def _outcome(end: Any) -> Written | int:
    if isinstance(end, KafkaError):
        return int(end.errno)
    if isinstance(end, BaseException):
        raise end
    return Written(end.partition, end.offset, end.timestamp)


class _Consumer:
    def __init__(self, bootstrap: str, config: Config) -> None:
        own = {"auto.offset.reset": "earliest", "group.id": None, "enable.auto.commit": False}
        self._client = _run(_started(aiokafka.AIOKafkaConsumer, _configured(bootstrap, own | dict(config))))

    def assign(self, topic: str, offsets: Mapping[int, int | None]) -> None:
        async def assign() -> None:
            places = {
                aiokafka.TopicPartition(topic, partition): offset for partition, offset in offsets.items()
            }
            self._client.assign(list(places))
            for place, offset in places.items():
                if offset is not None:
                    self._client.seek(place, offset)

        _run(assign())

    def subscribe(self, topic: str) -> None:
        async def subscribe() -> None:
            self._client.subscribe([topic])

        _run(subscribe())

    def poll(self, seconds: float) -> list[Received]:
        polled = _run(self._client.getmany(timeout_ms=int(seconds * 1000), max_records=10_000))
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
        place = aiokafka.TopicPartition(topic, partition)
        first = _run(self._client.beginning_offsets([place]))[place]
        return first, _run(self._client.end_offsets([place]))[place]

    def by_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        place = aiokafka.TopicPartition(topic, partition)
        answer = _run(self._client.offsets_for_times({place: timestamp}))[place]
        return None if answer is None else int(answer.offset)

    def commit(self) -> None:
        _run(self._client.commit())

    def committed(self, topic: str, partition: int) -> int | None:
        offset: int | None = _run(self._client.committed(aiokafka.TopicPartition(topic, partition)))
        return offset

    def close(self) -> None:
        _run(self._client.stop())


class _Admin:
    def __init__(self, bootstrap: str) -> None:
        self._client = _run(_started(AIOKafkaAdminClient, {"bootstrap_servers": bootstrap}))

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        made = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        _checked(_run(self._client.create_topics([made])).topic_errors)

    def delete(self, topic: str) -> None:
        _checked(_run(self._client.delete_topics([topic])).topic_error_codes)

    def partitions(self, topic: str) -> int:
        if topic not in _run(self._client.list_topics()):
            return 0
        [described] = _run(self._client.describe_topics([topic]))
        return len(described["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        _checked(_run(self._client.create_partitions({topic: NewPartitions(partitions)})).topic_errors)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        place = aiokafka.TopicPartition(topic, partition)
        return int(_run(self._client.delete_records({place: RecordsToDelete(offset)}))[place])

    def set_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        [answer] = _run(self._client.alter_configs([resource]))
        _checked([(topic, code) for code, *_ in answer.resources])

    def config(self, topic: str, name: str) -> str:
        [answer] = _run(self._client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        [(code, _, _, _, entries)] = answer.resources
        _checked([(topic, code)])
        return next(str(value) for key, value, *_ in entries if key == name)

    def groups(self) -> set[str]:
        return {group for group, _ in _run(self._client.list_consumer_groups())}

    def brokers(self) -> set[tuple[str, int]]:
        listed = _run(self._client.describe_cluster())["brokers"]
        return {(broker["host"], broker["port"]) for broker in listed}

    def close(self) -> None:
        _run(self._client.close())


def _checked(errors: Sequence[tuple[Any, ...]]) -> None:
    for _, code, *_ in errors:
        if code:
            raise RefusedError(code, for_code(code).__name__)


def _refusal(bootstrap: str, config: Config) -> str:
    with logged("aiokafka") as lines:
        try:
            # It takes a token for accepted before the broker has said so, and starts: what it asks then is refused.
            with closing(_Producer(bootstrap, dict(config) | {"request.timeout.ms": 2000})) as producer:
                [outcome] = producer.send("refused", [Sample(0, None, b"v", (), TIMESTAMP_FIRST_MS)])
        except RefusedError as error:
            return "\n".join([*lines, str(error)])
    assert not isinstance(outcome, Written), "it is let in"
    return "\n".join([*lines, str(outcome)])


AIOKAFKA = Library("aiokafka", _Producer, _Consumer, _Admin, _refusal)
