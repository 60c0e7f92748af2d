"""What a failing test shows of the brokers that it used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = """
import pytest
from tests.support.broker import echo_broker
from tests.support.processes import wait_until

pytestmark = pytest.mark.slow
KEEPER = "started child=keeper"

@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    with echo_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running

def test_passes(broker):
    assert KEEPER in broker.log()

def test_fails(broker):
    broker.reload()
    wait_until(lambda: broker.log().count(KEEPER) == 2, "the keeper runs")
    raise AssertionError
"""


def test_a_failing_test_shows_what_its_broker_logged_during_it_alone(tmp_path: Path) -> None:
    file = tmp_path / "test_file.py"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(tmp_path), str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout
    assert "the workers are replaced" in ran.stdout
    assert ran.stdout.count("started child=keeper") == 1  # a reload starts it again
