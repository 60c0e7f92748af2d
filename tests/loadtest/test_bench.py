"""loadtest/bench: peers that cannot be had."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.bench import toolchain
from loadtest.bench.peers import COMPILED, KorvetBatchCompiled
from loadtest.bench.processes import NotAvailableError


def test_a_python_without_a_compiled_korvet_is_not_measured_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPILED, sys.executable)
    with pytest.raises(NotAvailableError, match=f"{COMPILED} names no Python with a compiled Korvet"):
        KorvetBatchCompiled(tmp_path).start()


@pytest.mark.parametrize(("build", "program"), [(toolchain.kfake, "go"), (toolchain.tansu, "cargo")])
def test_a_broker_whose_compiler_is_missing_cannot_be_had(
    build: Callable[[], Path], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailableError, match=f"{program} is not on PATH"):
        build()
