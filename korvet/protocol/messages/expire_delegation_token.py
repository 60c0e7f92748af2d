"""ExpireDelegationToken (key 40), versions 1-2, flexible from 2. Ends a token, or has it end sooner (KIP-48)."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message
from korvet.protocol.wire import bytestring, int16, int32, int64


class ExpireDelegationTokenRequest(Message, kw_only=True):
    api = Api(key=40, versions=(1, 2), flexible=2)

    hmac: bytestring
    expiry_time_period_ms: int64


class ExpireDelegationTokenResponse(Message, kw_only=True):
    error_code: int16 = 0
    expiry_timestamp_ms: int64
    throttle_time_ms: int32 = 0
