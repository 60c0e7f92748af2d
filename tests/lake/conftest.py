"""Topics with a remote tier in an empty Redis, and an empty lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archives import Topics, topics_in


@pytest.fixture
def topics(redis_url: str, tmp_path: Path) -> Iterator[Topics]:
    """Give a helper that creates topics and archives them."""
    with topics_in(redis_url, tmp_path / "lake") as found:
        yield found
