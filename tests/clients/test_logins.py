"""Libraries that log in by each mechanism: they write and read, and say what is wrong where they may not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.clients.client_library import Library, read, written
from tests.support.broker import Broker
from tests.support.identity_provider import Provider
from tests.support.records import TIMESTAMP_FIRST_MS, Sample, check_exactly, topic_name
from tests.support.sasl_broker import PASSWORD, PASSWORDS, USER, bootstrap, sasl_broker

MECHANISMS = pytest.mark.parametrize("mechanism", [*PASSWORDS, "OAUTHBEARER"])
REAUTH_MS = 3000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Broker]:
    with sasl_broker(tmp_path_factory.mktemp("broker"), provider, REAUTH_MS) as running:
        yield running


def login(mechanism: str, provider: Provider, *, right: bool = True) -> dict[str, Any]:
    """Return the configuration of a client that has the right password or token, or a wrong one."""
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        claims: dict[str, Any] = {} if right else {"aud": "else"}
        return config | {"oauth": lambda: provider.token(**claims)}
    return config | {"sasl.username": USER, "sasl.password": PASSWORD if right else "wrong"}


@MECHANISMS
def test_a_client_that_has_logged_in_writes_and_reads_in_a_group(
    broker: Broker, provider: Provider, library: Library, mechanism: str
) -> None:
    topic = topic_name("sasl")
    config = login(mechanism, provider)
    sent: list[Sample] = []
    with closing(library.producer(bootstrap(broker), config)) as producer:
        began = time.monotonic()
        # Longer than a session lasts: the library renews it, or connects again.
        while not sent or (
            mechanism == "SCRAM-SHA-256" and time.monotonic() - began < REAUTH_MS / 1000 * 1.5
        ):
            sent.append(Sample(0, b"k", b"%d" % len(sent), (), TIMESTAMP_FIRST_MS))
            written(producer.send(topic, sent[-1:]))
            time.sleep(0.2)
    with closing(library.consumer(bootstrap(broker), config | {"group.id": topic})) as consumer:
        consumer.subscribe(topic)
        check_exactly(sent, read(consumer, len(sent)))


@MECHANISMS
def test_a_client_says_that_it_may_not_log_in(
    broker: Broker, provider: Provider, library: Library, mechanism: str
) -> None:
    said = library.refusal(bootstrap(broker), login(mechanism, provider, right=False))
    # aiokafka does not read the reason why its token is refused.
    silent = library.name == "aiokafka" and mechanism == "OAUTHBEARER"
    assert re.search("closed" if silent else "(?i)authentication", said), said
