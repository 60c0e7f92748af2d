"""What the processes of a broker have counted, read from the files that process_files.py names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import CollectorRegistry


class CountedByProcesses(MultiProcessCollector):
    """Reads the files anew for each page; those that were made a moment ago hold nothing yet, not even that."""

    def __init__(self, directory: Path) -> None:
        super().__init__(CollectorRegistry(), str(directory))  # type: ignore[no-untyped-call]  # untyped there

    def collect(self) -> Iterable[Metric]:
        """Return every metric, summed over the processes."""
        files = [str(path) for path in Path(self._path).glob("*.db") if _holds_any(path)]
        merged: Iterable[Metric] = self.merge(files, accumulate=True)  # type: ignore[no-untyped-call]  # untyped there
        return merged


def _holds_any(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        # What a process that is gone told of the present is removed.
        return False
