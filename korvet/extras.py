"""The extra `lake`: the packages that only archives of topics need, and the command that installs them here."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

LAKE = frozenset({"deltalake", "numpy", "pandas", "py4j", "pyarrow", "pyspark"})

_ROOT = Path(__file__).parents[1]


def lake_command() -> str:
    """Return the command that installs it for this program: a checkout whose environment this is has a target."""
    if (_ROOT / "Makefile").is_file() and Path(sys.prefix).resolve() == (_ROOT / ".venv").resolve():
        return "make lake"
    return f"{shlex.quote(sys.executable)} -m pip install 'korvet[lake]'"
