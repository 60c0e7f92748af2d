"""kcat by TLS: with the CA that it is to trust it writes and reads, without it it says what is wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.authority import Authority
from tests.support.broker import korvet_broker
from tests.support.processes import WAIT_SECONDS_MAX


def run(command: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False
    )


def test_kcat_by_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    settings = ("--set", f"ssl.keystore.location={authority.issue('/CN=broker').store}")
    listen = ("--set", "listeners=SSL://127.0.0.1:0")
    with korvet_broker(tmp_path, *settings, workers=1, listen=listen) as broker:
        kcat = ["kcat", "-b", broker.bootstrap, "-X", "security.protocol=ssl", "-t", "hello"]
        trusting = [*kcat, "-X", f"ssl.ca.location={authority.certificate}"]
        assert run([*trusting, "-P"], "world\n").returncode == 0
        assert run([*trusting, "-C", "-e"]).stdout == "world\n"
        refused = run([*kcat, "-L", "-m", "2"])
        assert refused.returncode != 0
        assert "certificate verify failed" in refused.stderr
