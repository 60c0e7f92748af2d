"""CreateDelegationToken (key 38), RenewDelegationToken (39), ExpireDelegationToken (40), DescribeDelegationToken (41).

There are no tokens: all are refused as by a Kafka without a secret key for them. As in Kafka nothing is asked for
before a login.

Errors: DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from __future__ import annotations

from typing import NoReturn

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import HANDLERS, Caller, Handler, Services
from korvet.protocol.messages import create_delegation_token as create
from korvet.protocol.messages import describe_delegation_token as describe
from korvet.protocol.messages import expire_delegation_token as expire
from korvet.protocol.messages import renew_delegation_token as renew
from korvet.protocol.schema import Message
from korvet.security.session import ANONYMOUS

NO_TIME = -1
_VERSION_WITH_REQUESTER = 3


def handle(_request: Message, caller: Caller, _services: Services) -> NoReturn:
    if caller.session.principal == ANONYMOUS:
        message = "Delegation tokens are for clients that have logged in."
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, message)
    raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "Delegation tokens are not supported.")


def _refuse_creation(
    request: create.CreateDelegationTokenRequest, caller: Caller, error: KafkaError
) -> create.CreateDelegationTokenResponse:
    """Answer with the error, and whose token it would be."""
    asks = caller.session.principal
    names_requester = caller.version >= _VERSION_WITH_REQUESTER  # KIP-373
    return create.CreateDelegationTokenResponse(
        error_code=error.code,
        principal_type=request.owner_principal_type or asks.type,
        principal_name=request.owner_principal_name or asks.name,
        token_requester_principal_type=asks.type if names_requester else "",
        token_requester_principal_name=asks.name if names_requester else "",
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
        token_id="",
        hmac=b"",
    )


for _handler in (
    Handler(create.CreateDelegationTokenRequest, handle, _refuse_creation),
    Handler(
        renew.RenewDelegationTokenRequest,
        handle,
        refuse_whole(renew.RenewDelegationTokenResponse, expiry_timestamp_ms=NO_TIME),
    ),
    Handler(
        expire.ExpireDelegationTokenRequest,
        handle,
        refuse_whole(expire.ExpireDelegationTokenResponse, expiry_timestamp_ms=NO_TIME),
    ),
    Handler(
        describe.DescribeDelegationTokenRequest,
        handle,
        refuse_whole(describe.DescribeDelegationTokenResponse, tokens=[]),
    ),
):
    HANDLERS[_handler.request.api.key] = _handler
