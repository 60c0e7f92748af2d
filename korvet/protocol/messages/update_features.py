"""UpdateFeatures (key 57), versions 0-2, flexible from 0. An administrator settles features of the cluster (KIP-584).

Version 1 may only validate, and says which kind of change is meant (KIP-778). From 2 on there is one error for all,
since all are changed or none.
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, ResponseWithCode, since
from korvet.protocol.wire import boolean, int8, int16, int32, string


class FeatureUpdateKey(Part, kw_only=True):
    """A feature and its new level, 0 to remove it; upgrade_type is a types.FeatureUpgradeType."""

    feature: string
    max_version_level: int16
    allow_downgrade: Annotated[boolean, since(0, until=0)] = False
    upgrade_type: Annotated[int8, since(1)] = 1


class UpdateFeaturesRequest(Message, kw_only=True):
    """Changes features, or (validate_only) only says whether they could be."""

    api = Api(key=57, versions=(0, 2), flexible=0)

    timeout_ms: int32 = 60000
    feature_updates: list[FeatureUpdateKey]
    validate_only: Annotated[boolean, since(1)] = False


class UpdatableFeatureResult(Part, kw_only=True):
    feature: string
    error_code: int16 = 0
    error_message: string | None = ""


class UpdateFeaturesResponse(ResponseWithCode, kw_only=True):
    error_message: string | None = ""
    results: Annotated[list[UpdatableFeatureResult], since(0, until=1, ignorable=True)] = []
