"""The program of the tests of Kafka Streams."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.jvm.jars import JARS, prepare

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the program, and return the folder of its classes."""
    prepare()
    folder = tmp_path_factory.mktemp("classes")
    command = ["javac", "-Xlint:all,-path", "-cp", f"{JARS}/*", "-d", str(folder), str(HERE / "Counts.java")]
    subprocess.run(command, check=True)
    return folder
