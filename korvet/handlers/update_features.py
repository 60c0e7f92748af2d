"""UpdateFeatures (key 57), versions 0-2: changes levels of features, or validates that it could (KIP-584, KIP-778).

All are changed or none, so there is one error for all in every version. The timeout is not used.

Errors: INVALID_UPDATE_VERSION.
"""

from __future__ import annotations

from korvet.cluster.features import FeatureUpdate
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import ALTER, on_cluster
from korvet.protocol.messages import update_features as wire
from korvet.protocol.types import FeatureUpgradeType


def handle(
    request: wire.UpdateFeaturesRequest, caller: Caller, services: Services
) -> wire.UpdateFeaturesResponse:
    """Update the features; of one that is named twice the last update counts, as in Kafka."""
    updates = {
        update.feature: FeatureUpdate(update.max_version_level, _kind(update))
        for update in request.feature_updates
    }
    try:
        services.features.update(updates, validate_only=request.validate_only)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
            raise
        # Returned and not raised: the audit log has what was refused.
        return _refuse(request, caller, error)
    names = [update.feature for update in request.feature_updates]
    results = [wire.UpdatableFeatureResult(feature=name, error_message="NONE") for name in names]
    return wire.UpdateFeaturesResponse(error_message=None, results=results)


def _kind(update: wire.FeatureUpdateKey) -> int:
    # Only version 0 can say so: any downgrade is then a safe one.
    return FeatureUpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type


_refuse = refuse_whole(wire.UpdateFeaturesResponse)
register(
    handle,
    _refuse,
    rights=[on_cluster(ALTER)],
    changes=lambda request, response: (
        (f"feature {update.feature} ({update.max_version_level})", response.error_code)
        for update in request.feature_updates
    ),
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
