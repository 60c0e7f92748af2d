"""deploy/grafana: the dashboards are valid, and use only metrics that a broker has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, documents
from tests.deploy.metric_names import unknown
from tests.deploy.test_prometheus import CONFIG, RECORDED

FILES = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
DASHBOARDS: dict[str, dict[str, Any]] = {file.name: json.loads(file.read_text()) for file in FILES}


def _panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_queries_use_existing_metrics_and_variables(name: str) -> None:
    dashboard = DASHBOARDS[name]
    variables = {item["name"] for item in dashboard["templating"]["list"]}
    expressions = [target["expr"] for panel in _panels(dashboard) for target in panel["targets"]]
    expressions += [item["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]
    assert len(expressions) > 1
    for expression in expressions:
        query = expression.partition("label_values(")[2].partition(",")[0] or expression
        assert not unknown(query)
        assert set(re.findall(r"\bjob\w*:\w+:\w+", query)) <= RECORDED
        assert set(re.findall(r"\$(\w+)", query)) - {"__rate_interval"} <= variables


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_has_a_title_a_description_and_its_own_place(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    titles: set[tuple[str, str]] = set()
    for panel in _panels(DASHBOARDS[name]):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        titles.add((panel["type"], panel["title"]))
        place = panel["gridPos"]
        cells = {
            (place["x"] + across, place["y"] + down)
            for across in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len(titles) == len(list(_panels(DASHBOARDS[name])))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_what_grafana_needs_to_import_it(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert dashboard["uid"] == name.removesuffix(".json")
    assert dashboard["title"].startswith("Korvet: ")
    assert dashboard["schemaVersion"] >= 36
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identities)) == len(identities)
    for panel in _panels(dashboard):
        assert panel["type"] in {"timeseries", "stat", "table"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)


def test_the_dashboard_of_redis_shows_the_load_of_each_node() -> None:
    shown = {
        name
        for panel in _panels(DASHBOARDS["korvet-redis.json"])
        for target in panel["targets"]
        if target["legendFormat"] == "{{node}}" and target["expr"].startswith("max by (node) (")
        for name in re.findall(r"\bkorvet_redis_(\w+)", target["expr"])
    }
    totals = {
        f"{item}_total"
        for item in ("commands", "cpu_seconds", "received_bytes", "sent_bytes", "slow_commands")
    }
    assert shown == totals | {"connected_clients", "memory_used_bytes"}


def test_grafana_is_provisioned_with_the_dashboards_and_their_source() -> None:
    provisioning = DEPLOY / "grafana/provisioning"
    (source,) = documents(provisioning / "datasources/korvet.yaml")[0]["datasources"]
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == CONFIG["global"]["scrape_interval"]
    (provider,) = documents(provisioning / "dashboards/korvet.yaml")[0]["providers"]
    compose = (DEPLOY / "docker/compose.yaml").read_text()
    assert f"../grafana/dashboards:{provider['options']['path']}:ro" in compose
