"""kcat logs in by each mechanism that it has users for, and its tokens without a signature do not count."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from korvet.protocol.types import ScramMechanism
from tests.support.broker import Broker
from tests.support.identity_provider import Provider
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name
from tests.support.sasl_broker import PASSWORDS, bootstrap, sasl_broker
from tests.support.sasl_client import set_password
from tests.support.topic_client import Client

USER, PASSWORD = "bob", "bob-secret"
SCRAM_FIRST = (2, 6, 1)
"""First librdkafka whose SCRAM is right: before, it sends its own nonce twice, which Kafka 4 refuses too."""


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Broker]:
    with sasl_broker(tmp_path_factory.mktemp("broker"), provider) as running:
        with Client(running.at("ADMIN")) as admin:
            set_password(admin, USER, PASSWORD, ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        yield running


def kcat(
    broker: Broker, mechanism: str, *arguments: str, password: str = PASSWORD, given: str = ""
) -> subprocess.CompletedProcess[str]:
    config = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
    }
    flags = [word for name, value in config.items() for word in ("-X", f"{name}={value}")]
    return subprocess.run(
        ["kcat", "-b", bootstrap(broker), *flags, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_kcat_writes_and_reads(sasl: Broker, mechanism: str) -> None:
    topic = topic_name("sasl")
    written = kcat(sasl, mechanism, "-P", "-t", topic, given="x\n")
    version = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", subprocess.check_output(["kcat", "-V"], text=True))
    assert version
    if mechanism != "PLAIN" and tuple(map(int, version.groups())) < SCRAM_FIRST:
        assert written.returncode != 0
        assert "the nonce is not that of this exchange" in sasl.log()
        return
    assert written.returncode == 0, written.stderr
    result = kcat(sasl, mechanism, "-C", "-t", topic, "-o", "beginning", "-e", "-q")
    assert result.stdout == "x\n"


def test_a_token_of_kcats_own_has_no_signature_and_does_not_count(sasl: Broker) -> None:
    done = kcat(
        sasl, "OAUTHBEARER", "-L", "-m", "10", "-X", "sasl.oauthbearer.config=principal=alice", password="x"
    )
    assert done.returncode != 0
    assert "invalid_token" in done.stderr
    assert "a token may not be signed by 'none'" in sasl.log().replace('\\"', "")
