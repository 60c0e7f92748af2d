"""CreateDelegationToken (key 38), versions 1-3, flexible from 2. Asks for a token to log in with (KIP-48).

Version 3 names the token's owner, and in the response who asked for it (KIP-373).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import bytestring, int16, int32, int64, string


class TokenPrincipal(Part, kw_only=True):
    principal_type: string
    principal_name: string


class CreateDelegationTokenRequest(Message, kw_only=True):
    """Asks for a token; without an owner for one of the requester."""

    api = Api(key=38, versions=(1, 3), flexible=2)

    owner_principal_type: Annotated[string | None, since(3)] = ""
    owner_principal_name: Annotated[string | None, since(3)] = ""
    renewers: list[TokenPrincipal]
    max_lifetime_ms: int64


class CreateDelegationTokenResponse(Message, kw_only=True):
    error_code: int16 = 0
    principal_type: string
    principal_name: string
    token_requester_principal_type: Annotated[string, since(3)] = ""
    token_requester_principal_name: Annotated[string, since(3)] = ""
    issue_timestamp_ms: int64
    expiry_timestamp_ms: int64
    max_timestamp_ms: int64
    token_id: string
    hmac: bytestring
    throttle_time_ms: int32 = 0
