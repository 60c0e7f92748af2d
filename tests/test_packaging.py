"""What is shipped: the wheel and the source archive hold everything, and the locks pin what is declared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from korvet import __version__

ROOT = Path(__file__).parent.parent
LOCKS = (
    *("requirements.lock", "requirements-dev.lock", "requirements-lake.lock"),
    *("requirements-bench.lock", "requirements-stores.lock", "requirements-loadtest.lock"),
    *("requirements-console.lock", "requirements-docs.lock", "requirements-release.lock"),
)
_PIN = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)", re.MULTILINE)


def build(target: str, directory: Path, source: Path = ROOT) -> Path:
    """Build the `wheel` or `sdist` with the locked hatchling: no network, no isolated environment."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    [built] = directory.iterdir()
    return built


def pins(lock: str) -> dict[str, str]:
    """Return name -> version of what a lock file pins."""
    return {pin["name"]: pin["version"] for pin in _PIN.finditer((ROOT / lock).read_text(encoding="utf-8"))}


@pytest.mark.slow
def test_the_installed_wheel_runs_the_command_and_finds_every_script(tmp_path: Path) -> None:
    wheel = build("wheel", tmp_path / "dist")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel)],
        check=True,
        capture_output=True,
    )
    # The dependencies come from the environment of the tests; the .pth file of its editable Korvet is not read.
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": sysconfig.get_path("platlib")}
    program = (
        "from importlib.util import find_spec\n"
        "from korvet.console.app import read_files\n"
        "from korvet.redis import scripts\n"
        "assert '/' in read_files()\n"
        "names = sorted({script.name for script in scripts.all_scripts()})\n"
        "print(scripts.__file__, scripts.folder(), find_spec('pyspark_korvet').origin, *names, sep='\\n')"
    )
    result = subprocess.run(
        [str(python), "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    module, folder, source, *names = result.stdout.splitlines()
    assert all(Path(place).is_relative_to(tmp_path / "venv") for place in (module, folder, source))
    written = (file.relative_to(ROOT / "lua") for file in (ROOT / "lua").rglob("*.lua"))
    assert names == sorted(file.with_suffix("").as_posix() for file in written if file.parts[0] != "shared")

    command = [str(tmp_path / "venv" / "bin" / "korvet"), "config"]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert "redis.url" in result.stdout


@pytest.mark.slow
def test_the_source_archive_holds_what_building_and_testing_need(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {
        "Makefile",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        ".ci/run",
        ".github/workflows/release.yml",
        "core/Cargo.lock",
        "core/py/src/lib.rs",
        *LOCKS,
    } <= names
    assert {
        "korvet/__main__.py",
        "lua/log/append_record.lua",
        "tests/test_packaging.py",
        "deploy/korvet.toml",
    } <= names
    assert not [
        name for name in names if name.startswith((".venv/", "korvet-data/", "dist/", "core/target/"))
    ]


@pytest.mark.slow
def test_a_source_archive_builds_the_same_bytes_as_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    source = build("sdist", tmp_path / "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    assert build("sdist", tmp_path / "sdist again", unpacked).read_bytes() == source.read_bytes()
    wheel = build("wheel", tmp_path / "wheel")
    assert build("wheel", tmp_path / "wheel again", unpacked).read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_each_package_with_hashes_and_names_no_place_to_fetch_it_from(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-", text.replace("    --hash=", "    "), re.MULTILINE)
    entries = re.split(r"\n(?=[a-z])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    assert len(entries) == len(pins(lock)) > 0
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_locks_agree_and_satisfy_what_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    needed = [*project["project"]["dependencies"], *groups["build"]]
    run, dev, lake, load = (pins(f"requirements{item}.lock") for item in ("", "-dev", "-lake", "-loadtest"))
    assert run.items() <= dev.items()
    assert run.items() <= lake.items()
    assert run.items() <= load.items() <= dev.items()
    extra = project["project"]["optional-dependencies"]["lake"]
    for_tests = [*groups["loadtest"], *(item for item in groups["dev"] if isinstance(item, str))]
    for lock, declared in (
        (run, needed),
        (dev, [*needed, *for_tests]),
        (lake, [*needed, *extra]),
        (load, [*needed, *groups["loadtest"]]),
    ):
        for requirement in map(Requirement, declared):
            if requirement.name != "korvet-core":
                assert requirement.specifier.contains(lock[requirement.name]), requirement


def test_korvet_needs_the_core_of_its_version_which_no_lock_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cargo = tomllib.loads((ROOT / "core/Cargo.toml").read_text(encoding="utf-8"))
    assert __version__ == cargo["workspace"]["package"]["version"]
    assert f"korvet-core=={__version__}" in project["dependencies"]
    assert not [lock for lock in LOCKS if "korvet-core" in pins(lock)]


def test_each_dependency_has_its_lower_bound_and_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    lines = [line.strip() for line in block.splitlines() if line.startswith('    "')]
    assert len(lines) > 10
    assert [
        line
        for line in lines
        if not re.fullmatch(r'"[a-z0-9-]+(\[[a-z,-]+\])?>=[0-9.]+(,<=?[0-9.]+)?", +# .+', line)
        and not line.startswith('"korvet-core==')
    ] == []


def test_the_changelog_and_the_security_policy_have_this_version() -> None:
    changes, policy = ((ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "SECURITY.md"))
    headings = re.findall(r"^## (.+)$", changes, re.MULTILINE)
    assert re.fullmatch(rf"{__version__} \(20\d\d-\d\d-\d\d\)", headings[headings[0] == "Unreleased"])
    assert f"| {__version__.rpartition('.')[0]}.x | yes" in policy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("git tag v0.9.1 && git tag nightly", ""),
        ("git tag v0.9.0", "HEAD is tagged v0.9.0, and core/Cargo.toml has version 0.9.1"),
        ("touch new", "?? new\nnot released: commit or remove these files"),
        (
            "sed -i 's/(2026.*)/(soon)/' CHANGELOG.md && git commit -qam -",
            "CHANGELOG.md has no section 0.9.1 with a date",
        ),
    ],
)
def test_only_a_clean_commit_that_names_its_version_is_released(
    tmp_path: Path, change: str, says: str
) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core/Cargo.toml").write_text('version = "0.9.1"\n')
    (tmp_path / "CHANGELOG.md").write_text("## 0.9.1 (2026-01-31)\n")
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    who = {f"GIT_{role}_{key}": "korvet" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    program = f"git init -q && git add . && git commit -qm - && {change}"
    subprocess.run(["sh", "-c", program], cwd=tmp_path, env=os.environ | who, check=True)
    done = subprocess.run(["make", "releasable"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not says)
    assert done.stdout.strip().endswith(says)
