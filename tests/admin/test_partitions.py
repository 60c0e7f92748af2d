"""Partitions through the admin client: what tests/cli/test_placement.py does not ask for."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.cluster import LogDir, LogSize
from korvet.admin.errors import BrokerError
from korvet.admin.types import TopicPartition, settled
from korvet.errors import ErrorCode
from tests.admin.outcomes import code_of
from tests.support.topic_client import Client


def test_the_number_of_replicas_can_be_held(admin: AdminClient, topic: str) -> None:
    place = TopicPartition(topic, 0)
    assert admin.partitions.reassign({place: [0]}, allow_replication_factor_change=False) == {place: None}


def held(directories: Iterable[LogDir]) -> dict[TopicPartition, LogSize]:
    """Return the partitions of all log directories: each node of Redis is one."""
    assert all(directory.error is None for directory in directories)
    return {each: size for directory in directories for each, size in directory.partitions.items()}


def test_logs_are_weighed(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, partitions=2)
    client.append(name, bytes(5000), partition=1)
    empty, full = TopicPartition(name, 0), TopicPartition(name, 1)
    outcomes = admin.partitions.log_dirs([0, 4711], [empty, full])
    assert code_of(outcomes[4711]) is ErrorCode.BROKER_NOT_AVAILABLE
    sizes = held(settled({0: outcomes[0]})[0])
    assert sizes.keys() == {empty, full}
    assert sizes[empty] == LogSize(0, 0, future=False)
    assert sizes[full].size_bytes > 0
    assert {empty, full} <= held(settled(admin.partitions.log_dirs())[0]).keys()


def test_partitions_that_cannot_be_asked_about_are_refused(admin: AdminClient, topic: str) -> None:
    unsendable, there = TopicPartition("x" * 40_000, 0), TopicPartition(topic, 0)
    outcomes = admin.partitions.reassign({unsendable: [0], there: [0]})
    assert list(map(code_of, outcomes.values())) == [ErrorCode.INVALID_TOPIC_EXCEPTION, None]
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        admin.partitions.reassignments([unsendable])
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        admin.partitions.log_dirs([0], [unsendable])
    assert (
        code_of(admin.partitions.elect_leaders([unsendable])[unsendable]) is ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    assert code_of(admin.partitions.producers([unsendable])[unsendable]) is ErrorCode.INVALID_TOPIC_EXCEPTION
