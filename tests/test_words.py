"""Text that needs one reading, as far as a machine counts it: chains of pronouns, empty names, echoing docstrings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import parsed

ROOT = Path(__file__).parent.parent
WRITTEN = ("korvet", "lua", "core", "docs", "deploy", "loadtest", "tests")
# Pages about past decisions, and pages made from help texts, which are counted in the code.
NOT_COUNTED = ("docs/decisions/", "docs/cli.md", "core/target/", "tests/data/")
CHAIN = re.compile(r"\b(?:that|which|what|those)\b", re.IGNORECASE)
CHAIN_MAX = 2
"""Of these words in one sentence of a line."""
SENTENCE = re.compile(r"(?<=[.:;!?])\s+")
CODE = re.compile(r"`[^`]*`")
COMMENT = {".lua": "--", ".rs": "//"}

# Names that say nothing of what they hold.
EMPTY_NAMES = {"each", "found"}

# Words of a docstring that carry no fact of their own.
GRAMMAR = set(
    re.findall(
        r"\w+",
        "a all an and any are as at be by each every for from gives give given has have if in is it its of on one ones"
        " or return returns that the their them there they this those to was what when where whether which who"
        " whose with yield yields",
    )
)
# A docstring with one of these says more than the name: units, errors, literals, sources.
FACT = re.compile(r"`|\d|[Rr]aises?\b|\bNone\b|\bms\b|seconds|bytes|KIP")


def files(*suffixes: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file."""
    for directory in WRITTEN:
        for file in sorted((ROOT / directory).rglob("*")):
            path = file.relative_to(ROOT).as_posix()
            if file.suffix in suffixes and not path.startswith(NOT_COUNTED) and ".cache" not in file.parts:
                yield path, file.read_text(encoding="utf-8")


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of docstrings, comments and pages."""
    lines = text.splitlines()
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                for number in range(node.lineno, (node.end_lineno or 0) + 1):
                    yield number, lines[number - 1]
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    elif path.endswith(".md"):
        in_code = False
        for number, line in enumerate(lines, 1):
            in_code ^= line.startswith("```")
            if not in_code and not line.startswith(("    ", "|")):
                yield number, line
    else:
        mark = COMMENT[Path(path).suffix]
        yield from ((number, line.partition(mark)[2]) for number, line in enumerate(lines, 1) if mark in line)


def test_no_sentence_is_a_chain_of_pronouns() -> None:
    chains = [
        f"{path}:{number} {sentence.strip()}"
        for path, text in files(".py", ".md", ".lua", ".rs")
        for number, line in prose(path, text)
        for sentence in SENTENCE.split(CODE.sub("x", line))
        if len(CHAIN.findall(sentence)) > CHAIN_MAX
    ]
    assert chains == []


def test_a_name_is_the_noun_that_it_holds() -> None:
    empty = [
        f"{path}:{node.lineno}"
        for path, tree in parsed(dict(files(".py"))).items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY_NAMES)
        or (isinstance(node, ast.arg) and node.arg in EMPTY_NAMES)
    ]
    assert empty == []


def test_no_docstring_below_the_public_api_repeats_its_function() -> None:
    echoes = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in parsed({path: text for path, text in files(".py") if is_internal(path)}).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and is_echo(node)
    ]
    assert echoes == []


def is_internal(path: str) -> bool:
    """Whether a file is in korvet/, but not in admin/, which users import, or cli/, whose docstrings are help."""
    return path.startswith("korvet/") and not path.startswith(("korvet/admin/", "korvet/cli/"))


def is_echo(function: ast.FunctionDef) -> bool:
    """Whether each word of the docstring is in the name, the parameters, the annotations or a short body."""
    said = ast.get_docstring(function) or ""
    if not said or FACT.search(said) or len(function.body) == 1:
        return False
    signature = (
        f"{function.name} {ast.unparse(function.args)} {ast.unparse(function.returns or function.args)}"
    )
    known = stems(f"{signature} {' '.join(map(ast.unparse, function.body[1:3]))}")
    return stems(said) - GRAMMAR <= known


def stems(text: str) -> set[str]:
    """Return the words in lower case, without the ends of plurals and verbs; names are split at `_` and capitals."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())
    return {word if word in GRAMMAR else re.sub(r"(?:ies|ing|es|ed|s|e|y)$", "", word) for word in words}
