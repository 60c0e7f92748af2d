"""A panic of korvet_core in any greenlet ends its process: the supervisor replaces it."""

from __future__ import annotations

import subprocess
import sys

_CHILD = """
import os

import gevent
import korvet_core

from korvet.server.supervisor.child import SupervisorLink

alive = os.pipe()[0]
link = SupervisorLink(1, "worker-1", None, None, alive, -1)
stop = link.stop_event()


def fail():
    raise korvet_core.PanicException("a bug")


gevent.spawn(fail)
gevent.spawn(stop.set)
stop.wait()
"""


def test_a_panic_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "PanicException: a bug" in ended.stderr
