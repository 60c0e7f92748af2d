"""ExpireDelegationToken (key 40), versions 1-2: refused as CreateDelegationToken is.

Errors: DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from __future__ import annotations

from typing import NoReturn

from korvet.handlers.common import refuse_whole
from korvet.handlers.context import Caller, Services
from korvet.handlers.create_delegation_token import NO_TIME, refuse_token
from korvet.handlers.registry import register
from korvet.protocol.messages import expire_delegation_token as wire


def handle(_request: wire.ExpireDelegationTokenRequest, caller: Caller, _services: Services) -> NoReturn:
    refuse_token(caller)


register(handle, refuse_whole(wire.ExpireDelegationTokenResponse, expiry_timestamp_ms=NO_TIME), rights=())
