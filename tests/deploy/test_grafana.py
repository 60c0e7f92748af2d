"""deploy/grafana: the dashboards are what the code makes, and ask for metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import build
from tests.deploy.files import DEPLOY, documents
from tests.deploy.metric_names import unknown
from tests.deploy.test_prometheus import CONFIG, RECORDED

FILES = sorted(build.DIRECTORY.glob("*.json"))
DASHBOARDS: dict[str, dict[str, Any]] = {file.name: json.loads(file.read_text()) for file in FILES}


def test_the_files_are_what_the_code_makes() -> None:
    made = build.files()
    assert [file.name for file in FILES] == sorted(made)
    for file in FILES:
        assert file.read_text() == made[file.name], "run: .venv/bin/python -m deploy.grafana.build"


def _panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_asks_for_what_there_is_by_the_choices_it_offers(name: str) -> None:
    dashboard = DASHBOARDS[name]
    choices = {each["name"] for each in dashboard["templating"]["list"]}
    expressions = [target["expr"] for panel in _panels(dashboard) for target in panel["targets"]]
    expressions += [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert len(expressions) > 1
    for expression in expressions:
        asked = expression.partition("label_values(")[2].partition(",")[0] or expression
        assert not unknown(asked)
        assert set(re.findall(r"\bjob\w*:\w+:\w+", asked)) <= RECORDED
        assert set(re.findall(r"\$(\w+)", asked)) - {"__rate_interval"} <= choices


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_says_what_it_shows_and_lies_beside_the_others(name: str) -> None:
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
def test_grafanas_own_types_take_a_dashboard(name: str) -> None:
    taken = Dashboard.from_json(DASHBOARDS[name])
    assert taken.uid == name.removesuffix(".json")
    assert len(taken.panels or []) == len(DASHBOARDS[name]["panels"])


def test_grafana_is_given_the_dashboards_and_their_source() -> None:
    provisioning = DEPLOY / "grafana/provisioning"
    (source,) = documents(provisioning / "datasources/korvet.yaml")[0]["datasources"]
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == CONFIG["global"]["scrape_interval"]
    (provider,) = documents(provisioning / "dashboards/korvet.yaml")[0]["providers"]
    compose = (DEPLOY / "docker/compose.yaml").read_text()
    assert f"../grafana/dashboards:{provider['options']['path']}:ro" in compose
