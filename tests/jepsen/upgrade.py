"""An upgrade, as faults in a fixed order: brokers are replaced one by one by those of another build, under load.

Forward, back and forward; then the level of `korvet.format` is raised, if the newer build has a higher format.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from korvet import FORMAT
from tests.cli.commands import done, failed, korvet_process
from tests.jepsen.faults import Fault
from tests.jepsen.system import System
from tests.support.broker import KORVET, LATER_BUILD, START_SECONDS_MAX

BROKERS = 3


class Build(NamedTuple):
    """What starts a broker of a build, and the highest format that it writes."""

    program: Sequence[str]
    format: int


HERE, LATER = Build(KORVET, FORMAT), Build(LATER_BUILD, 3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what chooses the builds."""
    parser.add_argument(
        "--upgrade",
        action="store_true",
        help="replace brokers by those of a newer build instead, one by one: forward, back, forward",
    )
    parser.add_argument(
        "--from",
        dest="older",
        metavar="REF",
        help="the older build is that of a commit, the newer this tree; default: this tree, and with --plant",
    )
    parser.add_argument("--plant", action="store_true", help="the newer build has a higher format than any")


def builds(asked: argparse.Namespace, directory: Path) -> tuple[Build, Build]:
    """Return the older and the newer build; a commit is installed in the directory."""
    older = _installed(asked.older, directory) if asked.older else HERE
    return older, LATER if asked.plant or not asked.older else HERE


def _installed(ref: str, directory: Path) -> Build:
    """Return the build of a commit, installed as its own `make` does; exits if that fails."""
    directory.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", f"{ref}^{{commit}}"],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    if archive.returncode:
        sys.exit(f"--from {ref}: git archive failed")
    subprocess.run(["tar", "--extract", "--directory", directory], input=archive.stdout, check=True)
    if subprocess.run(["make", "--directory", directory, "VENV=.venv", ".venv/.run"], check=False).returncode:
        sys.exit(f"--from {ref}: make .venv/.run failed")
    python = str(directory / ".venv/bin/python")
    own = "from korvet.cluster.data_format import OWN; print(OWN.format)"
    # Not the korvet of the directory in which the tests run.
    program = (python, "-P", *KORVET[1:])
    return Build(program, int(subprocess.check_output([python, "-P", "-c", own])))


def steps(older: Build, newer: Build) -> list[tuple[str, Fault]]:
    """Return the names and actions of all steps, in order."""
    forward = ("forward", Fault(lambda system, _: _replace(system, older, newer)))
    back = ("back", Fault(lambda system, _: _replace(system, newer, older)))
    there_and_back = [forward] * BROKERS + [back] * BROKERS
    if older.format >= newer.format:
        return there_and_back + [forward] * BROKERS
    level = ("features", "set", f"korvet.format={newer.format}", "-b")

    def refuse_level(system: System, _rng: random.Random) -> None:
        assert "korvet.format" in failed(korvet_process(*level, system.bootstrap))

    def set_level(system: System, _rng: random.Random) -> None:
        assert done(korvet_process(*level, system.bootstrap)) == f"set korvet.format={newer.format}\n"

    def refuse_older(system: System, _rng: random.Random) -> None:
        _stop(system, 0)
        system.programs[0] = older.program
        refused = system.start_broker(0)
        assert refused.process.wait(START_SECONDS_MAX) == 2
        [line] = refused.log().splitlines()
        assert f"(format {older.format}) may not write it" in line
        system.programs[0] = newer.program
        system.restart_broker(0)

    return [
        *there_and_back,
        *[forward] * (BROKERS - 1),
        ("refuse-level", Fault(refuse_level)),
        forward,
        ("set-level", Fault(set_level)),
        ("refuse-older", Fault(refuse_older)),
    ]


def _replace(system: System, former: Build, build: Build) -> None:
    """Stop the first broker of a build as an operator does, and start the other build at its address."""
    number = system.programs.index(former.program)
    _stop(system, number)
    system.programs[number] = build.program
    system.restart_broker(number)


def _stop(system: System, number: int) -> None:
    """Drain a broker; it must not be killed for that, nor end with an error."""
    assert system.brokers[number].stop() == 0
