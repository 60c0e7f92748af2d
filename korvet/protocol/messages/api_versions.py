"""ApiVersions (key 18), versions 0-4, flexible from 3. A client asks which APIs and versions it may use.

The response has the plain response header in every version (KIP-511): a client that does not know yet what the broker
speaks must be able to read it. Version 4 is version 3 with the range 0 of a feature allowed.
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import boolean, int16, int32, int64, string


class ApiVersionsRequest(Message, kw_only=True):
    """Asks for the APIs; both fields describe the client for the broker's log and metrics."""

    api = Api(key=18, versions=(0, 4), flexible=3)

    client_software_name: Annotated[string, since(3, ignorable=True)] = ""
    client_software_version: Annotated[string, since(3, ignorable=True)] = ""


class ApiVersion(Part, kw_only=True):
    api_key: int16
    min_version: int16
    max_version: int16


class SupportedFeatureKey(Part, kw_only=True):
    """A feature (KIP-584) and the levels this broker could serve."""

    name: string
    min_version: int16
    max_version: int16


class FinalizedFeatureKey(Part, kw_only=True):
    """A feature and the level that the whole cluster has settled on."""

    name: string
    max_version_level: int16
    min_version_level: int16


class ApiVersionsResponse(Message, kw_only=True):
    """The APIs served. UNSUPPORTED_VERSION in version 0 has a newer client ask again in an older one."""

    error_code: int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[int32, since(1, ignorable=True)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], since(3, tag=0, ignorable=True)] = []
    finalized_features_epoch: Annotated[int64, since(3, tag=1, ignorable=True)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], since(3, tag=2, ignorable=True)] = []
    zk_migration_ready: Annotated[boolean, since(3, tag=3, ignorable=True)] = False
