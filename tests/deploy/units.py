"""The units of deploy/systemd, read line by line."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.files import DEPLOY

COMMAND = "/opt/korvet/bin/korvet"
"""Where the units expect it."""

SERVICES = sorted((DEPLOY / "systemd").glob("*.service"))
UNITS = [*SERVICES, *sorted((DEPLOY / "systemd/drop-ins").glob("*.conf"))]


def directives(unit: Path) -> list[tuple[str, str]]:
    """Return the directives of a unit in their order, without their sections."""
    lines = [line.strip() for line in unit.read_text().splitlines()]
    pairs = [line.partition("=") for line in lines if line and line[0] not in "#["]
    return [(name, value) for name, _, value in pairs]
