"""`make release` of a clean checkout, without the tools of images and charts: its parts, and what it says of the others."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest

from korvet import __version__
from tests.dist.conftest import ROOT, run
from tests.support.crates import linked
from tests.test_packaging import pins

pytestmark = pytest.mark.timeout(600)


def release(clone: Path) -> str:
    """Return the output of the command, run in the environment of the tests."""
    stamps = [
        word for stamp in (".made", ".run", ".release") for word in ("--assume-old", f"{sys.prefix}/{stamp}")
    ]
    # korvet-core is compiled already.
    target = str(ROOT / "core/target")
    command = ("make", "release", f"VENV={sys.prefix}", "ENGINE=", "HELM=", *stamps)
    return run(*command, directory=clone, CARGO_TARGET_DIR=target)


def test_a_release_has_its_archives_its_bill_of_materials_and_their_checksums(tmp_path: Path) -> None:
    run("git", "clone", "--quiet", ROOT, tmp_path / "clone", directory=tmp_path)
    printed = release(tmp_path / "clone")
    assert "==> no image: none of docker, podman and buildah answers here\n==> no chart: " in printed
    dist = tmp_path / "clone/dist"
    names = {f"korvet-{__version__}{end}" for end in (".tar.gz", "-py3-none-any.whl", ".cdx.json")}
    [core] = [path.name for path in dist.glob("*.whl") if path.name.startswith("korvet_core-")]
    assert core.startswith(f"korvet_core-{__version__}-cp311-abi3-manylinux_")
    names |= {core, f"korvet_core-{__version__}.tar.gz"}
    assert {path.name for path in dist.iterdir()} == names | {"SHA256SUMS"}
    with tarfile.open(dist / f"korvet_core-{__version__}.tar.gz") as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Cargo.lock", "LICENSE", "THIRD-PARTY.md", "korvet_core.pyi", "proto/src/lib.rs"} <= packed
    assert run("sha256sum", "--check", "SHA256SUMS", directory=dist).count(": OK\n") == len(names)

    bill = json.loads((dist / f"korvet-{__version__}.cdx.json").read_text(encoding="utf-8"))
    assert (
        bill["metadata"]["component"] | {"name": "korvet", "version": __version__}
        == bill["metadata"]["component"]
    )
    crates = [part for part in bill["components"] if part["purl"].startswith("pkg:cargo/")]
    assert {(part["name"], part["version"]) for part in crates} == {
        (crate["name"], crate["version"]) for crate in linked()
    }
    parts = {
        (part["name"].lower().replace("_", "-").replace(".", "-"), part["version"])
        for part in bill["components"]
        if part not in crates
    }
    # The lock has packages of other systems and versions of Python besides.
    assert len(parts) > 20
    assert parts - set(pins("requirements.lock").items()) == {("korvet-core", __version__)}

    sums = (dist / "SHA256SUMS").read_bytes()
    release(tmp_path / "clone")
    assert (dist / "SHA256SUMS").read_bytes() == sums
