"""deploy/prometheus: its files agree with each other, with the metrics that there are, and with the runbook.

Whether rules fire as they should is checked by promtool: tests/deploy_tools.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, documents
from tests.deploy.metric_names import unknown

PROMETHEUS = DEPLOY / "prometheus"
CONFIG = documents(PROMETHEUS / "prometheus.yml")[0]
RULES: list[dict[str, Any]] = [
    rule
    for name in CONFIG["rule_files"]
    for group in documents(PROMETHEUS / name)[0]["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
KAFKA_EXPORTER = {name for name in RECORDED if name.startswith("kafka_")}
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RUNBOOK = {
    name: re.sub(r"`|\[|\]\([^)]*\)", "", " ".join(text.split()))
    for name, text in re.findall(
        r"^## (Korvet\w+)\n(.*?)(?=^## |\Z)", (DEPLOY / "runbook.md").read_text(), re.MULTILINE | re.DOTALL
    )
}


@pytest.mark.parametrize(
    "expression", ["korvet_request_total", 'korvet_requests_total{topic="a"}', "korvet_request_sum"]
)
def test_a_metric_or_label_that_there_is_not_would_be_noticed(expression: str) -> None:
    assert unknown(expression)
    assert not unknown(
        'sum by (api) (rate(korvet_request_duration_seconds_bucket{api="Fetch", le="1.0"}[5m]))'
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    assert not unknown(rule["expr"])
    assert set(re.findall(r"\bjob\w*:\w+:\w+", rule["expr"])) <= RECORDED


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_says_how_bad_it_is_and_what_happened(name: str) -> None:
    rule = ALERTS[name]
    assert re.fullmatch(r"Korvet[A-Z]\w+", name)
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"https://korvet.example/deploy/runbook.html#{name.lower()}"
    assert RUNBOOK[name].startswith(rule["annotations"]["description"])


def test_every_alert_stands_in_the_runbook_and_none_that_there_is_not() -> None:
    assert set(RUNBOOK) == set(ALERTS)


def test_every_alert_and_every_name_of_kafka_exporter_has_a_unit_test() -> None:
    tests = documents(PROMETHEUS / "korvet.alerts.test.yml")[0]["tests"]
    fired = {
        case["alertname"]
        for test in tests
        for case in test.get("alert_rule_test", ())
        if case.get("exp_alerts")
    }
    assert fired == set(ALERTS)
    asked = {case["expr"] for test in tests for case in test.get("promql_expr_test", ())}
    assert asked >= KAFKA_EXPORTER


def test_prometheus_scrapes_the_brokers_of_compose_under_the_job_that_alerts_name() -> None:
    targets = {item["job_name"]: item["static_configs"][0]["targets"] for item in CONFIG["scrape_configs"]}
    assert targets["korvet"] == ["korvet:9093"]
    assert 'up{job=~"korvet.*"}' in ALERTS["KorvetBrokerDown"]["expr"]
