"""Runs the measurements: `python -m loadtest.deletion --help` from the repository."""

from __future__ import annotations

import sys

from loadtest.deletion.cli import main

sys.exit(main())
