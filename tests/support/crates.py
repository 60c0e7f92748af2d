"""Writes core/THIRD-PARTY.md: the crates that the wheel of korvet-core links, and their licences.

`python -m tests.support.crates` writes it again, after a change of core/Cargo.lock. With the file of a bill of
materials (CycloneDX, JSON) it adds the crates to that.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
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


def add_to_bill(file: Path) -> None:
    """Add the crates to the components of a bill, as dependencies of korvet-core."""
    bill = json.loads(file.read_text(encoding="utf-8"))
    crates = [
        {
            "bom-ref": f"pkg:cargo/{crate['name']}@{crate['version']}",
            "type": "library",
            "name": crate["name"],
            "version": crate["version"],
            "purl": f"pkg:cargo/{crate['name']}@{crate['version']}",
            "licenses": [{"expression": crate["license"].replace("/", " OR ")}],
        }
        for crate in linked()
    ]
    [core] = [part["bom-ref"] for part in bill["components"] if part["name"] == "korvet-core"]
    bill["components"] += crates
    references = [crate["bom-ref"] for crate in crates]
    [needs] = [entry for entry in bill["dependencies"] if entry["ref"] == core]
    needs["dependsOn"] = sorted([*needs.get("dependsOn", []), *references])
    bill["dependencies"] += [{"ref": reference} for reference in references]
    file.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        add_to_bill(Path(sys.argv[1]))
    else:
        PAGE.write_text(page(), encoding="utf-8")
