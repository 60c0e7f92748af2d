"""Runs the measurements: `python -m loadtest.log --help` from the repository."""

from __future__ import annotations

import sys

from loadtest.log.cli import main

sys.exit(main())
