"""The marks that say for which storage formats a test of handlers runs; what they do stands in conftest.py."""

from __future__ import annotations

import pytest

BOTH_FORMATS = pytest.mark.formats("record", "batch")
ONLY_RECORD = pytest.mark.formats("record")
ONLY_BATCH = pytest.mark.formats("batch")
