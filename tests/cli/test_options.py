"""The flags of the configuration, as `korvet serve` and `korvet config` share them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from korvet.cli.config import FLAGS
from tests.cli.commands import korvet, refused


def effective(*arguments: str, environ: dict[str, str] | None = None) -> dict[str, tuple[object, str]]:
    """Return name -> (value, origin) of what these flags come to."""
    result = korvet("config", "--json", *arguments, environ=environ)
    assert result.returncode == 0, result.stderr
    # No Redis is where some of these tests say.
    assert result.stderr.partition(":")[0] in ("", "Values that clients have altered are not shown")
    return {name: (row["value"], row["origin"]) for name, row in json.loads(result.stdout).items()}


def test_each_flag_sets_its_setting() -> None:
    values = {
        "--listen": "127.0.0.1:1",
        "--advertised": "[::1]:2",
        "--redis-url": "unix:///run/redis.sock",
        "--data-dir": "/srv/korvet",
        "--workers": "3",
        "--broker-id": "4",
        "--ops-listen": "",
    }
    assert values.keys() == FLAGS.keys()
    found = effective(*(part for flag in values.items() for part in flag))
    for flag, (setting, _) in FLAGS.items():
        assert (str(found[setting][0]), found[setting][1]) == (values[flag], "command line")


def test_the_last_set_of_a_name_wins_and_a_value_may_hold_an_equals_sign() -> None:
    found = effective("--set", "workers=1", "--set", "workers=2", "--set", "redis.url=unix:///r?db=1")
    assert found["workers"] == (2, "command line")
    assert found["redis.url"] == ("unix:///r?db=1", "command line")


@pytest.mark.parametrize("command", ["serve", "config"])
def test_a_mistake_costs_one_line_and_exit_code_2(command: str) -> None:
    line = "unknown setting 'num.partition' (command line); did you mean num.partitions?"
    assert refused(command, "--set", "num.partition=1") == f"korvet: {line}\n"
    line = "workers is given twice: by its own flag and by --set"
    assert refused(command, "--set", "workers=1", "--workers", "2") == f"korvet: {line}\n"


def test_a_file_in_the_working_directory_is_not_read_unasked(tmp_path: Path) -> None:
    (tmp_path / "korvet.toml").write_text("this is no TOML")
    result = korvet("config", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
