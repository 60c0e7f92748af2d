"""share.auto.offset.reset: where a share group may begin (KIP-932)."""

from __future__ import annotations

import pytest

from korvet.config.values import parse_share_reset, share_reset


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("by_duration:P1D", 86_400_000),
        ("by_duration:PT1H30M", 5_400_000),
        ("by_duration:P1DT2.5S", 86_402_500),
        ("by_duration:pt0.001s", 1),
        ("by_duration:PT0S", 0),
    ],
)
def test_a_strategy_is_read(text: str, parsed: str | int) -> None:
    assert share_reset(text) == ""
    assert parse_share_reset(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        *("", "none", "LATEST", "by_duration", "by_duration:", "by_duration:P", "by_duration:PT"),
        *("by_duration:1D", "by_duration:P-1D", "by_duration:-P1D", "by_duration:P1Y", "by_duration:P1H"),
        "by_duration:P1DT",
    ],
)
def test_what_is_no_strategy_is_refused(text: str) -> None:
    assert share_reset(text) == "latest, earliest, or by_duration:PnDTnHnMn.nS"
    with pytest.raises(ValueError, match="is no strategy"):
        parse_share_reset(text)
