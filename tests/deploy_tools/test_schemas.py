"""The manifests are what Kubernetes takes, and compose.yaml what Docker does."""

from __future__ import annotations

import sys
from pathlib import Path

import kubernetes_validate
import pytest

from tests.deploy.files import DEPLOY, documents
from tests.deploy_tools.tools import run


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("file", sorted((DEPLOY / "kubernetes").glob("*.yaml")), ids=lambda file: file.stem)
def test_kubernetes_takes_a_manifest(file: Path, version: str) -> None:
    for each in documents(file):
        kubernetes_validate.validate(each, version, strict=True)


def test_docker_takes_the_compose_file() -> None:
    run(
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(DEPLOY / "docker/compose.yaml"),
        package="python3-venv",
    )
