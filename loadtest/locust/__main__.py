"""Runs the load with what belongs around it: `python -m loadtest.locust --help` from the repository."""

from __future__ import annotations

import sys

from loadtest.locust.cli import main

sys.exit(main())
