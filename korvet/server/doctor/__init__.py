"""What `korvet doctor` looks at: Redis, the machine, the addresses and the settings of one broker, running or not.

Each part yields findings and changes nothing but a probe key in Redis, as a start does; none needs another. A finding
that is not ok says what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from korvet.config import Settings
from korvet.server.doctor import addresses, console, lake, machine, redis_server, settings_sense
from korvet.server.doctor.finding import Finding, Level
from korvet.server.doctor.lake import LakeProblem

__all__ = ["Finding", "Level", "examine"]

PARTS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    settings_sense.examine,
    addresses.examine,
    redis_server.examine,
    machine.examine,
    console.examine,
)


def examine(settings: Settings, lake_problem: LakeProblem) -> Iterator[Finding]:
    """Yield what is found, part by part; `lake_problem` tries the lake, if there is to be one."""
    for part in PARTS:
        yield from part(settings)
    yield from lake.examine(settings, lake_problem)
