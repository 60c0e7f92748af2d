"""A `korvet serve` whose workers report on stderr what holds their event loop: for `python -m tests.fuzz` alone.

Between two switches of greenlets one of them runs, or the loop's own callbacks. If that takes more than CPU_SECONDS_MAX
of CPU time of the thread, a line says how long it was, for which client, and the stack in the middle of it.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from types import FrameType
from typing import Any

import greenlet

from korvet.cli.main import main
from korvet.config.settings import Settings
from korvet.handlers.registry import Caller
from korvet.protocol.schema import RequestHeader
from korvet.server.supervisor import roles
from korvet.server.supervisor.child import SupervisorLink
from korvet.server.supervisor.startup import Runtime

CPU_SECONDS_MAX = 0.1
SLOW = "SLOW CALLBACK"
_SAMPLE_SECONDS = 0.02


class LoopWatch:
    """Watches the event loop of this thread."""

    def __init__(self) -> None:
        self._since = time.thread_time()
        self._stack: list[str] = []
        greenlet.settrace(self._switched)
        # Of CPU time too: a loop that waits is never interrupted.
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_SECONDS, _SAMPLE_SECONDS)

    def _switched(self, _event: str, _greenlets: object) -> None:
        now = time.thread_time()
        if now - self._since > CPU_SECONDS_MAX:
            stack = "".join(self._stack)
            sys.stderr.write(f"{SLOW} {(now - self._since) * 1000:.0f} ms\n{stack}\n")
        self._since = now
        self._stack = []

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        if not self._stack and time.thread_time() - self._since > CPU_SECONDS_MAX / 2:
            self._stack = [f"client {_client(frame)}\n", *traceback.format_stack(frame)]


def _client(frame: FrameType | None) -> str | None:
    """Return the id of the client whose request is served in a frame."""
    while frame is not None:
        values: list[Any] = list(frame.f_locals.values())
        values += [getattr(value, "_caller", None) for value in values]
        for value in values:
            if isinstance(value, Caller | RequestHeader):
                return value.client_id
        frame = frame.f_back
    return None


def _watched(runtime: Runtime, settings: Settings, link: SupervisorLink) -> None:
    LoopWatch()
    _run_worker(runtime, settings, link)


_run_worker = roles.run_worker

if __name__ == "__main__":
    roles.run_worker = _watched
    sys.exit(main())
