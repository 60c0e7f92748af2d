"""RenewDelegationToken (key 39), versions 1-2, flexible from 2. Lets a token live longer (KIP-48)."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message
from korvet.protocol.wire import bytestring, int16, int32, int64


class RenewDelegationTokenRequest(Message, kw_only=True):
    api = Api(key=39, versions=(1, 2), flexible=2)

    hmac: bytestring
    renew_period_ms: int64


class RenewDelegationTokenResponse(Message, kw_only=True):
    error_code: int16 = 0
    expiry_timestamp_ms: int64
    throttle_time_ms: int32 = 0
