"""Prometheus' own tool takes the configuration, the rules and every question of the dashboards; alerts fire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import DEPLOY
from tests.deploy_tools.tools import run

PROMETHEUS = DEPLOY / "prometheus"
# What Grafana puts in the place of its variables.
_VARIABLES = {"$__rate_interval": "1m", "$job": "korvet", "$topic": ".*", "$group": ".*"}


def _promtool(*arguments: str) -> str:
    return run("promtool", *arguments, directory=PROMETHEUS, package="prometheus")


def test_the_configuration_and_its_rules_are_taken() -> None:
    assert "SUCCESS" in _promtool("check", "config", "--lint=all", "--lint-fatal", "prometheus.yml")


def test_each_alert_fires_where_it_should_and_nowhere_else() -> None:
    assert "SUCCESS" in _promtool("test", "rules", "korvet.alerts.test.yml")


@pytest.mark.parametrize(
    "file", sorted((DEPLOY / "grafana/dashboards").glob("*.json")), ids=lambda file: file.stem
)
def test_every_question_of_a_dashboard_is_promql(file: Path, tmp_path: Path) -> None:
    dashboard: dict[str, Any] = json.loads(file.read_text())
    rules = []
    for panel in dashboard["panels"]:
        for number, target in enumerate(panel.get("targets", [])):
            expression: str = target["expr"]
            for name, value in _VARIABLES.items():
                expression = expression.replace(name, value)
            rules.append({"record": f"asked:{panel['id']}_{number}", "expr": expression})
    asked = tmp_path / "asked.yml"
    asked.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    assert f"{len(rules)} rules found" in _promtool("check", "rules", str(asked))
