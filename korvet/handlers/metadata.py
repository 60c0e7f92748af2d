"""Metadata (key 3), versions 0-13: the brokers and topics; a topic that is asked for may be created.

Version 0 asks for all topics by an empty list. A topic is created if it is unknown, the request allows it (from
version 4 on it may not) and so does auto.create.topics.enable. From version 12 on topics may be given by id; with an
id the name does not count (Java's describeTopics leaves it empty rather than null), and topics of the same request
without an id are not answered. The answer has the brokers with the caller's listener, by its addresses; a partition led
by another broker has an error instead of its leader. Topics are kept as bytes (MetadataView), except for callers who
ask what they may do with them.

Errors: INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

import math
from typing import cast

import msgspec

from korvet.cluster.brokers import NOBODY, ReachableBrokers
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.handlers.registry import Caller, Reply, Services, register
from korvet.handlers.rights import CLUSTER, CREATE, DESCRIBE, TOPIC, by_handler
from korvet.log.epochs import NO_EPOCH
from korvet.protocol.compile import encode_part
from korvet.protocol.messages import metadata as wire
from korvet.protocol.schema import VERSION_MAX
from korvet.protocol.wire import ZERO_UUID
from korvet.security import audit
from korvet.security.authorizer import ALL_RIGHTS, refusal
from korvet.security.client_quotas import Mutations
from korvet.topics.metadata_view import Epochs
from korvet.topics.registry import PARTITIONS_MAX, Topic, TopicSpec, check_name
from korvet.topics.types import TopicRef
from korvet.turns import CALLS_PER_LOOK, in_parts, in_turns

TOPIC_ID_VERSION_FIRST = 12
LISTENER_NOT_FOUND_VERSION_FIRST = 6

TOPICS_CREATED_MAX = 100
"""Topics that one request creates: each takes some round trips to Redis."""

_AT_ONCE = -math.inf


def handle(request: wire.MetadataRequest, caller: Caller, services: Services) -> Reply:
    # Another worker may have deleted a topic that this one knows, or created it again with another id.
    # Without Redis what this worker knows is better than nothing: clients find the brokers, and wait.
    outage = services.view.refresh()
    live = services.cluster.live.on(caller.session.listener)
    describer = _Describer(request, caller, services)
    # As in Kafka nothing is refused here: who creates topics so is only throttled.
    mutations = caller.mutations(services.quotas, VERSION_MAX)
    if request.topics is None or (caller.version == 0 and not request.topics):
        topics = describer.describe_all()
    else:
        topics = _asked(request, caller, services, describer, outage, mutations=mutations)
    response = wire.MetadataResponse(
        brokers=[
            wire.MetadataResponseBroker(node_id=broker.broker_id, host=broker.host, port=broker.port)
            for broker in live.listed
        ],
        cluster_id=services.cluster.cluster_id,
        controller_id=live.controller_id,
        topics=topics,
        cluster_authorized_operations=caller.cluster_operations(
            requested=request.include_cluster_authorized_operations
        ),
    )
    return Reply(response, mutations.throttle_ms)


def _refuse(request: wire.MetadataRequest, _caller: Caller, error: KafkaError) -> wire.MetadataResponse:
    """Answer every topic asked for with the error; version 13 carries it for the whole response too."""
    # A null name is legal only in the versions that can ask for an id; an empty one is in all.
    topics = [
        msgspec.structs.replace(_failed(topic.name or "", error), topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return wire.MetadataResponse(topics=topics, error_code=error.code)


def _asked(
    request: wire.MetadataRequest,
    caller: Caller,
    services: Services,
    describer: _Describer,
    outage: StorageUnavailableError | None,
    *,
    mutations: Mutations,
) -> list[wire.MetadataResponseTopic]:
    creates = request.allow_auto_topic_creation and services.live.settings.auto_create_topics_enable
    creates_all = creates and caller.rights.allows_cluster(CREATE, log=False)
    answers: dict[str | bytes, Topic | KafkaError] = {}
    missing: list[str] = []
    topics = request.topics or ()
    ids_only = any(topic.topic_id != ZERO_UUID for topic in in_turns(topics))
    for topic in topics:
        by_id = topic.name is None or topic.topic_id != ZERO_UUID
        if by_id and caller.version < TOPIC_ID_VERSION_FIRST:
            message = f"Topic IDs are not supported in requests for version {caller.version}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if ids_only and topic.topic_id == ZERO_UUID:
            continue
        name = None if by_id else topic.name
        key = topic.topic_id if name is None else name
        if key in answers:
            continue
        answer = answers[key] = _find(name, topic.topic_id, caller, services, outage)
        if creates and name is not None and _is_unknown(answer):
            if creates_all or caller.may(CREATE, name):
                missing.append(name)
            else:
                answers[key] = refusal(TOPIC)
    if missing:
        answers |= _create(missing, caller, services, mutations)
    return [
        _failed(key, answer) if isinstance(answer, KafkaError) else describer.describe(answer)
        for key, answer in in_turns(answers.items())
    ]


def _find(
    name: str | None,
    topic_id: bytes,
    caller: Caller,
    services: Services,
    outage: StorageUnavailableError | None,
) -> Topic | KafkaError:
    """Return the topic as of the refresh: a request may name very many, and each needs no round trip of its own.

    The caller learns nothing about a name that it may not describe, not even whether there is such a topic.
    """
    try:
        if name is not None:
            if not caller.may(DESCRIBE, name):
                return refusal(TOPIC)
            check_name(name)  # a topic with a reserved name may exist, but is not created
            return services.topics.known(TopicRef(name))
        topic = services.topics.known(TopicRef("", topic_id))
    except KafkaError as error:
        return outage or error.without_frames()
    return topic if caller.may(DESCRIBE, topic.name) else refusal(TOPIC)


def _is_unknown(answer: Topic | KafkaError) -> bool:
    return isinstance(answer, KafkaError) and answer.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _create(
    names: list[str], caller: Caller, services: Services, mutations: Mutations
) -> dict[str | bytes, Topic | KafkaError]:
    """Create topics, and wait for replicas as CreateTopics does; those beyond TOPICS_CREATED_MAX are for later.

    Clients take LEADER_NOT_AVAILABLE, which Kafka answers for each topic that it creates so, for a reason to ask again.
    """
    at_once = max(1, min(TOPICS_CREATED_MAX, PARTITIONS_MAX // services.live.settings.num_partitions))
    mutations.take(len(names[:at_once]) * services.live.settings.num_partitions)
    later = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"one request creates {at_once} topics")

    def create() -> dict[str | bytes, Topic | KafkaError]:
        return {name: _created(name, caller, services) for name in names[:at_once]}

    try:
        created = services.replicas.confirm_call(create, ErrorCode.LEADER_NOT_AVAILABLE)
    except KafkaError as error:
        created = dict.fromkeys(names[:at_once], error)
    return created | dict.fromkeys(names[at_once:], later)


def _created(name: str, caller: Caller, services: Services) -> Topic | KafkaError:
    try:
        created = services.topics.create(TopicSpec(name=name), until=_AT_ONCE)
    except KafkaError as error:
        match error.code:
            case ErrorCode.TOPIC_ALREADY_EXISTS:
                other = _find(name, ZERO_UUID, caller, services, None)  # another client was faster
                return (
                    KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) if _is_unknown(other) else other
                )
            case ErrorCode.REQUEST_TIMED_OUT:
                # What is left of a deleted topic of that name is being removed. Many clients may ask for the topic:
                # none is to wait for that, or to do it too.
                return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message)
            case _:
                return error.without_frames()
    audit.requested(caller.session, "Metadata", [f"topic {name}"], {})
    return created


class _Describer:
    """Describes topics to the caller of one request: as bytes, unless it asks what it may do with them."""

    def __init__(self, request: wire.MetadataRequest, caller: Caller, services: Services) -> None:
        self._caller, self._topics = caller, services.topics
        brokers = services.cluster.live
        self._live = brokers.on(caller.session.listener)
        self._epochs = services.epochs.now()
        with_rights = request.include_topic_authorized_operations
        self._kept = (
            None if with_rights else services.view.kept(brokers, caller.version, caller.session.listener)
        )

    def describe_all(self) -> list[wire.MetadataResponseTopic]:
        """Describe the topics that the caller may describe, by name."""
        sees_all = self._caller.rights is ALL_RIGHTS
        # The version before the topics: of a later version they are kept for nobody.
        version, epoch = self._topics.version, self._epochs.of_all()
        kept = self._kept if sees_all else None
        if kept is not None and (contents := kept.get_all(version, epoch)) is not None:
            return cast("list[wire.MetadataResponseTopic]", contents)
        topics = self._topics.list_cached()
        if not sees_all:
            topics = [
                topic for topic in in_turns(topics) if self._caller.may(DESCRIBE, topic.name, log=False)
            ]
        described = [self.describe(topic) for part in in_parts(topics, CALLS_PER_LOOK) for topic in part]
        if kept is not None:
            kept.keep_all(version, epoch, cast("list[bytes]", described))
        return described

    def describe(self, topic: Topic) -> wire.MetadataResponseTopic:
        """Describe a topic; the bytes stand for it in the response."""
        epochs = self._epochs.of(topic.partitions)
        if self._kept is None:
            return _described(topic, self._live, epochs, self._caller, requested=True)
        content = self._kept.get(topic, epochs)
        if content is None:
            described = _described(topic, self._live, epochs, self._caller)
            content = encode_part(described, wire.MetadataResponse, self._caller.version, in_turns)
            self._kept.keep(topic, epochs, content)
        return cast("wire.MetadataResponseTopic", content)


def _described(
    topic: Topic, live: ReachableBrokers, epochs: Epochs, caller: Caller, *, requested: bool = False
) -> wire.MetadataResponseTopic:
    placements = live.placed(topic.name, len(topic.partitions), topic.assignment)
    # As in Kafka; clients retry both, since the leader may have the listener after its next start.
    code_known = caller.version >= LISTENER_NOT_FOUND_VERSION_FIRST
    unreached = ErrorCode.LISTENER_NOT_FOUND if code_known else ErrorCode.LEADER_NOT_AVAILABLE
    partitions = [
        wire.MetadataResponsePartition(
            error_code=_placement_error(placed.leader, epoch, unreached),
            partition_index=index,
            leader_id=NOBODY if epoch is None else placed.leader,
            leader_epoch=NO_EPOCH if epoch is None else epoch,
            replica_nodes=placed.replicas,
            isr_nodes=placed.live,
            offline_replicas=placed.offline,
        )
        for index, (placed, epoch) in enumerate(in_turns(zip(placements, epochs, strict=True)))
    ]
    return wire.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        partitions=partitions,
        topic_authorized_operations=caller.operations(TOPIC, topic.name, requested=requested),
    )


def _placement_error(leader: int, epoch: int | None, unreached: ErrorCode) -> ErrorCode:
    """Return the error of a partition: no broker leads it if the node of Redis that has its log is away."""
    if epoch is None:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return unreached if leader == NOBODY else ErrorCode.NONE


def _failed(key: str | bytes, error: KafkaError) -> wire.MetadataResponseTopic:
    # While Redis is away clients are to wait and ask again, as for a leader that is not available.
    code = ErrorCode.LEADER_NOT_AVAILABLE if isinstance(error, StorageUnavailableError) else error.code
    if isinstance(key, str):
        return wire.MetadataResponseTopic(error_code=code, name=key)
    return wire.MetadataResponseTopic(error_code=code, name=None, topic_id=key)


def _abandoned(request: wire.MetadataRequest) -> ErrorCode:
    may_create = request.topics and request.allow_auto_topic_creation
    return ErrorCode.LEADER_NOT_AVAILABLE if may_create else ErrorCode.NONE


register(
    handle,
    _refuse,
    rights=[by_handler((DESCRIBE, TOPIC), (CREATE, CLUSTER), (CREATE, TOPIC), (DESCRIBE, CLUSTER))],
    abandoned=_abandoned,
)
