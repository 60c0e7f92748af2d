"""How children end when the broker does: each is asked, given its time, and then killed.

Knows signals and children; not in which order the processes of a broker may go.
"""

from __future__ import annotations

import signal
import time

from korvet import logs
from korvet.server.children import Child, Children
from korvet.server.sd_notify import ServiceManager
from korvet.server.signals import Signals

_log = logs.Log(__name__)


def end(
    going: list[Child], seconds: float, children: Children, signals: Signals, manager: ServiceManager
) -> bool:
    """End `going` by SIGTERM, after `seconds` or a second Ctrl-C by SIGKILL; returns whether one was killed."""
    for child in going:
        children.send(child, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while _left(going, children) and (remaining := deadline - time.monotonic()) > 0:
        manager.alive()
        until_alive = manager.alive_at - time.monotonic() if manager.alive_at is not None else remaining
        numbers, _ = signals.wait(max(0.0, min(remaining, until_alive)))
        if signal.SIGINT in numbers:
            break
    left = _left(going, children)
    for child in left:
        _log.warning("killed: it did not end in time", child=child.name, pid=child.pid)
        children.send(child, signal.SIGKILL)
    while _left(going, children):
        signals.wait(None)
    return bool(left)


def _left(going: list[Child], children: Children) -> list[Child]:
    for child, how in children.reap():
        _log.info("ended", child=child.name, pid=child.pid, how=how)
    return [child for child in going if child.pid in children.living]
