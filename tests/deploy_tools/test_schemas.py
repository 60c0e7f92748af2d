"""The manifests are what Kubernetes takes, compose.yaml what Docker does, and the workflows what GitHub does."""

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


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("compose-spec", [DEPLOY / "docker/compose.yaml"]),
        ("github-workflows", sorted((DEPLOY.parent / ".github/workflows").glob("*.yml"))),
    ],
)
def test_a_file_has_the_schema_of_its_program(schema: str, files: list[Path]) -> None:
    command = ("-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files))
    run(sys.executable, *command, package="python3-venv")
