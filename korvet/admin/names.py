"""Names that no broker can be asked about, and the outcome for them: it would close the connection and tell nothing."""

from __future__ import annotations

from korvet.admin.config_types import Resource
from korvet.admin.errors import AdminError, InvalidGroupIdError, InvalidRequestError, InvalidTopicError
from korvet.admin.topic_id import TopicId
from korvet.admin.topology import TopicPartition
from korvet.errors import ErrorCode
from korvet.protocol.wire import STRING_BYTES_MAX

_RULE = f"a name is UTF-8 of {STRING_BYTES_MAX} bytes or fewer"


def bad_group(group_id: str) -> AdminError | None:
    """Return the outcome for a group that nobody can be asked about."""
    return None if _can_be_sent(group_id) else InvalidGroupIdError(ErrorCode.INVALID_GROUP_ID, _RULE)


def bad_topic(topic: str | TopicId) -> AdminError | None:
    """Return the same for a topic."""
    known = isinstance(topic, TopicId) or _can_be_sent(topic)
    return None if known else InvalidTopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, _RULE)


def bad_partition(partition: TopicPartition) -> AdminError | None:
    """Return the same for a partition."""
    return bad_topic(partition.topic)


def bad_resource(resource: Resource) -> AdminError | None:
    """Return the same for what has settings."""
    known = _can_be_sent(resource.name)
    return None if known else InvalidRequestError(ErrorCode.INVALID_REQUEST, _RULE)


def _can_be_sent(name: str) -> bool:
    try:
        return len(name.encode()) <= STRING_BYTES_MAX
    except UnicodeEncodeError:  # the command line had bytes that are no UTF-8
        return False
