"""franz-go and kafkajs log in by each mechanism, write a record and read it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.identity_provider import Provider
from tests.support.records import topic_name
from tests.support.sasl_broker import PASSWORD, PASSWORDS, USER, bootstrap, sasl_broker

HERE = Path(__file__).parent
SECONDS_MAX = 100
EACH = pytest.mark.parametrize("mechanism", [*PASSWORDS, "OAUTHBEARER"])
GUESS = {"franz_go": "at least v3.9\n", "kafkajs": ""}
"""What a library concludes from the APIs for Kafka's version, if it does: as kcl and Redpanda Console by franz-go."""

Run = Callable[[str, str], subprocess.CompletedProcess[str]]
"""Logs in by a mechanism with a secret."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Broker]:
    with sasl_broker(tmp_path_factory.mktemp("broker"), provider) as running:
        yield running


@pytest.fixture(scope="module")
def franz_go(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the program, and return its command."""
    program = str(tmp_path_factory.mktemp("go") / "login")
    command = ["go", "build", "-mod=readonly", "-o", program, "."]
    subprocess.run(command, cwd=HERE, check=True, env={**os.environ, "CGO_ENABLED": "0"})
    return [program]


@pytest.fixture(scope="module")
def kafkajs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Install the library, and return the command of the program with it."""
    return kafkajs_program(tmp_path_factory.mktemp("node"), "kafkajs.mjs")


def kafkajs_program(directory: Path, program: str) -> list[str]:
    """Install the library in a directory as the lock file has it, and return the command of a program with it."""
    for name in ("package.json", "package-lock.json", program):
        shutil.copy(HERE / name, directory)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=directory, check=True)
    return ["node", str(directory / program)]


@pytest.fixture(params=["franz_go", "kafkajs"])
def run(request: pytest.FixtureRequest, broker: Broker) -> Run:
    """Give what logs in by one library."""
    command: list[str] = request.getfixturevalue(request.param)

    def login(mechanism: str, secret: str) -> subprocess.CompletedProcess[str]:
        arguments = (bootstrap(broker), topic_name("logins"), mechanism, USER, secret)
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=SECONDS_MAX
        )

    return login


@EACH
def test_a_client_with_the_right_secret_writes_and_reads(
    run: Run, provider: Provider, mechanism: str, request: pytest.FixtureRequest
) -> None:
    done = run(mechanism, provider.token() if mechanism == "OAUTHBEARER" else PASSWORD)
    guess = GUESS[request.node.callspec.params["run"]]
    assert (done.returncode, done.stdout) == (0, f"{guess}by {mechanism}\n"), done


@EACH
def test_a_client_with_a_wrong_secret_gets_nothing(
    run: Run, broker: Broker, provider: Provider, mechanism: str
) -> None:
    before = broker.log().count("authentication refused")
    done = run(mechanism, provider.token(aud="else") if mechanism == "OAUTHBEARER" else "wrong")
    assert done.returncode == 1
    assert done.stdout.startswith("failed ")
    assert broker.log().count("authentication refused") > before
