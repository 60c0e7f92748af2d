"""OffsetCommit and OffsetFetch by bytes: what one worker commits another one returns, until its topic is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from korvet.protocol.wire import ZERO_UUID
from tests.handlers.formats import BOTH_FORMATS, ONLY_BATCH
from tests.support.processes import wait_until
from tests.support.proxy import until
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS

NOTHING = (-1, -1, "", ErrorCode.NONE)
ANY_NAMES = ["{x}:y", "%7B", "größe ☃", "a\nb\0c", "", "}{%"]


def commit(
    client: Client,
    group: str,
    topic: str,
    *offsets: int,
    version: int = 8,
    metadata: str | None = None,
    topic_id: bytes = ZERO_UUID,
    epoch: int = -1,
    **member: Any,
) -> list[int]:
    """Commit an offset for each partition from 0 on; returns their errors."""
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            committed_metadata=metadata,
        )
        for index, offset in enumerate(offsets)
    ]
    topics = [OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions)]
    answer = client.call(OffsetCommitRequest(group_id=group, topics=topics, **member), version)
    [named] = answer.topics
    assert named.name == (topic if version < 10 else "")
    assert named.topic_id == (topic_id if version >= 10 else ZERO_UUID)
    assert [each.partition_index for each in named.partitions] == list(range(len(offsets)))
    return [each.error_code for each in named.partitions]


def fetch(
    client: Client, group: str, topic: str, *, version: int = 7, partitions: int = 1
) -> list[tuple[int, int, str, int]]:
    """Ask for a topic's partitions from 0 on; returns offset, epoch, metadata and error of each."""
    indexes = list(range(partitions))
    if version < 8:
        asked = [OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)]
        answer = client.call(OffsetFetchRequest(group_id=group, topics=asked), version)
    else:
        of_topic = OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
        of_group = OffsetFetchRequestGroup(group_id=group, topics=[of_topic])
        [answer] = client.call(OffsetFetchRequest(groups=[of_group]), version).groups
        assert answer.group_id == group
    assert answer.error_code == ErrorCode.NONE
    [found] = answer.topics
    assert (found.name, [each.partition_index for each in found.partitions]) == (topic, indexes)
    return [
        (each.committed_offset, each.committed_leader_epoch, each.metadata, each.error_code)
        for each in found.partitions
    ]


@pytest.mark.parametrize("version", range(2, 10))
@pytest.mark.parametrize("asked_in", [1, 2, 5, 8, 9])
def test_another_worker_returns_what_was_committed(
    two_clients: tuple[Client, Client], topic: str, version: int, asked_in: int
) -> None:
    here, there = two_clients
    here.create(topic, 3)
    assert commit(here, topic, topic, 5, 2**62, version=version, metadata="note", epoch=3) == [0, 0]
    epoch = 3 if version >= 6 and asked_in >= 5 else -1
    assert fetch(there, topic, topic, version=asked_in, partitions=3) == [
        (5, epoch, "note", 0),
        (2**62, epoch, "note", 0),
        NOTHING,
    ]


