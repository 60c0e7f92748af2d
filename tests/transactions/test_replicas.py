"""With replicas of Redis: nothing follows a decision that they do not have yet."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import redis

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from tests.support import redis_servers
from tests.support.processes import free_port, wait_until
from tests.transactions.support import PARTITIONS, Found, Process, make_topic

pytestmark = pytest.mark.slow


def test_no_marker_is_written_before_replicas_have_the_decision() -> None:
    port = str(free_port())
    with (
        redis_servers.embedded_server("--port", port, "--bind", "127.0.0.1") as url,
        redis.Redis.from_url(url) as master,
    ):
        raw: Any = master
        stored = Found(raw)
        process = Process(Settings(redis_url=url, replicas=1, redis_timeout_ms=1000))
        make_topic(process)
        identities = []

        def begun() -> bool:
            with contextlib.suppress(KafkaError):
                identities.append(process.open())
            return bool(identities)

        assert not begun()
        assert stored.state() is None
        with redis_servers.embedded_server("--replicaof", "127.0.0.1", port):
            wait_until(begun, "a replica is in sync")
        [by] = identities
        written = [len(stored.markers(index)) for index in range(PARTITIONS)]
        with pytest.raises(KafkaError) as refused:
            process.end(by, commit=True)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [len(stored.markers(index)) for index in range(PARTITIONS)] == written
        with redis_servers.embedded_server("--replicaof", "127.0.0.1", port):

            def ended() -> bool:
                with contextlib.suppress(KafkaError):
                    return process.end(by, commit=True) == by
                return False

            wait_until(ended, "a replica is in sync again")
        assert [stored.markers(index)[-1] for index in range(PARTITIONS)] == ["commit"] * PARTITIONS
        process.close()
