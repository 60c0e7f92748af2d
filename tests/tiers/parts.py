"""The parts of each tier. A part is a run of pytest, or another command that passes or fails as one.

Markers decide within a folder (pyproject.toml): `slow`, `smoke`, `spark`, `nightly`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# Folders that `pytest` without arguments leaves out (tests/conftest.py).
SLOW_FOLDERS = (
    *("browser", "cli/lake", "clients", "deploy_tools", "dist", "failover", "faults", "fuzz"),
    *("jvm", "kcat", "lake", "lake_processes", "loadtest_runs", "logins", "machines"),
    *("outages", "processes", "spark", "stores", "tls_matrix"),
)

BIN = Path(sys.executable).parent
WORKERS = min(8, (os.cpu_count() or 1) + 1)
"""Processes of pytest: one more than cores, as tests also wait."""


class Part(NamedTuple):
    """What runs at once; `minutes` ends it."""

    name: str
    command: tuple[str, ...]
    minutes: int = 30
    is_pytest: bool = False
    environment: Mapping[str, str] = {}


def pytest(name: str, *arguments: str, workers: int = WORKERS, minutes: int = 30, **environment: str) -> Part:
    """Return a part that is a run of pytest."""
    several = ("--numprocesses", str(workers), "--dist", "worksteal") if workers > 1 else ()
    command = (sys.executable, "-m", "pytest", "--quiet", *several, *arguments)
    return Part(name, command, minutes, is_pytest=True, environment=environment)


def make(target: str, arguments: str = "", minutes: int = 30) -> Part:
    """Return a part that is a target of the Makefile."""
    given = (f"ARGS={arguments}",) if arguments else ()
    return Part(f"make {target}", ("make", target, *given), minutes)


def module(name: str, *arguments: str) -> Part:
    """Return a part that is a program of the tests."""
    return Part(name, (sys.executable, "-m", *arguments))


# What a test on a Redis Cluster may decide otherwise: where keys lie, and what a script or MULTI may touch.
STORES = ("tests/cluster", "tests/groups", "tests/log", "tests/topics", "tests/transactions")
LAKE = ("tests/lake", "tests/cli/lake", "tests/lake_processes", "tests/spark")
PIPELINE_KILLS = "tests/jvm/spark/test_pipeline_kills.py"
KAFKA_PARTS = ("1/5", "2/5", "3/5", "4/5", "5/5")
SETUPS = ("one", "always", "replicas", "sentinel", "cluster")
CLUSTER = ("tests/admin", "tests/clients", "tests/failover", "tests/handlers", *STORES)

# What Python has on Linux alone is an error there; the other platform has a cache of its own.
_MYPY_FOR_MACOS = (
    *(f"{BIN}/mypy", "--strict", "--no-error-summary", "--platform", "darwin", "--no-warn-unreachable"),
    *("--cache-dir", ".mypy_cache/darwin", "korvet"),
)


def core() -> list[Part]:
    """Return the checks of core/, by cargo; the first that compiles takes a minute in a new clone."""
    where = ("--manifest-path", "core/Cargo.toml", "--locked")
    lints = ("--", "--deny", "warnings")
    return [
        Part("core, cargo fmt", ("cargo", "fmt", "--all", "--check", *where[:2])),
        Part("core, cargo clippy", ("cargo", "clippy", "--quiet", "--all-targets", *where, *lints)),
        Part("core, cargo test", ("cargo", "test", "--quiet", *where)),
    ]


def core_simulations() -> list[Part]:
    """Return ten minutes of histories of the Redis client and an hour of those of appends, after one to compile."""
    run = ("run", "--quiet", "--locked", "--release", "--package", "korvet-simulate")
    program = ("cargo", *run, "--manifest-path", "core/Cargo.toml", "--")
    return [
        Part("simulation of the Redis client", (*program, "--seconds", "600")),
        Part("simulation of appends", (*program, "--appends", "--seconds", "3600"), minutes=65),
    ]


def core_fuzz(target: str) -> Part:
    """Return a minute of a fuzz target of core/, after one to compile it."""
    build = ("--config", "core/fuzz/config.toml", "run", "--quiet", "--locked", "--release")
    limits = ("-max_total_time=60", "-timeout=10", "-rss_limit_mb=1024", "-artifact_prefix=build/")
    where = ("--manifest-path", "core/fuzz/Cargo.toml", "--bin", target)
    return Part(f"fuzz, core, {target}", ("cargo", *build, *where, "--", *limits))


def check() -> list[Part]:
    """Return what takes two minutes: the checks of the text, and the tests that start no process."""
    return [
        Part("lint, ruff check", (f"{BIN}/ruff", "check", "--quiet", ".")),
        Part("lint, ruff format", (f"{BIN}/ruff", "format", "--check", "--quiet", ".")),
        Part("lint, mypy", (f"{BIN}/mypy", "--strict", "--no-error-summary")),
        Part("lint, mypy for macOS", _MYPY_FOR_MACOS),
        *core(),
        pytest("tests in process", "-m", "not slow and not nightly"),
    ]


def test() -> list[Part]:
    """Return what takes eight minutes: processes, networks, a session of each client library, a Redis Cluster."""
    return [*check(), pytest("tests with processes", "-m", "slow and not nightly"), *brokers_and_clients()]


def brokers_and_clients() -> list[Part]:
    """Return the parts of `make test` that pytest without arguments leaves out."""
    stores = [str(file) for folder in STORES for file in sorted(Path(folder).rglob("test_*store*.py"))]
    return [
        pytest("processes of a broker", "-m", "not nightly", "tests/processes"),
        pytest("clients, a session each", "tests/clients/test_smoke.py"),
        pytest(
            "stores on a Redis Cluster", *stores, "-m", "not embedded", workers=1, TEST_KORVET_CLUSTER="1"
        ),
    ]


def ci() -> list[Part]:
    """Return what a change has to pass before it is merged."""
    return [
        *test(),
        make("docs"),
        pytest("kills and outages", "-m", "smoke", "tests/outages", workers=2),
        pytest("lake", "-m", "not nightly and not spark", *LAKE),
        pytest("spark", "-m", "smoke", "tests/spark", workers=1),
        # One after the other: maturin moves the library within core/target.
        pytest("wheel and image", "-m", "smoke", "tests/dist", workers=1),
    ]


def jepsen(setup: str, layout: str) -> Part:
    """Return a run of the checker."""
    flags = ("--minutes", "2", "--setup", setup, "--layout", layout, "--seed", "7")
    return module(f"jepsen, {setup}, {layout}", "tests.jepsen", *flags)


def upgrade(layout: str) -> Part:
    """Return a run of the checker while brokers are replaced."""
    return make("test-upgrade", f"--seed 7 --layout {layout}")._replace(name=f"jepsen, upgrade, {layout}")


def properties() -> list[str]:
    """Return the files with properties."""
    return [str(file) for file in Path("tests").rglob("test_*.py") if "hypothesis" in file.read_text()]


def lake() -> list[Part]:
    """Return what nightly runs of the lake and of Spark."""
    return [
        pytest(
            "lake, kills", "tests/lake_processes/test_random_kills.py", TEST_KORVET_LAKE_KILLS="20", workers=1
        ),
        pytest(
            "lake, processes on Spark", "-m", "spark", "tests/lake_processes", "tests/cli/lake", workers=1
        ),
        pytest("spark", "-m", "spark and not smoke", "tests/spark", workers=2),
        module("spark, jars", "tests.jvm.spark.jars"),
        pytest("spark, clusters", f"--ignore={PIPELINE_KILLS}", "tests/jvm/spark", workers=1),
        pytest(
            "pipelines, kills",
            PIPELINE_KILLS,
            workers=1,
            TEST_KORVET_PIPELINE_KILLS="4",
        ),
        module("spark, jars of Iceberg", "tests.jvm.spark.jars", "iceberg"),
        pytest("spark, Iceberg", "tests/jvm/iceberg", workers=1),
        pytest("spark, object stores", "tests/stores", workers=1),
    ]


def nightly() -> list[Part]:
    """Return everything that CI does not run, in parts of 30 minutes at most."""
    return [
        pytest(
            "tests left to the night",
            "-m",
            "nightly",
            "tests",
            "tests/lake",
            "tests/cli/lake",
            "tests/processes",
        ),
        pytest(
            "properties, 1,000 examples", "--hypothesis-profile", "nightly", "-m", "not slow", *properties()
        ),
        pytest("clients", "tests/clients"),
        pytest("Redis Cluster", "-m", "not embedded", *CLUSTER, TEST_KORVET_CLUSTER="1"),
        pytest("outages", "-m", "not smoke", "tests/outages", workers=2),
        pytest("faults", "tests/faults", workers=1),
        pytest("fuzz, frames", "tests/fuzz", workers=1),
        module("fuzz", "tests.fuzz", "--minutes", "5", "--seed", "7"),
        *core_simulations(),
        *map(core_fuzz, ("append", "batch", "compressed", "fetch", "frames", "log", "produce", "resp")),
        *(jepsen(setup, layout) for setup in SETUPS for layout in ("dense", "batch")),
        *map(upgrade, ("dense", "time", "batch")),
        module("jepsen, duplicates", "tests.jepsen.duplicates"),
        *(
            pytest(f"programs, {name}", f"tests/{name}", workers=1)
            for name in ("tls_matrix", "logins", "kcat")
        ),
        module("jvm, jars", "tests.jvm.jars"),
        *(
            pytest(f"jvm, {name}", f"tests/jvm/{name}", workers=1)
            for name in ("kafka_tools", "connect", "streams")
        ),
        *(
            module(f"Kafka's broker tests, {part}", "tests.jvm.kafka_broker", "--part", part)
            for part in KAFKA_PARTS
        ),
        module("differential", "tests.differential"),
        *lake(),
        module("console, browser", "tests.browser.chromium"),
        pytest("console", "tests/browser", workers=1),
        pytest("wheels and bundles", "-m", "not smoke", "tests/dist", workers=1),
        pytest("machines", "tests/machines", workers=1),
        pytest("files of deploy", "tests/deploy_tools", workers=1),
        pytest("load tests", "tests/loadtest_runs", workers=1),
    ]


def stress() -> list[Part]:
    """Return three rounds of the tests of `make test`, by folder, so that they can be resumed."""
    folders = sorted(
        path for path in Path("tests").iterdir() if path.is_dir() and path.name not in SLOW_FOLDERS
    )
    by_folder = [
        pytest(str(folder), "-m", "not nightly", str(folder), minutes=60)
        for folder in folders
        if any(folder.rglob("test_*.py"))
    ]
    files = pytest("files of tests", "-m", "not nightly", *map(str, sorted(Path("tests").glob("test_*.py"))))
    return [
        part._replace(name=f"{part.name}, round {number}")
        for number in (1, 2, 3)
        for part in [*by_folder, files, *brokers_and_clients()]
    ]


TIERS = {"check": check, "test": test, "ci": ci, "nightly": nightly, "stress": stress}
