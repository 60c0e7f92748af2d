"""Kafka's own clients log in by each mechanism, and kafka-configs manages the users."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from korvet.protocol.types import ScramMechanism
from tests.jvm import jars
from tests.jvm.tools import AtBroker, Tools, kafka_tools
from tests.support.broker import Broker
from tests.support.identity_provider import AUDIENCE, Provider
from tests.support.records import topic_name
from tests.support.sasl_broker import PASSWORD, PASSWORDS, USER, bootstrap, sasl_broker
from tests.support.sasl_client import SaslClient

REAUTH_MS = 3000
EACH = pytest.mark.parametrize("mechanism", [*PASSWORDS, "OAUTHBEARER"])
_MODULES = "org.apache.kafka.common.security"
_LOGINS = {"PLAIN": "plain.PlainLoginModule", "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule"}

Config = Callable[[str, str], str]
"""Returns the path of a file that logs in by a mechanism, with a password or as valid as one."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Broker]:
    with sasl_broker(tmp_path_factory.mktemp("broker"), provider, REAUTH_MS) as running:
        yield running


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    jars.prepare()
    directory = tmp_path_factory.mktemp("java")
    token = (directory / "token").as_uri()
    with kafka_tools(directory, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token}") as running:
        yield running


@pytest.fixture
def tools(java: Tools, broker: Broker) -> AtBroker:
    """Give the tools at the listener where clients log in."""
    return AtBroker(java, bootstrap(broker))


@pytest.fixture
def admin(java: Tools, broker: Broker) -> AtBroker:
    """Give the tools at the other one."""
    return AtBroker(java, broker.bootstrap_of("ADMIN"))


@pytest.fixture
def config(java: Tools, provider: Provider, tmp_path: Path) -> Config:
    def written(mechanism: str, password: str = PASSWORD) -> str:
        module = f"{_MODULES}.{_LOGINS.get(mechanism, 'scram.ScramLoginModule')}"
        options = "" if mechanism == "OAUTHBEARER" else f' username="{USER}" password="{password}"'
        lines = [
            "security.protocol=SASL_PLAINTEXT",
            f"sasl.mechanism={mechanism}",
            f"sasl.jaas.config={module} required{options};",
        ]
        if mechanism == "OAUTHBEARER":
            token = java.directory / "token"
            token.write_text(provider.token(aud=AUDIENCE if password == PASSWORD else "else"))
            handler = f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
            lines += [
                f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}",
                f"sasl.login.callback.handler.class={handler}",
            ]
        path = tmp_path / "client.properties"
        text = "\n".join(lines)
        path.write_text("".join(item if item.isascii() else f"\\u{ord(item):04x}" for item in text))
        return str(path)

    return written


@EACH
def test_a_java_client_logs_in_and_renews_its_session(
    tools: AtBroker, config: Config, mechanism: str
) -> None:
    topic, file = topic_name("sasl"), config(mechanism, PASSWORD)
    tools.done("kafka-topics", "--create", "--topic", topic, "--command-config", file)
    records = REAUTH_MS * 3 // 2 // 20
    sizes = ("--num-records", str(records), "--record-size", "10", "--throughput", "50")
    began = time.monotonic()
    said = tools.run("kafka-producer-perf-test", "--topic", topic, *sizes, "--producer.config", file)
    assert f"{records} records sent" in said.out, said
    assert time.monotonic() - began > REAUTH_MS / 1000
    offsets = tools.done("kafka-get-offsets", "--topic", topic, "--command-config", file)
    assert offsets.startswith(f"{topic}:0:")


@EACH
def test_a_java_client_says_that_it_may_not_log_in(tools: AtBroker, config: Config, mechanism: str) -> None:
    said = tools.refused("kafka-topics", "--list", "--command-config", config(mechanism, "wrong"))
    assert "SaslAuthenticationException" in said
    expected = '{"status":"invalid_token"}' if mechanism == "OAUTHBEARER" else "Authentication failed"
    assert expected in said


def test_delegation_tokens_are_disabled(tools: AtBroker, config: Config) -> None:
    """As in a Kafka without a secret key for them."""
    said = tools.refused(
        "kafka-delegation-tokens", "--describe", "--command-config", config("PLAIN", PASSWORD)
    )
    assert "DelegationTokenDisabledException" in said


def test_kafka_configs_manages_users(admin: AtBroker, broker: Broker) -> None:
    of = ("--entity-type", "users", "--entity-name", "bob")
    credentials = (
        "SCRAM-SHA-256=[iterations=8192,password=bob-secret]",
        "SCRAM-SHA-512=[password=bob-secret]",
    )
    for credential in credentials:
        said = admin.done("kafka-configs", "--alter", *of, "--add-config", credential)
        assert said == "Completed updating config for user bob.\n"
    said = admin.done("kafka-configs", "--describe", *of)
    assert said == (
        "SCRAM credential configs for user-principal 'bob' are"
        " SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096\n"
    )
    for mechanism in ScramMechanism:
        if mechanism:
            with SaslClient(broker.at("SASL_PLAINTEXT")) as client:
                client.authenticated("bob", "bob-secret", mechanism.sasl_name)
    admin.done("kafka-configs", "--alter", *of, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in admin.done("kafka-configs", "--describe", *of)
    admin.done("kafka-configs", "--alter", *of, "--delete-config", "SCRAM-SHA-512")
