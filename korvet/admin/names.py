"""Names that no broker can be asked about, and the outcome for them: it would close the connection and tell nothing."""

from __future__ import annotations

from korvet.admin.errors import InvalidGroupIdError, InvalidTopicError
from korvet.errors import ErrorCode
from korvet.protocol.wire import STRING_BYTES_MAX

_RULE = f"a name is UTF-8 of {STRING_BYTES_MAX} bytes or fewer"

INVALID_GROUP = InvalidGroupIdError(ErrorCode.INVALID_GROUP_ID, _RULE)
"""The outcome for such a group."""

INVALID_TOPIC = InvalidTopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, _RULE)
"""The outcome for such a topic."""


def can_be_sent(name: str) -> bool:
    """Whether a name is UTF-8 of a length that the protocol knows."""
    try:
        return len(name.encode()) <= STRING_BYTES_MAX
    except UnicodeEncodeError:  # the command line had bytes that are no UTF-8
        return False
