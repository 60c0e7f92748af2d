"""`python -m korvet`: the same command as `korvet`, where its script is not on PATH. spark-submit runs this file."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Python has put the file's directory first, where `redis` is a package of Korvet.
    sys.path[:] = [path for path in sys.path if Path(path) != Path(__file__).parent]

from korvet.cli.main import main

sys.exit(main())
