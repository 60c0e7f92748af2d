"""Requests about partitions that a worker does not know, or knows wrongly: how often it asks Redis for topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from uuid import uuid4

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.security.session import Session
from tests.handlers import apis
from tests.handlers.rows.topics import gone
from tests.handlers.scene import ALICE, ROOT, Scene
from tests.support.batches import batch

MANY = 30


def asked(partitions: int) -> list[FetchPartition]:
    return [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1000) for n in range(partitions)]


def errors(scene: Scene, topics: list[FetchTopic], version: int, session: Session = ROOT) -> Counter[int]:
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)
    answer = scene.call(request, version, session)
    return Counter(partition.error_code for topic in answer.responses for partition in topic.partitions)


def fetched(scene: Scene) -> Counter[int]:
    return errors(scene, [FetchTopic(topic="orders", partitions=asked(MANY))], 12)


def produced(scene: Scene) -> Counter[int]:
    data = [{"index": index, "records": batch(b"value")} for index in range(MANY)]
    answer = scene.ask(apis.Produce, 12, acks=-1, topic_data=[{"name": "orders", "partition_data": data}])
    return Counter(
        partition_response.error_code
        for topic in answer.responses
        for partition_response in topic.partition_responses
    )


@pytest.fixture
def storage_format() -> str:
    return "record"


@pytest.fixture
def looks(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often the worker looks for changes of topics, and reads all of them."""
    topics, counted = scene.services.topics, Counter[str]()

    def counting(name: str, call: Callable[[], None]) -> Callable[[], None]:
        def counted_call() -> None:
            counted[name] += 1
            call()

        return counted_call

    for name in ("refresh", "reload"):
        monkeypatch.setattr(topics, name, counting(name, getattr(topics, name)))
    return counted


@pytest.mark.parametrize("ask", [fetched, produced])
def test_however_many_partitions_a_topic_does_not_have_they_are_looked_for_once(
    scene: Scene, looks: Counter[str], ask: Callable[[Scene], Counter[int]]
) -> None:
    scene.create("orders", 2)
    looks.clear()
    assert ask(scene) == {ErrorCode.NONE: 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MANY - 2}
    assert looks == {"refresh": 1}


@pytest.mark.parametrize("session", [ROOT, ALICE])
def test_however_many_topics_there_are_not_they_are_looked_for_once(
    scene: Scene, looks: Counter[str], session: Session
) -> None:
    looks.clear()
    topics = [FetchTopic(topic="", topic_id=uuid4().bytes, partitions=asked(1)) for _ in range(MANY)]
    assert errors(scene, topics, 13, session) == {ErrorCode.UNKNOWN_TOPIC_ID: MANY}
    assert looks["refresh"] <= 2


@pytest.mark.parametrize("ask", [fetched, produced])
def test_a_topic_that_came_again_is_looked_for_once_whatever_partitions_it_has(
    scene: Scene, other: Scene, looks: Counter[str], ask: Callable[[Scene], Counter[int]]
) -> None:
    other.create("orders", MANY)
    assert ask(scene) == {ErrorCode.NONE: MANY}
    other.do(apis.DeleteTopics, **gone())
    other.create("orders", MANY)
    looks.clear()
    assert ask(scene) == {ErrorCode.NONE: MANY}
    assert looks["refresh"] <= 2
    assert looks["reload"] == 0
