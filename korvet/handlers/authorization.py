"""Which rights each API needs: one table, and its enforcement (Kafka's "Operations and Resources on Protocols").

A request is checked rule by rule, before its handler is called. A rule about the whole request refuses it; a rule about
items takes those out that its principal has no right to, and their place in the response is what the handler's `refuse`
says about them: the handler does not see them. So a client learns nothing about what it may not see, not even
whether it exists. Where rights decide on more than that, the handler asks `caller.rights` itself (`Own`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller
from korvet.handlers.registry import Answer, Handler, Reply
from korvet.protocol.schema import VERSION_MAX, Message
from korvet.protocol.types import AclOperation, AclResourceType, CoordinatorType, ResourceType
from korvet.protocol.wire import ZERO_UUID
from korvet.security.acls import CLUSTER_NAME
from korvet.security.authorizer import ALL_RIGHTS, refusal
from korvet.topics.registry import TopicRegistry
from korvet.topics.types import TopicRef

Resource: TypeAlias = tuple[AclResourceType, str]
Right: TypeAlias = tuple[AclOperation, AclResourceType]

TOPIC, GROUP, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID
_THE_CLUSTER = (CLUSTER, CLUSTER_NAME)


class Whole(NamedTuple):
    """A right without which all of a request is refused. `on` gives the resource; None: the request needs no right."""

    operation: AclOperation
    types: tuple[AclResourceType, ...]
    on: Callable[[Any], Resource | None]

    @property
    def rights(self) -> list[Right]:
        """The rights that may be asked for."""
        return [(self.operation, each) for each in self.types]


class Each(NamedTuple):
    """A right that each item of a request needs for itself.

    `items` is the request's field, `answers` the response's. `on` gives the resource of an item, None if it needs no
    right, and may raise KafkaError, the item's answer. `cluster` is the right on the cluster that stands for all.
    `versions` are the first and the last version with such items.
    """

    operation: AclOperation
    types: tuple[AclResourceType, ...]
    items: str
    answers: str
    on: Callable[[Any, Any, TopicRegistry], Resource | None]
    cluster: AclOperation | None = None
    versions: tuple[int, int] = (0, VERSION_MAX)

    @property
    def rights(self) -> list[Right]:
        """The rights that may be asked for."""
        cluster = [] if self.cluster is None else [(self.cluster, CLUSTER)]
        return [(self.operation, each) for each in self.types] + cluster


class Own(NamedTuple):
    """Rights that the handler asks for itself."""

    rights: list[Right]


Rule: TypeAlias = Whole | Each | Own


def _cluster(operation: AclOperation) -> Whole:
    return Whole(operation, (CLUSTER,), lambda _request: _THE_CLUSTER)


def _group(operation: AclOperation) -> Whole:
    return Whole(operation, (GROUP,), lambda request: (GROUP, request.group_id or ""))


def _topics(
    operation: AclOperation,
    items: str = "topics",
    answers: str = "topics",
    cluster: AclOperation | None = None,
    name: Callable[[Any], str] = lambda item: item.name,
) -> Each:
    return Each(
        operation, (TOPIC,), items, answers, lambda _request, item, _topics: (TOPIC, name(item)), cluster
    )


def _topics_then_ids(operation: AclOperation, items: str, answers: str, ids_since: int) -> tuple[Each, Each]:
    """Return the rules of an API whose versions name topics by name, and by id from `ids_since` on."""
    return (
        _topics(operation, items, answers)._replace(versions=(0, ids_since - 1)),
        Each(operation, (TOPIC,), items, answers, _topic_of_id, versions=(ids_since, VERSION_MAX)),
    )


def _topics_or_ids(operation: AclOperation, items: str, answers: str, cluster: AclOperation) -> Each:
    def on(request: object, item: Any, topics: TopicRegistry) -> Resource | None:  # noqa: ANN401 - a message's part
        return _topic_of_id(request, item, topics) if item.name is None else (TOPIC, item.name)

    return Each(operation, (TOPIC,), items, answers, on, cluster)


def _topic_of_id(_request: object, item: Any, topics: TopicRegistry) -> Resource | None:  # noqa: ANN401 - a message's part
    if item.topic_id == ZERO_UUID:
        return None  # no topic; the handler says what is wrong
    return TOPIC, topics.known(TopicRef("", item.topic_id)).name


def _deleted(items: str, name: Callable[[Any], str | None]) -> Each:
    """Return the rule of topics that are there: it refuses the others as unknown."""

    def on(_request: object, item: Any, topics: TopicRegistry) -> Resource | None:  # noqa: ANN401 - a name, or with an id
        given = name(item)
        return None if given is None else (TOPIC, topics.known(TopicRef(given)).name)

    return Each(DELETE, (TOPIC,), items, "responses", on, DELETE)


def _names(resource: AclResourceType, operation: AclOperation, items: str, answers: str) -> Each:
    return Each(operation, (resource,), items, answers, lambda _request, name, _topics: (resource, name))


def _configs(operation: AclOperation, answers: str) -> Each:
    def on(_request: object, item: Any, _topics: TopicRegistry) -> Resource | None:  # noqa: ANN401 - of three APIs
        return {
            ResourceType.TOPIC: (TOPIC, item.resource_name),
            ResourceType.GROUP: (GROUP, item.resource_name),
            ResourceType.BROKER: _THE_CLUSTER,
            ResourceType.BROKER_LOGGER: _THE_CLUSTER,
            ResourceType.CLIENT_METRICS: _THE_CLUSTER,
        }.get(item.resource_type)

    return Each(operation, (TOPIC, GROUP, CLUSTER), "resources", answers, on)


def _transactional_id(request: Any) -> Resource | None:  # noqa: ANN401 - of several APIs
    return None if request.transactional_id is None else (TRANSACTIONAL_ID, request.transactional_id)


_COORDINATED = {CoordinatorType.GROUP: GROUP, CoordinatorType.TRANSACTION: TRANSACTIONAL_ID}


def _coordinated(request: Any, key: str, _topics: object = None) -> Resource | None:  # noqa: ANN401 - as below
    kind = _COORDINATED.get(request.key_type)
    return None if kind is None else (kind, key)


def _single_key(request: Any) -> Resource | None:  # noqa: ANN401 - the messages are not imported here
    return None if request.coordinator_keys else _coordinated(request, request.key)


def _share_key(request: Any) -> Resource | None:  # noqa: ANN401 - the messages are not imported here
    return _THE_CLUSTER if request.key_type == CoordinatorType.SHARE else None


READ, WRITE, CREATE, DELETE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
)
ALTER, DESCRIBE = AclOperation.ALTER, AclOperation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS

TABLE: dict[int, tuple[Rule, ...]] = {
    0: (  # Produce
        Whole(WRITE, (TRANSACTIONAL_ID,), _transactional_id),
        *_topics_then_ids(WRITE, "topic_data", "responses", ids_since=13),
    ),
    # Fetch: of a session's partitions, most of which no request names; of a follower
    1: (Own([(READ, TOPIC), (AclOperation.CLUSTER_ACTION, CLUSTER)]),),
    2: (_topics(DESCRIBE),),  # ListOffsets
    3: (Own([(DESCRIBE, TOPIC), (CREATE, CLUSTER), (CREATE, TOPIC), (DESCRIBE, CLUSTER)]),),  # Metadata
    8: (_group(READ), *_topics_then_ids(READ, "topics", "topics", ids_since=10)),  # OffsetCommit
    9: (Own([(DESCRIBE, GROUP), (DESCRIBE, TOPIC)]),),  # OffsetFetch
    10: (  # FindCoordinator
        Whole(AclOperation.CLUSTER_ACTION, (CLUSTER,), _share_key),
        Whole(DESCRIBE, (GROUP, TRANSACTIONAL_ID), _single_key),
        Each(DESCRIBE, (GROUP, TRANSACTIONAL_ID), "coordinator_keys", "coordinators", _coordinated),
    ),
    11: (_group(READ),),  # JoinGroup
    12: (_group(READ),),  # Heartbeat
    13: (_group(READ),),  # LeaveGroup
    14: (_group(READ),),  # SyncGroup
    15: (_names(GROUP, DESCRIBE, "groups", "groups"),),  # DescribeGroups
    16: (Own([(DESCRIBE, CLUSTER), (DESCRIBE, GROUP)]),),  # ListGroups
    17: (),  # SaslHandshake
    18: (),  # ApiVersions
    19: (_topics(CREATE, cluster=CREATE), Own([(DESCRIBE_CONFIGS, TOPIC)])),  # CreateTopics
    20: (  # DeleteTopics: whether a name exists is said to a caller that may describe it
        _topics_or_ids(DESCRIBE, "topics", "responses", DELETE),
        _topics(DESCRIBE, "topic_names", "responses", DELETE, name=str),
        _deleted("topics", lambda item: item.name),
        _deleted("topic_names", str),
        _topics_or_ids(DELETE, "topics", "responses", DELETE),
    ),
    21: (_topics(DELETE),),  # DeleteRecords
    22: (  # InitProducerId
        Whole(WRITE, (TRANSACTIONAL_ID,), _transactional_id),
        Own([(AclOperation.IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC)]),
    ),
    23: (  # OffsetForLeaderEpoch
        _topics(DESCRIBE, cluster=AclOperation.CLUSTER_ACTION, name=lambda item: item.topic),
    ),
    24: (  # AddPartitionsToTxn: of brokers, which ask for several transactions, or of a client
        Whole(
            AclOperation.CLUSTER_ACTION,
            (CLUSTER,),
            lambda request: _THE_CLUSTER if request.transactions else None,
        ),
        Whole(
            WRITE,
            (TRANSACTIONAL_ID,),
            lambda request: (
                None if request.transactions else (TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
            ),
        ),
        Own([(WRITE, TOPIC)]),
    ),
    25: (Whole(WRITE, (TRANSACTIONAL_ID,), _transactional_id), _group(READ)),  # AddOffsetsToTxn
    26: (Whole(WRITE, (TRANSACTIONAL_ID,), _transactional_id),),  # EndTxn
    27: (Own([(ALTER, CLUSTER), (AclOperation.CLUSTER_ACTION, CLUSTER)]),),  # WriteTxnMarkers: either of them
    28: (  # TxnOffsetCommit
        Whole(WRITE, (TRANSACTIONAL_ID,), _transactional_id),
        _group(READ),
        _topics(READ),
    ),
    29: (_cluster(DESCRIBE),),  # DescribeAcls
    30: (_cluster(ALTER),),  # CreateAcls
    31: (_cluster(ALTER),),  # DeleteAcls
    32: (_configs(DESCRIBE_CONFIGS, "results"),),  # DescribeConfigs
    33: (_configs(ALTER_CONFIGS, "responses"),),  # AlterConfigs
    34: (_cluster(ALTER),),  # AlterReplicaLogDirs
    35: (_cluster(DESCRIBE),),  # DescribeLogDirs
    36: (),  # SaslAuthenticate
    37: (_topics(ALTER, answers="results"),),  # CreatePartitions
    38: (),  # CreateDelegationToken; this and the next three are refused to all
    39: (),  # RenewDelegationToken
    40: (),  # ExpireDelegationToken
    41: (),  # DescribeDelegationToken
    42: (_names(GROUP, DELETE, "groups_names", "results"),),  # DeleteGroups
    43: (_cluster(ALTER),),  # ElectLeaders
    44: (_configs(ALTER_CONFIGS, "responses"),),  # IncrementalAlterConfigs
    45: (_cluster(ALTER),),  # AlterPartitionReassignments
    46: (_cluster(DESCRIBE),),  # ListPartitionReassignments
    47: (_group(DELETE), Own([(READ, TOPIC)])),  # OffsetDelete
    48: (_cluster(DESCRIBE_CONFIGS),),  # DescribeClientQuotas
    49: (_cluster(ALTER_CONFIGS),),  # AlterClientQuotas
    50: (_cluster(DESCRIBE),),  # DescribeUserScramCredentials
    51: (_cluster(ALTER),),  # AlterUserScramCredentials
    55: (_cluster(DESCRIBE),),  # DescribeQuorum
    57: (_cluster(ALTER),),  # UpdateFeatures
    60: (Own([(DESCRIBE, CLUSTER)]),),  # DescribeCluster
    61: (_topics(READ),),  # DescribeProducers
    65: (  # DescribeTransactions
        _names(TRANSACTIONAL_ID, DESCRIBE, "transactional_ids", "transaction_states"),
        Own([(DESCRIBE, TOPIC)]),
    ),
    66: (Own([(DESCRIBE, TRANSACTIONAL_ID)]),),  # ListTransactions
    68: (_group(READ), Own([(DESCRIBE, TOPIC)])),  # ConsumerGroupHeartbeat
    69: (_names(GROUP, DESCRIBE, "group_ids", "groups"), Own([(DESCRIBE, TOPIC)])),  # ConsumerGroupDescribe
    74: (_cluster(DESCRIBE_CONFIGS),),  # ListConfigResources
    75: (Own([(DESCRIBE, TOPIC)]),),  # DescribeTopicPartitions
    76: (_group(READ), Own([(DESCRIBE, TOPIC)])),  # ShareGroupHeartbeat
    77: (_names(GROUP, DESCRIBE, "group_ids", "groups"), Own([(DESCRIBE, TOPIC)])),  # ShareGroupDescribe
    78: (_group(READ), Own([(READ, TOPIC)])),  # ShareFetch: of a session's partitions too
    79: (_group(READ), Own([(READ, TOPIC)])),  # ShareAcknowledge
    88: (_group(READ), Own([(DESCRIBE, TOPIC), (CREATE, TOPIC), (CREATE, CLUSTER)])),  # StreamsGroupHeartbeat
    89: (_names(GROUP, DESCRIBE, "group_ids", "groups"), Own([(DESCRIBE, TOPIC)])),  # StreamsGroupDescribe
    90: (Own([(DESCRIBE, GROUP), (DESCRIBE, TOPIC)]),),  # DescribeShareGroupOffsets
    91: (_group(READ), Own([(READ, TOPIC)])),  # AlterShareGroupOffsets
    92: (_group(DELETE), Own([(READ, TOPIC)])),  # DeleteShareGroupOffsets
}
"""The rules of each API that is served, by its key; none: it needs no rights."""


class _Refused(NamedTuple):
    """Items of a request that are refused: the request with these alone, why, and the field of their answers."""

    request: Message
    error: KafkaError
    answers: str


def call(handler: Handler, request: Any, caller: Caller, context: Any) -> Any:  # noqa: ANN401 - what `handle` returns
    """Call a handler with what of a request its principal has the rights to.

    Raises KafkaError for a request that is refused as a whole, StorageUnavailableError if the rights are not known.
    """
    rules = TABLE[handler.request.api.key]
    if caller.rights is ALL_RIGHTS or not rules:
        return handler.handle(request, caller, context)
    caller.rights.check_fresh()
    refused: list[_Refused] = []
    for rule in rules:
        if isinstance(rule, Whole):
            resource = rule.on(request)
            if resource is not None and not caller.rights.allows(rule.operation, *resource):
                raise refusal(resource[0])
        elif isinstance(rule, Each) and rule.versions[0] <= caller.version <= rule.versions[1]:
            request = _split(rule, request, caller, context.topics, refused)
    if not refused:
        return handler.handle(request, caller, context)
    merge = partial(_merged, handler=handler, caller=caller, refused=refused)
    if any(getattr(request, rule.items) for rule in rules if isinstance(rule, Each)):
        return merge(handler.handle(request, caller, context))
    return merge(_NOTHING)


def _split(rule: Each, request: Any, caller: Caller, topics: TopicRegistry, refused: list[_Refused]) -> Any:  # noqa: ANN401 - any request, and one like it
    """Return the request without the items that are refused, which are added to `refused`."""
    items = getattr(request, rule.items)
    if not items or (rule.cluster is not None and caller.rights.allows_cluster(rule.cluster, log=False)):
        return request
    if _allows_all(rule, request, items, caller, topics):
        return request
    allowed = []
    denied: dict[ErrorCode, tuple[KafkaError, list[object]]] = {}
    for item, resource in _resources(rule, request, items, topics):
        if isinstance(resource, KafkaError):
            error = resource
        elif resource is None or caller.rights.allows(rule.operation, *resource):
            allowed.append(item)
            continue
        else:
            error = refusal(resource[0])
        denied.setdefault(error.code, (error, []))[1].append(item)
    if not denied:
        return request
    for error, some in denied.values():
        refused.append(_Refused(msgspec.structs.replace(request, **{rule.items: some}), error, rule.answers))
    return msgspec.structs.replace(request, **{rule.items: allowed})


def _allows_all(
    rule: Each, request: object, items: Sequence[object], caller: Caller, topics: TopicRegistry
) -> bool:
    """Whether nothing is refused, as nearly always; else it is found out once more, and noted, what is."""
    operation, on, allows = rule.operation, rule.on, caller.rights.allows
    try:
        for item in items:
            resource = on(request, item, topics)
            if resource is not None and not allows(operation, resource[0], resource[1], log=False):
                return False
    except KafkaError:
        return False
    return True


def _resources(
    rule: Each, request: Message, items: Sequence[object], topics: TopicRegistry
) -> Iterator[tuple[object, Resource | KafkaError | None]]:
    """Yield each item with its resource, or with why it has none; refresh the topics once if an id is unknown."""
    refreshed = False
    for item in items:  # a LongArray, which gives turns
        try:
            try:
                resource = rule.on(request, item, topics)
            except KafkaError:
                if refreshed:
                    raise
                refreshed = True
                topics.refresh()
                resource = rule.on(request, item, topics)
        except KafkaError as error:
            yield item, error.without_frames()
        else:
            yield item, resource


_NOTHING = Reply(None)


def _merged(answer: Answer, handler: Handler, caller: Caller, refused: Sequence[_Refused]) -> Answer:
    """Add to a response what the handler says about the items that were refused.

    Of that only the items count: an error at the top would be one of the whole request.
    """
    reply = answer if isinstance(answer, Reply) else Reply(answer)
    response = reply.response
    for part in refused:
        said = handler.refuse(part.request, caller, part.error)
        if said is None:
            continue
        before = () if response is None else getattr(response, part.answers)
        response = type(said)() if response is None else response
        setattr(response, part.answers, [*before, *getattr(said, part.answers)])
    return reply._replace(response=response)
