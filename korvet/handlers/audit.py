"""What administrative requests have changed, for the audit log: read from their responses, never a value of a config.

So nothing secret gets there: configs and credentials are named, and of ACLs and quotas all is written. A handler says
by its `changes` what its requests change. Metadata and StreamsGroupHeartbeat note the
topics that they create themselves: their responses do not name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from korvet.errors import ErrorCode, KafkaError, LeaseEndedError
from korvet.handlers.registry import Caller, Handler, Outcome
from korvet.protocol.schema import Message
from korvet.security.audit import requested
from korvet.security.authorizer import is_refusal
from korvet.turns import in_turns


def note(handler: Handler, request: Message, caller: Caller, response: Message) -> None:
    """Write the changes of a request to the audit log, if it is an administrative one."""
    if handler.changes is None or getattr(request, "validate_only", False):
        return
    done, failed = [], {}
    # Once each: an ACL may be in the results of several filters.
    for what, code in dict.fromkeys(in_turns(handler.changes(request, response))):
        if code:
            failed[what] = ErrorCode(code).name
        else:
            done.append(what)
    if done or failed:
        requested(caller.session, handler.name, done, failed)


def note_failure(handler: Handler, request: Message, caller: Caller, error: KafkaError) -> None:
    """Write that an administrative request failed as a whole, by which some of it may be done.

    Not if a right was missing, which has its own line, nor if it is handled once more.
    """
    if handler.changes is not None and not (isinstance(error, LeaseEndedError) or is_refusal(error)):
        note(handler, request, caller, handler.refuse(request, caller, error))


def topics_changed(topics: Iterable[Any]) -> Iterator[Outcome]:
    for topic in topics:
        yield f"topic {topic.name or getattr(topic, 'topic_id', b'').hex()}", topic.error_code


def partitions_changed(topics: Iterable[Any], prefix: str = "") -> Iterator[Outcome]:
    for topic in topics:
        for partition in topic.partitions:
            yield f"{prefix}{topic.name}:{partition.partition_index}", partition.error_code
