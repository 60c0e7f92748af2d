"""The rules of rights, as a handler names them for its API (Kafka's "Operations and Resources on Protocols").

authorization.py enforces them. A rule about a request refuses all of it, one about items each of them. Where rights
decide on more than that, the handler asks `caller.rights` itself (`by_handler`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from korvet.protocol.schema import VERSION_MAX
from korvet.protocol.types import AclOperation, AclResourceType, ResourceType
from korvet.protocol.wire import ZERO_UUID
from korvet.security.acls import CLUSTER_NAME
from korvet.topics.registry import TopicRegistry
from korvet.topics.types import TopicRef

READ, WRITE = AclOperation.READ, AclOperation.WRITE
CREATE, DELETE, ALTER = AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER
DESCRIBE, CLUSTER_ACTION = AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
TOPIC, GROUP, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID

Resource: TypeAlias = tuple[AclResourceType, str]
Right: TypeAlias = tuple[AclOperation, AclResourceType]
ResourceOfItem: TypeAlias = Callable[[Any, Any, TopicRegistry], Resource | None]
"""The resource of an item of a request, None if it needs no right; may raise KafkaError, the item's answer."""

THE_CLUSTER: Resource = (CLUSTER, CLUSTER_NAME)


class RequestRule(NamedTuple):
    """A right without which all of a request is refused. `on` gives the resource; None: the request needs no right."""

    operation: AclOperation
    types: tuple[AclResourceType, ...]
    on: Callable[[Any], Resource | None]

    @property
    def rights(self) -> list[Right]:
        return [(self.operation, resource) for resource in self.types]


class ItemRule(NamedTuple):
    """A right that each item of a request needs for itself.

    `items` is the request's field, `answers` the response's. `cluster` is the right on the cluster that stands for all.
    `versions` are the first and the last version with such items.
    """

    operation: AclOperation
    types: tuple[AclResourceType, ...]
    items: str
    answers: str
    on: ResourceOfItem
    cluster: AclOperation | None = None
    versions: tuple[int, int] = (0, VERSION_MAX)

    @property
    def rights(self) -> list[Right]:
        cluster = [] if self.cluster is None else [(self.cluster, CLUSTER)]
        return [(self.operation, resource) for resource in self.types] + cluster


class HandlerRule(NamedTuple):
    """Rights that the handler asks for itself."""

    rights: list[Right]


Rule: TypeAlias = RequestRule | ItemRule | HandlerRule


def by_handler(*rights: Right) -> HandlerRule:
    return HandlerRule(list(rights))


def on_cluster(operation: AclOperation) -> RequestRule:
    return RequestRule(operation, (CLUSTER,), lambda _request: THE_CLUSTER)


def on_group(operation: AclOperation) -> RequestRule:
    return RequestRule(operation, (GROUP,), lambda request: (GROUP, request.group_id or ""))


def on_transactional_id() -> RequestRule:
    """Return the rule of the right to write on the request's `transactional_id`, if it has one."""
    return RequestRule(
        WRITE,
        (TRANSACTIONAL_ID,),
        lambda request: (
            None if request.transactional_id is None else (TRANSACTIONAL_ID, request.transactional_id)
        ),
    )


def on_names(resource: AclResourceType, operation: AclOperation, items: str, answers: str) -> ItemRule:
    return ItemRule(operation, (resource,), items, answers, lambda _request, name, _topics: (resource, name))


def on_topics(
    operation: AclOperation,
    items: str = "topics",
    answers: str = "topics",
    cluster: AclOperation | None = None,
    name: str = "name",
) -> ItemRule:
    """Return the rule of topics that are named in the field `name` of each item."""
    name_of = attrgetter(name)
    return ItemRule(
        operation, (TOPIC,), items, answers, lambda _request, item, _topics: (TOPIC, name_of(item)), cluster
    )


def on_topics_then_ids(operation: AclOperation, items: str, answers: str, ids_since: int) -> list[ItemRule]:
    """Return the rules of an API whose versions name topics by name, and by id from `ids_since` on."""
    return [
        on_topics(operation, items, answers)._replace(versions=(0, ids_since - 1)),
        ItemRule(operation, (TOPIC,), items, answers, topic_of_id, versions=(ids_since, VERSION_MAX)),
    ]


def topic_of_id(_request: object, item: Any, topics: TopicRegistry) -> Resource | None:  # noqa: ANN401 - a message's part
    """Return the topic of an item with a `topic_id`; None for the zero id, of which the handler says what is wrong."""
    if item.topic_id == ZERO_UUID:
        return None
    return TOPIC, topics.known(TopicRef("", item.topic_id)).name


def on_configs(operation: AclOperation, answers: str) -> ItemRule:
    def on(_request: object, item: Any, _topics: TopicRegistry) -> Resource | None:  # noqa: ANN401 - of three APIs
        match item.resource_type:
            case ResourceType.TOPIC:
                return TOPIC, item.resource_name
            case ResourceType.GROUP:
                return GROUP, item.resource_name
            case ResourceType.BROKER | ResourceType.BROKER_LOGGER | ResourceType.CLIENT_METRICS:
                return THE_CLUSTER
        return None

    return ItemRule(operation, (TOPIC, GROUP, CLUSTER), "resources", answers, on)
