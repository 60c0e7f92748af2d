"""SaslHandshake (key 17), versions 0-1: a client chooses the mechanism of its login.

On a listener without SASL, and after a login that needs no renewal, it is refused as in Kafka.

Errors: ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.registry import Caller, Services, register
from korvet.protocol.messages import sasl_handshake as wire


def handle(
    request: wire.SaslHandshakeRequest, caller: Caller, _services: Services
) -> wire.SaslHandshakeResponse:
    """Begin the login; after version 0 its tokens have no headers."""
    sasl = caller.sasl
    if sasl is None:
        raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "the listener has no SASL")
    sasl.handshake(request.mechanism, raw=caller.version == 0)
    return wire.SaslHandshakeResponse(mechanisms=sasl.mechanisms)


def _refuse(
    _request: wire.SaslHandshakeRequest, caller: Caller, error: KafkaError
) -> wire.SaslHandshakeResponse:
    """Answer with the error, and the mechanisms that the client may choose."""
    sasl = caller.sasl
    lists = sasl is not None and error.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return wire.SaslHandshakeResponse(
        error_code=error.code, mechanisms=sasl.mechanisms if sasl and lists else []
    )


register(handle, _refuse, rights=())
