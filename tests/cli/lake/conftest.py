"""Topics with a remote tier in an empty Redis, and an empty lake."""

import pytest

from tests.support.archives import topics

__all__ = ["topics"]


@pytest.fixture(autouse=True)
def _logging(logging_as_before: None) -> None:
    """Let a command of the lake configure the logging of its process, which is that of the tests, for a test only."""
