"""kafka-features: levels described, lowered, raised and refused."""

from __future__ import annotations

import re

from tests.jvm.tools import AtBroker
from tests.support.processes import wait_until

NAME = "transaction.version"


def level(tools: AtBroker) -> str:
    """Return the level that is finalized."""
    described = tools.done("kafka-features", "describe")
    [finalized] = re.findall(
        rf"^Feature: {NAME}\t.*\tFinalizedVersionLevel: (\d+)\t", described, re.MULTILINE
    )
    return str(finalized)


def test_features_of_a_release_are_those_that_there_are(tools: AtBroker) -> None:
    said = tools.done("kafka-features", "describe")
    metadata = "Feature: metadata.version\tSupportedMinVersion: 3.3-IV3\tSupportedMaxVersion: 4.2-IV1\t"
    assert metadata + "FinalizedVersionLevel: 4.2-IV1\t" in said
    upgraded = tools.done("kafka-features", "upgrade", "--release-version", "4.2").splitlines()
    assert "metadata.version was upgraded to 29." in upgraded
    assert len(upgraded) == len(said.splitlines()) - 1
    own = "Feature: korvet.format\tSupportedMinVersion: 2\tSupportedMaxVersion: 2\tFinalizedVersionLevel: 2\t"
    assert own in said  # of no release of Kafka
    for change, level, reason in (
        ("downgrade", "metadata.version=22", "Can't downgrade the version of this feature below 23"),
        ("upgrade", "korvet.format=3", "Korvet only supports versions 2-2"),
    ):
        assert reason in tools.refused("kafka-features", change, "--feature", level)


def wait_for_level(tools: AtBroker, wanted: int) -> None:
    """Wait for both brokers: the tool asks either, and the one that was not asked for a change follows it."""
    wait_until(lambda: level(tools) == str(wanted), f"the level is {wanted}")


def test_levels_are_lowered_and_raised(tools: AtBroker) -> None:
    one = ("--feature", f"{NAME}=1")
    assert tools.done("kafka-features", "downgrade", *one) == f"{NAME} was downgraded to 1.\n"
    wait_for_level(tools, 1)
    assert tools.done("kafka-features", "disable", "--feature", NAME) == f"{NAME} was disabled.\n"
    wait_for_level(tools, 0)
    raised = tools.done("kafka-features", "upgrade", "--feature", f"{NAME}=2")
    assert raised == f"{NAME} was upgraded to 2.\n"
    wait_for_level(tools, 2)
