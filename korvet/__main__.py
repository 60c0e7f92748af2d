"""`python -m korvet`: the same command as `korvet`, where its script is not on PATH."""

from __future__ import annotations

import sys

from korvet.cli.main import main

sys.exit(main())
