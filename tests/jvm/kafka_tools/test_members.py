"""Java's consumers as members of groups of the consumer protocol (KIP-848), by this and a later version of Kafka."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.jepsen.programs import HERE as PROGRAMS
from tests.jvm import jars
from tests.support.broker import Broker
from tests.support.group_programs import PARTITIONS as COUNT
from tests.support.group_programs import (
    SESSION_MS,
    CommandOf,
    Group,
    broker_of_groups,
    check_membership,
    check_upgrade,
)

FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_of_groups(tmp_path_factory.mktemp("groups")) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture(scope="module", params=[jars.JARS, jars.LATER_CLIENT], ids=lambda path: path.name)
def command_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CommandOf:
    """Compile the program with the client's jars."""
    jars.prepare()
    path: Path = request.param
    classes = tmp_path_factory.mktemp("classes")
    sources = [str(PROGRAMS / name) for name in ("Consume.java", "Lines.java")]
    subprocess.run(["javac", "-cp", f"{path}/*", "-d", str(classes), *sources], check=True)

    def command_of(bootstrap: str, topic: str, group: str, protocol: str) -> Sequence[str]:
        work = ("member", bootstrap, topic, str(COUNT), group, protocol, str(SESSION_MS))
        return ["java", *FLAGS, "-cp", f"{classes}:{path}/*", "Consume", *work]

    return command_of


def test_members_share_commit_leave_and_are_killed(
    broker: Broker, command_of: CommandOf, request: pytest.FixtureRequest
) -> None:
    check_membership(Group(broker, f"java-{request.node.callspec.id}", command_of))


def test_a_group_changes_its_protocol(
    broker: Broker, command_of: CommandOf, request: pytest.FixtureRequest
) -> None:
    check_upgrade(Group(broker, f"java-upgraded-{request.node.callspec.id}", command_of))
