"""`korvet features`: levels listed, set and lowered."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial

import pytest

from korvet.admin.client import AdminClient
from tests.cli.commands import at_broker, done, done_as_json
from tests.support.docs import PAGES
from tests.support.in_process import InProcessBroker

features = partial(at_broker, "features")
NAME = "transaction.version"


@pytest.fixture(autouse=True)
def the_highest_level_in_the_end(broker: InProcessBroker) -> Iterator[None]:
    yield
    with AdminClient(broker.bootstrap) as admin:
        admin.cluster.update_features({NAME: 2})


def listed(broker: InProcessBroker) -> list[list[str]]:
    return [line.split() for line in done(features(broker, "list")).splitlines()]


def test_levels_are_listed_and_set(broker: InProcessBroker) -> None:
    names = ("eligible.leader.replicas", "group", "korvet", "kraft", "metadata", "share", "streams")
    others = [[f"{name}.version", "0-1", "1"] for name in names]
    others[2] = ["korvet.format", "2-2", "2"]
    others[4][1:] = ["7-29", "29"]
    assert listed(broker) == [["Feature", "Supported", "Finalized"], *others, [NAME, "0-2", "2"]]
    said = done(features(broker, "set", f"{NAME}=1", "--downgrade", "safe", "--validate-only"))
    assert said == f"could be set {NAME}=1\n"
    assert listed(broker)[1:] == [*others, [NAME, "0-2", "2"]]
    assert done(features(broker, "set", f"{NAME}=1", "--downgrade", "safe")) == f"set {NAME}=1\n"
    assert listed(broker)[1:] == [*others, [NAME, "0-2", "1"]]
    done(features(broker, "set", f"{NAME}=0", "--downgrade", "unsafe"))
    assert listed(broker)[1:] == [*others, [NAME, "0-2", "0"]]
    assert done_as_json("features", "set", "-b", broker.bootstrap, f"{NAME}=2") == {NAME: 2}
    result = done_as_json("features", "list", "-b", broker.bootstrap)
    assert result["features"][7:] == [{"feature": NAME, "supported": [0, 2], "finalized": 2}]
    assert result["epoch"] > 0


def test_the_example_of_the_page_prints_what_it_says(broker: InProcessBroker) -> None:
    section = PAGES["docs/cluster.md"].partition("## Features\n")[2].partition("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    printed: list[str] = []
    for line in lines:
        if line.startswith("$ korvet features "):
            printed += [line, *done(features(broker, *shlex.split(line)[3:])).splitlines()]
    assert len(printed) > 2
    assert printed == lines
