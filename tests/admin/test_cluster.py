"""Requests about the brokers of a cluster, and what they support."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.cluster import ApiVersions, BrokerNode, FeatureLevels
from korvet.admin.errors import BrokerError
from korvet.admin.types import settled
from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.types import FeatureUpgradeType
from tests.admin.outcomes import code_of
from tests.support.broker import korvet_cluster
from tests.support.in_process import InProcessBroker


@pytest.mark.slow
def test_the_cluster_is_described_with_its_brokers(redis_url: str, tmp_path: Path) -> None:
    with korvet_cluster(tmp_path, redis_url) as (zero, one), AdminClient(one.bootstrap) as admin:
        described = admin.cluster.describe()
        assert described.brokers == [
            BrokerNode(broker_id, *broker.address, rack=None, fenced=False)
            for broker_id, broker in enumerate((zero, one))
        ]
        assert described.controller in {0, 1}
        assert described.cluster_id == admin.topology().cluster_id != ""
        assert admin.cluster.describe(include_fenced=True) == described


def test_each_broker_reports_what_it_serves(admin: AdminClient) -> None:
    outcomes = admin.cluster.apis([0, 4711])
    assert code_of(outcomes[4711]) is ErrorCode.BROKER_NOT_AVAILABLE
    served = settled({0: outcomes[0]})[0]
    assert list(served) == sorted(served)
    assert served[18] == ApiVersions(18, "ApiVersions", *ApiVersionsRequest.api.advertised)
    assert admin.cluster.apis() == {0: served}


def test_features_are_returned(broker: InProcessBroker, admin: AdminClient) -> None:
    features = admin.cluster.features()
    assert features.epoch >= 0
    assert features.supported == {
        "group.version": FeatureLevels(0, 1),
        "share.version": FeatureLevels(0, 1),
        "streams.version": FeatureLevels(0, 1),
        "transaction.version": FeatureLevels(0, 2),
    }
    assert features.finalized == {
        "group.version": FeatureLevels(1, 1),
        "share.version": FeatureLevels(1, 1),
        "streams.version": FeatureLevels(1, 1),
        "transaction.version": FeatureLevels(2, 2),
    }
    with AdminClient(broker.bootstrap) as other:
        assert other.cluster.features() == features


def test_features_are_updated_all_or_none(admin: AdminClient) -> None:
    before = admin.cluster.features()
    wanted = {"transaction.version": 1}
    lower = FeatureUpgradeType.SAFE_DOWNGRADE
    for levels, kind in ((wanted, FeatureUpgradeType.UPGRADE), ({**wanted, "nothing": 1}, lower)):
        with pytest.raises(BrokerError) as refused:
            admin.cluster.update_features(levels, kind)
        assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    admin.cluster.update_features(wanted, lower, validate_only=True)
    assert admin.cluster.features() == before
    try:
        admin.cluster.update_features(wanted, lower)
        after = admin.cluster.features()
        assert after.finalized == before.finalized | {"transaction.version": FeatureLevels(1, 1)}
        assert after.epoch > before.epoch
    finally:
        admin.cluster.update_features({"transaction.version": 2})
    assert admin.cluster.features().finalized == before.finalized
