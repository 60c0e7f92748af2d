"""Every API that changes something while no replica of Redis is in sync: nothing is changed, and clients ask again."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.handlers.registry import HANDLERS
from korvet.share.types import ACCEPT
from tests.handlers import apis
from tests.handlers.rows import ROWS
from tests.handlers.rows.consumer_groups import beating, joining
from tests.handlers.rows.records import produced, transactional
from tests.handlers.rows.share import FETCHED, acknowledging, acquired, fetching
from tests.handlers.rows.topics import created, described
from tests.handlers.rows.transactions import initialized
from tests.handlers.scene import ROOT, Scene
from tests.handlers.table import codes
from tests.support import redis_servers
from tests.support.messages import message
from tests.support.processes import free_port
from tests.support.proxy import until

WANTS_ONE: dict[str, Any] = {"replicas": 1, "redis_timeout_ms": 3000}
CHANGING = sorted(key for key, handler in HANDLERS.items() if handler.unconfirmed and key != 27)
"""APIs that ask for replicas before they begin; WriteTxnMarkers finds out when its marker is written."""
CREATED = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
OTHERS = {21: ErrorCode.OFFSET_NOT_AVAILABLE}
"""DeleteRecords must know how far replicas have the log."""


def created_in(scene: Scene) -> int:
    [topic] = scene.ask(apis.CreateTopics, **created("orders")).topics
    return int(topic.error_code)


def stored(scene: Scene) -> dict[bytes, Any]:
    return {key: scene.raw.dump(key) for key in scene.raw.scan_iter() if b"epoch" not in key}


@pytest.mark.parametrize("key", CHANGING)
def test_a_change_is_refused_before_it_is_made(redis_url: str, key: int) -> None:
    row = next(row for row in ROWS[key] if not row.error)
    kind = HANDLERS[key].request
    with closing(Scene(redis_url)) as scene, closing(Scene(redis_url, **WANTS_ONE)) as strict:
        scene.orders()
        row.before(scene)
        version = (row.versions or kind.api.versions)[1]
        request = message(kind, row.request, version, scene)
        before = stored(scene)
        result = codes(strict.call(request, version, ROOT))
        assert set().union(*result.values()) == {OTHERS.get(key, HANDLERS[key].unconfirmed)}
        assert stored(scene) == before


def test_records_transactions_and_topics_that_are_asked_for_wait_for_a_replica_too(redis_url: str) -> None:
    with closing(Scene(redis_url)) as scene, closing(Scene(redis_url, **WANTS_ONE)) as strict:
        scene.orders()
        scene.init_producer()

        def code(kind: Any, **fields: Any) -> set[ErrorCode]:
            request = message(kind, fields, kind.api.versions[1], scene)
            return set().union(*codes(strict.call(request, session=ROOT)).values())

        assert code(apis.Metadata, **described("new", allow_auto_topic_creation=True)) == {
            ErrorCode.LEADER_NOT_AVAILABLE
        }
        assert code(apis.Produce, **produced()) == {ErrorCode.NOT_ENOUGH_REPLICAS}
        assert code(apis.Produce, **produced(acks=1)) == set()
        assert code(apis.InitProducerId, **initialized()) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        # Producers know it as an answer to Produce, and retry.
        begun = produced(transactional(), acks=1, tx="tx")
        assert code(apis.Produce, **begun) == {ErrorCode.NOT_ENOUGH_REPLICAS}


@pytest.mark.slow
def test_a_member_stays_in_its_group_and_gets_nothing_of_which_no_replica_knows() -> None:
    port = str(free_port())
    full: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    with (
        redis_servers.embedded_server("--port", port, "--bind", "127.0.0.1") as url,
        closing(Scene(url, **WANTS_ONE)) as scene,
    ):
        with redis_servers.embedded_server("--replicaof", "127.0.0.1", port):
            # First no replica is known to be in sync; then the master begins a history.
            until(lambda: created_in(scene) in CREATED)
            scene.do(apis.ConsumerGroupHeartbeat, **joining())
        answer = scene.ask(apis.ConsumerGroupHeartbeat, **beating(**full))
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        scene.do(apis.ConsumerGroupHeartbeat, **beating())  # or all members would be gone after a while


def test_records_of_share_groups_are_neither_acquired_nor_acknowledged(redis_url: str) -> None:
    with closing(Scene(redis_url)) as scene, closing(Scene(redis_url, **WANTS_ONE)) as strict:
        scene.orders()
        strict.ids = scene.ids
        acquired(scene)
        answer = strict.ask(apis.ShareFetch, **fetching())
        assert codes(answer) == {FETCHED: {ErrorCode.KAFKA_STORAGE_ERROR}}
        answer = strict.ask(apis.ShareAcknowledge, **acknowledging(acks=[(0, 2, ACCEPT)]))
        assert codes(answer) == {FETCHED: {ErrorCode.COORDINATOR_NOT_AVAILABLE}}
