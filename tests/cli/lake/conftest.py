"""Topics with a remote tier in an empty Redis, and an empty lake."""

from tests.support.archives import topics

__all__ = ["topics"]
