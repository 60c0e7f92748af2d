"""What `korvet doctor` looks at: Redis, the machine, the addresses and the settings of one broker, running or not.

Each part yields findings and changes nothing but a probe key in Redis, as a start does; none needs another. A finding
that is not ok says what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from korvet.config.settings import Settings
from korvet.doctor import addresses, machine, redis_server
from korvet.doctor import addresses as settings_sense
from korvet.doctor import machine as console
from korvet.doctor import machine as lake
from korvet.doctor.finding import Finding, Level
from korvet.doctor.machine import LakeProblem

__all__ = ["Finding", "Level", "examine"]

PARTS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    settings_sense.examine,
    addresses.addresses_examine,
    redis_server.examine,
    machine.examine,
    console.console_examine,
)


def examine(settings: Settings, lake_problem: LakeProblem) -> Iterator[Finding]:
    """Yield what is found, part by part; `lake_problem` tries the lake, if there is to be one."""
    for part in PARTS:
        yield from part(settings)
    yield from lake.lake_examine(settings, lake_problem)
