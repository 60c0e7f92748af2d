"""Who sits where after a takeover: children that live keep a seat each, and nobody gets a row that is taken."""

from __future__ import annotations

from pathlib import Path

from korvet.server.supervisor.children import Child, Children, Role, Seat
from korvet.server.supervisor.slot import ARCHIVER_ROW, KEEPER_ROW, OPS_ROW, Scoreboard
from korvet.server.supervisor.upgrade import take_seats

ROLE = Role(lambda _settings, _slot: None)


def test_children_that_are_on_their_way_out_hold_the_row_that_is_theirs_alone(tmp_path: Path) -> None:
    children = Children(Scoreboard(), tmp_path)
    stays, leaves = Child(1, 0, "worker-0"), Child(2, 1, "worker-1", retiring=True)
    keeper, archiver = Child(3, KEEPER_ROW, "keeper"), Child(4, ARCHIVER_ROW, "archiver", retiring=True)
    stranger, leaving_stranger = Child(5, 3000, "auditor"), Child(6, 3001, "clerk", retiring=True)
    everybody = stays, leaves, keeper, archiver, stranger, leaving_stranger
    children.living.update({child.pid: child for child in everybody})
    seats = [Seat(ROLE), Seat(ROLE), *(Seat(ROLE, index=row) for row in (KEEPER_ROW, OPS_ROW, ARCHIVER_ROW))]
    assert take_seats(seats, children) == [stranger]
    assert [seat.child for seat in seats] == [stays, None, keeper, None, archiver]
    children.close()
