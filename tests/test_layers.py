"""Imports point down: who may import whom, and what never gets into the process that forks."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "korvet"

# What each part may import of Korvet, besides itself. `config` is plain data; `logs` and `streams` are plain output.
BELOW = {
    "errors": set[str](),
    "config": {"errors"},
    "logs": {"errors", "config"},
    "streams": set[str](),
    "protocol": {"errors"},
    "storage": {"errors", "logs", "protocol"},
    "domain": {"errors", "logs", "protocol", "config", "storage"},
    "handlers": {"errors", "logs", "protocol", "config", "storage", "domain"},
    "server": {
        *("errors", "java", "logs", "streams", "protocol", "config", "storage", "domain", "handlers"),
        "admin",  # the console asks its broker as any client does
    },
    "admin": {"errors", "protocol"},
    "java": set[str](),
    "lake": {"errors", "config", "logs", "protocol", "storage", "admin"},
    "spark": {"errors", "config", "java", "logs", "protocol", "storage", "admin", "lake"},
    "cli": {
        *("errors", "logs", "protocol", "config", "storage", "domain", "handlers", "server", "admin"),
        *("lake", "spark", "streams"),
    },
    "__main__": {"cli"},
}

# Third-party packages and modules with side effects that have one place; all others are free.
CONFINED = {
    "redis": {"server"},  # redis-py: supervisor, ops and the embedded server; workers speak RESP themselves
    "hiredis": {"storage"},
    "click": {"cli"},
    "rich": {"cli"},
    "prompt_toolkit": {"cli"},
    "prometheus_client": {"server"},
    "pyarrow": {"lake", "spark"},
    "deltalake": {"lake", "spark"},
    "pyspark": {"spark"},
    "py4j": {"spark"},
}

# The protocol is pure: bytes in, structs out.
IMPURE = {"asyncio", "gevent", "os", "random", "select", "socket", "subprocess", "threading", "time"}

# Each with the reason why the environment is touched there.
READS_THE_ENVIRONMENT = {
    "cli/options.py",  # the one reader: settings
    "java.py",  # where Java is
    "spark/session.py",  # Spark takes from there where Python is
    "spark/submitted.py",  # where spark-submit says that it is there
    "server/metrics_files.py",  # prometheus_client takes its directory from there only, at import
    "server/runtime_dir.py",  # where a service manager has made a directory for this service
    "server/supervisor.py",  # what a service manager and a former version say, and children must not hear
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield every source file of the package: its path below korvet/, and its syntax tree."""
    for file in sorted(PACKAGE.rglob("*.py")):
        yield file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text(encoding="utf-8"), str(file))


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the full names of all modules that a file imports, at its top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def part(path: str) -> str:
    """Name the part of Korvet that a file belongs to."""
    return path.split("/", maxsplit=1)[0].removesuffix(".py")


def test_every_part_has_its_place_in_the_order() -> None:
    assert {part(path) for path, _ in sources()} - {"__init__"} <= BELOW.keys()


def test_imports_point_down() -> None:
    wrong = [
        f"korvet/{path} imports {name}"
        for path, tree in sources()
        for name in imported(tree)
        if name.startswith("korvet.") and name != "korvet.__version__"
        if (target := name.split(".")[1]) != part(path) and target not in BELOW.get(part(path), set())
    ]
    assert wrong == []


def test_packages_with_one_place_are_imported_only_there() -> None:
    wrong = [
        f"korvet/{path} imports {name}"
        for path, tree in sources()
        for name in imported(tree)
        if (package := name.split(".")[0]) in CONFINED and part(path) not in CONFINED[package]
    ]
    assert wrong == []


def test_the_protocol_does_no_input_or_output_and_reads_no_clock() -> None:
    wrong = [
        f"korvet/{path} imports {name}"
        for path, tree in sources()
        for name in imported(tree)
        if part(path) == "protocol" and name.split(".")[0] in IMPURE
    ]
    assert wrong == []


def test_wire_messages_stop_at_the_handlers() -> None:
    wrong = [
        f"korvet/{path} imports {name}"
        for path, tree in sources()
        for name in imported(tree)
        if part(path) in {"domain", "storage"} and name.startswith("korvet.protocol.messages")
    ]
    assert wrong == []


def test_only_the_named_files_touch_the_environment() -> None:
    touching = {
        path
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "putenv"}
    }
    assert touching == READS_THE_ENVIRONMENT


def test_nothing_is_monkey_patched() -> None:
    wrong = [
        path for path, tree in sources() if any(name.startswith("gevent.monkey") for name in imported(tree))
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ["korvet.server.supervisor", "korvet.cli.serve"])
def test_the_process_that_forks_never_loads_gevent_arrow_delta_or_spark(module: str) -> None:
    program = f"import sys, threading, {module}; print(threading.active_count(), *sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    threads, *loaded = result.stdout.split()
    assert module in loaded
    assert not {"gevent", "greenlet", "pyarrow", "deltalake", "pyspark"} & {
        name.split(".")[0] for name in loaded
    }
    assert threads == "1"
