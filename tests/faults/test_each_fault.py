"""The checker's faults, each once: all with one Redis, those of replicas, Sentinels and a cluster with these."""

from __future__ import annotations

import subprocess
import sys

import pytest

REDIS = "kill-redis,crash-machine,fill-memory,cut-often,hold"
ALWAYS = "kill-redis,fill-disk-and-kill"
REPLICAS = "kill-redis,kill-replica,stop-replica,promote,fail-over,cut-often"
SENTINELS = "kill-master,stop-master,sentinel-fail-over"
CLUSTER = "cluster-kill-master,cluster-stop-master,cluster-fail-over,cluster-kill-replica"
CLUSTER += ",move-slots,migrate-slots,fill-memory"


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
        ("cluster", "record", CLUSTER),
        ("cluster", "batch", CLUSTER),
    ],
)
def test_nothing_is_violated(setup: str, storage_format: str, faults: str) -> None:
    command = [sys.executable, "-m", "tests.jepsen", "--each", "--seed", "7", "--setup", setup]
    command += ["--storage-format", storage_format, "--faults", faults]
    assert subprocess.run(command, check=False).returncode == 0
