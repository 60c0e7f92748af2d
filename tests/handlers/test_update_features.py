"""UpdateFeatures by bytes, in every version: what is changed, and what every worker then lists in ApiVersions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from korvet.protocol.types import FeatureUpgradeType
from tests.support.processes import wait_until
from tests.support.topic_client import Client

NAME = "transaction.version"
OTHER = {"group.version": 1, "share.version": 1, "streams.version": 1}
"""The features that no test here changes."""

VERSIONS = pytest.mark.parametrize("version", range(3))


def update(
    client: Client,
    version: int,
    *levels: tuple[str, int],
    downgrade: bool = False,
    validate_only: bool = False,
) -> Any:
    given: dict[str, Any] = {"allow_downgrade": downgrade}
    if version:
        given = {
            "upgrade_type": FeatureUpgradeType.SAFE_DOWNGRADE if downgrade else FeatureUpgradeType.UPGRADE
        }
    updates = [FeatureUpdateKey(feature=name, max_version_level=level, **given) for name, level in levels]
    return client.call(UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only), version)


def finalized(client: Client, version: int = 4) -> tuple[dict[str, int], int]:
    request = ApiVersionsRequest(client_software_name="wire", client_software_version="1")
    answer = client.call(request, version)
    assert all(each.min_version_level == each.max_version_level for each in answer.finalized_features)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return levels, answer.finalized_features_epoch


@pytest.fixture(autouse=True)
def the_highest_level_in_the_end(two_clients: tuple[Client, Client]) -> Iterator[None]:
    yield
    one, two = two_clients
    assert update(one, 2, (NAME, 2)).error_code == ErrorCode.NONE
    assert finalized(one)[0] == OTHER | {NAME: 2}
    wait_until(lambda: finalized(two) == finalized(one), "the other worker follows")


@VERSIONS
def test_a_level_is_lowered_and_raised_at_an_epoch_that_rises(client: Client, version: int) -> None:
    _, epoch = finalized(client)
    for level in (1, 0, 2):
        answer = update(client, version, (NAME, level), downgrade=level < 2)
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        results = [(each.feature, each.error_code, each.error_message) for each in answer.results]
        assert results == ([(NAME, ErrorCode.NONE, None)] if version < 2 else [])
        before, (levels, epoch) = epoch, finalized(client)
        assert levels == OTHER | ({NAME: level} if level else {})
        assert epoch > before
        assert finalized(client, 3) == (levels, epoch)


@VERSIONS
def test_a_refusal_names_the_feature_and_changes_none(client: Client, version: int) -> None:
    before = finalized(client)
    for levels in (
        [(NAME, 1)],
        [(NAME, 3)],
        [(NAME, 2), ("metadata.version", 7)],
        [("metadata.version", -1)],
    ):
        answer = update(client, version, *levels)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        name, level = levels[-1]
        assert answer.error_message.startswith(f"Invalid update version {level} for feature {name}. ")
        assert finalized(client)[0] == before[0]


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_only_validated_is_not_changed(client: Client, version: int) -> None:
    before = finalized(client)
    assert update(client, version, (NAME, 0), downgrade=True, validate_only=True).error_code == ErrorCode.NONE
    refused = update(client, version, (NAME, 0), validate_only=True)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert finalized(client) == before


def test_every_worker_follows(two_clients: tuple[Client, Client]) -> None:
    one, two = two_clients
    assert update(one, 2, (NAME, 1), downgrade=True).error_code == ErrorCode.NONE
    changed = finalized(one)
    assert changed[0] == OTHER | {NAME: 1}
    wait_until(lambda: finalized(two) == changed, "the other worker follows")
