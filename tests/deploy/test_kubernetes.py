"""deploy/kubernetes: the manifests agree with each other and with this Korvet; the chart's page has all its values.

Nothing is applied here; tests/deploy_tools renders the chart, of which the manifests are made, and has the schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from korvet import __version__
from korvet.cli.main import korvet
from korvet.config.listeners import parse_listeners
from korvet.config.settings import Settings
from korvet.config.sources import load
from korvet.config.values import Address, parse_address
from tests.deploy.files import DEPLOY, HEALTH_PAGE, METRICS_PAGE, READINESS_PAGE, documents
from tests.deploy.pods import Manifest

MANIFEST = Manifest(documents(DEPLOY / "kubernetes/korvet.yaml"))
POD = MANIFEST.pod("korvet")
CONTAINER: dict[str, Any] = POD["spec"]["containers"][0]
CHART = DEPLOY / "helm/korvet"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Give the settings of the broker with number 2, as its container would read them."""
    variables = MANIFEST.environment("korvet", 2, {"password": "secret"})
    ours = {name: value for name, value in variables.items() if name.startswith("KORVET_")}
    return load(MANIFEST.write_config("korvet", tmp_path), ours, {}).settings


def test_a_broker_takes_its_settings(settings: Settings) -> None:
    assert settings.broker_id == 2
    (advertised,) = parse_listeners(settings.advertised_listeners)
    (listening,) = parse_listeners(settings.listeners)
    assert advertised == (
        listening.name,
        Address("korvet-2.korvet-brokers.kafka.svc", listening.address.port),
    )
    assert settings.redis_url == "redis://:secret@korvet-redis:6379/0"
    seconds = POD["spec"]["terminationGracePeriodSeconds"]
    assert seconds * 1000 > settings.drain_delay_ms + settings.drain_timeout_ms > settings.drain_timeout_ms
    assert settings.ops_allowed_hosts == "korvet-2.korvet-brokers,korvet-2.korvet-brokers.kafka.svc"
    assert str(settings.workers) == CONTAINER["resources"]["requests"]["cpu"]


def test_a_broker_runs_a_command_with_the_file_that_is_mounted() -> None:
    command, flag, file = CONTAINER["args"]
    assert flag in {name for param in korvet.loaded().commands[command].params for name in param.opts}
    mounts = {item["mountPath"]: item["name"] for item in CONTAINER["volumeMounts"]}
    volumes = {item["name"]: item for item in POD["spec"]["volumes"]}
    assert set(mounts.values()) == volumes.keys()
    directory, _, name = file.rpartition("/")
    config = volumes[mounts[directory]]["configMap"]["name"]
    assert name in MANIFEST.one("ConfigMap", config)["data"]


def test_ports_and_probes_are_the_brokers(settings: Settings) -> None:
    ports = {item["name"]: item["containerPort"] for item in CONTAINER["ports"]}
    assert ports == {
        "kafka": parse_listeners(settings.listeners)[0].address.port,
        "ops": parse_address(settings.ops_listen).port,
    }
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {"ops"}
    assert probes["startup"]["path"] == probes["liveness"]["path"] == HEALTH_PAGE
    assert probes["readiness"]["path"] == READINESS_PAGE
    scrape = {"scrape": "true", "port": str(ports["ops"]), "path": METRICS_PAGE}
    scraped = {f"prometheus.io/{name}": value for name, value in scrape.items()}
    assert scraped.items() <= POD["metadata"]["annotations"].items()
    for service in ("korvet", "korvet-brokers"):
        for port in MANIFEST.one("Service", service)["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


def test_all_that_select_brokers_select_their_pods() -> None:
    labels = POD["metadata"]["labels"]
    stateful, budget = MANIFEST.one("StatefulSet", "korvet"), MANIFEST.one("PodDisruptionBudget", "korvet")
    assert stateful["spec"]["serviceName"] == "korvet-brokers"
    selectors = [
        stateful["spec"]["selector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
        MANIFEST.one("NetworkPolicy", "korvet")["spec"]["podSelector"]["matchLabels"],
        MANIFEST.one("Service", "korvet")["spec"]["selector"],
        MANIFEST.one("Service", "korvet-brokers")["spec"]["selector"],
        *(item["labelSelector"]["matchLabels"] for item in POD["spec"]["topologySpreadConstraints"]),
    ]
    assert all(selector == labels for selector in selectors)
    # One broker is left to serve while another is away.
    assert budget["spec"]["maxUnavailable"] < stateful["spec"]["replicas"]


@pytest.mark.parametrize("name", ["korvet", "korvet-redis"])
def test_no_container_has_rights_that_it_does_not_need(name: str) -> None:
    spec = MANIFEST.one("StatefulSet", name)["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for item in spec["containers"]:
        assert item["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value and name != "resources":
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def test_the_charts_page_lists_its_values_and_their_defaults() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| ", (CHART / "README.md").read_text(), re.MULTILINE)
    [values] = documents(CHART / "values.yaml")
    leaves = dict(_leaves(values))
    assert [name for name, _ in rows] == list(leaves)
    for name, default in rows:
        if not name.endswith("resources"):
            assert yaml.safe_load(default.strip("`")) == leaves[name], name


def test_the_chart_has_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
