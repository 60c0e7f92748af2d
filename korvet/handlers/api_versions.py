"""ApiVersions (key 18), versions 0-4: the APIs this broker serves, from the registry of handlers.

From version 3 on the client names its software, and a malformed name is refused (KIP-511), and the features of the
cluster are listed (KIP-584). Version 3 leaves out the supported levels of features whose lowest level is 0, which older
clients take for malformed (KAFKA-17492). A version that is not served never comes here: dispatch answers it in version
0 with `unsupported`.

Errors: INVALID_REQUEST.
"""

from __future__ import annotations

import re

from korvet.cluster.features import SUPPORTED
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import HANDLERS, Caller, Services, register
from korvet.protocol.messages import api_versions as wire
from korvet.protocol.schema import Api

SOFTWARE_VERSION_FIRST = 3
FEATURE_LEVEL_0_VERSION_FIRST = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: wire.ApiVersionsRequest, caller: Caller, services: Services) -> wire.ApiVersionsResponse:
    """List every API that is served, and the features; one that is finalized at level 0 is left out, as in Kafka."""
    if caller.version >= SOFTWARE_VERSION_FIRST:
        for text in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(text):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "the client's software name or version is malformed"
                )
    if caller.sasl is not None:
        caller.sasl.greet()
    served = [_row(handler.request.api) for _, handler in sorted(HANDLERS.items())]
    response = wire.ApiVersionsResponse(api_keys=served, finalized_features_epoch=services.features.epoch)
    response.finalized_features = [
        wire.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in services.features.finalized.items()
        if level
    ]
    response.supported_features = [
        wire.SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
        for name, levels in SUPPORTED.items()
        if levels.lowest or caller.version >= FEATURE_LEVEL_0_VERSION_FIRST
    ]
    return response


def unsupported() -> wire.ApiVersionsResponse:
    """Answer, in version 0, a version that is not served: with the range in which to ask again (KIP-511)."""
    return wire.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_row(wire.ApiVersionsRequest.api)]
    )


def _row(api: Api) -> wire.ApiVersion:
    first, last = api.advertised
    return wire.ApiVersion(api_key=api.key, min_version=first, max_version=last)


register(handle, refuse_whole(wire.ApiVersionsResponse), rights=())
