"""core/THIRD-PARTY.md is true: it has the crates that the wheel of korvet-core links, under licences that may be."""

from __future__ import annotations

import re

import pytest

from tests.support.crates import PAGE, cargo, linked, page

pytestmark = pytest.mark.slow

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "Unicode-3.0", "Zlib")
}


def test_the_page_in_the_wheel_is_that_of_the_locked_crates() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_page_names_what_cargo_links_here() -> None:
    tree = cargo("tree", "--package=korvet-core", "--edges=normal,no-proc-macro", "--prefix=none")
    linked_here = {line.split()[0] for line in tree.splitlines()} - {"korvet-core", "korvet-proto"}
    assert len(linked_here) > 5
    assert {crate["name"] for crate in linked()} == linked_here


def test_each_crate_has_a_licence_that_may_be() -> None:
    refused = {
        crate["name"]: crate["license"]
        for crate in linked()
        if not all(
            set(re.split(r" OR |/", part.strip("()"))) & ALLOWED for part in crate["license"].split(" AND ")
        )
    }
    assert refused == {}
