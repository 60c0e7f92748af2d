"""One run: both brokers answer at the same time, and differences that expected.toml does not list are printed.

`make test-differential ARGS="--only groups"` asks the requests of some rooms. Exits with 1 at a difference without a
row, and in a run of all rooms at a row without a difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from loadtest.bench import toolchain
from loadtest.harness import NotAvailableError
from tests.differential import brokers, compare, wire
from tests.differential.rooms import ROOMS, settle
from tests.differential.session import Exchange, Session


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(ROOMS), metavar="ROOM,ROOM")
    parser.add_argument("--all", action="store_true", help="print differences that are listed too")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(ROOMS):
        parser.error(f"no room is named {', '.join(sorted(unknown))}: there are {', '.join(ROOMS)}")
    try:
        toolchain.prepare()
        kafka, korvet = answers(arguments.only)
    except NotAvailableError as missing:
        print(missing, file=sys.stderr)
        return 1
    rows = compare.expected()
    used = Counter[int]()
    unlisted = []
    different = list(compare.differences(kafka, korvet))
    for difference in different:
        place = next((place for place, row in enumerate(rows) if row.matches(difference)), None)
        if place is None or arguments.all:
            unlisted.append(difference)
        if place is not None:
            used[place] += 1
    for line in compare.report(unlisted):
        print(line)
    is_whole = arguments.only == list(ROOMS)
    stale = [row for place, row in enumerate(rows) if is_whole and not used[place]]
    for unused in stale:
        print(f"expected.toml lists what is not so any more: {unused}")
    new = len(different) - used.total()
    print(
        f"{len(kafka)} requests, {len(different)} fields differ, {new} of them not listed; {len(stale)} rows of no use"
    )
    return 1 if new or stale else 0


def answers(only: list[str]) -> list[list[Exchange]]:
    """Return the answers of Kafka and of Korvet to the requests of some rooms."""
    with tempfile.TemporaryDirectory(prefix="differential-") as folder:
        running = brokers.both(Path(folder))
        try:
            for broker in running:
                broker.start()
            apis = wire.load(toolchain.jar("kafka-clients"))
            sessions = [Session(apis, broker.port, broker.login_port) for broker in running]
            names = [broker.name for broker in running]
            served = sessions[1].served()
            with ThreadPoolExecutor(len(sessions)) as pool:
                return list(pool.map(_ask, sessions, names, repeat(served), repeat(only)))
        finally:
            for broker in running:
                broker.stop()


def _ask(session: Session, broker: str, served: dict[str, range], only: list[str]) -> list[Exchange]:
    session.versions = served
    settle(session)
    for name in only:
        session.room = name
        began = time.monotonic()
        before = len(session.exchanges)
        for ask in ROOMS[name]:
            try:
                ask(session)
            except (KeyError, IndexError, TypeError) as error:  # an answer lacks what the next request needs
                traceback.print_exc()
                session.note(f"{ask.__name__} breaks off", "any API", 0, repr(error))
            session.close_all()
        print(
            f"{broker}, {name}: {len(session.exchanges) - before} requests, {time.monotonic() - began:.0f} s",
            file=sys.stderr,
        )
    return session.exchanges


if __name__ == "__main__":
    sys.exit(main())
