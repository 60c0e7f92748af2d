"""Topologies by the topics that there are: partitions of internal topics, tasks, and what is wrong."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.streams.topology import check, configure
from korvet.groups.streams.types import (
    ConfiguredTopology,
    GroupStatus,
    InternalTopic,
    StreamsTopology,
    Subtopology,
)
from tests.groups.streams.topologies import WORD_COUNT, internal, subtopology, topology


def counts(result: ConfiguredTopology) -> dict[str, int]:
    return {name: topic.partitions for name, topic in result.internal.items()}


def test_a_source_that_is_missing_is_named() -> None:
    result = configure(WORD_COUNT, {"other": 3})
    assert result == ConfiguredTopology(
        {}, {}, [], GroupStatus.MISSING_SOURCE_TOPICS, "Source topics lines are missing."
    )


def test_three_missing_topics_are_named_at_the_most() -> None:
    result = configure(topology(subtopology("0", "e", "d", "c", "b", "a")), {})
    assert result.detail == "Source topics a, b, c and 2 additional topics are missing."


def test_internal_topics_get_the_partitions_of_what_is_written_to_them() -> None:
    result = configure(WORD_COUNT, {"lines": 5})
    assert counts(result) == {"by-word": 5, "counts-changelog": 5}
    assert [item.name for item in result.missing] == ["by-word", "counts-changelog"]
    assert (result.tasks, result.status) == ({}, GroupStatus.MISSING_INTERNAL_TOPICS)
    assert result.detail == "Internal topics are missing: by-word, counts-changelog"


def test_there_is_a_task_for_each_partition_once_all_topics_exist() -> None:
    result = configure(WORD_COUNT, {"lines": 5, "by-word": 5, "counts-changelog": 5})
    assert (result.tasks, result.missing, result.status) == ({"0": 5, "1": 5}, [], None)


def test_configs_of_internal_topics_are_kept() -> None:
    topic = InternalTopic("by-word", 0, 2, (("cleanup.policy", "delete"),))
    result = configure(
        topology(subtopology("0", "lines", sinks=("by-word",)), subtopology("1", reads=(topic,))),
        {"lines": 2},
    )
    assert result.missing == [InternalTopic("by-word", 2, 2, (("cleanup.policy", "delete"),))]


COUNTED: dict[str, tuple[StreamsTopology, dict[str, int], dict[str, int]]] = {
    "the largest source": (
        topology(subtopology("0", "a", "b", changelogs=("store",))),
        {"a": 2, "b": 7},
        {"store": 7},
    ),
    "a fixed number": (
        topology(
            subtopology("0", "lines", sinks=("wide",)),
            subtopology("1", reads=(internal("wide", 8),), changelogs=("store",)),
        ),
        {"lines": 2},
        {"wide": 8, "store": 8},
    ),
    "chains in any order": (
        topology(
            subtopology("0", reads=(internal("second"),), changelogs=("store",)),
            subtopology("1", reads=(internal("first"),), sinks=("second",)),
            subtopology("2", "lines", sinks=("first",)),
        ),
        {"lines": 6},
        {"first": 6, "second": 6, "store": 6},
    ),
    "the topic that it is joined with": (
        topology(
            subtopology("0", "lines", sinks=("by-word",)),
            subtopology("1", "labels", reads=(internal("by-word"),), copartitioned=(("labels", "by-word"),)),
        ),
        {"lines": 2, "labels": 9},
        {"by-word": 9},
    ),
    "the largest of those that are joined": (
        topology(
            subtopology("0", "a", sinks=("left",)),
            subtopology("1", "b", sinks=("right",)),
            subtopology("2", reads=(internal("left"), internal("right")), copartitioned=(("left", "right"),)),
        ),
        {"a": 3, "b": 4},
        {"left": 4, "right": 4},
    ),
    "the fixed one of those that are joined": (
        topology(
            subtopology("0", "a", sinks=("left", "right")),
            subtopology(
                "1", reads=(internal("left", 2), internal("right")), copartitioned=(("left", "right"),)
            ),
        ),
        {"a": 5},
        {"left": 2, "right": 2},
    ),
}


@pytest.mark.parametrize(("wanted", "existing", "result"), COUNTED.values(), ids=COUNTED)
def test_internal_topics_have_as_many_partitions_as_what_decides(
    wanted: StreamsTopology, existing: dict[str, int], result: dict[str, int]
) -> None:
    assert counts(configure(wanted, existing)) == result


@pytest.mark.parametrize(
    ("wanted", "existing", "detail"),
    [
        (
            topology(subtopology("0", "a", "b", copartitioned=(("a", "b"),))),
            {"a": 1, "b": 2},
            "Following topics do not have the same number of partitions: [{a=1, b=2}]",
        ),
        (
            topology(
                subtopology("0", "a", sinks=("r",)),
                subtopology("1", "b", reads=(internal("r", 3),), copartitioned=(("b", "r"),)),
            ),
            {"a": 1, "b": 2},
            (
                "Number of partitions [3] of repartition topic [r] doesn't match number of partitions [2]"
                " of the source topic."
            ),
        ),
        (
            WORD_COUNT,
            {"lines": 2, "by-word": 2, "counts-changelog": 1},
            "Existing topic counts-changelog has different number of partitions: expected 2, found 1",
        ),
        (
            WORD_COUNT,
            {"lines": 2, "by-word": 4},
            "Existing topic by-word has different number of partitions: expected 2, found 4",
        ),
    ],
)
def test_topics_with_other_numbers_of_partitions_are_named(
    wanted: StreamsTopology, existing: dict[str, int], detail: str
) -> None:
    result = configure(wanted, existing)
    assert (result.status, result.detail) == (GroupStatus.INCORRECTLY_PARTITIONED_TOPICS, detail)
    assert (result.tasks, result.missing) == ({}, [])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            [Subtopology("0", ("a",), (), (), (internal("store", 3),), ())],
            "Changelog topic store must have an undefined partition count, but it is set to 3.",
        ),
        (
            [
                subtopology("0", reads=(internal("a"),), sinks=("b",)),
                subtopology("1", reads=(internal("b"),), sinks=("a",)),
            ],
            "There may be loops",
        ),
        ([subtopology("0", "a", reads=(internal("r"),))], "is never used as a sink topic"),
        ([subtopology("0")], "No source topics found for subtopology 0"),
        *(
            ([subtopology(name, "a")], "A subtopology id may have no quote, backslash or control character.")
            for name in ('0"', "0\\", "0\n")
        ),
        (
            [subtopology(f"{number}", "a") for number in range(1001)],
            "A topology may have 1000 subtopologies.",
        ),
    ],
)
def test_a_topology_that_cannot_be_run_is_refused(wrong: list[Subtopology], message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        check(topology(*wrong))
    assert caught.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert message in caught.value.message


def test_a_topology_that_can_be_run_is_not_refused() -> None:
    check(WORD_COUNT)
    check(topology(subtopology("0", "a", "b", copartitioned=(("a", "b"),))))


def test_a_topology_of_too_many_tasks_is_refused() -> None:
    some = topology(*(subtopology(f"{number}", "a") for number in range(11)))
    assert configure(some, {"a": 9000}).tasks == {f"{number}": 9000 for number in range(11)}
    with pytest.raises(KafkaError, match="A topology may have 100000 tasks"):
        configure(some, {"a": 10_000})


def test_a_long_chain_is_resolved_though_it_comes_in_the_reverse_order() -> None:
    last = 999
    chain = [
        subtopology(
            f"{last - number:03}",
            *(() if number else ("lines",)),
            sinks=(f"t{number}",) if number < last else (),
            reads=(internal(f"t{number - 1}"),) if number else (),
        )
        for number in range(last + 1)
    ]
    wanted = topology(*sorted(chain, key=lambda item: item.id))
    check(wanted)
    assert set(counts(configure(wanted, {"lines": 3})).values()) == {3}
