"""`korvet groups reset-offsets` through the real command line."""

from __future__ import annotations

import time
from functools import partial

import pytest

from tests.cli.commands import at_broker, commit, committed, done, done_as_json, failed
from tests.support.batches import Record
from tests.support.group_consumer import joined
from tests.support.in_process import InProcessBroker
from tests.support.topic_client import Client

FIRST_MS = 1_700_000_000_000


groups = partial(at_broker, "groups")


def reset(broker: InProcessBroker, group: str, *arguments: str) -> list[tuple[str, int, int | None, int]]:
    """Run the command; returns topic, partition, offset before and after of each line."""
    printed = done_as_json("groups", "reset-offsets", "-b", broker.bootstrap, group, *arguments)
    assert printed["group"] == group
    assert printed["executed"] is ("--execute" in arguments)
    return [(row["topic"], row["partition"], row["before"], row["after"]) for row in printed["offsets"]]


def filled(broker: InProcessBroker, client: Client, name: str) -> None:
    """Make a topic with ten records a second apart in partition 0, and a group that has come to offset 4."""
    client.create(name, partitions=2)
    client.append(name, *(Record(timestamp=FIRST_MS + 1000 * number) for number in range(10)))
    commit(broker, name, name, 4)


@pytest.mark.parametrize(
    ("target", "after"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "7"], 7),
        (["--to-offset", "99"], 10),
        (["--to-timestamp", str(FIRST_MS + 2500)], 3),
        (["--to-timestamp", str(FIRST_MS + 99_000)], 10),
        (["--to-timestamp", "0"], 0),
        (["--to-datetime", "2023-11-14T22:13:25"], 5),
        (["--to-datetime", "2023-11-14T23:13:25.001+01:00"], 6),
        (["--by-duration", "P36500D"], 0),
        (["--by-duration", "PT1H30M0.5S"], 10),
        (["--shift-by", "3"], 7),
        (["--shift-by", "-3"], 1),
        (["--shift-by", "-30"], 0),
    ],
)
def test_each_target_is_shown_and_reached_by_execute(
    broker: InProcessBroker, client: Client, name: str, target: list[str], after: int
) -> None:
    filled(broker, client, name)
    moved = [(name, 0, 4, after)]
    assert reset(broker, name, "--all-topics", *target) == moved
    assert committed(broker, name, name) == [4]
    assert reset(broker, name, "--all-topics", *target, "--execute") == moved
    assert committed(broker, name, name) == [after]


def test_a_duration_is_counted_back_from_now(broker: InProcessBroker, client: Client, topic: str) -> None:
    now = int(time.time() * 1000)
    client.append(topic, *(Record(timestamp=now - hours * 3_600_000) for hours in (50, 30, 10)))
    assert reset(broker, topic, "--topic", topic, "--by-duration", "P1DT12H") == [(topic, 0, None, 1)]


def test_topics_and_partitions_may_be_named(broker: InProcessBroker, client: Client, name: str) -> None:
    filled(broker, client, name)
    other = f"{name}-other"
    client.create(other, partitions=3)
    whole = [(name, 0, 4, 0), (name, 1, None, 0)]
    assert reset(broker, name, "--topic", name, "--to-earliest") == whole
    some = [(name, 1, None, 0), (other, 0, None, 0), (other, 2, None, 0)]
    asked = ["--topic", f"{name}:1", "--topic", f"{other}:2,0,2", "--to-earliest", "--execute"]
    assert reset(broker, name, *asked) == some
    assert (committed(broker, name, name), committed(broker, name, other)) == ([4, 0], [0, 0])


def test_a_new_group_is_created_by_its_offsets(broker: InProcessBroker, client: Client, name: str) -> None:
    filled(broker, client, name)
    group = f"{name} new"
    assert reset(broker, group, "--topic", name, "--to-latest", "--execute")[0] == (name, 0, None, 10)
    assert committed(broker, group, name) == [10, 0]


def test_the_table_says_whether_anything_was_changed(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    filled(broker, client, name)
    arguments = ("reset-offsets", name, "--all-topics", "--to-earliest")
    planned, executed = (done(groups(broker, *arguments, flag)) for flag in ("--dry-run", "--execute"))
    for text in (planned, executed):
        assert [name, "0", "4", "0"] in [line.split() for line in text.splitlines()]
    assert "nothing is changed" in planned
    assert "nothing is changed" not in executed


def test_a_group_with_members_is_refused(broker: InProcessBroker, client: Client, name: str) -> None:
    filled(broker, client, name)
    with joined(broker.bootstrap, name, name):
        result = groups(broker, "reset-offsets", name, "--all-topics", "--to-earliest", "--execute")
    assert "is Stable, members: 1;" in failed(result)
    assert result.stdout == ""
    assert committed(broker, name, name) == [4]


def test_an_impossible_reset_changes_nothing(broker: InProcessBroker, client: Client, name: str) -> None:
    filled(broker, client, name)

    def refusal(*arguments: str) -> str:
        return failed(groups(broker, "reset-offsets", *arguments, "--execute"))

    assert "UNKNOWN_TOPIC_OR_PARTITION" in refusal(name, "--topic", f"{name}-not", "--to-earliest")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in refusal(name, "--topic", f"{name}:0,9", "--to-earliest")
    assert "no offset of" in refusal(name, "--topic", name, "--shift-by", "1")
    assert "no offsets: name the topics" in refusal(f"{name} new", "--all-topics", "--to-earliest")
    assert committed(broker, name, name) == [4]
