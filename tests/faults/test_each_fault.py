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
    ("setup", "layout", "faults"),
    [
        ("one", "dense", ""),
        ("one", "time", REDIS),
        ("one", "batch", REDIS),
        ("always", "batch", ALWAYS),
        ("replicas", "time", REPLICAS),
        ("replicas", "batch", REPLICAS),
        ("sentinel", "dense", SENTINELS),
        ("sentinel", "batch", SENTINELS),
        ("cluster", "dense", CLUSTER),
        ("cluster", "batch", CLUSTER),
    ],
)
def test_nothing_is_violated(setup: str, layout: str, faults: str) -> None:
    command = [sys.executable, "-m", "tests.jepsen", "--each", "--seed", "7", "--setup", setup]
    command += ["--layout", layout, "--faults", faults]
    assert subprocess.run(command, check=False).returncode == 0
