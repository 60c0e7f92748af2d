"""korvet_core.ClientSockets over real sockets: whom an answer reaches, what a turn costs the others, and what is left.

What it decides about frames, budgets and times is tested in core/proto, and TLS itself in core/tls.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import socket
import struct
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_sockets import HEADER, Owner, Worker, received, until
from tests.support.wire_client import frame


def has_frames(owner: Owner) -> bool:
    """Whether there are frames to be answered."""
    return bool(owner.frames)


def has_events(owner: Owner) -> bool:
    """Whether anything else has happened."""
    return bool(owner.events)


def test_answers_leave_in_one_write_however_many_pieces_they_have() -> None:
    worker = Worker()
    owner, client = worker.connect(kind=socket.SOCK_SEQPACKET)
    with client:
        client.send(frame(HEADER + b"1") + frame(HEADER + b"2") + frame(HEADER + b"3"))
        worker.turn()
        assert [body for _, body in owner.frames] == [HEADER + b"1", HEADER + b"2", HEADER + b"3"]
        large = os.urandom(5000)
        pieces: tuple[list[Any], ...] = (
            [b"a", memoryview(b"b"), large],
            [],
            [bytearray(b"c"), b"", memoryview(large)[1:]],
        )
        assert worker.answer(owner, [(number, pieces[number]) for number, _ in owner.frames])
        assert client.recv(1 << 20) == b"ab" + large + b"c" + large[1:]
        assert received(client) == b""
    assert owner.events == []


def test_the_rest_of_a_frame_that_has_come_meanwhile_is_read_when_the_next_frame_is_asked_for() -> None:
    worker = Worker()
    owner, client = worker.connect()
    with client:
        second = frame(HEADER + b"2")
        client.send(frame(HEADER + b"1") + second[:7])
        worker.turn()
        assert [body for _, body in owner.frames] == [HEADER + b"1"]
        assert worker.core.next_frame(owner.number) is None
        client.send(second[7:])
        taken = worker.core.next_frame(owner.number)
        assert taken is not None
        assert bytes(taken[1]) == HEADER + b"2"
        events = worker.core.turn()
        assert [word for _, word, _ in events if word == "frame"] == [], "it is taken already"


def test_an_answer_that_comes_late_reaches_nobody_though_the_descriptor_has_come_back() -> None:
    worker = Worker()
    rounds, reused, descriptors, gone = 500, 0, set[int](), list[Owner]()
    for number in range(rounds):
        mine, client = socket.socketpair()
        fd = mine.detach()
        reused += fd in descriptors
        descriptors.add(fd)
        owner = worker.adopt(fd)
        client.send(frame(HEADER + b"%d" % number))
        until(partial(has_frames, owner), worker.turn)
        if number % 2:
            worker.note(worker.core.close(owner.number))
        client.settimeout(0)
        for late in gone:
            assert worker.answer(late, [(0, [b"astray"])])
            worker.core.mute(late.number, 60)
            worker.note(worker.core.close(late.number))
        if number % 2:
            client.close()
        else:
            worker.answer(owner, [(0, [b"%d" % number])])
            assert received(client) == b"%d" % number
            client.close()
            until(partial(has_events, owner), worker.turn)
        gone = [*gone[-20:], owner]
        assert owner.events == [("ended" if number % 2 else "closed", None)]
        assert worker.core.next_frame(owner.number) is None
        assert worker.core.is_gone(owner.number)
    assert reused > rounds // 2
    assert worker.core.count == 0


def test_a_slow_reader_gets_its_next_frame_when_it_has_taken_the_answer() -> None:
    worker = Worker()
    owner, client = worker.connect_tcp()
    with client:
        client.send(frame(HEADER + b"first"))
        worker.turn()
        data = random.Random(1).randbytes(8 << 20)
        assert not worker.answer(owner, [(0, [data[:1000], data[1000:]])])
        client.send(frame(HEADER + b"second"))
        assert [body for _, body in owner.frames] == [HEADER + b"first"]
        got = bytearray()
        until(
            lambda: len(got) == len(data),
            lambda: got.extend(received(client)),
            lambda: worker.note(worker.core.turn()),
        )
        assert got == data
        until(lambda: len(owner.frames) == 2, lambda: worker.note(worker.core.turn()))
        assert owner.events == [("written", None)]
        assert owner.frames[1] == (1, HEADER + b"second")


def test_a_connection_that_ends_within_an_answer_gives_its_buffers_back() -> None:
    worker = Worker()
    for ends in ("peer", "own"):
        owner, client = worker.connect()
        client.send(frame(HEADER))
        until(partial(has_frames, owner), worker.turn)
        data = bytearray(4 << 20)
        assert not worker.answer(owner, [(0, [memoryview(data)])])
        with pytest.raises(BufferError):
            data.append(0)
        if ends == "peer":
            client.close()
            until(partial(has_events, owner), worker.turn)
            assert owner.events[0][0] == "lost"
        else:
            worker.note(worker.core.close(owner.number))
            assert owner.events == [("ended", None)]
            client.close()
        data.append(0)


def test_code_that_runs_when_a_buffer_or_an_owner_is_dropped_may_call_the_sockets() -> None:
    worker = Worker()
    called: list[Any] = []
    owner, client = worker.connect()
    client.send(frame(HEADER))
    worker.turn()
    view = memoryview(bytes(4 << 20))
    watched = weakref.ref(view, lambda _: called.append(worker.core.close(other.number)))
    assert not worker.answer(owner, [(0, [view])])
    other, other_client = worker.connect()
    del view
    worker.note(worker.core.close(owner.number))
    assert watched() is None
    assert called == [[(other, "ended", None)]]

    class Calling(Owner):
        def __del__(self) -> None:
            called.append(worker.core.count)

    mine, last = socket.socketpair()
    number = worker.core.adopt(mine.detach(), Calling(), None, None)
    worker.core.close(number)
    assert called[1:] == [0]
    for end in (client, other_client, last):
        end.close()


def test_adopting_wakes_the_loop_when_the_first_deadline_is_set() -> None:
    worker = Worker()
    assert not worker.is_ready()
    assert [worker.core.due_s] == [None]
    _, client = worker.connect()
    with client:
        assert worker.is_ready()
        worker.turn()
        assert worker.timers == 1
        assert worker.core.due_s is not None
        assert not worker.is_ready()


def test_muting_wakes_the_loop_for_its_deadline_and_nothing_is_read_before() -> None:
    worker = Worker()
    owner, client = worker.connect()
    with client:
        worker.turn()
        worker.core.mute(owner.number, 120)
        worker.turn()
        assert worker.timers == 2
        due_s = worker.core.due_s
        assert due_s is not None
        assert 100 < due_s <= 120
        client.send(frame(HEADER))
        assert not worker.is_ready()


def test_a_muted_peer_that_resets_its_connection_does_not_spin_the_loop() -> None:
    worker = Worker()
    owner, client = worker.connect_tcp()
    worker.core.mute(owner.number, 120)
    worker.turn()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    until(lambda: worker.core.is_gone(owner.number))
    assert not worker.is_ready()
    assert owner.events == []


def open_descriptors() -> set[int]:
    """Return the numbers of the descriptors that this process has open, without those of garbage."""
    gc.collect()
    return {int(link.name) for link in Path("/proc/self/fd").iterdir()}


def test_a_descriptor_that_cannot_be_adopted_is_closed_once(tmp_path: Path) -> None:
    worker = Worker()
    before = open_descriptors()
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match=r"not permitted|Inappropriate"):
        worker.core.adopt(fd, Owner(), None, None)
    mine, client = socket.socketpair()
    with pytest.raises(ValueError, match="seconds"):
        worker.core.adopt(mine.detach(), Owner(), (100, float("inf")), None)
    client.close()
    with pytest.raises(ValueError, match="descriptor"):
        worker.core.adopt(-1, Owner(), None, None)
    assert open_descriptors() == before
    assert worker.core.count == 0


@pytest.mark.parametrize("room", range(2))
def test_sockets_for_which_no_descriptor_is_left_fail_and_leave_none_behind(room: int) -> None:
    before = open_descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = [os.open(os.devnull, os.O_RDONLY)]
    while spare[-1] <= max(before):
        spare.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare[-1] + 1 + room, limits[1]))
    try:
        with pytest.raises(OSError, match="open files"):
            Worker()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in spare:
            os.close(fd)
    assert open_descriptors() == before


def test_sockets_that_nobody_has_any_more_are_closed_with_their_owners() -> None:
    before = open_descriptors()
    worker = Worker()
    owner, client = worker.connect()
    owner.worker = worker
    left = weakref.ref(owner)
    del worker, owner
    gc.collect()
    assert left() is None
    assert client.recv(1) == b""
    client.close()
    assert open_descriptors() == before
