"""This broker's processes and counters, and the brokers of its cluster, as the console shows them."""

from __future__ import annotations

import time
from typing import Any

import korvet
from korvet.config import Settings
from korvet.server.console.asking import Asker
from korvet.server.console.figures import Figures
from korvet.server.scoreboard import ARCHIVER_ROW, KEEPER_ROW, LAKE_ROW, OPS_ROW, Row, Scoreboard, State

_OTHERS = {KEEPER_ROW: "keeper", OPS_ROW: "ops", LAKE_ROW: "lake", ARCHIVER_ROW: "archiver"}


def overview(
    settings: Settings, scoreboard: Scoreboard, figures: Figures, *, takes_changes: bool
) -> dict[str, Any]:
    """Return what this broker knows of itself, without asking anybody; times in ms since 1970."""
    workers = [_row(f"worker {row.index}", row) for row in scoreboard.workers()]
    others = [
        _row(name, row)
        for index, name in _OTHERS.items()
        if (row := scoreboard.row(index)).state is not State.EMPTY
    ]
    return {
        "version": korvet.__version__,
        "broker": settings.broker_id,
        "cluster": settings.cluster_id,
        "now": time.time_ns() // 1_000_000,
        "draining": scoreboard.draining,
        "restarts": scoreboard.restarts,
        "processes": workers + others,
        "totals": figures.totals(),
        "changes": takes_changes,
        "lake": bool(settings.lake_path),
    }


def cluster(asker: Asker, broker_id: int) -> dict[str, Any]:
    """Return the brokers as clients are told of them. Raises AdminError."""
    described = asker.cluster.describe()
    brokers = [
        {
            "id": each.broker_id,
            "address": f"{each.host}:{each.port}",
            "rack": each.rack,
            "controller": each.broker_id == described.controller,
            "own": each.broker_id == broker_id,
        }
        for each in described.brokers
    ]
    return {"id": described.cluster_id, "brokers": brokers}


def _row(name: str, row: Row) -> dict[str, Any]:
    return {"name": name, "state": row.state.name.lower(), "pid": row.pid, "started": row.started_at_ms}
