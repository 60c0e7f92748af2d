"""Kafka's tools at a listener with SASL_SSL: the file of docs/security.md by `--command-config`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.protocol.types import ScramMechanism
from tests.jvm.tools import AtBroker
from tests.support.authority import Authority
from tests.support.broker import Broker, steady_broker
from tests.support.sasl_client import set_password
from tests.support.topic_client import Client
from tests.support.tutorial import section_of

PAGE = Path(__file__).parents[3] / "docs/security.md"
JAVA = re.findall(
    r"^```properties\n(.*?)^```", section_of(PAGE.read_text(), "Clients"), re.MULTILINE | re.DOTALL
)[0]
PASSWORD = "the-password-of-alice-in-this-test"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.issue("/CN=broker").store,
    }
    with steady_broker(
        tmp_path_factory.mktemp("secured"), settings=settings, listen=(), workers=1
    ) as running:
        with Client(running.at("PLAINTEXT")) as admin:
            set_password(admin, "alice", PASSWORD, ScramMechanism.SCRAM_SHA_512)
        yield running


def test_topics_are_created_and_read_with_a_login(
    tools: AtBroker, secured: Broker, authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    content = JAVA.replace("/etc/kafka/ca.pem", str(authority.certificate))
    file.write_text(content.replace("...", PASSWORD))
    at = tools.at(secured.bootstrap_of("SASL_SSL"))
    at.done("kafka-topics", "--create", "--topic", "secured", "--command-config", str(file))
    assert at.done("kafka-topics", "--list", "--command-config", str(file)).split() == ["secured"]
    file.write_text(content.replace("...", "wrong"))
    said = at.refused("kafka-topics", "--list", "--command-config", str(file))
    assert "SaslAuthenticationException" in said
