"""Writes the dashboards as Grafana is given them: `python -m deploy.grafana.build`."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import groups, lake, overview, redis, topics

DIRECTORY = Path(__file__).parent / "dashboards"
MAKERS = (overview.dashboard, topics.dashboard, groups.dashboard, redis.dashboard, lake.dashboard)


def files() -> dict[str, str]:
    """Return the files by name, as they are to be."""
    made = [maker() for maker in MAKERS]
    return {f"{each.uid}.json": _text(each) for each in made}


def _text(dashboard: Dashboard) -> str:
    return json.dumps(dashboard, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    for old in DIRECTORY.glob("*.json"):
        old.unlink()
    for name, text in files().items():
        (DIRECTORY / name).write_text(text)
