"""JoinGroup (key 11), versions 0-9: a member asks to be part of a group's next generation, and waits for it.

From version 4 on a new member gets an id first, and joins with that (KIP-394). Below version 9 a leader cannot be asked
to assign nothing: it gets a response as if it did not lead (KIP-814).

Errors: FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID, INVALID_REQUEST,
INVALID_SESSION_TIMEOUT, MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from functools import partial

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.types import JoinError, JoinRequest, instance_id_of, instance_text
from korvet.handlers.common import group_error_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, READ, on_group
from korvet.protocol.messages import join_group as wire

REBALANCE_TIMEOUT_VERSION_FIRST = 1
MEMBER_ID_REQUIRED_VERSION_FIRST = 4
NULL_PROTOCOL_VERSION_FIRST = 7
SKIP_ASSIGNMENT_VERSION_FIRST = 9


def handle(request: wire.JoinGroupRequest, caller: Caller, services: Services) -> wire.JoinGroupResponse:
    # Version 0 has one timeout for both.
    own_timeout = caller.version >= REBALANCE_TIMEOUT_VERSION_FIRST
    joined = services.groups.coordinator.join(
        JoinRequest(
            group=request.group_id,
            member_id=request.member_id,
            instance=instance_text(request.group_instance_id),
            client_id=caller.client_id or "",
            client_host=caller.client_host,
            session_ms=request.session_timeout_ms,
            rebalance_ms=request.rebalance_timeout_ms if own_timeout else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            require_known_member_id=caller.version >= MEMBER_ID_REQUIRED_VERSION_FIRST,
            supports_skip_assignment=caller.version >= SKIP_ASSIGNMENT_VERSION_FIRST,
        ),
        partial(caller.may, DESCRIBE, log=False),
    )
    return wire.JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            wire.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=instance_id_of(member.instance),
                metadata=member.metadata,
            )
            for member in joined.members
        ],
    )


def _refuse(request: wire.JoinGroupRequest, caller: Caller, error: KafkaError) -> wire.JoinGroupResponse:
    member_id = error.member_id if isinstance(error, JoinError) else request.member_id
    return wire.JoinGroupResponse(
        error_code=group_error_code(error),
        protocol_name=None if caller.version >= NULL_PROTOCOL_VERSION_FIRST else "",
        member_id=member_id,
    )


register(handle, _refuse, rights=[on_group(READ)], unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE)
