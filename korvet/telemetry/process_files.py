"""Where a process keeps its numbers for /metrics: memory-mapped files of prometheus_client, named by slot.

Knows file names of prometheus_client's multiprocess mode; not which metrics there are. A file per slot and not per
process id: the counters of a replaced worker go on, and files do not pile up.
"""

from __future__ import annotations

import os
from pathlib import Path

_own: list[tuple[Path, str]] = []


def adopt(directory: Path, name: str) -> None:
    """Keep this process's metrics in `directory` under `name` (no underscore); before `korvet.telemetry.metrics`.

    prometheus_client looks at the environment when it is imported, and chooses its kind of values then.
    """
    _own[:] = [(directory, name)]
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
    from prometheus_client import values  # noqa: PLC0415 - must not be imported before the line above

    values.ValueClass = values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]  # untyped there


def own() -> tuple[Path, str] | None:
    """Return where this process keeps its metrics, and its name there; None where `adopt` was not called."""
    return _own[0] if _own else None


def forget_live(directory: Path, name: str) -> None:
    """Remove what a process that is gone told of the present: connections and requests held, figures of the logs."""
    for pattern in (f"gauge_live*_{name}.db", f"*_{name}.json"):
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)
