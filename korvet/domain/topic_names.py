"""Names of topics: which are allowed, and which collide.

Knows Kafka's rules (its class Topic); nothing of the topics that there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from korvet.errors import ErrorCode, KafkaError

NAME_LENGTH_MAX = 249
"""Kafka's bound: it leaves room for a suffix in a 255-byte file name, and tools rely on it."""

_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str, reserved_prefix: str) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION where `name` can be no topic's name, saying why."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"the length of {len(name)} characters exceeds {NAME_LENGTH_MAX}"
    elif not _NAME.fullmatch(name):
        problem = "it contains characters other than ASCII alphanumerics, '.', '_' and '-'"
    elif reserved_prefix and name.startswith(reserved_prefix):
        problem = f"names that start with '{reserved_prefix}' are reserved"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def check_collisions(name: str, others: Iterable[str]) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION where one of `others` differs from `name` only in `.` and `_`.

    Metrics know no dots, so both topics would be one there. lua/topic/create.lua holds the same rule.
    """
    if "." not in name and "_" not in name:
        return
    without_dots = name.replace(".", "_")
    for other in others:
        if other.replace(".", "_") == without_dots and other != name:
            message = f"Topic '{name}' collides with existing topic: {other}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
