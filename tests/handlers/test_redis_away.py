"""Every API while Redis is away: in every version its clients get an error after which they ask again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from korvet.errors import ErrorCode
from korvet.handlers.registry import HANDLERS
from tests.handlers import apis
from tests.handlers.rows import ROWS, offsets
from tests.handlers.rows.records import fetched, in_session
from tests.handlers.rows.share import ACKNOWLEDGE
from tests.handlers.rows.topics import ELECTIONS, described, pages
from tests.handlers.scene import ROOT, Scene
from tests.handlers.table import codes
from tests.support.messages import message
from tests.support.proxy import Proxy, proxy

# The network that fails is before one server.
pytestmark = pytest.mark.embedded

FROM_MEMORY = {3, 10, 17, 18, 22, 36, 38, 39, 40, 41, 46, 60, 75}
"""APIs that are served by what the worker knows."""
OF_GROUPS = {8, 9, *range(11, 17), *range(24, 27), 28, 42, 47, 65, 66, 68, 69, 76, 77, 79, *range(88, 93)}
"""APIs whose clients would take a storage error for the end of their group or transaction."""

OTHERS = {43: ELECTIONS[1], 79: ACKNOWLEDGE[0]._replace(versions=(2, 2))}
"""Rows in the place of first ones: one names no partition, and an epoch of a session is of one request."""


@pytest.fixture
def cut_off(redis_url: str) -> Iterator[tuple[Scene, Proxy]]:
    """Give a worker with the topic `orders`, and its way to Redis."""
    with proxy(redis_url) as network, closing(Scene(network.url)) as scene:
        scene.orders()
        yield scene, network


@pytest.mark.parametrize("key", sorted(HANDLERS.keys() - FROM_MEMORY))
def test_an_error_to_retry_stands_where_other_errors_do(redis_url: str, key: int) -> None:
    row = OTHERS.get(key) or next(row for row in ROWS[key] if not row.error)
    kind = HANDLERS[key].request
    expected = ErrorCode.COORDINATOR_NOT_AVAILABLE if key in OF_GROUPS else ErrorCode.KAFKA_STORAGE_ERROR
    with proxy(redis_url) as network, closing(Scene(network.url, **row.settings)) as scene:
        scene.orders()
        row.before(scene)
        first, last = row.versions or kind.api.versions
        requests = {version: message(kind, row.request, version, scene) for version in range(first, last + 1)}
        network.refuse()
        for version, request in requests.items():
            result = codes(scene.call(request, version, ROOT))
            # Consumers before version 6 do not know the error.
            is_unknown = kind is apis.Fetch and version < 6
            wanted = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_unknown else expected
            assert set().union(*result.values()) == {wanted}, (version, result)


@pytest.mark.parametrize("version", range(14))
def test_clients_find_the_broker_and_wait_with_it_for_what_it_does_not_know(
    cut_off: tuple[Scene, Proxy], version: int
) -> None:
    scene, network = cut_off
    network.refuse()
    answer = scene.ask(apis.Metadata, version, **described("orders", "missing"))
    assert [(topic.error_code, len(topic.partitions)) for topic in answer.topics] == [
        (ErrorCode.NONE, 2),
        (ErrorCode.LEADER_NOT_AVAILABLE, 0),
    ]
    assert len(answer.brokers) == 1


def test_topics_that_the_worker_knows_are_described_and_others_are_to_be_asked_for_again(
    cut_off: tuple[Scene, Proxy],
) -> None:
    scene, network = cut_off
    network.refuse()
    answer = scene.ask(apis.DescribeTopicPartitions, **pages("orders", "missing", "not/a name"))
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "orders": ErrorCode.NONE,
        "missing": ErrorCode.LEADER_NOT_AVAILABLE,
        "not/a name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    [topic] = scene.do(apis.DescribeTopicPartitions, **pages()).topics
    assert (topic.name, len(topic.partitions)) == ("orders", 2)
    assert len(scene.do(apis.DescribeCluster, endpoint_type=1).brokers) == 1


def test_a_fetch_session_in_which_redis_was_away_ends(cut_off: tuple[Scene, Proxy]) -> None:
    scene, network = cut_off
    session = scene.do(apis.Fetch, **fetched(session_epoch=0)).session_id
    network.refuse()
    answer = scene.ask(apis.Fetch, **in_session(session, 1))
    assert (answer.error_code, answer.session_id) == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
    for epoch in (1, 2):
        again = scene.ask(apis.Fetch, **in_session(session, epoch))
        assert again.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("version", "place"),
    [(1, "topics.partitions.error_code"), (2, "error_code"), (7, "error_code"), (8, "groups.error_code")],
)
def test_an_offset_fetch_carries_its_error_where_its_version_can(
    cut_off: tuple[Scene, Proxy], version: int, place: str
) -> None:
    scene, network = cut_off
    request = message(apis.OffsetFetch, offsets.fetched(), version, scene)
    network.refuse()
    assert codes(scene.call(request, version, ROOT)) == {place: {ErrorCode.COORDINATOR_NOT_AVAILABLE}}
