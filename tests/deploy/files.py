"""The files of deploy/, read as what runs them would."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
HEALTH_PAGE, READINESS_PAGE, METRICS_PAGE = "/healthz", "/readyz", "/metrics"
"""That a broker has them is tested where its pages are."""
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Instruction(NamedTuple):
    """One instruction of a Dockerfile; `stage` is the name of the image that it helps to make."""

    stage: str
    name: str
    text: str

    def words(self) -> list[str]:
        """Return what follows the instruction's name: the items of a JSON list, or words."""
        return (
            [str(load) for load in json.loads(self.text)] if self.text[0] == "[" else shlex.split(self.text)
        )


def dockerfile(path: Path) -> list[Instruction]:
    """Return the instructions of a Dockerfile, continued lines as one."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    result: list[Instruction] = []
    stage = ""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            if name == "FROM":
                stage = rest.rsplit(" AS ", 1)[1]
            result.append(Instruction(stage, name, rest.strip()))
    return result


def documents(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item is not None]


def seconds(duration: str) -> int:
    """Return the seconds of a duration as Compose and Prometheus write it: 20s, 1m."""
    return sum(int(count) * _SECONDS[unit] for count, unit in re.findall(r"(\d+)([smh])", duration))
