"""The two ends of an upgrade in place: what the old supervisor hands over, and what the new one makes of it.

Knows which object each part of a handover comes from and becomes; not when it happens (supervisor.py) nor how it
passes (handover.py). Nothing here asks Redis or waits: what was checked at the start, or by the rehearsal, holds.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from korvet import logs
from korvet.config import Settings, rows
from korvet.server import binaries, listeners, redis_check, startup
from korvet.server.children import Child, Children, Seat
from korvet.server.data_dir import DataDir
from korvet.server.embedded import EmbeddedServer
from korvet.server.handover import HandedChild, HandedServer, Handover
from korvet.server.ports import Reservation
from korvet.server.scoreboard import Scoreboard
from korvet.server.startup import Foundation

_log = logs.Log(__name__)


def handed(
    configured: Settings, foundation: Foundation, children: Children, manager: dict[str, str], changes: int
) -> Handover:
    """Return what the next supervisor needs of this one."""
    embedded, ops = foundation.embedded, foundation.ops_listener
    return Handover(
        fixed={row.attribute: row.of(configured) for row in rows() if not row.about.reload},
        resolved=foundation.resolved,
        facts=foundation.facts,
        data=foundation.data,
        incarnation=foundation.incarnation,
        metrics_directory=str(foundation.metrics_directory),
        listen_fds=[each.fileno() for each in foundation.reservations],
        ops_fd=None if ops is None else ops.fileno(),
        server=None if embedded is None else HandedServer(*embedded.handed()),
        scoreboard_fd=children.scoreboard.fileno(),
        pipes=children.pipes,
        children=[
            HandedChild(each.pid, each.index, each.name, each.ready_at, each.retiring, each.kill_at)
            for each in children.living.values()
        ],
        manager=manager,
        changes=changes,
    )


def merged(handover: Handover, loaded: Settings) -> Settings:
    """Return `loaded` with what only a restart may alter as it was, where this version still has such a setting."""
    kept = {}
    for row in rows():
        if row.attribute in handover.fixed and row.of(loaded) != handover.fixed[row.attribute]:
            if not row.about.reload:
                _log.warning("a new value needs a restart", setting=row.name)
            kept[row.attribute] = handover.fixed[row.attribute]
    return msgspec.structs.replace(loaded, **kept)


def rehearse(handover: Handover, loaded: Settings) -> None:
    """Do all that a takeover does and that may fail, but for the takeover itself; raises what it raises.

    What only children import is imported too: this process forks none.
    """
    settings = msgspec.structs.replace(merged(handover, loaded), **handover.resolved)
    if handover.server is not None:
        binaries.find()
    startup.check_lake(settings)
    startup.compile_codecs()
    redis_check.check(settings, time.sleep, _log.info)
    redis_check.prepare(settings)
    from korvet.server import keeper, ops, worker  # noqa: F401, PLC0415 - gevent may be in this process


def foundation(handover: Handover, settings: Settings, cleanup: ExitStack) -> Foundation:
    """Return what the children stand on, from what was handed over."""
    for fd in handover.descriptors():
        os.set_inheritable(fd, False)  # noqa: FBT003 - takes no keyword
    reservations = tuple(Reservation("listen ", socket.socket(fileno=fd)) for fd in handover.listen_fds)
    for each in reservations:
        cleanup.callback(each.close)
    ops = None
    if handover.ops_fd is not None:
        ops = cleanup.enter_context(socket.socket(fileno=handover.ops_fd))
        ops.settimeout(0.0)
    embedded = None
    if handover.server is not None:
        directory = DataDir(Path(handover.server.directory), handover.server.lock_fd)
        cleanup.callback(directory.close)
        embedded = EmbeddedServer(directory, binaries.find(), settings.embedded_maxmemory_bytes)
        cleanup.callback(embedded.stop)
        embedded.adopt(handover.server.pid)
    metrics_directory = Path(handover.metrics_directory)
    cleanup.callback(shutil.rmtree, metrics_directory, ignore_errors=True)
    startup.compile_codecs()
    return Foundation(
        handover.resolved,
        embedded,
        handover.facts,
        handover.data,
        reservations,
        listeners.reserved(settings, reservations),
        ops,
        metrics_directory,
        handover.incarnation,
    )


def children(handover: Handover) -> Children:
    """Return the children that live, with their table and their pipes."""
    scoreboard = Scoreboard.shared(handover.scoreboard_fd)
    if scoreboard is None:
        # Another version's. The old children go on in the old one, which the old ops process shows until its end.
        scoreboard = Scoreboard()
    found = Children(scoreboard, Path(handover.metrics_directory), handover.pipes)
    for each in handover.children:
        found.living[each.pid] = Child(
            each.pid, each.index, each.name, each.ready_at, each.retiring, each.kill_at
        )
    return found


def take_seats(seats: list[Seat], children: Children) -> list[Child]:
    """Give the children that stay a seat each; returns those for whom this version has none."""
    free = [seat for seat in seats if seat.index is None]
    left_over = []
    for child in children.living.values():
        # A row of its own is not free before its child has ended, also where that is on its way.
        seat = next((seat for seat in seats if seat.index == child.index), None)
        if seat is None and child.retiring:
            continue
        if seat is None and child.name.startswith("worker") and free:
            seat = free.pop(0)
        if seat is None:
            left_over.append(child)
        else:
            seat.child = child
    return left_over
