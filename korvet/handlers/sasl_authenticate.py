"""SaslAuthenticate (key 36), versions 0-2: a token of a login, and its answer (KIP-152).

Errors: ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.protocol.messages import sasl_authenticate as wire


def handle(
    request: wire.SaslAuthenticateRequest, caller: Caller, _services: Services
) -> wire.SaslAuthenticateResponse:
    """Answer the token, and the last one with how long the session lasts."""
    sasl = caller.sasl
    if sasl is None:
        raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "the listener has no SASL")
    answer, lifetime_ms = sasl.authenticate(request.auth_bytes)
    return wire.SaslAuthenticateResponse(
        error_message=None, auth_bytes=answer, session_lifetime_ms=lifetime_ms
    )


register(handle, refuse_whole(wire.SaslAuthenticateResponse), rights=())
