"""What mypyc would compile to something else than Python does is in no module that is compiled (pyproject.toml).

Each of these was found by a broker that failed or lost bytes. Where there is no compiler the same modules are run as
they are, so they have to mean the same in both.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILD = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
MODULES: list[str] = BUILD["modules"]

SIZES = {"len", "min", "max"}
"""Calls that do no harm where they are done twice."""


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield all functions and methods."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def classes_with_keywords(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield classes with keywords, which are dropped: a frozen Struct could be changed then."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (
            node.keywords or "msgspec.Struct" in map(ast.unparse, node.bases)
        ):
            yield node


def calls_in_slices(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield bounds of slices that call something: of a memoryview or a bytearray they are evaluated twice."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Slice):
            for part in ast.walk(node):
                if isinstance(part, ast.Call) and ast.unparse(part.func) not in SIZES:
                    yield part


def deleted_arguments(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield `del` of an argument, which would be unset from the beginning of its function on."""
    for function in functions(tree):
        arguments = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
        for node in ast.walk(function):
            if isinstance(node, ast.Delete) and arguments & {ast.unparse(each) for each in node.targets}:
                yield node


def unpacked_iterators(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the unpacking of an iterator into one name: an error that it raises becomes that there is no value."""
    generators = {
        function.name
        for function in functions(tree)
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.List | ast.Tuple):
            called = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
            if called.rpartition(".")[2] in {*generators, "map", "zip", "filter", "iter"}:
                yield node


def errors_of_several_types(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the name of an error of this module that a later `except` of the function uses for other errors."""
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for function in functions(tree):
        handlers = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name]
        for at, handler in enumerate(handlers):
            others = [each for each in handlers[at + 1 :] if each.name == handler.name]
            if others and handler.type is not None and ast.unparse(handler.type) in own:
                yield handler


def named_tuples_of_later_classes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield fields of named tuples whose class comes later in the module: the import fails, or crashes.

    It fails for classes of Python too that it has to look up: object and memoryview.
    """
    defined = {node.name: node.lineno for node in tree.body if isinstance(node, ast.ClassDef)}
    defined |= dict.fromkeys(("object", "memoryview"), sys.maxsize)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases):
            for field in node.body:
                if (
                    isinstance(field, ast.AnnAssign)
                    and defined.get(ast.unparse(field.annotation), 0) > node.lineno
                ):
                    yield field


TRAPS = (
    classes_with_keywords,
    calls_in_slices,
    deleted_arguments,
    unpacked_iterators,
    errors_of_several_types,
    named_tuples_of_later_classes,
)


@pytest.mark.slow
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_no_compiled_module_has(trap: Callable[[ast.Module], Iterator[ast.AST]]) -> None:
    found = [
        f"{module}:{getattr(node, 'lineno', 0)}"
        for module in MODULES
        for node in trap(ast.parse((ROOT / module).read_text(encoding="utf-8")))
    ]
    assert not found


WRONG = """
class Early(NamedTuple):
    late: OwnError
class Frozen(msgspec.Struct, frozen=True): ...
class OwnError(Exception): ...
def numbers():
    yield 1
def receive(buffer, reply):
    del reply
    [first] = numbers()
    try:
        return buffer[: take(buffer)]
    except OwnError as error:
        raise
    except OSError as error:
        raise
"""


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_each_trap_is_seen(trap: Callable[[ast.Module], Iterator[ast.AST]]) -> None:
    assert len(list(trap(ast.parse(WRONG)))) == 1


def test_no_compiled_module_has_types_that_are_not_true() -> None:
    """Compiled code checks each type, so one that a comment has mypy overlook is a TypeError."""
    overlooked = re.compile(r"type: ignore\[(?!union-attr\])")
    assert not [
        module for module in MODULES if overlooked.search((ROOT / module).read_text(encoding="utf-8"))
    ]


def test_compiled_modules_exist_once_and_in_order() -> None:
    assert sorted(set(MODULES)) == MODULES
    assert all((ROOT / module).is_file() for module in MODULES)
