"""Which answers the admin client asks again after, and where: by a broker that changes its mind."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from confluent_kafka import Producer

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.offsets import EARLIEST, LATEST, LogOffset
from korvet.admin.types import TopicPartition, settled
from korvet.errors import ErrorCode
from korvet.protocol.compile import encode
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from korvet.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from korvet.protocol.schema import Message
from tests.admin import hostile
from tests.support.processes import WAIT_SECONDS_MAX

PLACE = TopicPartition("orders", 0)
SERVED = {MetadataRequest.api.key: (4, 4), ListOffsetsRequest.api.key: (1, 1)}


class Broker:
    """Leads the one partition there is; answers for its end with one error after the other, then with an offset."""

    def __init__(self, errors: Iterable[ErrorCode]) -> None:
        self.errors = list(errors)
        self.asked: list[int] = []
        self.port = 0

    def answer(self, key: int, version: int, correlation_id: int) -> bytes:
        """Return what goes over the wire."""
        self.asked.append(key)
        if hostile.is_versions(key):
            return hostile.frame(correlation_id, hostile.versions(SERVED, version))
        response: Message = self._metadata() if key == MetadataRequest.api.key else self._offset()
        return hostile.frame(correlation_id, b"".join(encode(response, version)))

    def _metadata(self) -> MetadataResponse:
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            topics=[MetadataResponseTopic(name=PLACE.topic, partitions=[partition])],
        )

    def _offset(self) -> ListOffsetsResponse:
        code = self.errors.pop(0) if self.errors else ErrorCode.NONE
        partition = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=-1 if code else 7)
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name=PLACE.topic, partitions=[partition])]
        )


def end_by(
    broker: Broker, timeout: float = 30, on_retry: Callable[[AdminError, float], None] = lambda *_: None
) -> LogOffset | AdminError:
    with hostile.peer(broker.answer) as address:
        broker.port = int(address.rpartition(":")[2])
        with AdminClient(address, timeout=timeout, on_retry=on_retry) as admin:
            return admin.offsets.at({PLACE: LATEST})[PLACE]


def test_a_leader_that_is_none_any_more_is_looked_for_again() -> None:
    broker = Broker([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
    found = end_by(broker)
    assert isinstance(found, LogOffset)
    assert found.offset == 7
    assert broker.asked.count(MetadataRequest.api.key) == 3


def test_what_another_try_does_not_change_is_not_tried_again() -> None:
    broker = Broker([ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    found = end_by(broker)
    assert isinstance(found, BrokerError)
    assert found.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert broker.asked.count(ListOffsetsRequest.api.key) == 1


@pytest.mark.parametrize("timeout", [0.01, 0.3])
def test_when_the_time_is_over_the_last_reason_is_reported(timeout: float) -> None:
    found = end_by(Broker([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1000), timeout)
    assert isinstance(found, AdminError)
    assert found.retriable


def test_each_further_try_is_noticed_with_its_reason_and_the_seconds_left() -> None:
    notices: list[tuple[AdminError, float]] = []
    broker = Broker([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
    end_by(broker, on_retry=lambda *each: notices.append(each))
    codes = [error.code for error, _ in notices if isinstance(error, BrokerError)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]
    (_, first), (_, second) = notices
    assert 30 > first > second > 0


def test_a_request_about_one_thing_reports_its_attempts_too() -> None:
    notices: list[AdminError] = []

    def stop_after_two(error: AdminError, _seconds_left: float) -> None:
        notices.append(error)
        if len(notices) == 2:
            raise error

    with AdminClient("127.0.0.1:1", on_retry=stop_after_two) as admin, pytest.raises(AdminError):
        admin.groups.list()
    assert [str(each) for each in notices] == ["no connection to 127.0.0.1:1: Connection refused"] * 2


def test_another_kafka_is_asked_in_its_own_versions() -> None:
    """The mock cluster of librdkafka: three brokers, each partition with one that serves it."""
    producer = Producer({"test.mock.num.brokers": 3})
    bootstrap = ",".join(
        str(each) for each in producer.list_topics(timeout=WAIT_SECONDS_MAX).brokers.values()
    )
    bootstrap = ",".join(each.rpartition("/")[0] or each for each in bootstrap.split(","))
    for index in range(4):
        for _ in range(index):
            producer.produce("orders", b"value", partition=index)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    with AdminClient(bootstrap) as admin:
        topology = admin.topology(every_topic=True)
        assert len(topology.brokers) == 3
        assert topology.partitions == {"orders": [0, 1, 2, 3]}
        places = [TopicPartition("orders", index) for index in range(4)]
        ends = settled(admin.offsets.at(dict.fromkeys(places, LATEST)))
        assert [ends[place].offset for place in places] == [0, 1, 2, 3]
        starts = settled(admin.offsets.at(dict.fromkeys(places, EARLIEST)))
        assert {start.offset for start in starts.values()} == {0}


def test_about_nothing_nobody_is_asked() -> None:
    with AdminClient("127.0.0.1:1") as admin:
        outcomes: list[object] = [
            *(admin.topics.create([]), admin.topics.describe([]), admin.topics.delete([])),
            *(admin.topics.create_partitions({}), admin.topics.delete_records({})),
            *(admin.partitions.reassign({}), admin.partitions.elect_leaders([])),
            *(admin.partitions.log_dirs([]), admin.partitions.producers([])),
            *(admin.configs.describe([]), admin.configs.alter({})),
            *(admin.groups.describe([]), admin.groups.delete([])),
        ]
        assert not any(outcomes)
