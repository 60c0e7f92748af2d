"""SaslHandshake (key 17), versions 0-1, none flexible. A client chooses the mechanism by which it authenticates.

After version 0 the tokens of the mechanism follow with nothing but their size before them (KIP-43), after version 1 in
SaslAuthenticate requests (KIP-152).
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message
from korvet.protocol.wire import int16, string


class SaslHandshakeRequest(Message, kw_only=True):
    api = Api(key=17, versions=(0, 1))

    mechanism: string


class SaslHandshakeResponse(Message, kw_only=True):
    """Lists the mechanisms of the listener, also where the one chosen is none of them."""

    error_code: int16 = 0
    mechanisms: list[string] = []
