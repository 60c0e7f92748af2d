"""One store for all tests of a process, a lake of its own in it for each test, and topics to archive."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.stores import s3
from tests.stores.s3 import BUCKET, Store
from tests.support.archives import Topics, topics_in

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared() -> Iterator[Store]:
    """Give a store that nobody may end."""
    with s3.store() as running:
        yield running


@pytest.fixture
def lake() -> str:
    """Give the URI of a lake that nobody has used."""
    return f"s3://{BUCKET}/lake-{next(_numbers)}"


@pytest.fixture
def topics(redis_url: str, shared: Store, lake: str) -> Iterator[Topics]:
    """Give the means to make topics and to archive them to the store."""
    with topics_in(redis_url, lake, shared.options) as result:
        yield result
