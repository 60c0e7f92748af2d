"""Kills at random moments from a seed, each after work has gone on since the one before."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.lake_kills.system import SECONDS_MAX, Command, System
from tests.support.processes import kill, wait_until

_BEFORE_KILL_SECONDS_MAX = 1.0
_ENDS = ("driver", "java")


class Run(NamedTuple):
    """What a run is to do: `kills` of each victim, as many as there are time for."""

    kills: int
    victims: tuple[str, ...]
    seed: int
    rate: int = 400
    once: bool = False
    minutes: float = 60.0


class Found(NamedTuple):
    """What a run has found: how often what was killed and met, and what must not be."""

    counts: Counter[str]
    violations: list[str]


class Target(NamedTuple):
    """A command under kills. `progress` grows as it works; `may_end` are the codes with which it may end by itself.

    `phase` says in what a kill of its driver was, empty if in nothing.
    """

    command: Command
    progress: Callable[[], int]
    may_end: tuple[int, ...] = ()
    phase: Callable[[], str] = str


def kill_at_random(system: System, run: Run, targets: Mapping[str, Target]) -> Counter[str]:
    """Kill, until all kills are done or the time is over; `targets` are of the victims, '' of all others."""
    chance = random.Random(run.seed)
    victims = list(run.victims * run.kills)
    chance.shuffle(victims)
    counts = Counter[str]()
    end = time.monotonic() + run.minutes * 60
    for victim in victims:
        if time.monotonic() < end:
            own = victim in targets
            target = targets[victim if own else ""]
            counts += _kill(system, targets, target, "driver" if own else victim, chance)
            counts[f"kills of {victim}"] += 1
            print(f"{time.strftime('%H:%M:%S')}  {victim} killed", flush=True)
    return counts


def _kill(
    system: System, targets: Mapping[str, Target], target: Target, victim: str, chance: random.Random
) -> Counter[str]:
    counts = Counter[str]()
    command, before, found = target.command, target.progress(), list[int]()

    def at_work() -> bool:
        for each in targets.values():
            if (code := each.command.code) is not None:
                assert code in each.may_end, (
                    f"{each.command.program} has ended:\n{each.command.log()[-2000:]}"
                )
                counts[f"ended by itself with {each.command.start_again()}"] += 1
        found[:] = system.processes_of(victim, command)
        return bool(found) and target.progress() > before

    wait_until(at_work, f"work goes on, and there is a {victim}", SECONDS_MAX)
    time.sleep(chance.uniform(0, _BEFORE_KILL_SECONDS_MAX))
    kill(chance.choice(system.processes_of(victim, command) or found))
    if victim in _ENDS:
        if phase := target.phase():
            counts[f"drivers killed {phase}"] += 1
        command.start_again()
    return counts
