"""The house rules that a machine can hold: sizes, docstrings, names, and what must not be in the repository."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import parsed

ROOT = Path(__file__).parent.parent
LINES_OF_A_FILE_MAX = 600
LINES_OF_A_FUNCTION_MAX = 60

# Directories of the repository that hold text written here; what tools put beside them is not looked at.
WRITTEN = (".ci", "deploy", "docs", "korvet", "loadtest", "lua", "pyspark_korvet", "tests")
TEXTS = {".conf", ".lua", ".md", ".py", ".sh", ".toml", ".yaml", ".yml", ""}

# Files of handlers/ and messages/ that are no API of their own.
SHARED = {"__init__", "audit", "authorization", "common", "registry", "context", "groups", "rights"}

# Where an error of any kind is caught and logged, once: a request's boundary and a process's.
BOUNDARIES = {
    *("korvet/server/supervisor/child.py", "korvet/server/net/dispatch.py", "korvet/log/appends.py"),
    *("korvet/log/fetches.py", "korvet/lake/service.py", "korvet/spark/service.py"),
}

# Spelled in pieces, so that this file does not hold what it looks for.
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}/])/(?:wo" r"rk|ro" r"ot|ho" r"me|Us" r"ers|t" r"mp)/")
REGISTRY_HOST = re.compile(r"files\.pythonhosted|pypi\." r"org|arti" r"factory", re.IGNORECASE)
# Words of a private language: CONTRIBUTING.md says what an engineer of Kafka and Redis writes instead. CHANGELOG.md may
# name what once was.
NOT_OURS = re.compile(
    r"(?<![a-z])(?:to"
    r"ld|te"
    r"lls|an"
    r"ew|who"
    r"ever|for e"
    r"ver|looked af"
    r"ter|given ba"
    r"ck|gives ba"
    r"ck"
    r"|so ma"
    r"ny|lets g"
    r"o|stands st"
    r"ill)(?![a-z])"
    r"|\b(?:Do"
    r"or|Cr"
    r"ew|Se"
    r"at|Str"
    r"ain|La"
    r"ps|Ask"
    r"er|Wi"
    r"sh|Ta"
    r"lly|Sel"
    r"dom)\b"
)
MAY_NAME_THEM = ("CHANGELOG.md:", "CONTRIBUTING.md:")
NOT_RUN = re.compile(r"pytest\.(?:mark\.)?(?:sk" r"ip|xf" r"ail|importor" r"skip)|unittest\.sk" r"ip")

# Suites whose subject is processes, programs of others or a machine; tests elsewhere take time from a clock.
WAIT_FOR_PROCESSES = re.compile(
    r"tests/(?:browser|clients|cli/lake|deploy_tools|differential|dist|failover|faults|fuzz|jepsen|jvm|kcat"
    r"|lake_processes|loadtest_runs|logins|machines|outages|processes|stores|support|tiers|tls_matrix)/"
)
WAITS = re.compile(r"(?<!clock\.)\bsleep\(|\btime\.monotonic\b|\bcommandstats\b")
# They go with what they test; no file joins them. test_virtual_clock names what is looked for.
STILL_WAIT = {
    "tests/redis/test_blocking_driver.py",
    "tests/redis/test_sentinel.py",
    "tests/server/test_dispatch.py",
    "tests/server/test_serving_lease.py",
}

# Of mypy and ruff: the name of the check, and then a reason.
WITHOUT_REASON = re.compile(
    r"# (?:type: ign"
    r"ore(?:\[[\w, -]+\])?(?! *# ?\w)|noq"
    r"a(?:: [A-Z]+\d+(?:, ?[A-Z]+\d+)*)?(?! --? \w))(?![\w:\[,])"
)


@functools.cache
def texts() -> dict[str, str]:
    """Return the content of every text file of the repository, by its path."""
    files = [file for directory in WRITTEN for file in (ROOT / directory).rglob("*")]
    files += [
        *(ROOT / name for name in ("Makefile", "pyproject.toml", "mkdocs.yml")),
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    ]
    return {
        file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
        for file in sorted(files)
        if file.is_file() and file.suffix in TEXTS and not {"__pycache__", ".cache"} & set(file.parts)
    }


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every Python file of the repository, by its path."""
    return parsed({path: text for path, text in texts().items() if path.endswith(".py")})


