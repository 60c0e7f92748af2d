"""Which broker the admin client asks, and after which answers again: by brokers that a test scripts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from confluent_kafka import Producer

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, BadAnswerError, UnsupportedError
from korvet.admin.offsets import EARLIEST, LATEST
from korvet.admin.topics import CreatedTopic, TopicDescription
from korvet.admin.types import Resource, TopicId, TopicPartition, settled
from korvet.errors import ErrorCode
from korvet.protocol.compile import encode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from korvet.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest
from korvet.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
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
from tests.admin.outcomes import code_of
from tests.support.processes import WAIT_SECONDS_MAX

T = TypeVar("T")
ORDERS, PARTITION = Resource.topic("orders"), TopicPartition("orders", 0)

# As an old broker serves them, in plain versions.
SERVED: dict[type[Message], tuple[int, int]] = {
    ApiVersionsRequest: (0, 2),
    MetadataRequest: (4, 4),
    CreateTopicsRequest: (2, 4),
    DeleteTopicsRequest: (1, 3),
    DescribeConfigsRequest: (1, 2),
    FindCoordinatorRequest: (4, 4),
    DeleteGroupsRequest: (0, 1),
    ListOffsetsRequest: (1, 1),
}


class Old:
    """A cluster of two brokers, 1 and 2, that is too old for most requests. Groups are coordinated by broker 2.

    Broker 1 leads the one partition, of the topic orders: it answers for its end with the errors of `ends`, one after
    the other, and then with the offset 7.

    `controllers` are the controllers in successive responses, -1 for none, the last one repeated;
    `creations` the codes that each broker answers CreateTopics with, the last one repeated, None for no response;
    `coordinators` the brokers that are named for each group, the last one repeated.
    """

    def __init__(
        self,
        controllers: list[int],
        creations: dict[int, list[ErrorCode | None]] | None = None,
        ends: list[ErrorCode] | None = None,
    ) -> None:
        self.controllers = controllers
        self.ends = ends or []
        self.creations = creations or {}
        self.coordinators: dict[str, list[int]] = {}
        self.addresses: dict[int, str] = {}
        self.heard: dict[int, list[bytes]] = {1: [], 2: []}

    def asked(self, broker: int, request: type[Message]) -> int:
        """Return how often a broker was asked this."""
        return sum(int.from_bytes(heard[:2]) == request.api.key for heard in self.heard[broker])

    def answer(self, broker: int, key: int, version: int, correlation_id: int) -> bytes | None:
        """Return what goes over the wire."""
        if hostile.is_versions(key):
            served = {request.api.key: versions for request, versions in SERVED.items()}
            return hostile.frame(correlation_id, hostile.versions(served, version))
        answers: dict[int, Callable[[], Message | None]] = {
            MetadataRequest.api.key: self._metadata,
            CreateTopicsRequest.api.key: lambda: self._created(broker),
            FindCoordinatorRequest.api.key: lambda: self._coordinators(broker),
            DeleteGroupsRequest.api.key: lambda: self._deleted(broker),
            ListOffsetsRequest.api.key: self._end,
        }
        response = answers[key]()
        if response is None:
            return None
        tags = b"\0" if response.api.is_flexible(version) else b""
        return hostile.frame(correlation_id, tags + b"".join(encode(response, version)))

    def _metadata(self) -> MetadataResponse:
        brokers = [
            MetadataResponseBroker(node_id=broker, host="127.0.0.1", port=int(address.rpartition(":")[2]))
            for broker, address in self.addresses.items()
        ]
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        return MetadataResponse(
            brokers=brokers,
            controller_id=_next(self.controllers),
            topics=[MetadataResponseTopic(name="orders", partitions=[partition])],
        )

    def _end(self) -> ListOffsetsResponse:
        code = self.ends.pop(0) if self.ends else ErrorCode.NONE
        partition = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=-1 if code else 7)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[partition])])

    def _created(self, broker: int) -> CreateTopicsResponse | None:
        code = _next(self.creations[broker])
        if code is None:
            return None
        topics = [CreatableTopicResult(name="orders", error_code=code, error_message="why")]
        return CreateTopicsResponse(topics=topics)

    def _coordinators(self, broker: int) -> FindCoordinatorResponse:
        named = {
            group: _next(self.coordinators[group])
            for group in hostile.read(FindCoordinatorRequest, self.heard[broker][-1]).coordinator_keys
        }
        coordinators = [
            Coordinator(
                key=group,
                node_id=number,
                host="127.0.0.1",
                port=int(self.addresses[number].rpartition(":")[2]),
            )
            for group, number in named.items()
        ]
        return FindCoordinatorResponse(coordinators=coordinators)

    def _deleted(self, broker: int) -> DeleteGroupsResponse:
        code = ErrorCode.NONE if broker == 2 else ErrorCode.NOT_COORDINATOR
        request = hostile.read(DeleteGroupsRequest, self.heard[broker][-1])
        return DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=group, error_code=code) for group in request.groups_names]
        )


def _next(values: list[T]) -> T:
    return values.pop(0) if len(values) > 1 else values[0]


@contextlib.contextmanager
def asking(
    cluster: Old, timeout: float = 30, on_retry: Callable[[AdminError, float], None] | None = None
) -> Iterator[AdminClient]:
    """Run the cluster; gives a client that begins at broker 1."""
    with contextlib.ExitStack() as running:
        for broker in (1, 2):
            answering = hostile.peer(functools.partial(cluster.answer, broker), cluster.heard[broker])
            cluster.addresses[broker] = running.enter_context(answering)
        client = AdminClient(cluster.addresses[1], timeout=timeout, on_retry=on_retry)
        yield running.enter_context(client)


def test_a_change_goes_to_the_controller_alone() -> None:
    cluster = Old([2], {2: [ErrorCode.NONE]})
    with asking(cluster) as admin:
        assert isinstance(admin.topics.create(["orders"])["orders"], CreatedTopic)
    assert (cluster.asked(1, CreateTopicsRequest), cluster.asked(2, CreateTopicsRequest)) == (0, 1)


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, None])
def test_a_controller_that_is_none_any_more_or_gone_is_looked_for_again(code: ErrorCode | None) -> None:
    cluster = Old([2, 2, 1], {2: [code], 1: [ErrorCode.NONE]})
    with asking(cluster) as admin:
        assert isinstance(admin.topics.create(["orders"])["orders"], CreatedTopic)
    assert (cluster.asked(2, CreateTopicsRequest), cluster.asked(1, CreateTopicsRequest)) == (2, 1)


def test_a_cluster_without_a_controller_is_asked_until_it_has_one() -> None:
    cluster = Old([-1, -1, 2], {2: [ErrorCode.NONE]})
    with asking(cluster) as admin:
        assert isinstance(admin.topics.create(["orders"])["orders"], CreatedTopic)
    assert cluster.controllers == [2]


@pytest.mark.slow
def test_a_missing_controller_is_reported_when_time_is_over() -> None:
    with asking(Old([-1]), timeout=2) as admin:
        assert code_of(admin.topics.create(["orders"])["orders"]) is ErrorCode.NOT_CONTROLLER


def test_what_a_broker_did_not_finish_in_time_is_not_asked_a_second_time() -> None:
    cluster = Old([1], {1: [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.TOPIC_ALREADY_EXISTS]})
    with asking(cluster) as admin:
        outcome = admin.topics.create(["orders"])["orders"]
    assert code_of(outcome) is ErrorCode.REQUEST_TIMED_OUT
    assert str(outcome) == "REQUEST_TIMED_OUT: why"
    assert cluster.asked(1, CreateTopicsRequest) == 1


def test_a_topic_left_out_of_the_response_is_an_error_and_of_the_others_an_old_broker_returns_nothing() -> (
    None
):
    cluster = Old([1], {1: [ErrorCode.NONE]})
    with asking(cluster) as admin:
        outcomes = admin.topics.create(["orders", "bills"])
    assert outcomes["orders"] == CreatedTopic("orders", None, None, None, {})
    assert isinstance(outcomes["bills"], BadAnswerError)


def test_what_an_old_broker_cannot_do_is_unsupported() -> None:
    cluster = Old([1])
    topic_id = TopicId(b"0123456789abcdef")
    with asking(cluster) as admin:
        for outcomes in (
            admin.topics.describe([topic_id]),
            admin.topics.delete([topic_id]),
            admin.topics.create_partitions({"orders": 2}),
            admin.partitions.reassign({PARTITION: [1]}),
            admin.partitions.elect_leaders([PARTITION]),
            admin.partitions.log_dirs([1]),
            admin.configs.describe([ORDERS], documentation=True),
            admin.configs.alter({ORDERS: {"retention.ms": "1"}}),
            admin.topics.delete(["orders"]),
        ):
            assert [type(outcome) for outcome in outcomes.values()] == [UnsupportedError]
        for question in (
            admin.partitions.reassignments,
            admin.partitions.elect_leaders,
            admin.configs.resources,
            admin.cluster.describe,
        ):
            with pytest.raises(UnsupportedError):
                question()
        assert admin.cluster.features().epoch == -1


def test_an_id_that_an_old_broker_does_not_know_keeps_no_name_from_being_answered() -> None:
    topic_id = TopicId(b"0123456789abcdef")
    with asking(Old([1])) as admin:
        described = admin.topics.describe([topic_id, "orders"])
    assert isinstance(described[topic_id], UnsupportedError)
    orders = described["orders"]
    assert isinstance(orders, TopicDescription)
    assert (orders.name, orders.topic_id, len(orders.partitions)) == ("orders", None, 1)


def test_a_group_is_asked_of_its_coordinator_which_is_looked_for_again_when_it_is_another() -> None:
    cluster = Old([1])
    cluster.coordinators = {"billing": [2], "shipping": [1, 2]}
    with asking(cluster) as admin:
        assert admin.groups.delete(["billing", "shipping"]) == {"billing": None, "shipping": None}
    asked = [
        (broker, hostile.read(DeleteGroupsRequest, request).groups_names)
        for broker, heard in cluster.heard.items()
        for request in heard
        if int.from_bytes(request[:2]) == DeleteGroupsRequest.api.key
    ]
    assert asked == [(1, ["shipping"]), (2, ["billing"]), (2, ["shipping"])]


def test_a_leader_that_is_none_any_more_is_looked_for_again_and_each_try_is_noticed() -> None:
    notices: list[tuple[AdminError, float]] = []
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]
    cluster = Old([1], ends=[*codes])
    with asking(cluster, on_retry=lambda *notice: notices.append(notice)) as admin:
        assert settled(admin.offsets.at({PARTITION: LATEST}))[PARTITION].offset == 7
    assert cluster.asked(1, MetadataRequest) == 3
    assert [code_of(error) for error, _ in notices] == codes
    (_, first), (_, second) = notices
    assert 30 > first > second > 0


def test_what_another_try_does_not_change_is_not_tried_again() -> None:
    cluster = Old([1], ends=[ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    with asking(cluster) as admin:
        outcome = admin.offsets.at({PARTITION: LATEST})[PARTITION]
    assert code_of(outcome) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert cluster.asked(1, ListOffsetsRequest) == 1


@pytest.mark.parametrize("timeout", [0.01, 0.3])
def test_when_the_time_is_over_the_last_reason_is_reported(timeout: float) -> None:
    with asking(Old([1], ends=[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1000), timeout) as admin:
        outcome = admin.offsets.at({PARTITION: LATEST})[PARTITION]
    assert isinstance(outcome, AdminError)
    assert outcome.retriable


def test_a_request_about_one_thing_reports_its_attempts_too() -> None:
    notices: list[AdminError] = []

    def stop_after_two(error: AdminError, _seconds_left: float) -> None:
        notices.append(error)
        if len(notices) == 2:
            raise error

    with AdminClient("127.0.0.1:1", on_retry=stop_after_two) as admin, pytest.raises(AdminError):
        admin.groups.list()
    assert [str(notice) for notice in notices] == ["no connection to 127.0.0.1:1: Connection refused"] * 2


def test_another_kafka_is_asked_in_its_own_versions() -> None:
    """The mock cluster of librdkafka: three brokers, each partition with one that serves it."""
    producer = Producer({"test.mock.num.brokers": 3})
    bootstrap = ",".join(
        str(broker) for broker in producer.list_topics(timeout=WAIT_SECONDS_MAX).brokers.values()
    )
    bootstrap = ",".join(item.rpartition("/")[0] or item for item in bootstrap.split(","))
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
