"""A worker of Kafka Connect logs in over SASL_SSL with the file of docs/security.md, and so do its connectors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.protocol.types import ScramMechanism
from tests.jvm import jars
from tests.jvm.connect.lines import Lines
from tests.jvm.connect.test_connect import SINK, SOURCE, TOPIC, go_on, worker_configs
from tests.jvm.connect.worker import Worker, running
from tests.support.authority import Authority
from tests.support.broker import Broker, steady_broker
from tests.support.sasl_client import set_password
from tests.support.topic_client import Client
from tests.support.tutorial import section_of

PAGE = Path(__file__).parents[3] / "docs/security.md"
JAVA = re.findall(
    r"^```properties\n(.*?)^```", section_of(PAGE.read_text(), "Clients"), re.MULTILINE | re.DOTALL
)[0]
PASSWORD = "the-password-of-connect-in-this-test"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def secured(tmp_path: Path, authority: Authority) -> Iterator[Broker]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.issue("/CN=broker").store,
    }
    with steady_broker(tmp_path / "broker", settings=settings, listen=(), workers=1) as started:
        with Client(started.at("PLAINTEXT")) as admin:
            set_password(admin, "alice", PASSWORD, ScramMechanism.SCRAM_SHA_512)
        yield started
        assert "Traceback" not in started.log()


@pytest.mark.timeout(300)
def test_connectors_run_with_a_login(secured: Broker, authority: Authority, tmp_path: Path) -> None:
    jars.prepare()
    sink = tmp_path / "sink.txt"
    content = JAVA.replace("/etc/kafka/ca.pem", str(authority.certificate)).replace("...", PASSWORD)
    login = dict(re.findall(r"^([\w.]+)=((?:.*\\\n)*.*)$", content, re.MULTILINE))
    configs = worker_configs(secured) | {"bootstrap.servers": secured.bootstrap_of("SASL_SSL")}
    for whose in ("", "producer.", "consumer.", "admin."):
        configs |= {f"{whose}{name}": value for name, value in login.items()}
    kinds = {
        SOURCE: {
            "topic": TOPIC,
            "file": str(tmp_path / "source.txt"),
            "connector.class": "FileStreamSourceConnector",
        },
        SINK: {"topics": TOPIC, "file": str(sink), "connector.class": "FileStreamSinkConnector"},
    }
    with running() as workers, Lines(tmp_path / "source.txt") as lines:
        worker = Worker(tmp_path, configs)
        workers.append(worker)
        worker.wait_until_ready()
        for name, connector in kinds.items():
            connector["connector.class"] = f"org.apache.kafka.connect.file.{connector['connector.class']}"
            worker.call("PUT", f"/connectors/{name}/config", connector | {"tasks.max": "1"})
        go_on(lines, sink)
