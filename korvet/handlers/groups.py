"""What requests about groups of the consumer, the share and the streams protocol have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from korvet.cluster.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION, Features
from korvet.errors import ErrorCode, KafkaError, or_raise
from korvet.groups.consumer.types import JOIN_EPOCH, Owned, text_of
from korvet.groups.listing import DescribedConsumerGroup
from korvet.groups.streams.types import Tasks
from korvet.handlers.common import error_fields
from korvet.handlers.registry import Caller
from korvet.handlers.rights import DESCRIBE, TOPIC
from korvet.log.replication import Replicas
from korvet.protocol.messages import consumer_group_describe, consumer_group_heartbeat
from korvet.protocol.messages.streams_group_heartbeat import TaskIds
from korvet.security.authorizer import refusal
from korvet.topics.registry import id_bytes
from korvet.turns import in_turns

A = TypeVar("A")
D = TypeVar("D", bound=consumer_group_describe.GroupState)
G = TypeVar("G")


class _Heartbeat(Protocol):
    member_epoch: int


def require_share_groups(features: Features) -> None:
    """Raise KafkaError UNSUPPORTED_VERSION if the cluster has no share groups, as Kafka does."""
    _require(features, SHARE_VERSION, "there are no share groups")


def require_streams_groups(features: Features) -> None:
    """Raise KafkaError UNSUPPORTED_VERSION if the cluster has no streams groups, as Kafka does."""
    _require(features, STREAMS_VERSION, "there are no streams groups")


def require_consumer_groups(features: Features) -> None:
    """Raise KafkaError UNSUPPORTED_VERSION if the cluster has no groups of the consumer protocol, as Kafka does."""
    _require(features, GROUP_VERSION, "groups use the classic protocol alone")


def _require(features: Features, name: str, otherwise: str) -> None:
    if not features.finalized[name]:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"the feature {name} is 0: {otherwise}")


def joins_or_leaves(request: _Heartbeat) -> bool:
    """Whether a heartbeat joins or leaves; of others the handler knows whether they change anything."""
    return request.member_epoch <= JOIN_EPOCH


def take_heartbeat(
    request: _Heartbeat, renew: Callable[[], A | None], step: Callable[[], A], replicas: Replicas
) -> A:
    """Return the answer to a heartbeat: `renew` renews the member's session, `step` does all that is due.

    What a step has given the member no failover may take back; its session is renewed in any case.
    """
    if joins_or_leaves(request):
        return step()
    return renew() or replicas.confirm_call(step, ErrorCode.COORDINATOR_NOT_AVAILABLE, refuses=False)


def assignment(owned: Owned | None) -> consumer_group_heartbeat.Assignment | None:
    if owned is None:
        return None
    return consumer_group_heartbeat.Assignment(
        topic_partitions=[
            consumer_group_heartbeat.TopicPartitions(topic_id=id_bytes(topic_id), partitions=indexes)
            for topic_id, indexes in text_of(owned).items()
        ]
    )


def described_assignment(owned: Owned, group: DescribedConsumerGroup) -> consumer_group_describe.Assignment:
    """Return a member's assignment, in order of the names of topics, for the description of its group."""
    existing = [part for part in text_of(owned).items() if part[0] in group.names]
    existing.sort(key=lambda part: group.names[part[0]])
    return consumer_group_describe.Assignment(
        topic_partitions=[
            consumer_group_describe.TopicPartitions(
                topic_id=id_bytes(topic_id), topic_name=group.names[topic_id], partitions=indexes
            )
            for topic_id, indexes in existing
        ]
    )


def describe_each(
    kind: type[D],
    group_ids: Sequence[str],
    read: Callable[[Sequence[str]], Sequence[G | KafkaError]],
    describe: Callable[[str, G], D],
) -> list[D]:
    """Describe each group once, however often it is named; `describe` may raise KafkaError."""
    described = []
    names = list(dict.fromkeys(group_ids))
    for name, group in in_turns(zip(names, read(names), strict=True)):
        try:
            described.append(describe(name, or_raise(group)))
        except KafkaError as error:
            described.append(refused(kind, name, error))
    return described


def refused(kind: type[D], group: str, error: KafkaError) -> D:
    return kind(group_id=group, **error_fields(error, of_group=True))


def require_visible(topics: Iterable[str], caller: Caller, message: str = "") -> None:
    """Raise KafkaError TOPIC_AUTHORIZATION_FAILED if the caller may not describe all topics."""
    if not all(caller.may(DESCRIBE, name) for name in topics):
        error = refusal(TOPIC)
        raise KafkaError(error.code, message or error.message)


def require_visible_members(group: DescribedConsumerGroup, caller: Caller) -> None:
    """Raise KafkaError if the caller may not describe all topics that members have, or are to have."""
    owned = [part for member in group.members for part in (member.progress.assigned, member.target)]
    message = "The group has described topic(s) that the client is not authorized to describe."
    require_visible({name for part in owned for name in group.by_name(part)}, caller, message)


def task_ids(tasks: Tasks) -> list[TaskIds]:
    """Return tasks of a streams group as messages have them."""
    return [
        TaskIds(subtopology_id=subtopology, partitions=partitions)
        for subtopology, partitions in text_of(tasks).items()
    ]
