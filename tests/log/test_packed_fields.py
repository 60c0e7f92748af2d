"""The packed fields of docs/redis-schema.md: Python, Lua and the page agree on each byte."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from korvet.log import packed
from korvet.log.packed import KeptBatch, PackedLog, ProducerRow
from korvet.redis.scripts import folder
from tests.support import append_scripts

SCHEMA = Path(__file__).parents[2] / "docs/redis-schema.md"
OF_PYTHON = {"I8": "Q", "i8": "q", "I6": "HI", "I4": "I", "i4": "i", "i2": "h", "B": "B"}
"""Types of Lua's struct, and how Python packs them."""


class Layout(NamedTuple):
    """A table of the page: types, and names if there are some, in the order of the bytes."""

    types: list[str]
    names: list[str]


def layouts() -> dict[str, Layout]:
    """Return the tables by name; the offsets of each follow from its sizes."""
    tables = {}
    text = SCHEMA.read_text(encoding="utf-8")
    for name, table in re.findall(r"<!-- layout: ([a-z ]+) -->\n((?:\|.*\n)+)", text):
        rows = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
        at = int(rows[0][0])
        for offset, size, kind, *_ in rows:
            assert (int(offset), int(size)) == (at, struct.calcsize(f">{OF_PYTHON[kind]}")), (name, offset)
            at += int(size)
        tables[name] = Layout([row[2] for row in rows], [row[3] for row in rows])
    return tables


LAYOUTS = layouts()
STRUCTS = {
    "log": vars(packed)["_LOG"],
    "producer": vars(packed)["_PRODUCER"],
    "transaction": vars(packed)["_TRANSACTION"],
    "batch": vars(packed)["_BATCH"],
    "call head": vars(append_scripts)["_CALL_HEAD"],
    "batch head": vars(append_scripts)["_BATCH_HEAD"],
    "answer": vars(append_scripts)["_ANSWER"],
    "verdict": vars(append_scripts)["_VERDICT"],
    "external": vars(append_scripts)["_EXTERNAL"],
}
IN_LUA = {
    "shared/log_fields": ["log"],
    "shared/producer_row": ["producer", "producer transaction", "producer batch", "batch"],
    "shared/append_begin": ["call head"],
    "shared/append_decide": ["batch head"],
    "shared/append_refused": ["external"],
    "shared/append_end": ["answer verdict", "answer"],
}
"""The formats that a part names, in this order; more than one word: layouts that follow each other."""


def lua_format(names: str) -> str:
    words = re.findall("|".join(sorted(LAYOUTS, key=len, reverse=True)), names)
    return ">" + "".join(kind for word in words for kind in LAYOUTS[word].types)


@pytest.mark.parametrize("name", STRUCTS)
def test_python_packs_what_the_page_shows(name: str) -> None:
    assert STRUCTS[name].format == ">" + "".join(OF_PYTHON[kind] for kind in LAYOUTS[name].types)


@pytest.mark.parametrize("part", IN_LUA)
def test_lua_packs_what_the_page_shows(part: str) -> None:
    text = (folder() / f"{part}.lua").read_text(encoding="utf-8")
    assert re.findall(r"'(>[iIB0-9]+)'", text) == [lua_format(names) for names in IN_LUA[part]]


def test_the_names_are_those_of_python() -> None:
    assert LAYOUTS.keys() == STRUCTS.keys()
    assert tuple(LAYOUTS["log"].names) == PackedLog._fields
    names = (*LAYOUTS["producer"].names, *LAYOUTS["transaction"].names, "batches")
    assert names == ProducerRow._fields
    assert tuple(LAYOUTS["batch"].names) == KeptBatch._fields


def test_a_log_is_read_as_it_was_packed() -> None:
    log = PackedLog(2**53, 5, 6, 7, 2**53, 8, 9, 2**53, 10, 2**31 - 1, 1)
    assert PackedLog.unpack(log.pack()) == log
    malformed = (
        {"next_offset": 2**53 + 1},
        {"start": 2**53, "next_offset": 5},
        {"largest": 2**53 + 1},
        {"interval": 11, "largest": 10},
        {"moving": 2},
    )
    for counters in malformed:
        with pytest.raises(ValueError, match="malformed"):
            PackedLog.unpack(log._replace(**counters).pack())
    for wrong in (None, b"", log.pack()[:-1], log.pack() + b"\0"):
        with pytest.raises(ValueError, match="malformed"):
            PackedLog.unpack(wrong)
