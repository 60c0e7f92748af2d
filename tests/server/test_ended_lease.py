"""Changes that wait on the way to Redis until the worker's lease has ended: they are done once, by a second try."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, LeaseEndedError, StorageUnavailableError
from korvet.handlers.common import each_done
from korvet.handlers.registry import HANDLERS
from korvet.protocol.messages.alter_configs import AlterConfigsRequest
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.schema import Message
from korvet.server.net.dispatch import Dispatcher
from korvet.server.services import Storage
from korvet.server.serving_lease import ServingLease
from korvet.topics.registry import TopicSpec
from tests.handlers.configs import APPEND, TOPIC, altered, reset
from tests.support.dispatching import TIMEOUT_MS, answer, services_on
from tests.support.proxy import Proxy, until
from tests.support.redis_servers import now_ms

LEASE_MS = 1000
TOPIC_OF_ONE = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
MORE = CreatePartitionsTopic(name="there", count=2, assignments=None)
COMPACTED = reset(TOPIC, "there", {"cleanup.policy": "compact"})
COMPACTED_TOO = altered(TOPIC, "there", {"cleanup.policy": (APPEND, "compact")})
COMMITTED = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)


@pytest.mark.parametrize(
    ("change", "version"),
    [
        (CreateTopicsRequest(topics=[TOPIC_OF_ONE]), 5),
        (DeleteTopicsRequest(topic_names=["there"], timeout_ms=TIMEOUT_MS), 5),
        (CreatePartitionsRequest(topics=[MORE], timeout_ms=TIMEOUT_MS, validate_only=False), 3),
        (AlterConfigsRequest(resources=[COMPACTED], validate_only=False), 2),
        (IncrementalAlterConfigsRequest(resources=[COMPACTED_TOO], validate_only=False), 1),
        (DeleteGroupsRequest(groups_names=["billing"]), 2),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, Message) else "",
)
def test_a_change_that_came_to_redis_after_the_lease_is_done_by_a_second_try(
    network: Proxy, raw_redis: Any, change: Message, version: int
) -> None:
    settings = Settings(
        redis_url=network.url, redis_timeout_ms=TIMEOUT_MS, redis_connect_timeout_ms=TIMEOUT_MS
    )
    storage = Storage.of(settings, None)
    services = services_on(storage, settings)
    lease = ServingLease(storage.redis, LEASE_MS)
    served = Dispatcher(HANDLERS, services, lease)
    services.topics.create(TopicSpec(name="there", partitions=1))
    committed = [OffsetCommitRequestTopic(name="there", partitions=[COMMITTED])]
    assert not failed(answer(served, OffsetCommitRequest(group_id="billing", topics=committed), 8))
    lease.renew()
    raw_redis.config_resetstat()
    network.silence()
    serving = gevent.spawn(answer, served, change, version)
    until(lambda: now_ms(raw_redis) > storage.redis.nodes()[0].lease_end_ms)
    network.speak()
    assert not failed(serving.get())
    assert raw_redis.info("errorstats")["errorstat_STALE_BROKER_EPOCH"]["count"] == 1
    storage.close()


def failed(answered: Message) -> list[int]:
    """Return the errors anywhere in an answer."""
    results = repr(answered).split("error_code=")[1:]
    assert results
    return [code for result in results if (code := int(result.split(",")[0].strip(")]")))]


@pytest.mark.parametrize(
    ("first", "tried_again"),
    [(None, False), (StorageUnavailableError("away"), False), (KafkaError(ErrorCode.INVALID_REQUEST), True)],
)
def test_what_may_be_done_in_part_is_not_tried_again(first: KafkaError | None, *, tried_again: bool) -> None:
    def do(number: int) -> None:
        error = LeaseEndedError("ended") if number else first
        if error is not None:
            raise error

    items = range(2)
    if tried_again:
        with pytest.raises(LeaseEndedError):
            each_done(items, do, lambda _, error: error)
    else:
        assert [type(item) for item in each_done(items, do, lambda _, error: error)] == [
            type(first),
            LeaseEndedError,
        ]
