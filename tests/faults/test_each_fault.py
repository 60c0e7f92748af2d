"""The checker's faults, each once: every one with one Redis, those of replicas and of Sentinels with these."""

from __future__ import annotations

import subprocess
import sys

import pytest

REDIS = "kill-redis,crash-machine,fill-memory,cut-often,hold"
ALWAYS = "kill-redis,fill-disk-and-kill"
REPLICAS = "kill-redis,kill-replica,stop-replica,promote,fail-over,cut-often"
SENTINELS = "kill-master,stop-master,sentinel-fail-over"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("setup", "storage_format", "faults"),
    [
        ("one", "record", ""),
        ("one", "batch", REDIS),
        ("always", "batch", ALWAYS),
        ("replicas", "record", REPLICAS),
        ("replicas", "batch", REPLICAS),
        ("sentinel", "record", SENTINELS),
        ("sentinel", "batch", SENTINELS),
    ],
)
def test_nothing_is_violated(setup: str, storage_format: str, faults: str) -> None:
    command = [sys.executable, "-m", "tests.jepsen", "--each", "--seed", "7", "--setup", setup]
    command += ["--storage-format", storage_format, "--faults", faults]
    assert subprocess.run(command, check=False).returncode == 0
