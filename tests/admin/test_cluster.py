"""Requests about the brokers of a cluster, and what they support."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.cluster import ApiVersions, BrokerNode
from korvet.admin.types import settled
from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from tests.admin.outcomes import code_of
from tests.support.broker import korvet_cluster


@pytest.mark.slow
def test_the_cluster_is_described_with_its_brokers(redis_server: str, tmp_path: Path) -> None:
    apart = ("--set", "namespace=described")
    with korvet_cluster(tmp_path, redis_server, *apart) as (zero, one), AdminClient(one.bootstrap) as admin:
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
