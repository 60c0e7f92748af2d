"""DescribeTopicPartitions: topics in order, in pieces that the cursor joins."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from tests.handlers import apis
from tests.handlers.rows.topics import pages
from tests.handlers.scene import Scene

COUNTS = {"a": 3, "b": 1, "c": 2}
Place = tuple[str, int]


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Create three topics of 6 partitions."""
    for name, count in COUNTS.items():
        scene.create(name, count)
    return scene


def piece(
    scene: Scene, *names: str, at: Place | None = None, limit: int = 2000
) -> tuple[list[Place], Place | None]:
    """Return the partitions of an answer, and where it goes on."""
    cursor = None if at is None else {"topic_name": at[0], "partition_index": at[1]}
    answer = scene.do(
        apis.DescribeTopicPartitions, **pages(*names, response_partition_limit=limit, cursor=cursor)
    )
    result = [
        (topic.name, partition.partition_index) for topic in answer.topics for partition in topic.partitions
    ]
    after = answer.next_cursor
    return result, None if after is None else (after.topic_name, after.partition_index)


@pytest.mark.parametrize("names", [(), ("a", "b", "c"), ("c", "a", "b", "c", "a")])
@pytest.mark.parametrize("limit", [-(2**31), 0, 1, 2, 3, 4, 5, 6, 7, 2**31 - 1])
def test_the_pieces_make_a_whole(scene: Scene, names: tuple[str, ...], limit: int) -> None:
    """A limit that lets nothing through lets one partition through."""
    result, at = piece(scene, *names, limit=limit)
    asks = 1
    while at is not None:
        more, at = piece(scene, *names, at=at, limit=limit)
        assert 0 < len(more) <= max(limit, 1)
        result += more
        asks += 1
    assert result == [(name, index) for name, count in COUNTS.items() for index in range(count)]
    assert asks == -(-6 // min(max(limit, 1), 6))


def test_no_answer_has_more_than_2000_partitions(scene: Scene) -> None:
    scene.create("large", 2001)
    result, after = piece(scene, "large", limit=2**31 - 1)
    assert (len(result), after) == (2000, ("large", 2000))
    assert piece(scene, "large", at=after) == ([("large", 2000)], None)


def test_a_cursor_in_a_topic_that_is_gone_or_after_its_end_goes_on_with_the_next_one(scene: Scene) -> None:
    assert piece(scene, at=("aa", 1))[0][0] == ("b", 0)
    assert piece(scene, "a", "b", at=("a", 7)) == ([("b", 0)], None)


@pytest.mark.parametrize("at", [("elsewhere", 0), ("", 0), ("a", -1), ("a", -(2**31))])
def test_a_cursor_that_cannot_be_is_refused_for_every_topic(scene: Scene, at: Place) -> None:
    cursor = {"topic_name": at[0], "partition_index": at[1]}
    answer = scene.ask(apis.DescribeTopicPartitions, **pages("a", "b", cursor=cursor))
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST] * 2
    assert answer.next_cursor is None