def test_topics_are_named_by_id_in_the_newest_version(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    assert commit(client, topic, "", 9, version=10, topic_id=topic_id) == [0]
    assert commit(client, topic, "", 9, version=10, topic_id=bytes(15) + b"\7") == [
        ErrorCode.UNKNOWN_TOPIC_ID
    ]
    asked = [
        OffsetFetchRequestTopics(topic_id=each, partition_indexes=[0])
        for each in (topic_id, bytes(15) + b"\7")
    ]
    group = OffsetFetchRequestGroup(group_id=topic, topics=asked)
    [answer] = client.call(OffsetFetchRequest(groups=[group]), 10).groups
    assert [each.topic_id for each in answer.topics] == [each.topic_id for each in asked]
    found = [each.partitions[0] for each in answer.topics]
    assert [(each.committed_offset, each.error_code) for each in found] == [
        (9, ErrorCode.NONE),
        (-1, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


def test_all_topics_of_many_groups_are_returned_at_once(client: Client, topic: str) -> None:
    topic_id = client.create(topic, 2)
    commit(client, f"{topic}-a", topic, 1, 2)
    commit(client, f"{topic}-b", topic, 3)
    names = [f"{topic}-a", f"{topic}-b", f"{topic}-none"]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    # All offsets asked for twice are returned once.
    request = OffsetFetchRequest(groups=[*groups, *groups], require_stable=True)
    answers = client.call(request, 10).groups
    assert [answer.group_id for answer in answers] == names
    found = [
        [(each.topic_id, [one.committed_offset for one in each.partitions]) for each in answer.topics]
        for answer in answers
    ]
    assert found == [[(topic_id, [1, 2])], [(topic_id, [3])], []]
    answer = client.call(OffsetFetchRequest(group_id=f"{topic}-b", topics=None), 2)
    assert [(each.name, each.partitions[0].committed_offset) for each in answer.topics] == [(topic, 3)]


def test_what_was_never_committed_is_no_error(client: Client, topic: str) -> None:
    assert fetch(client, "nobody", topic) == [NOTHING]
    client.create(topic)
    assert fetch(client, "nobody", topic, partitions=2) == [NOTHING, NOTHING]
    assert fetch(client, "nobody", "no:topic's {name}") == [NOTHING]


def test_only_a_member_of_a_missing_group_gets_an_error(client: Client, topic: str) -> None:
    client.create(topic)
    for epoch, code in ((0, ErrorCode.GROUP_ID_NOT_FOUND), (-1, ErrorCode.NONE)):
        of_topic = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
        group = OffsetFetchRequestGroup(
            group_id=f"{topic}-x", member_id="m", member_epoch=epoch, topics=[of_topic]
        )
        [answer] = client.call(OffsetFetchRequest(groups=[group]), 9).groups
        assert (answer.error_code, len(answer.topics)) == (code, 0 if code else 1)


def test_unknown_partitions_do_not_keep_others_from_being_committed(client: Client, topic: str) -> None:
    client.create(topic)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, topic, topic, 4, 4) == [ErrorCode.NONE, unknown]
    assert commit(client, topic, f"{topic}-none", 4) == [unknown]
    assert fetch(client, topic, topic) == [(4, -1, "", 0)]


def test_a_note_may_have_so_many_bytes(client: Client, topic: str) -> None:
    client.create(topic)
    assert commit(client, topic, topic, 1, metadata="é" * 2048) == [ErrorCode.NONE]
    assert commit(client, topic, topic, 2, metadata="é" * 2048 + "x") == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert fetch(client, topic, topic) == [(1, -1, "é" * 2048, 0)]


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_generation_of_a_group_that_is_not_there(
    client: Client, topic: str, version: int, code: ErrorCode
) -> None:
    client.create(topic)
    member: Any = {"generation_id_or_member_epoch": 3, "member_id": "m"}
    assert commit(client, topic, topic, 1, version=version, **member) == [code]
    # Who names no generation needs no membership.
    assert commit(client, topic, topic, 2, version=version, member_id="m") == [ErrorCode.NONE]


def test_a_topic_created_again_elsewhere_has_no_commits(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    assert commit(here, topic, topic, 5) == [0]
    there.delete(topic)
    created = there.create(topic)
    assert fetch(here, topic, topic) == [NOTHING]
    # Until a worker has heard of it, as of all changes of topics within milliseconds, a commit is the old topic's.
    wait_until(lambda: here.described(topic).topic_id == created, "the worker knows the new topic")
    assert commit(here, topic, topic, 1) == [0]
    assert fetch(there, topic, topic) == [(1, -1, "", 0)]


def test_a_row_that_cannot_be_read_is_an_error_of_its_group(client: Client, topic: str, stored: Any) -> None:
    client.create(topic)
    commit(client, topic, topic, 5)
    stored.hset(f"korvet:group:{topic}:offsets", f"korvet:{topic}:0", "no row")
    asked = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    for version in (1, 2, 7):
        answer = client.call(OffsetFetchRequest(group_id=topic, topics=asked), version)
        if version == 1:
            code = answer.topics[0].partitions[0].error_code
        else:
            code, topics = answer.error_code, answer.topics
            assert topics == []
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
    assert commit(client, topic, topic, 6) == [0]
    assert fetch(client, topic, topic) == [(6, -1, "", 0)]


def mirrored(stored: Any, topic: str, group: str) -> str | None:
    names = {each["name"]: each["last-delivered-id"] for each in stored.xinfo_groups(f"korvet:{topic}:0")}
    found = names.get(group.encode())
    return None if found is None else found.decode()


@pytest.mark.parametrize("group", ["plain", *ANY_NAMES])
@ONLY_BATCH
def test_a_redis_group_follows_in_format_batch(client: Client, topic: str, stored: Any, group: str) -> None:
    client.create(topic)
    client.append(topic, b"a", b"b")
    for offset in (2, 0, 1):
        commit(client, group, topic, offset)
        until(lambda: mirrored(stored, topic, group) == f"{offset}-0")  # noqa: B023 - called in this turn only


@pytest.mark.parametrize(("version", "kept"), [(2, 7), (4, 7), (5, None), (10, None)])
def test_old_versions_may_say_for_how_long_an_offset_is_kept(
    client: Client, topic: str, stored: Any, version: int, kept: int | None
) -> None:
    topic_id = client.create(topic)
    named = topic_id if version >= 10 else ZERO_UUID
    commit(client, topic, topic, 3, version=version, retention_time_ms=7, topic_id=named)
    row = json.loads(stored.hget(f"korvet:group:{topic}:offsets", f"korvet:{topic}:0"))
    assert row.get("retention_ms") == kept
    assert fetch(client, topic, topic) == [(3, -1, "", 0)]
    commit(client, topic, topic, 3, version=4)
    assert "retention_ms" not in json.loads(stored.hget(f"korvet:group:{topic}:offsets", f"korvet:{topic}:0"))
