"""Real clients by TLS, as docs/security.md has it: its commands make certificates, its settings start the broker."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.helpers import create_ssl_context

from tests.cli.commands import korvet
from tests.support.broker import Broker, korvet_broker
from tests.support.docs import PAGES
from tests.support.processes import WAIT_SECONDS_MAX, wait_until

RECORDS = [b"%d" % number * 1000 for number in range(200)]


def blocks(title: str) -> list[str]:
    """Return the blocks of a section of the page."""
    section = re.split(r"^## ", PAGES["docs/security.md"], flags=re.MULTILINE)
    [text] = [each for each in section if each.startswith(f"{title}\n")]
    return [
        re.sub("^    ", "", block, flags=re.MULTILINE)
        for block in re.findall(r"(?:^    .+\n)+", text, re.MULTILINE)
    ]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory in which the commands of the page were run, with its files."""
    found = tmp_path_factory.mktemp("tls")
    commands, settings, client, of_alice, also = blocks("TLS")
    for each in (commands, of_alice):
        subprocess.run(["sh", "-ec", each], cwd=found, check=True, capture_output=True)
    assert settings.startswith('"listeners" = "SSL://127.0.0.1:9094"')
    settings = settings.replace("127.0.0.1:9094", "127.0.0.1:0")
    (found / "korvet.toml").write_text(re.sub(r'"(\w+\.pem)"', rf'"{found}/\1"', settings))
    for name, text in (("client.properties", client), ("alice.properties", client + also)):
        (found / name).write_text(re.sub(r"=(\w+\.pem)", rf"={found}/\1", text))
    return found


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[Broker]:
    """Run a broker as the page has it."""
    config = ("--config", str(directory / "korvet.toml"))
    with korvet_broker(directory, *config, workers=2, listen=()) as running:
        yield running
        assert "Traceback" not in running.log()


def librdkafka(broker: Broker, directory: Path, **more: str) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap.replace("127.0.0.1", "localhost"),
        "security.protocol": "ssl",
        "ssl.ca.location": str(directory / "ca.pem"),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def test_the_example_of_listeners_is_taken(directory: Path) -> None:
    [example] = blocks("Listeners")
    (directory / "listeners.toml").write_text(example)
    shown = korvet("config", "--config", str(directory / "listeners.toml"))
    assert shown.returncode == 0, shown.stderr
    assert re.search(
        r"listener\.name\.outside\.ssl\.client\.auth +required +\S+listeners\.toml", shown.stdout
    )


def test_confluent_kafka(broker: Broker, directory: Path) -> None:
    alice = {
        "ssl_certificate_location": str(directory / "alice.crt"),
        "ssl_key_location": str(directory / "alice.key"),
    }
    for topic, identity in (("librdkafka", {}), ("librdkafka-alice", alice)):
        config = librdkafka(broker, directory, **identity)
        producer = confluent_kafka.Producer(config)
        for value in RECORDS:
            producer.produce(topic, value)
        assert producer.flush(WAIT_SECONDS_MAX) == 0
        consumer = confluent_kafka.Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        found = [consumer.poll(WAIT_SECONDS_MAX) for _ in RECORDS]
        consumer.close()
        assert sorted(each.value() or b"" for each in found if each) == sorted(RECORDS)


def test_confluent_kafka_does_not_connect_to_a_broker_that_it_does_not_trust(
    broker: Broker, directory: Path
) -> None:
    errors: list[str] = []
    config = librdkafka(broker, directory, ssl_ca_location=str(directory / "alice.crt"))
    producer = confluent_kafka.Producer({**config, "error_cb": lambda error: errors.append(str(error))})
    wait_until(
        lambda: producer.poll(0.1) >= 0 and any("certificate verify failed" in each for each in errors),
        "a word of it",
    )
    wait_until(lambda: "the peer refused, by alert unknown ca" in broker.log(), "the line")


@pytest.mark.parametrize("identity", ["", "alice"])
def test_aiokafka(broker: Broker, directory: Path, identity: str) -> None:
    context = create_ssl_context(cafile=str(directory / "ca.pem"))
    if identity:
        context.load_cert_chain(directory / "alice.crt", directory / "alice.key")
    where = {"bootstrap_servers": broker.bootstrap, "security_protocol": "SSL", "ssl_context": context}
    topic = f"aiokafka{identity}"

    async def there_and_back() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(**where) as producer:
            for value in RECORDS:
                await producer.send(topic, value)
        async with aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **where) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), WAIT_SECONDS_MAX)).value for _ in RECORDS]

    assert sorted(asyncio.run(there_and_back())) == sorted(RECORDS)


@pytest.mark.parametrize("identity", ["", "alice"])
def test_kafka_python(broker: Broker, directory: Path, identity: str) -> None:
    files = (
        {"ssl_certfile": str(directory / "alice.crt"), "ssl_keyfile": str(directory / "alice.key")}
        if identity
        else {}
    )
    where = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": str(directory / "ca.pem"),
        **files,
    }
    topic = f"kafka-python{identity}"
    producer = kafka.KafkaProducer(**where)
    for value in RECORDS:
        producer.send(topic, value)
    producer.flush(WAIT_SECONDS_MAX)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **where)
    found = [next(consumer).value for _ in RECORDS]
    consumer.close()
    assert sorted(found) == sorted(RECORDS)


@pytest.mark.parametrize("file", ["client.properties", "alice.properties"])
def test_commands_of_korvet(broker: Broker, directory: Path, file: str) -> None:
    config = ("-b", broker.bootstrap, "--command-config", str(directory / file))
    assert korvet("topics", "create", f"by-{file}", *config).returncode == 0
    assert f"by-{file}" in korvet("topics", "list", *config).stdout
    refused = korvet("topics", "list", "-b", broker.bootstrap, "--timeout", "2")
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
