"""DeleteShareGroupOffsets (key 92), version 0: a share group without members forgets where it was in topics.

Errors: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, NON_EMPTY_GROUP, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterator

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import error_fields, refuse_whole, require_group_id
from korvet.handlers.registry import Caller, Outcome, Services, register
from korvet.handlers.rights import DELETE, READ, TOPIC, by_handler, on_group
from korvet.protocol.messages import delete_share_group_offsets as wire
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import refusal
from korvet.topics.registry import Topic


def handle(
    request: wire.DeleteShareGroupOffsetsRequest, caller: Caller, services: Services
) -> wire.DeleteShareGroupOffsetsResponse:
    """Forget each topic; the failure of one leaves the others unaffected."""
    require_group_id(request.group_id)
    topics: dict[str, Topic] = {}
    errors: dict[str, KafkaError | None] = {}
    names = list(dict.fromkeys(topic.topic_name for topic in request.topics))
    readable = {name for name in names if caller.may(READ, name)}
    for name in names:
        try:
            if name not in readable:
                raise refusal(TOPIC)
            topics[name] = services.topics.get(name)
        except KafkaError as error:
            errors[name] = error.without_frames()
    if readable or not names:
        # The group is checked also for topics that do not exist, as in Kafka.
        errors |= zip(
            topics, services.share.offsets.delete(request.group_id, list(topics.values())), strict=True
        )
    return wire.DeleteShareGroupOffsetsResponse(
        responses=[
            wire.DeleteShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=topics[name].id if errors[name] is None else ZERO_UUID,
                **error_fields(errors[name], of_group=True),
            )
            for name in names
        ]
    )


def _changes(
    request: wire.DeleteShareGroupOffsetsRequest, response: wire.DeleteShareGroupOffsetsResponse
) -> Iterator[Outcome]:
    group = f"group {request.group_id}"
    if response.error_code:
        yield group, response.error_code
    for topic in response.responses:
        yield f"{group} topic {topic.topic_name}", topic.error_code


register(
    handle,
    refuse_whole(wire.DeleteShareGroupOffsetsResponse, of_group=True),
    rights=[on_group(DELETE), by_handler((READ, TOPIC))],
    changes=_changes,
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
