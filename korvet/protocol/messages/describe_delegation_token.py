"""DescribeDelegationToken (key 41), versions 1-3, flexible from 2. Which tokens there are (KIP-48).

Version 3 has who asked for a token (KIP-373).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.messages.create_delegation_token import TokenPrincipal
from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import bytestring, int16, int32, int64, string


class DescribeDelegationTokenRequest(Message, kw_only=True):
    """Asks for the tokens of these owners, None: of all."""

    api = Api(key=41, versions=(1, 3), flexible=2)

    owners: list[TokenPrincipal] | None


class DescribedDelegationToken(Part, kw_only=True):
    principal_type: string
    principal_name: string
    token_requester_principal_type: Annotated[string, since(3)] = ""
    token_requester_principal_name: Annotated[string, since(3)] = ""
    issue_timestamp: int64
    expiry_timestamp: int64
    max_timestamp: int64
    token_id: string
    hmac: bytestring
    renewers: list[TokenPrincipal]


class DescribeDelegationTokenResponse(Message, kw_only=True):
    error_code: int16 = 0
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: int32 = 0
