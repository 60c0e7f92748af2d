"""The chart is what Kubernetes and the Prometheus operator take, and brokers start with what it gives them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.files import DEPLOY, documents
from tests.deploy.pods import Manifest
from tests.deploy_tools import chart
from tests.deploy_tools.tools import run
from tests.support.authority import Authority
from tests.support.broker import KORVET, Broker, started
from tests.support.processes import wait_until
from tests.support.redis_servers import embedded_server

# Go compiles helm first.
pytestmark = pytest.mark.timeout(900)

OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
VERSIONS = ("1.28", kubernetes_validate.latest_version())
EXTERNAL = {"enabled": True, "address": "kafka-$(KORVET_BROKER_ID).example.org:9094"}
VALUES: dict[str, dict[str, Any]] = {
    "trial": {"redis": {"trial": {"enabled": True}}},
    "external": {
        "redis": {"secret": "my-redis"},
        "image": {"pullSecrets": ["registry"]},
        "listener": {"protocol": "SASL_SSL"},
        "external": EXTERNAL | {"annotations": {"host": "kafka-$(KORVET_BROKER_ID).example.org"}},
        "tls": {"secret": "certificates"},
        "sasl": {"secret": "users"},
        "secrets": ["tokens"],
        "metrics": {"serviceMonitor": True, "prometheusRule": True, "labels": {"release": "prometheus"}},
        "config": {
            "log.retention.bytes": 1073741824,
            "auto.create.topics.enable": False,
            "ops.ssl.keystore.location": "/etc/korvet-tls/keystore.pem",
            "console.token.file": "/etc/korvet-secrets/tokens/console",
        },
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "kafka", "operator": "Exists"}],
    },
    "node ports": {
        "redis": {"url": "redis://redis.example:6379/0"},
        "external": {
            "enabled": True,
            "protocol": "PLAINTEXT",
            "type": "NodePort",
            "address": "node.example.org:3209$(KORVET_BROKER_ID)",
        },
        "networkPolicy": {"enabled": False},
    },
}
REFUSED = {
    "": "set exactly one of redis.url, redis.secret and redis.trial.enabled",
    "redis.url=redis://a,redis.secret=b": "set exactly one of redis.url, redis.secret and redis.trial.enabled",
    "redis.url=redis://a,listener.protocol=SSL": "a listener with SSL or SASL_SSL needs tls.secret",
    "redis.url=redis://a,external.enabled=true,tls.secret=a": "external.enabled needs external.address",
    "redis.url=redis://a,external.address=kafka.example:9094": "at '/external/address'",
    "redis.url=redis://a,replicas=3": "additional properties 'replicas' not allowed",
}
ASK = """
import ssl, sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], context=ssl._create_unverified_context()).status)
"""
"""As kubelet, which does not check the certificate."""


@pytest.fixture(scope="module", params=VALUES)
def manifest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES[request.param]))
    return Manifest(list(filter(None, yaml.safe_load_all(chart.render("--values", str(values))))))


@pytest.fixture(scope="module")
def operator() -> dict[str, Any]:
    """Give the schemas of the operator's objects by their kinds, from its Go module."""
    module, _ = json.JSONDecoder().raw_decode(
        run("go", "mod", "download", "-json", OPERATOR, package="golang")
    )
    directory = Path(module["Dir"]) / "example/prometheus-operator-crd"
    names = ("prometheusrules", "servicemonitors")
    specs = [documents(directory / f"monitoring.coreos.com_{name}.yaml")[0]["spec"] for name in names]
    return {spec["names"]["kind"]: spec["versions"][0]["schema"]["openAPIV3Schema"] for spec in specs}


def test_the_manifests_are_what_the_chart_renders() -> None:
    assert chart.MANIFESTS.read_text() == chart.manifests(), "run python -m tests.deploy_tools.chart"


def test_kubernetes_and_the_operator_take_each_object(manifest: Manifest, operator: dict[str, Any]) -> None:
    for item in manifest.objects:
        if item["kind"] in operator:
            jsonschema.validate(item, _closed(operator[item["kind"]]))
        else:
            for version in VERSIONS:
                kubernetes_validate.validate(item, version, strict=True)


def _closed(schema: Any) -> Any:
    """Return a schema that refuses fields it does not name; without patterns, whose syntax is Go's."""
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items() if name != "pattern"}
    if isinstance(closed.get("properties"), dict) and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed


def test_the_rules_are_those_of_prometheus(manifest: Manifest) -> None:
    kinds = {item["kind"]: item for item in manifest.objects}
    assert ("PrometheusRule" in kinds) == ("ServiceMonitor" in kinds)
    if "PrometheusRule" in kinds:
        files = [documents(DEPLOY / f"prometheus/korvet.{name}.yml") for name in ("recording", "alerts")]
        assert kinds["PrometheusRule"]["spec"]["groups"] == [
            group for [file] in files for group in file["groups"]
        ]


@pytest.mark.parametrize("flags", REFUSED)
def test_values_that_cannot_work_are_refused_in_one_line(flags: str) -> None:
    with pytest.raises(AssertionError) as refusal:
        chart.render("--set", flags)
    assert REFUSED[flags] in str(refusal.value)


def _inside(broker: Broker, *command: str) -> str:
    """Run a command in the network of the broker."""
    return run("nsenter", f"--target={broker.pid}", "--net", *command, package="util-linux")


def _probe(probe: dict[str, Any], ports: dict[str, int]) -> Sequence[str]:
    url = f"{probe.get('scheme', 'HTTP').lower()}://127.0.0.1:{ports[probe['port']]}{probe['path']}"
    return (sys.executable, "-c", ASK, url)


def test_a_broker_starts_with_its_arguments_and_environment_and_answers_its_probes(
    manifest: Manifest, tmp_path: Path
) -> None:
    """It has a network of its own, with the pod's ports; paths and the address of Redis are this machine's."""
    assert os.geteuid() == 0, "a network of its own needs root"
    files = {"tls/keystore.pem": Authority(tmp_path / "ca").issue("/CN=korvet").store.read_text()}
    files |= {"sasl/users.toml": 'admin = "secret"', "secrets/tokens/console": "t" * 32}
    for name, text in files.items():
        (tmp_path / f"korvet-{name}").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"korvet-{name}").write_text(text)
        (tmp_path / f"korvet-{name}").chmod(0o440)
    container = manifest.pod("korvet")["spec"]["containers"][0]
    config = manifest.write_config("korvet", tmp_path)
    config.write_text(config.read_text().replace("/etc/", f"{tmp_path}/"))
    with embedded_server() as redis_url:
        given = manifest.environment("korvet", 2, {"password": "secret", "url": redis_url})
        given |= {"KORVET_REDIS_URL": redis_url, "KORVET_DATA_DIR": str(tmp_path / "data")}
        arguments = [word.replace("/etc/korvet", str(tmp_path)) for word in container["args"][1:]]
        network = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
        variables = [f"{name}={value}" for name, value in given.items()]
        with started(
            [*network, "env", *variables, *KORVET, *arguments], tmp_path, tmp_path / "data"
        ) as broker:
            wait_until(lambda: '"the broker is ready"' in broker.log(), "a broker that is ready")
            assert "korvet-2.korvet-brokers.kafka.svc:9092" in broker.log()
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            for name in ("startup", "liveness", "readiness"):
                assert _inside(broker, *_probe(container[f"{name}Probe"]["httpGet"], ports)) == "200\n"
            for port in ports.values():
                connect = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
                _inside(broker, sys.executable, "-c", connect)
            assert broker.stop() == 0
