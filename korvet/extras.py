"""The extras `lake` and `iceberg`: packages that only archives of topics need, and the command that installs them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

ICEBERG = frozenset({"pyiceberg", "sqlalchemy"})
LAKE = frozenset({"deltalake", "numpy", "pandas", "py4j", "pyarrow", "pyspark"}) | ICEBERG

_ROOT = Path(__file__).parents[1]


def lake_command(*missing: str) -> str:
    """Return the command that installs what is missing for this program.

    A checkout whose environment this is has a target, which installs all of it.
    """
    if (_ROOT / "Makefile").is_file() and Path(sys.prefix).resolve() == (_ROOT / ".venv").resolve():
        return "make lake"
    extra = "lake,iceberg" if ICEBERG & {*missing} else "lake"
    return f"{shlex.quote(sys.executable)} -m pip install 'korvet[{extra}]'"
