"""franz-go as a member of groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.group_programs import CommandOf, Group, broker_of_groups, check_membership, check_upgrade

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_of_groups(tmp_path_factory.mktemp("groups")) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture(scope="module")
def command_of(tmp_path_factory: pytest.TempPathFactory) -> CommandOf:
    """Compile the program."""
    program = str(tmp_path_factory.mktemp("go") / "member")
    command = ["go", "build", "-mod=readonly", "-o", program, "./member"]
    subprocess.run(command, cwd=HERE, check=True, env={**os.environ, "CGO_ENABLED": "0"})

    def command_of(*arguments: str) -> Sequence[str]:
        return [program, *arguments]

    return command_of


def test_members_share_commit_leave_and_are_killed(broker: Broker, command_of: CommandOf) -> None:
    check_membership(Group(broker, "franz-go", command_of))


def test_a_group_changes_its_protocol(broker: Broker, command_of: CommandOf) -> None:
    check_upgrade(Group(broker, "franz-go-upgraded", command_of))
