"""loadtest/locust/thresholds.py and arguments.py: files and flags that cannot be are refused, limits are held."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from loadtest.locust import arguments, thresholds
from loadtest.locust.shapes import SHAPES
from loadtest.locust.thresholds import BadThresholdsError, Limits, Measured

FILE = Path(thresholds.__file__).with_suffix(".toml")
COMMIT, JOIN = "group: commit", "group: join"


def limits(
    failure_ratio: float = 1.0,
    p99_ms: Mapping[str, float] | None = None,
    per_second: Mapping[str, float] | None = None,
    process_growth_mib: float | None = None,
) -> Limits:
    """Return limits that hold nothing but what is named."""
    return Limits(failure_ratio, p99_ms or {}, per_second or {}, process_growth_mib, 0.0)


def broken(held: Limits, result: dict[str, Measured], total: Measured | None = None) -> list[str]:
    """Return what is broken."""
    verdicts = thresholds.judge(held, total or Measured(100, 0, 1.0, 1.0), result)
    return [verdict.what for verdict in verdicts if not verdict.kept]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_file_of_the_make_targets_is_good_for_every_shape(shape: str) -> None:
    held = thresholds.load(FILE, shape)
    assert held.failure_ratio == 0
    assert "producer: deliver (record)" in held.p99_ms
    assert "producer: deliver (record)" in held.per_second


def test_a_value_for_a_shape_comes_before_that_for_all(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(
        f"[every]\nfailure_ratio_max = 0.1\n[every.p99_ms_max]\n'{COMMIT}' = 5\n'{JOIN}' = 6\n"
        f"[spike]\nprocess_growth_mib_max = 7\n[spike.p99_ms_max]\n'{JOIN}' = 8\n"
    )
    assert thresholds.load(file, "spike") == limits(
        failure_ratio=0.1, p99_ms={COMMIT: 5.0, JOIN: 8.0}, process_growth_mib=7.0
    )
    assert thresholds.load(file, "ramp") == limits(failure_ratio=0.1, p99_ms={COMMIT: 5.0, JOIN: 6.0})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[sprint]\n", "[sprint] is no shape"),
        ("[every]\nfailures = 0\n", "[every] has an unknown key failures"),
        (
            "[every.p99_ms_max]\n'group: comit' = 1\n",
            "p99_ms_max names 'group: comit', which is no operation",
        ),
        (
            f"[every.p99_ms_max]\n'{COMMIT}' = 'x'\n",
            f"p99_ms_max of '{COMMIT}' is 'x', which is no number from 0",
        ),
        (f"[every.per_second_min]\n'{COMMIT}' = -1\n", "which is no number from 0"),
        ("[every]\nfailure_ratio_max = true\n", "failure_ratio_max is True, which is no number from 0"),
        ("[every]\np99_ms_max = 3\n", "p99_ms_max is no table"),
        ("every = 3\n", "[every] is no table"),
        ("[every\n", "at line 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_name_and_why(
    tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(text)
    with pytest.raises(BadThresholdsError) as refused:
        thresholds.load(file, "steady")
    assert str(refused.value).startswith(f"{file}: ")
    assert why in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadThresholdsError, match="No such file"):
        thresholds.load(tmp_path / "none.toml", "steady")


def test_failures_are_held_against_all_operations() -> None:
    held = limits(failure_ratio=0.01)
    assert broken(held, {}, Measured(100, 1, 1.0, 1.0)) == []
    assert broken(held, {}, Measured(100, 2, 1.0, 1.0)) == ["failures"]


def test_an_error_in_a_user_breaks_a_run_of_whatever_limits() -> None:
    verdicts = thresholds.judge(limits(), Measured(100, 0, 1.0, 1.0), {}, errors=1)
    assert [verdict.what for verdict in verdicts if not verdict.kept] == ["errors in users"]


def test_a_run_in_which_nothing_happened_has_failed() -> None:
    assert broken(limits(failure_ratio=0.5), {}, Measured(0, 0, 0.0, 0.0)) == ["failures"]


def test_a_percentile_may_reach_its_limit_but_not_pass_it() -> None:
    held = limits(p99_ms={COMMIT: 50.0})
    assert broken(held, {COMMIT: Measured(10, 0, 50.0, 1.0)}) == []
    assert broken(held, {COMMIT: Measured(10, 0, 51.0, 1.0)}) == [f"{COMMIT}, p99"]


def test_a_rate_may_not_stay_below_its_limit() -> None:
    held = limits(per_second={COMMIT: 3.0})
    assert broken(held, {COMMIT: Measured(10, 0, 1.0, 3.0)}) == []
    assert broken(held, {COMMIT: Measured(10, 0, 1.0, 2.9)}) == [f"{COMMIT}, rate"]


def test_an_operation_that_never_happened_keeps_no_limit() -> None:
    held = limits(p99_ms={COMMIT: 50.0}, per_second={JOIN: 0.0})
    assert broken(held, {}) == [f"{COMMIT}, p99", f"{JOIN}, rate"]


def test_limits_of_users_and_formats_that_a_run_has_not_are_not_held() -> None:
    held = limits(
        p99_ms=dict.fromkeys(("producer: deliver (record)", "producer: deliver (batch)", COMMIT), 1.0)
    )
    assert list(held.of(["producer", "group"], ["record", "batch"]).p99_ms) == list(held.p99_ms)
    assert list(held.of(["producer"], ["record", "batch"]).p99_ms) == list(held.p99_ms)[:2]
    assert list(held.of(["producer", "group"], ["batch"]).p99_ms) == ["producer: deliver (batch)", COMMIT]
    assert list(held.of(["group"], [""]).p99_ms) == [COMMIT]


def test_the_table_names_what_is_broken() -> None:
    held = limits(p99_ms={COMMIT: 50.0, JOIN: 9000.0})
    result = {COMMIT: Measured(10, 0, 51.0, 1.0), JOIN: Measured(10, 0, 1.0, 1.0)}
    summary = thresholds.summary(thresholds.judge(held, Measured(20, 0, 1.0, 1.0), result))
    assert [line.split()[-1] for line in summary.splitlines()[1:]] == ["kept", "kept", "BROKEN", "kept"]


def test_a_mix_gives_shares_and_none_to_those_it_does_not_name() -> None:
    assert arguments.mix("producer=3, admin=1", ["producer", "group", "admin"]) == {
        "producer": 3,
        "group": 0,
        "admin": 1,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("writer=1", "'writer' is none of producer, group"),
        ("producer", "'producer' gives no number"),
        ("producer=-1", "'producer=-1' gives no number"),
        ("producer=0", "no users are left"),
        ("", "'' is none of"),
    ],
)
def test_a_mix_that_cannot_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="--mix: ") as refused:
        arguments.mix(text, ["producer", "group"])
    assert why in str(refused.value)
