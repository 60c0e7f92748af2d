"""SaslAuthenticate (key 36), versions 0-2, flexible from 2. A token of the mechanism, and the broker's answer to it.

Version 1 adds for how long the session lasts before the client has to authenticate again (KIP-368).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, since
from korvet.protocol.wire import bytestring, int16, int64, string


class SaslAuthenticateRequest(Message, kw_only=True):
    api = Api(key=36, versions=(0, 2), flexible=2)

    auth_bytes: bytestring


class SaslAuthenticateResponse(Message, kw_only=True):
    error_code: int16 = 0
    error_message: string | None
    auth_bytes: bytestring = b""
    session_lifetime_ms: Annotated[int64, since(1, ignorable=True)] = 0
