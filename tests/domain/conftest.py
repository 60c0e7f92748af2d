"""Workers' views of one Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.domain.support import Domain, domain


@pytest.fixture
def here(redis_url: str) -> Iterator[Domain]:
    """Give one worker's view of an empty Redis."""
    with domain(redis_url) as made:
        yield made


@pytest.fixture
def there(redis_url: str) -> Iterator[Domain]:
    """Give another worker's view of it."""
    with domain(redis_url) as made:
        yield made
