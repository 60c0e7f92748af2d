"""Holds tests without a marker to what `make check` promises: they start no process, but the session's Redis."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
_forbidden_for: list[str] = []


def _on_event(event: str, _arguments: object) -> None:
    if event in _STARTS and _forbidden_for:
        raise AssertionError(
            f"{_forbidden_for[-1]} starts a process; mark it `slow`, or give it what needs none"
        )


sys.addaudithook(_on_event)


@contextlib.contextmanager
def forbidden(test: str) -> Iterator[None]:
    """Let an attempt to start a process fail, while this test runs."""
    _forbidden_for.append(test)
    try:
        yield
    finally:
        _forbidden_for.clear()


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Let a process be started: the session's Redis."""
    tests = _forbidden_for.copy()
    _forbidden_for.clear()
    try:
        yield
    finally:
        _forbidden_for[:] = tests
