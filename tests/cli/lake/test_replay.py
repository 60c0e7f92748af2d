"""`korvet lake replay` as an operator runs it, on a real broker and a real lake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from korvet.lake.source import SourceTopic
from tests.cli.commands import TextResult, done, failed, korvet
from tests.support.archives import archive, trim, where
from tests.support.batches import Record
from tests.support.replaying import Stage, stage_in


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage_in(tmp_path_factory.mktemp("broker")) as result:
        yield result


@pytest.fixture(scope="module")
def source(stage: Stage) -> SourceTopic:
    """Give a topic of which the first half is in the lake only."""
    topic = stage.make("batch", 2)
    for half in range(2):
        for partition in topic.partitions:
            times = range(half * 1000, half * 1000 + 1000)
            stage.topics.produce(partition, *(Record(b"%d" % at, b"k", at * 1000) for at in times))
        if not half:
            archive(stage.topics)
            for partition in topic.partitions:
                trim(stage.topics, partition)
    return topic


def replay(stage: Stage, source: SourceTopic, target: str, *arguments: str) -> TextResult:
    place = (*where(stage.topics), "-b", stage.broker.bootstrap)
    return korvet("lake", "replay", *place, source.name, "--to", target, *arguments)


def as_json(stage: Stage, source: SourceTopic, target: str, *arguments: str) -> Any:
    return json.loads(done(replay(stage, source, target, "--json", *arguments)))


def test_a_topic_is_replayed_once_and_reported(stage: Stage, source: SourceTopic) -> None:
    target = stage.make("batch", 2)
    planned = as_json(stage, source, target.name, "--dry-run")
    assert (planned["executed"], planned["resumed"]) == (False, False)
    assert planned["partitions"] == [
        {"partition": at, "from": 0, "to": 2000, "next": 0, "records": 0} for at in (0, 1)
    ]
    assert stage.contents(target) == []
    rows = [row.split() for row in done(replay(stage, source, target.name, "-z", "lz4")).splitlines()]
    assert ["1", "0", "2000", "2000", "2000"] in rows
    for partition in (0, 1):
        assert stage.contents(target, partition) == stage.produced(source, partition)
    again = replay(stage, source, target.name)
    assert (again.returncode, again.stderr) == (0, f"resuming {planned['name']}\n")
    assert len(stage.contents(target)) == 2000


def test_ranges_partitions_and_names_are_flags(stage: Stage, source: SourceTopic) -> None:
    target = stage.make("batch", 3)
    flags = ("--from-time", "1970-01-01T00:16:38", "--to-time", "1970-01-01T00:16:42Z", "-p", "1")
    ended = as_json(stage, source, target.name, *flags, "--name", "some", "--partitions", "hash")
    assert ended["name"] == "some"
    assert ended["partitions"] == [{"partition": 1, "from": 998, "to": 1002, "next": 1002, "records": 4}]
    # All have the same key.
    results = [stage.contents(target, at) for at in range(3)]
    assert [result for result in results if result] == [stage.produced(source, 1)[998:1002]]
    other = replay(stage, source, target.name, "--from-offset", "5", "--to-offset", "7", "--name", "some")
    assert "Error: some is a replay of something else" in failed(other)


def test_bad_input_is_one_clear_error(stage: Stage, source: SourceTopic) -> None:
    def said(code: int, *arguments: str, target: str = "nowhere") -> str:
        return failed(replay(stage, source, target, *arguments), code)

    assert "Error: there is no topic nowhere: create it first" in said(1)
    assert "--from-offset and --from-time exclude each other" in said(
        2, "--from-offset", "1", "--from-time", "2026-01-01"
    )
    assert "--to-offset is before --from-offset" in said(2, "--from-offset", "10", "--to-offset", "5")
    assert "--to-time is before --from-time" in said(
        2, "--from-time", "2026-01-02", "--to-time", "2026-01-01"
    )
    assert "--to-time takes 2026-01-31T12:00:00+01:00, from 1970 on, not 'soon'" in said(
        2, "--to-time", "soon"
    )
    assert "Invalid value for '--rate'" in said(2, "--rate", "0")
    assert "Invalid value for '--partitions'" in said(2, "--partitions", "some")
    assert "a topic is replayed into itself up to an end" in said(1, target=source.name)
    assert "INVALID_TRANSACTION_TIMEOUT" in said(
        1, "--transactional", "--timeout", "inf", target=stage.make("batch", 2).name
    )
    assert "Missing option '--to'" in failed(korvet("lake", "replay", source.name), 2)
    away = ("-b", "127.0.0.1:1", "--timeout", "0.1")
    assert "Error: no connection to 127.0.0.1:1" in said(1, *away)
