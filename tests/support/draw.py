"""Draws functions of korvet/ and sentences of docs/ at random, for a reader who counts those that need two readings.

python -m tests.support.draw 7          40 of each, of seed 7
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNT = 40
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*])")
_WORDS_MIN = 5


def functions() -> Iterator[tuple[str, str]]:
    """Yield where each function of korvet/ begins, and its text."""
    for file in sorted((ROOT / "korvet").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", ast.get_source_segment(text, node) or ""


def sentences() -> Iterator[tuple[str, str]]:
    """Yield the line of each sentence of docs/ and README.md, and its text; no tables, no code."""
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        in_code = False
        for paragraph, line in _paragraphs(file.read_text(encoding="utf-8")):
            if paragraph.startswith("```"):
                in_code = not in_code
            elif not in_code and not paragraph.startswith(("|", "#", "<", "    ")):
                for sentence in _SENTENCE.split(paragraph):
                    if len(sentence.split()) >= _WORDS_MIN:
                        yield f"{file.relative_to(ROOT)}:{line}", sentence


def _paragraphs(text: str) -> Iterator[tuple[str, int]]:
    """Yield runs of lines joined by spaces, with the number of the first; a line of ``` is one of its own."""
    lines: list[str] = []
    first = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begins = line.startswith(("```", "|", "#", "- ", "* ")) or re.match(r"\d+\. ", line)
        if lines and (not line.strip() or begins):
            yield " ".join(lines), first
            lines = []
        if line.startswith("```"):
            yield line, number
        elif line.strip():
            first = first if lines else number
            lines.append(line.rstrip() if line.startswith("    ") and not lines else line.strip())


def drawn(seed: int) -> Iterator[str]:
    """Yield COUNT functions and COUNT sentences; the same for the same seed and tree."""
    for texts in (functions(), sentences()):
        for where, text in random.Random(seed).sample(list(texts), COUNT):
            yield f"{where}\n{text}\n"


if __name__ == "__main__":
    sys.stdout.write("\n".join(drawn(int(sys.argv[1]))))
