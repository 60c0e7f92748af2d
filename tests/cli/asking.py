"""`korvet groups` as an operator runs it: a process with arguments, perhaps an answer on stdin, and what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from korvet.admin.client import AdminClient
from korvet.admin.types import TopicPartition, settled
from tests.cli.test_options import korvet
from tests.support.broker import Broker


def groups(broker: Broker, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `korvet groups` COMMAND against a broker."""
    return korvet("groups", command, "-b", broker.bootstrap, *arguments)


def told(broker: Broker, command: str, *arguments: str) -> Any:
    """Return the JSON that a command prints which succeeds."""
    result = groups(broker, command, "--json", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def failed(result: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """Return what a command says on stderr that fails as it should: no traceback."""
    assert result.returncode == code, result
    assert "Traceback" not in result.stderr
    return result.stderr


def answered(broker: Broker, answer: str, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that asks, and answer it."""
    line = [sys.executable, "-m", "korvet", "groups", command, "-b", broker.bootstrap, *arguments]
    return subprocess.run(line, input=answer, capture_output=True, text=True, timeout=100, check=False)


def commit(broker: Broker, group: str, topic: str, *offsets: int) -> None:
    """Commit offsets of partitions 0, 1, ... of a topic for a group without members."""
    with AdminClient(broker.bootstrap) as admin:
        places = {TopicPartition(topic, index): offset for index, offset in enumerate(offsets)}
        settled(admin.offsets.alter(group, places))


def committed(broker: Broker, group: str, topic: str) -> list[int]:
    """Return the offsets that a group has committed, in the order of the topic's partitions."""
    with AdminClient(broker.bootstrap) as admin:
        found = admin.offsets.committed(group)
    return [found[place].offset for place in sorted(found) if place.topic == topic]
