"""The Java client by TLS, as Kafka's tools have it: PEM files of its own, and a certificate that it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jvm.tools import AtBroker
from tests.support.authority import Authority
from tests.support.broker import korvet_broker
from tests.support.processes import wait_until


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_kafkas_tools_by_tls(tools: AtBroker, tmp_path: Path, version: str) -> None:
    authority = Authority(tmp_path / "ca")
    store, alice = authority.issue("/CN=broker").store, authority.issue("/O=Example/CN=alice").store
    trusting = {
        "security.protocol": "SSL",
        "ssl.enabled.protocols": version,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }
    showing = trusting | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(alice)}
    for name, properties in (("nobody", trusting), ("alice", showing)):
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        (tmp_path / f"{name}.properties").write_text(text)
    config = ("--command-config", str(tmp_path / "alice.properties"))
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": store,
        "ssl.truststore.location": authority.certificate,
        "ssl.client.auth": "required",
    }
    with korvet_broker(tmp_path, workers=2, settings=settings, listen=()) as broker:
        at = tools.at(broker.bootstrap)
        at.done("kafka-topics", *config, "--create", "--topic", "encrypted", "--partitions", "3")
        assert "encrypted" in at.done("kafka-topics", *config, "--list").split()
        sent = [
            "--topic",
            "encrypted",
            "--num-records",
            "20000",
            "--record-size",
            "500",
            "--throughput",
            "-1",
        ]
        given = [f"{key}={value}" for key, value in showing.items()]
        code, out, _ = at.run("kafka-producer-perf-test", *given, *sent)
        assert code == 0
        assert "20000 records sent" in out
        nobody = ("--command-config", str(tmp_path / "nobody.properties"))
        assert "SslAuthenticationException" in at.refused("kafka-topics", *nobody, "--list")
        wait_until(lambda: "peer did not return a certificate" in broker.log(), "the line")
        assert "Traceback" not in broker.log()
