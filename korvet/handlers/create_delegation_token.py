"""CreateDelegationToken (key 38), versions 1-3: refused as by a Kafka without a secret key for tokens.

So are the other requests about tokens; there are none here. As in Kafka nothing is asked for before a login.

Errors: DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from __future__ import annotations

from typing import NoReturn

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, Services
from korvet.handlers.registry import register
from korvet.protocol.messages import create_delegation_token as wire
from korvet.security.session import ANONYMOUS

NO_TIME = -1
_VERSION_WITH_REQUESTER = 3


def handle(_request: wire.CreateDelegationTokenRequest, caller: Caller, _services: Services) -> NoReturn:
    refuse_token(caller)


def refuse_token(caller: Caller) -> NoReturn:
    if caller.session.principal == ANONYMOUS:
        message = "Delegation tokens are for clients that have logged in."
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, message)
    raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "Delegation tokens are not supported.")


def _refuse(
    request: wire.CreateDelegationTokenRequest, caller: Caller, error: KafkaError
) -> wire.CreateDelegationTokenResponse:
    asks = caller.session.principal
    names_requester = caller.version >= _VERSION_WITH_REQUESTER  # KIP-373
    return wire.CreateDelegationTokenResponse(
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


register(handle, _refuse, rights=())
