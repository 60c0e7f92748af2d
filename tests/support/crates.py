"""Writes core/THIRD-PARTY.md: the crates that the wheel of korvet-core links, and their licences.

`python -m tests.support.crates` writes it again, after a change of core/Cargo.lock.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

CORE = Path(__file__).parents[2] / "core"
PAGE = CORE / "THIRD-PARTY.md"
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin")
"""What wheels are built for."""

_HEAD = """\
# Crates in korvet-core

The wheel of korvet-core links these crates, and Rust's standard library (MIT or Apache-2.0). Those that may be used
under the Apache License 2.0 are; its text is in LICENSE. Texts of the other licences follow the table.

| Crate | Version | Licence |
| --- | --- | --- |
"""


def cargo(*arguments: str) -> str:
    """Return what cargo prints for the workspace; raises CalledProcessError."""
    return subprocess.run(
        ["cargo", *arguments, "--locked"], cwd=CORE, capture_output=True, text=True, check=True
    ).stdout


def linked() -> list[dict[str, Any]]:
    """Return the packages, as `cargo metadata` describes them, by name; neither Korvet's own nor macros."""
    packages: dict[str, dict[str, Any]] = {}
    for target in TARGETS:
        described = json.loads(cargo("metadata", "--format-version=1", f"--filter-platform={target}"))
        known = {package["id"]: package for package in described["packages"]}
        needs = {
            node["id"]: [
                needed["pkg"]
                for needed in node["deps"]
                if any(kind["kind"] is None for kind in needed["dep_kinds"])
            ]
            for node in described["resolve"]["nodes"]
        }
        [root] = [package["id"] for package in known.values() if package["name"] == "korvet-core"]
        waiting, reached = [root], set[str]()
        while waiting:
            identity = waiting.pop()
            if identity not in reached and "proc-macro" not in known[identity]["targets"][0]["kind"]:
                reached.add(identity)
                waiting += needs[identity]
        packages |= {identity: known[identity] for identity in reached if known[identity]["source"]}
    return sorted(packages.values(), key=lambda package: str(package["name"]))


def page() -> str:
    """Return the text of THIRD-PARTY.md."""
    crates = linked()
    rows = [f"| {crate['name']} | {crate['version']} | {crate['license']} |\n" for crate in crates]
    names: dict[str, list[str]] = {}
    for crate in crates:
        if "Apache-2.0" not in re.split(r" OR |/", crate["license"]):
            folder = Path(crate["manifest_path"]).parent
            files = sorted({*folder.glob("LICENSE*"), *folder.glob("COPYING*"), *folder.glob("*/LICENSE")})
            for text in [file.read_text(encoding="utf-8") for file in files]:
                names.setdefault(text.strip("\n").replace("\t", "    "), []).append(crate["name"])
    texts = [
        f"\n## {', '.join(dict.fromkeys(users))}\n\n```text\n{text}\n```\n" for text, users in names.items()
    ]
    return _HEAD + "".join(rows + texts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
