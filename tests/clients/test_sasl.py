"""Libraries that log in by each mechanism: they write and read, and say what is wrong where they may not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import kafka
import kafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from tests.support.broker import Broker
from tests.support.identity_provider import AUDIENCE, Provider, identity_provider
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.records import topic_name
from tests.support.sasl_broker import PASSWORD, PASSWORDS, USER, bootstrap, sasl_broker

EACH = pytest.mark.parametrize("mechanism", [*PASSWORDS, "OAUTHBEARER"])
REAUTH_MS = 3000


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with identity_provider() as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Broker]:
    with sasl_broker(tmp_path_factory.mktemp("broker"), provider, REAUTH_MS) as running:
        yield running


class _Tokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc] # aiokafka carries no types
    def __init__(self, provider: Provider, **claims: Any) -> None:
        self._provider, self._claims = provider, claims

    async def token(self) -> str:
        return self._provider.token(**self._claims)


def of_confluent(
    broker: Broker, mechanism: str, provider: Provider, password: str = PASSWORD
) -> dict[str, Any]:
    common = {
        "bootstrap.servers": bootstrap(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        claims: dict[str, Any] = {} if password == PASSWORD else {"aud": "else"}
        return common | {"oauth_cb": lambda _config: (provider.token(**claims), time.time() + 600)}
    return common | {"sasl.username": USER, "sasl.password": password}


@EACH
def test_confluent_kafka(broker: Broker, provider: Provider, mechanism: str) -> None:
    topic = topic_name("sasl")
    config = of_confluent(broker, mechanism, provider)
    producer = Producer(config)
    failures: list[KafkaError | None] = []
    began, sent = time.monotonic(), 0
    # Longer than a session lasts: librdkafka renews it.
    while time.monotonic() - began < REAUTH_MS / 1000 * 1.5:
        producer.produce(topic, b"%d" % sent, on_delivery=lambda error, _message: failures.append(error))
        sent += 1
        producer.poll(0.2)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    assert set(failures) == {None}
    consumer = Consumer(config | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = [consumer.poll(WAIT_SECONDS_MAX) for _ in range(sent)]
    consumer.close()
    assert [each and each.value() for each in found] == [b"%d" % number for number in range(sent)]


@EACH
def test_confluent_kafka_says_that_it_may_not_log_in(
    broker: Broker, provider: Provider, mechanism: str
) -> None:
    errors: list[KafkaError] = []
    producer = Producer(of_confluent(broker, mechanism, provider, "wrong") | {"error_cb": errors.append})

    def is_refused() -> bool:
        producer.poll(0.1)
        return KafkaError._AUTHENTICATION in {each.code() for each in errors}

    wait_until(is_refused, "the client reports that authentication failed")


def of_kafka_python(
    broker: Broker, mechanism: str, provider: Provider, password: str = PASSWORD
) -> dict[str, Any]:
    common = {
        "bootstrap_servers": bootstrap(broker),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Tokens(AbstractTokenProvider):  # type: ignore[misc] # kafka-python carries no types
            def token(self) -> str:
                return provider.token(aud=AUDIENCE if password == PASSWORD else "else")

        return common | {"sasl_oauth_token_provider": Tokens()}
    return common | {"sasl_plain_username": USER, "sasl_plain_password": password}


@EACH
def test_kafka_python(broker: Broker, provider: Provider, mechanism: str) -> None:
    topic = topic_name("sasl")
    config = of_kafka_python(broker, mechanism, provider)
    with closing(kafka.KafkaProducer(**config)) as producer:
        producer.send(topic, b"x").get(WAIT_SECONDS_MAX)
    with closing(
        kafka.KafkaConsumer(topic, auto_offset_reset="earliest", group_id=topic, **config)
    ) as consumer:
        assert next(consumer).value == b"x"


@EACH
def test_kafka_python_says_that_it_may_not_log_in(
    broker: Broker, provider: Provider, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(
            bootstrap_timeout_ms=2000, **of_kafka_python(broker, mechanism, provider, "wrong")
        ).close()
    assert "SaslAuthenticationFailedError" in caplog.text


def of_aiokafka(
    broker: Broker, mechanism: str, provider: Provider, password: str = PASSWORD
) -> dict[str, Any]:
    common = {
        "bootstrap_servers": bootstrap(broker),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        claims: dict[str, Any] = {} if password == PASSWORD else {"aud": "else"}
        return common | {"sasl_oauth_token_provider": _Tokens(provider, **claims)}
    return common | {"sasl_plain_username": USER, "sasl_plain_password": password}


@EACH
def test_aiokafka(broker: Broker, provider: Provider, mechanism: str) -> None:
    topic = topic_name("sasl")
    config = of_aiokafka(broker, mechanism, provider)

    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(**config) as producer:
            await producer.send_and_wait(topic, b"x")
        async with aiokafka.AIOKafkaConsumer(
            topic, auto_offset_reset="earliest", group_id=topic, **config
        ) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), WAIT_SECONDS_MAX)).value == b"x"

    asyncio.run(run())


@EACH
def test_aiokafka_says_that_it_may_not_log_in(broker: Broker, provider: Provider, mechanism: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(**of_aiokafka(broker, mechanism, provider, "wrong"))
        try:
            with pytest.raises(aiokafka.errors.KafkaError):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(run())
