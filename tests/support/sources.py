"""The syntax trees of source files, for tests of the tree."""

from __future__ import annotations

import ast
import gc
from collections.abc import Mapping


def parsed(texts: Mapping[str, str]) -> dict[str, ast.Module]:
    """Return the tree of each text, by its path.

    They are millions of objects without a cycle: the garbage collector would take four times as long as the parser.
    """
    gc.disable()
    try:
        trees = {path: ast.parse(text, path) for path, text in texts.items()}
        gc.freeze()
    finally:
        gc.enable()
    return trees
