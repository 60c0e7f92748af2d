"""ApiVersions (key 18), versions 0-4: the APIs this broker serves, from the registry of handlers.

From version 3 on the client names its software, and a malformed name is refused (KIP-511). A version that is not served
never comes here: dispatch answers it in version 0 with `unsupported`.
"""

from __future__ import annotations

import re

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import refuse_whole
from korvet.handlers.context import Caller, ClusterApi
from korvet.handlers.registry import HANDLERS, register
from korvet.protocol.messages import api_versions as wire
from korvet.protocol.schema import Api

SOFTWARE_VERSION_FIRST = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: wire.ApiVersionsRequest, caller: Caller, _api: ClusterApi) -> wire.ApiVersionsResponse:
    """List every API that is served. No feature is finalized, since none that clients look for is supported."""
    if caller.version >= SOFTWARE_VERSION_FIRST:
        for text in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(text):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "the client's software name or version is malformed"
                )
    served = [_row(handler.request.api) for _, handler in sorted(HANDLERS.items())]
    return wire.ApiVersionsResponse(api_keys=served, finalized_features_epoch=0)


def unsupported() -> wire.ApiVersionsResponse:
    """Answer, in version 0, a version that is not served: with the range in which to ask again (KIP-511)."""
    return wire.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_row(wire.ApiVersionsRequest.api)]
    )


def _row(api: Api) -> wire.ApiVersion:
    first, last = api.advertised
    return wire.ApiVersion(api_key=api.key, min_version=first, max_version=last)


refuse = refuse_whole(wire.ApiVersionsResponse)
register(wire.ApiVersionsRequest, ClusterApi, handle, refuse)
