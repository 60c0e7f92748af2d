"""A process with some members of consumer groups: a test kills it to kill them, as no client's close can.

Run as `python -m tests.support.member_host`. A line on stdin is a command in JSON: `{"start": <plan>}` (see
tests/support/members.py) or `{"end": <name>}`; the end of stdin ends the process at once. A line on stdout is what a
member reports: its `member`, the `event`, the time `at` (s, of the machine's monotonic clock) and the event's fields.
A report has been written to the pipe when it returns.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from functools import partial
from typing import Any

import msgspec

from tests.support.members import KINDS, Member, Plan

_writing = threading.Lock()


class Command(msgspec.Struct):
    """The command, one of the two."""

    start: Plan | None = None
    end: str = ""


def report(member: str, event: str, **fields: Any) -> None:
    line = {"member": member, "event": event, "at": time.monotonic(), **fields}
    data = memoryview(msgspec.json.encode(line) + b"\n")
    with _writing:
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


def main() -> None:
    logging.disable()  # the clients log every connection that they lose
    members: dict[str, Member] = {}
    for line in sys.stdin:
        command = msgspec.json.decode(line, type=Command)
        if plan := command.start:
            members[plan.name] = KINDS[plan.kind](plan, partial(report, plan.name))
            members[plan.name].start()
        else:
            members[command.end].end()
    os._exit(0)


if __name__ == "__main__":
    main()
