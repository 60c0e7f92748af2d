"""deploy/systemd as systemd reads it: no mistake in a unit, and how much of the machine each could harm."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY
from tests.deploy.units import COMMAND, SERVICES
from tests.deploy_tools.tools import run

DIRECTORY = DEPLOY / "systemd"
EXPOSURE_MAX = 1.5
"""Of 10. The rest: a broker has the network, unix sockets, and limits that it may raise."""

_EXPOSURE = re.compile(r"Overall exposure level for \S+: ([0-9.]+)")


def installed(directory: Path, *drop_ins: Path) -> Path:
    """Return a directory of all units as they would be installed, with a command that is there."""
    command = Path(sys.executable).with_name("korvet")
    for unit in sorted(DIRECTORY.glob("korvet*.*")):
        (directory / unit.name).write_text(unit.read_text().replace(COMMAND, str(command)))
    (directory / "korvet.service.d").mkdir()
    for item in drop_ins:
        (directory / "korvet.service.d" / item.name).write_text(item.read_text())
    return directory


def verified(units: Path) -> str:
    names = sorted(path.name for path in units.glob("korvet*.*") if path.is_file())
    said = run(
        "systemd-analyze", "verify", *(f"./{name}" for name in names), directory=units, package="systemd"
    )
    # Only what is said of these units: those of the machine may have mistakes of their own.
    return "\n".join(line for line in said.splitlines() if "korvet" in line)


def exposure(unit: Path) -> float:
    said = run("systemd-analyze", "security", "--offline=true", str(unit), package="systemd")
    match = _EXPOSURE.search(said)
    assert match, said
    return float(match[1])


def test_systemd_finds_no_mistake(tmp_path: Path) -> None:
    assert verified(installed(tmp_path)) == ""


@pytest.mark.parametrize("drop_in", sorted((DIRECTORY / "drop-ins").iterdir()), ids=lambda path: path.name)
def test_systemd_finds_no_mistake_with_a_drop_in(tmp_path: Path, drop_in: Path) -> None:
    units = installed(tmp_path, drop_in)
    # The file is read at all: a mistake in it is reported.
    assert verified(units) == ""
    read = units / "korvet.service.d" / drop_in.name
    read.write_text(read.read_text() + "\nNoSuchDirective=yes\n")
    assert "NoSuchDirective" in verified(units)


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_a_service_could_harm_little_of_its_machine(unit: Path) -> None:
    assert exposure(unit) <= EXPOSURE_MAX
