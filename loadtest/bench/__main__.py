"""Runs the benchmark and prints its table: `python -m loadtest.bench --help` from the repository."""

from __future__ import annotations

import sys

from loadtest.bench.cli import main

sys.exit(main())
