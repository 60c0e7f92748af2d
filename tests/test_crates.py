"""core/THIRD-PARTY.md is true: it has the crates that the wheel of korvet-core links, under licences that may be."""

from __future__ import annotations

import re

import pytest

from tests.support.crates import PAGE, TARGETS, cargo, linked, page

pytestmark = pytest.mark.slow

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "Unicode-3.0", "Zlib")
}


def test_the_page_in_the_wheel_is_that_of_the_locked_crates() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_page_names_what_cargo_links_for_each_target() -> None:
    edges = "--edges=normal,no-proc-macro"
    trees = [
        cargo("tree", "--package=korvet-core", edges, "--prefix=none", f"--target={target}")
        for target in TARGETS
    ]
    linked_there = {line.split()[0] for tree in trees for line in tree.splitlines()}
    assert len(linked_there) > 7
    assert {crate["name"] for crate in linked()} == linked_there - {
        "korvet-core",
        "korvet-proto",
        "korvet-tls",
    }


def test_each_crate_has_a_licence_that_may_be() -> None:
    refused = {
        crate["name"]: crate["license"]
        for crate in linked()
        if not all(
            set(re.split(r" OR |/", part.strip("()"))) & ALLOWED for part in crate["license"].split(" AND ")
        )
    }
    assert refused == {}
