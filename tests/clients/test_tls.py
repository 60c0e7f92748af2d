"""Real clients by TLS, as docs/security.md has it: its commands make certificates, its settings start the broker."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import korvet
from tests.clients.client_library import Library, read, written
from tests.clients.librdkafka import LIBRDKAFKA
from tests.support.broker import Broker, korvet_broker
from tests.support.docs import PAGES
from tests.support.processes import wait_until
from tests.support.records import TIMESTAMP_FIRST_MS, Sample, check_exactly, topic_name

RECORDS = [Sample(0, b"k", b"%d" % number * 1000, (), TIMESTAMP_FIRST_MS) for number in range(200)]


def blocks(title: str) -> list[str]:
    """Return the blocks of a section of the page."""
    section = re.split(r"^## ", PAGES["docs/security.md"], flags=re.MULTILINE)
    [text] = [item for item in section if item.startswith(f"{title}\n")]
    return [
        re.sub("^    ", "", block, flags=re.MULTILINE)
        for block in re.findall(r"(?:^    .+\n)+", text, re.MULTILINE)
    ]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory in which the commands of the page were run, with its files."""
    result = tmp_path_factory.mktemp("tls")
    commands, settings, client, of_alice, also = blocks("TLS")
    for item in (commands, of_alice):
        subprocess.run(["sh", "-ec", item], cwd=result, check=True, capture_output=True)
    assert settings.startswith('"listeners" = "SSL://127.0.0.1:9094"')
    settings = settings.replace("127.0.0.1:9094", "127.0.0.1:0")
    (result / "korvet.toml").write_text(re.sub(r'"(\w+\.pem)"', rf'"{result}/\1"', settings))
    for name, text in (("client.properties", client), ("alice.properties", client + also)):
        (result / name).write_text(re.sub(r"=(\w+\.pem)", rf"={result}/\1", text))
    return result


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[Broker]:
    config = ("--config", str(directory / "korvet.toml"))
    with korvet_broker(directory, *config, workers=2, listen=()) as running:
        yield running
        assert "Traceback" not in running.log()


def test_the_example_of_listeners_is_taken(directory: Path) -> None:
    [example] = blocks("Listeners")
    (directory / "listeners.toml").write_text(example)
    shown = korvet("config", "--config", str(directory / "listeners.toml"))
    assert shown.returncode == 0, shown.stderr
    assert re.search(
        r"listener\.name\.outside\.ssl\.client\.auth +required +\S+listeners\.toml", shown.stdout
    )


def trusting(directory: Path, *, identity: bool = False) -> dict[str, str]:
    """Return the configuration of a client that trusts the page's authority, and may show its certificate."""
    config = {"security.protocol": "SSL", "ssl.ca.location": str(directory / "ca.pem")}
    shown = {
        "ssl.certificate.location": str(directory / "alice.crt"),
        "ssl.key.location": str(directory / "alice.key"),
    }
    return config | (shown if identity else {})


@pytest.mark.parametrize("identity", [False, True])
def test_each_library_writes_and_reads(
    broker: Broker, directory: Path, library: Library, *, identity: bool
) -> None:
    config, topic = trusting(directory, identity=identity), topic_name("tls")
    address = broker.bootstrap.replace("127.0.0.1", "localhost")
    with contextlib.closing(library.producer(address, config)) as producer:
        places = written(producer.send(topic, RECORDS))
    with contextlib.closing(library.consumer(address, config)) as consumer:
        consumer.assign(topic, {0: None})
        check_exactly(RECORDS, read(consumer, len(RECORDS)), places)


def test_librdkafka_does_not_connect_to_a_broker_that_it_does_not_trust(
    broker: Broker, directory: Path
) -> None:
    config = trusting(directory) | {"ssl.ca.location": str(directory / "alice.crt")}
    assert "certificate verify failed" in LIBRDKAFKA.refusal(broker.bootstrap, config)
    wait_until(lambda: "the peer refused, by alert unknown ca" in broker.log(), "the line")


@pytest.mark.parametrize("file", ["client.properties", "alice.properties"])
def test_commands_of_korvet(broker: Broker, directory: Path, file: str) -> None:
    config = ("-b", broker.bootstrap, "--command-config", str(directory / file))
    assert korvet("topics", "create", f"by-{file}", *config).returncode == 0
    assert f"by-{file}" in korvet("topics", "list", *config).stdout
    refused = korvet("topics", "list", "-b", broker.bootstrap, "--timeout", "2")
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
