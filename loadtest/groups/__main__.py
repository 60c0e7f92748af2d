"""Runs the measurements: `python -m loadtest.groups --help` from the repository."""

from __future__ import annotations

import sys

from loadtest.groups.cli import main

sys.exit(main())
