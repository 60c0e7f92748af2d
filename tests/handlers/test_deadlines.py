"""When the work at a request stops."""

from __future__ import annotations

import pytest

from korvet.handlers.common import work_until


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(60_000, 30.0), (1, 0.0005), (0, 0.0), (-1, -0.0005)])
def test_half_of_the_time_is_left_for_the_answer(timeout_ms: int, seconds: float) -> None:
    assert work_until(timeout_ms, now=1000.0) == 1000.0 + seconds
