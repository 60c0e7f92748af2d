"""Imports point down: who may import whom, and what never gets into the process that forks."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import parsed

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "korvet"

# What each room may import of Korvet, besides itself, from the ground up.
GROUND = {"errors", "backoff", "clock", "turns", "pending", "config", "logs", "protocol"}
BELOW = {
    "errors": set[str](),
    "backoff": set[str](),
    "clock": set[str](),
    "turns": set[str](),
    "pending": set[str](),
    "config": {"errors", "protocol"},
    "logs": {"errors", "config"},
    "java": set[str](),
    "extras": set[str](),
    "protocol": {"errors"},
    "redis": GROUND,
    "telemetry": GROUND | {"redis"},
    "cluster": GROUND | {"redis", "telemetry"},
    "topics": GROUND | {"redis", "telemetry", "cluster"},
    "log": GROUND | {"redis", "telemetry", "cluster", "topics"},
    "groups": GROUND | {"redis", "telemetry", "cluster", "topics", "log"},
    "share": GROUND | {"redis", "telemetry", "cluster", "topics", "log", "groups"},
    "transactions": GROUND | {"redis", "telemetry", "cluster", "topics", "log", "groups"},
    "security": GROUND | {"redis", "telemetry", "cluster"},
    "handlers": GROUND
    | {"redis", "telemetry", "cluster", "topics", "log", "groups", "share", "transactions", "security"},
    "admin": {"errors", "config", "protocol"},
    "console": GROUND | {"telemetry", "admin"},
    "server": GROUND
    | {"java", "extras", "redis", "telemetry", "cluster", "topics", "log", "groups", "share", "transactions"}
    | {"security", "handlers", "admin", "console"},  # the console asks its broker as any client does
    "doctor": GROUND
    | {"java", "redis", "telemetry", "cluster", "topics", "log", "security", "admin", "console", "server"},
    "lake": GROUND | {"redis", "telemetry", "cluster", "topics", "log", "admin"},
    "spark": GROUND | {"java", "redis", "telemetry", "cluster", "topics", "log", "admin", "lake"},
    "cli": GROUND
    | {"java", "extras", "redis", "telemetry", "cluster", "topics", "log", "groups", "security", "handlers"}
    | {"server", "admin", "console", "doctor", "lake", "spark"},
    "__main__": {"cli"},
}

# Third-party packages and modules with side effects that have one place; all others are free.
CONFINED = {
    "redis": {
        "redis",
        "server",
        "telemetry",
        "doctor",
    },  # redis-py: all but the workers, which speak RESP themselves
    "jwt": {"security"},
    "cryptography": {"security"},  # for private keys that are encrypted; else by PyJWT alone
    "click": {"cli"},
    "prompt_toolkit": {"cli"},
    "prometheus_client": {"telemetry", "server"},
    "pyarrow": {"lake", "spark"},
    "deltalake": {"lake", "spark"},
    "pyspark": {"spark"},
    "py4j": {"spark"},
}

# The protocol is pure: bytes in, structs out.
IMPURE = {"asyncio", "gevent", "os", "random", "select", "socket", "subprocess", "threading", "time"}

# Each with the reason why the environment is touched there.
READS_THE_ENVIRONMENT = {
    "cli/completion.py",  # what a shell wants to have completed
    "cli/config.py",  # the one reader: settings
    "cli/main.py",  # whether a shell wants something completed
    "java.py",  # where Java is
    "spark/pipelines/spec.py",  # variables in the file of a pipeline
    "spark/session.py",  # Spark takes from there where Python is
    "spark/__init__.py",  # where spark-submit says that it is there
    "telemetry/snapshot.py",  # prometheus_client takes its directory from there only, at import
    "server/supervisor/run_state.py",  # where a service manager has made a directory for this service
    "server/supervisor/supervisor.py",  # what a service manager says, and children must not hear
}


@functools.cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    """Return every source file of the package: its path below korvet/, and its syntax tree."""
    files = sorted(PACKAGE.rglob("*.py"))
    texts = {file.relative_to(PACKAGE).as_posix(): file.read_text(encoding="utf-8") for file in files}
    return tuple(parsed(texts).items())


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
        if name.startswith("korvet.") and name not in {"korvet.__version__", "korvet.FORMAT"}
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
        if part(path) in {"redis", "cluster", "topics", "log", "groups", "transactions"}
        and name.startswith("korvet.protocol.messages")
    ]
    assert wrong == []


def test_handlers_import_nothing_of_redis_and_no_store() -> None:
    wrong = [
        f"korvet/{path} imports {name}"
        for path, tree in sources()
        for name in imported(tree)
        if part(path) == "handlers" and re.match(r"korvet\.(redis|\w+\.(\w+_)?store)\b", name)
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


@pytest.mark.slow
@pytest.mark.parametrize("module", ["korvet.server.supervisor.supervisor", "korvet.cli.serve"])
def test_the_process_that_forks_never_loads_what_only_some_children_need(module: str) -> None:
    program = f"import sys, threading, {module}; print(threading.active_count(), *sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    threads, *loaded = result.stdout.split()
    assert module in loaded
    assert not {"gevent", "greenlet", "redis", "pyarrow", "deltalake", "pyspark"} & {
        name.split(".")[0] for name in loaded
    }
    assert threads == "1"


def test_no_import_is_part_of_a_circle() -> None:
    """Modules that import each other, even in a roundabout way, cannot be read one after the other."""
    modules = {name_of(path): path for path, _ in sources()}
    imports = {
        name_of(path): {
            name if name in modules else name.rpartition(".")[0]
            for name in imported_at_the_top(tree)
            if name.startswith("korvet.")
        }
        - {name_of(path)}
        for path, tree in sources()
    }
    # Take away, again and again, what imports nothing that is left: a circle remains.
    while free := {name for name, needed in imports.items() if not needed & imports.keys()}:
        imports = {name: needed for name, needed in imports.items() if name not in free}
    assert sorted(imports) == []


def name_of(path: str) -> str:
    """Return the dotted name of the module at `path` below korvet/."""
    return "korvet." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported_at_the_top(tree: ast.Module) -> Iterator[str]:
    """Yield what a file imports while it is imported itself."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported(ast.Module([node], []))


def test_the_map_of_the_packages_is_true() -> None:
    """`korvet/__init__.py` names every package and module of the first level, and nothing else."""
    text = ast.get_docstring(dict(sources())["__init__.py"]) or ""
    named = {line.split()[0] for line in text.splitlines() if line.startswith("    ")}
    assert named == {part(path) for path, _ in sources()} - {"__init__", "__main__"}
