"""compose.yaml is what Docker takes, and the workflows are what GitHub takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY
from tests.deploy_tools.tools import run


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
