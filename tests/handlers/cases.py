"""What a request about topic `orders`, group `billing` and transactional id `tx` needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from korvet.errors import ErrorCode
from korvet.protocol.schema import Message
from korvet.protocol.types import AclOperation, AclResourceType
from korvet.security.acls import CLUSTER_NAME

TOPIC, GROUP, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID


class Case(NamedTuple):
    """A request about topic `orders` and group `billing`, and the rights that it needs, in their order."""

    request: Callable[[bytes], Message]
    """Is given the topic's id."""
    rights: list[tuple[AclOperation, AclResourceType]]
    version: int | None = None
    refused: tuple[ErrorCode, ...] | None = None
    """The codes that a caller without any right gets; None: the code of the first right."""


NAMES = {TOPIC: "orders", GROUP: "billing", CLUSTER: CLUSTER_NAME, TRANSACTIONAL_ID: "tx"}
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
)


def always(request: Message) -> Callable[[bytes], Message]:
    return lambda _id: request
