"""Korvet's command with rounds of some thousand records, so that a small backlog takes several: it takes as many flags.

`korvet lake archive` does up to 128 MB for each core in a round: more than a test can produce.
"""

from __future__ import annotations

from korvet.cli.main import main
from korvet.lake import archiver, tasks

tasks.RANGE_BYTES_MIN = tasks.RANGE_BYTES_MAX = 1
archiver.RANGES_PER_CORE = 1  # type: ignore[attr-defined]  # it has it from tasks

if __name__ == "__main__":
    main()
