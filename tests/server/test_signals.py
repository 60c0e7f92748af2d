"""Signals that wait: none is lost to a process that is about to become another program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, signal
from korvet.server.signals import Signals

signals = Signals()
signals.install()
os.kill(os.getpid(), signal.SIGTERM)  # written to the pipe, and not read yet
signals.hold()
os.kill(os.getpid(), signal.SIGHUP)
print(sorted(signal.sigpending()) == [signal.SIGHUP, signal.SIGTERM], signals.wait(0.0))
signals.release()
print(sorted(signals.wait(0.0)[0]) == [signal.SIGHUP, signal.SIGTERM])
"""


def test_signals_that_are_held_wait_for_whoever_takes_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "True ([], [])\nTrue\n", done
