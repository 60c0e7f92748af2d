"""The fuzzer for some seconds from a fixed seed, and that it sees what it is to find."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from korvet.errors import KafkaError, ProtocolError
from korvet.protocol.messages.join_group import JoinGroupRequest
from korvet.protocol.messages.sync_group import SyncGroupRequest
from tests.fuzz import __main__ as fuzz
from tests.fuzz import decoders, watched_broker
from tests.fuzz.live import PARTITIONS, Live
from tests.fuzz.requests import REQUESTS, TOPICS, Learned, Requests
from tests.handlers.scene import Scene
from tests.support.wire_client import ClosedByBrokerError

SEED = 15
ROUNDS_MAX = 10
"""A round sends each version of each API once, in every second one as it should be; some answers are not waited for."""

_HOLDS_THE_LOOP = """
import signal
import time
import gevent
from tests.fuzz.watched_broker import LoopWatch

def holds_the_loop(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

LoopWatch()
gevent.spawn(holds_the_loop, {seconds}).join()
signal.setitimer(signal.ITIMER_PROF, 0)
"""


def test_any_bytes_are_decoded_or_refused() -> None:
    # An odd number is a case of records; the even ones go through every version of every message.
    assert fuzz.run_decoders(SEED, range(2 * len(decoders.EVERY_VERSION))) == []


def test_a_worker_serves_on_whatever_it_is_sent(tmp_path: Path) -> None:
    every = {(cls.__name__, version) for cls, version in REQUESTS}
    with Live(tmp_path, SEED) as live:
        for number in range(ROUNDS_MAX * len(REQUESTS)):
            if live.answered == every:
                break
            live.run_case(number)
        live.sweep()
        assert live.healthy > 0
    assert live.findings == []
    assert live.answered == every


@pytest.mark.parametrize(("seconds", "reported"), [(0.01, False), (0.3, True)])
def test_what_holds_the_loop_is_reported(seconds: float, *, reported: bool) -> None:
    program = [sys.executable, "-c", _HOLDS_THE_LOOP.format(seconds=seconds)]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stderr
    assert ("in holds_the_loop" in said) == (watched_broker.SLOW in said) == reported


def test_no_refusal_is_left_to_the_garbage_collector(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An error and a frame that hold each other hold the request too, which may have 100 MB, for minutes."""
    scene = Scene(redis_url, authorizer_class_name="", auto_create_topics_enable=False)
    for name in TOPICS:
        scene.create(name, PARTITIONS)
    # These wait for other members.
    served = [item for item in REQUESTS if item[0] not in {JoinGroupRequest, SyncGroupRequest}]
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for number in range(4 * len(served)):
            cls, version = served[number % len(served)]
            request = Requests(Random(number), Learned()).any(cls, version)
            with contextlib.suppress(ProtocolError, ClosedByBrokerError):
                scene.call(request, version)
        gc.collect()
        left = {str(item).split()[0] for item in gc.garbage if isinstance(item, KafkaError)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        scene.close()
    assert left == set()
    assert "request failed" not in caplog.text


def test_a_case_is_the_same_again_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    monkeypatch.setattr(decoders, "_decode", lambda _cls, _version, content: seen.append(content))
    for number in (*range(0, 20, 2), *range(0, 20, 2)):
        decoders.run_case(SEED, number)
    assert seen[:10] == seen[10:]
