"""deploy/kubernetes: the manifests agree with each other and with this Korvet.

Nothing is applied here; tests/deploy_tools holds them against the schemas of Kubernetes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from korvet.cli.main import korvet
from korvet.config.listeners import parse_listeners
from korvet.config.settings import Settings
from korvet.config.sources import load
from korvet.config.values import Address, parse_address
from tests.deploy.files import DEPLOY, HEALTH_PAGE, METRICS_PAGE, READINESS_PAGE, documents

FILES = ("korvet.yaml", "redis.yaml")
OBJECTS = [each for name in FILES for each in documents(DEPLOY / "kubernetes" / name)]


def _one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def _links() -> dict[str, str]:
    """Return the variables that Kubernetes sets for the services of a namespace, unless enableServiceLinks is false."""
    links: dict[str, str] = {}
    for each in OBJECTS:
        if each["kind"] != "Service" or each["spec"].get("clusterIP") == "None":
            continue
        name = each["metadata"]["name"].upper().replace("-", "_")
        links |= {f"{name}_SERVICE_HOST": "10.0.0.1", f"{name}_PORT": "tcp://10.0.0.1:9092"}
    return links


POD: dict[str, Any] = _one("StatefulSet", "korvet")["spec"]["template"]
CONTAINER: dict[str, Any] = POD["spec"]["containers"][0]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Give the settings of the broker with number 2, as its container would read them."""
    fields = {
        "metadata.name": "korvet-2",
        "metadata.namespace": "kafka",
        "metadata.labels['apps.kubernetes.io/pod-index']": "2",
    }
    environment: dict[str, str] = {}
    for each in CONTAINER["env"]:
        match each:
            case {"valueFrom": {"fieldRef": {"fieldPath": path}}}:
                value = fields[path]
            case {"valueFrom": {"secretKeyRef": _}}:
                value = "secret"
            case _:
                text = each["value"]
                # What stands above it, as Kubernetes puts it in.
                value = re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], text)
        environment[each["name"]] = value
    if POD["spec"].get("enableServiceLinks", True):
        environment |= _links()
    config = tmp_path / "korvet.toml"
    config.write_text(_one("ConfigMap", "korvet")["data"]["korvet.toml"])
    ours = {name: value for name, value in environment.items() if name.startswith("KORVET_")}
    return load(config, ours, {}).settings


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
    assert flag in {name for each in korvet.loaded().commands[command].params for name in each.opts}
    mounts = {each["mountPath"]: each["name"] for each in CONTAINER["volumeMounts"]}
    volumes = {each["name"]: each for each in POD["spec"]["volumes"]}
    assert set(mounts.values()) == volumes.keys()
    directory, _, name = file.rpartition("/")
    config = volumes[mounts[directory]]["configMap"]["name"]
    assert name in _one("ConfigMap", config)["data"]


def test_ports_and_probes_are_the_brokers(settings: Settings) -> None:
    ports = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    assert ports == {
        "kafka": parse_listeners(settings.listeners)[0].address.port,
        "ops": parse_address(settings.ops_listen).port,
    }
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {each["port"] for each in probes.values()} == {"ops"}
    assert probes["startup"]["path"] == probes["liveness"]["path"] == HEALTH_PAGE
    assert probes["readiness"]["path"] == READINESS_PAGE
    scrape = {name.rpartition("/")[2]: value for name, value in POD["metadata"]["annotations"].items()}
    assert scrape == {"scrape": "true", "port": str(ports["ops"]), "path": METRICS_PAGE}
    for service in ("korvet", "korvet-brokers"):
        for each in _one("Service", service)["spec"]["ports"]:
            assert ports[each["targetPort"]] == each["port"]


def test_all_that_select_brokers_select_their_pods() -> None:
    labels = POD["metadata"]["labels"]
    stateful, budget = _one("StatefulSet", "korvet"), _one("PodDisruptionBudget", "korvet")
    assert stateful["spec"]["serviceName"] == "korvet-brokers"
    selectors = [
        stateful["spec"]["selector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
        _one("NetworkPolicy", "korvet")["spec"]["podSelector"]["matchLabels"],
        _one("Service", "korvet")["spec"]["selector"],
        _one("Service", "korvet-brokers")["spec"]["selector"],
        *(each["labelSelector"]["matchLabels"] for each in POD["spec"]["topologySpreadConstraints"]),
    ]
    assert all(each == labels for each in selectors)
    # One broker is left to serve while another is away.
    assert budget["spec"]["maxUnavailable"] < stateful["spec"]["replicas"]


@pytest.mark.parametrize("name", ["korvet", "korvet-redis"])
def test_no_container_has_rights_that_it_does_not_need(name: str) -> None:
    spec = _one("StatefulSet", name)["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for each in spec["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