def public_definitions(
    body: list[ast.stmt],
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield functions, classes and methods that do not begin with an underscore, as deep as classes go."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node
            yield from public_definitions(node.body)


def matches(pattern: re.Pattern[str]) -> list[str]:
    """Return path and line number of each line that a pattern is in."""
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts().items()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_is_longer_than_can_be_read_at_once() -> None:
    lengths = {path: text.count("\n") for path, text in texts().items() if path.endswith((".py", ".lua"))}
    assert {path: lines for path, lines in lengths.items() if lines > LINES_OF_A_FILE_MAX} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in lengths.items() if lines > LINES_OF_A_FUNCTION_MAX} == {}


def test_each_module_says_what_it_is() -> None:
    silent = [path for path, tree in modules().items() if tree.body and ast.get_docstring(tree) is None]
    empty = [path for path, tree in modules().items() if path.startswith("korvet/") and not tree.body]
    assert silent + empty == []


def test_what_is_public_in_korvet_is_documented() -> None:
    # Messages are documented if there is more to say than their names, which are Kafka's; the same goes for functions
    # below the admin client, which programs of users import.
    silent = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in modules().items()
        if path.startswith("korvet/") and not path.startswith("korvet/protocol/messages/")
        for node in public_definitions(tree.body)
        if path.startswith("korvet/admin/") or isinstance(node, ast.ClassDef)
        if ast.get_docstring(node) is None
    ]
    assert silent == []


def test_messages_and_handlers_have_the_same_names() -> None:
    messages = {file.stem for file in (ROOT / "korvet/protocol/messages").glob("*.py")} - SHARED
    handlers = {file.stem for file in (ROOT / "korvet/handlers").glob("*.py")} - SHARED
    # Requests about delegation tokens, of which there are none, are all refused by one file.
    tokens = {name for name in messages if name.endswith("_delegation_token")}
    assert (messages - tokens) | {"delegation_tokens"} == handlers


def test_only_the_boundaries_swallow_errors_of_any_kind() -> None:
    def any_kind(handler: ast.ExceptHandler) -> bool:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        return any(kind is None or ast.unparse(kind) in {"Exception", "BaseException"} for kind in kinds)

    def goes_on(handler: ast.ExceptHandler) -> bool:
        return not any(isinstance(node, ast.Raise) for node in ast.walk(handler))

    swallowing = [
        f"{path}:{node.lineno}"
        for path, tree in modules().items()
        if path.startswith("korvet/") and path not in BOUNDARIES
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and any_kind(node) and goes_on(node)
    ]
    assert swallowing == []


def test_nothing_is_left_unfinished() -> None:
    assert matches(UNFINISHED) == []


def test_each_check_that_is_off_has_its_reason_beside_it() -> None:
    assert matches(WITHOUT_REASON) == []


def test_every_test_runs_everywhere() -> None:
    assert matches(NOT_RUN) == []


def test_no_test_waits_for_real_time() -> None:
    waiting = {
        line.partition(":")[0]
        for line in matches(WAITS)
        if line.startswith("tests/") and not WAIT_FOR_PROCESSES.match(line)
    }
    assert waiting - {"tests/test_tidy.py"} == STILL_WAIT


def test_no_path_of_one_machine_is_written_down() -> None:
    assert matches(MACHINE_PATH) == []


def test_no_registry_is_written_down() -> None:
    assert matches(REGISTRY_HOST) == []


def test_words_are_those_of_kafka_and_redis() -> None:
    assert [line for line in matches(NOT_OURS) if not line.startswith(MAY_NAME_THEM)] == []


def test_no_class_name_stands_for_two_things() -> None:
    # Kafka's schemas use some names more than once, and messages are named as there.
    where = defaultdict[str, list[str]](list)
    for path, tree in modules().items():
        if path.startswith("korvet/") and not path.startswith("korvet/protocol/messages/"):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    where[node.name.lstrip("_")].append(f"{path}:{node.lineno}")
    assert {name: places for name, places in where.items() if len(places) > 1} == {}
