"""The script loader, and the contract that every script of the repository opens with."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import run

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.redis import scripts


def write(root: Path, name: str, text: str) -> None:
    path = root / f"{name}.lua"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def head_of(script: scripts.Script) -> list[str]:
    lines = []
    # A line in front may say how Redis is to run it ("Lua API reference", script flags).
    for line in re.sub(r"^#!lua.*\n", "", script.source).splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return lines


def contract_faults(script: scripts.Script) -> list[str]:
    head = head_of(script)
    faults = []
    wanted = ("KEYS", "ARGV", "Returns", "Errors")
    purpose = " ".join(head).split("KEYS")[0].strip()
    if not purpose.endswith("."):
        faults.append("opens with no sentence that says what it is for")
    result = [word for line in head for word in wanted if re.match(rf"{word}\b", line, re.IGNORECASE)]
    if result != list(wanted):
        faults.append(f"its head has the parts {result}, not {list(wanted)} in this order")
        return faults
    code = "\n".join(line for line in script.source.splitlines() if not line.startswith("--"))
    for word, end in (("KEYS", "ARGV"), ("ARGV", "Returns")):
        numbers, goes_on = numbered(head, word, end)
        used = max(map(int, re.findall(rf"{word}\[(\d+)\]", code)), default=0)
        if numbers != list(range(1, len(numbers) + 1)) or (used > len(numbers) and not goes_on):
            faults.append(f"its {word} are numbered {numbers}, one per line, and it uses {used}")
    return faults


def numbered(head: Sequence[str], word: str, end: str) -> tuple[list[int], bool]:
    """Return the numbers in one part of a head, and whether the last is of all that follow ("and on")."""
    first, last = ([line.partition(" ")[0] for line in head].index(part) for part in (word, end))
    lines = [line.removeprefix(word).strip() for line in head[first:last]]
    matches = [match for line in lines if (match := re.match(r"(\d+)( and on:)? ", line))]
    return [int(match[1]) for match in matches], bool(matches and matches[-1][2])


def error_names(script: scripts.Script) -> set[str]:
    return set(re.findall(r"error_reply\(\s*[\"']([A-Z_]+)", script.source))


def test_a_script_is_named_and_digested_as_redis_does(tmp_path: Path, raw_redis: redis.Redis) -> None:
    write(tmp_path, "log/one", "-- one\nreturn 1\n")
    script = scripts.load(tmp_path)["log/one"]
    assert script.source == "-- one\nreturn 1\n"
    assert raw_redis.script_load(script.source) == script.sha
    assert raw_redis.evalsha(script.sha, 0) == 1


def test_an_include_is_replaced_by_the_shared_part(tmp_path: Path, raw_redis: redis.Redis) -> None:
    write(tmp_path, "shared/twice", "local function twice(n)\n  return 2 * n\nend\n")
    write(tmp_path, "a/b", "-- doubles\n-- @include shared/twice\nreturn twice(21)\n")
    loaded = scripts.load(tmp_path)
    assert list(loaded) == ["a/b"]
    assert raw_redis.eval(loaded["a/b"].source, 0) == 42


@pytest.mark.parametrize("included", ["shared/none", "log/append", "shared/../log/append", "/etc/passwd"])
def test_an_include_of_anything_but_a_shared_part_is_refused(tmp_path: Path, included: str) -> None:
    write(tmp_path, "log/append", "return 1\n")
    write(tmp_path, "a/b", f"-- @include {included}\nreturn 1\n")
    with pytest.raises(ValueError, match="no such file under lua/shared"):
        scripts.load(tmp_path)


def test_an_include_inside_an_include_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "shared/one", "local one = 1\n")
    write(tmp_path, "shared/two", "-- @include shared/one\nlocal two = 2\n")
    write(tmp_path, "a/b", "-- @include shared/two\nreturn two\n")
    with pytest.raises(ValueError, match="include of its own"):
        scripts.load(tmp_path)


def test_an_unknown_script_is_named() -> None:
    with pytest.raises(KeyError, match="log/nothing"):
        scripts.get("log/nothing")


def test_every_file_of_the_repository_is_loaded() -> None:
    files = {path.relative_to(scripts.folder()).with_suffix("") for path in scripts.folder().rglob("*.lua")}
    assert {script.name for script in scripts.all_scripts()} == {
        name.as_posix() for name in files if name.parts[0] != "shared"
    }
    for script in scripts.all_scripts():
        named = scripts.get(script.name)
        assert script in (named, named.when_full)


def test_every_script_opens_with_its_contract() -> None:
    faults = {script.name: contract_faults(script) for script in scripts.all_scripts()}
    assert {name: result for name, result in faults.items() if result} == {}


def test_a_script_without_a_contract_would_be_noticed(tmp_path: Path) -> None:
    write(tmp_path, "a/b", "-- Adds one to a counter, for the test.\n-- KEYS: 1 counter\nreturn 1\n")
    assert contract_faults(scripts.load(tmp_path)["a/b"])


def test_every_error_a_script_answers_with_is_kafkas_and_named_in_its_head() -> None:
    for script in scripts.all_scripts():
        head = " ".join(head_of(script))
        for name in error_names(script):
            # Words of Redis' own stand for what Redis would answer.
            is_known = name in ErrorCode.__members__ or name in ("TRYAGAIN", "OOM")
            assert is_known, f"{script.name} answers {name}"
            assert name in head, f"{script.name} does not announce {name}"


def test_every_script_compiles(raw_redis: redis.Redis) -> None:
    for script in scripts.all_scripts():
        assert raw_redis.script_load(script.source) == script.sha


@pytest.mark.slow
def test_the_loader_imports_neither_gevent_nor_redis() -> None:
    code = "import sys, korvet.redis.scripts; print({'gevent', 'redis'} & set(sys.modules))"
    out = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_a_script_that_knows_full_memory_has_a_second_text_for_it() -> None:
    commit, renumber = scripts.get("group/commit"), scripts.get("log/renumber")
    assert renumber.when_full is None
    assert commit.when_full is not None
    assert commit.source.startswith("#!lua\n")
    assert commit.when_full.source.startswith("#!lua flags=allow-oom\n")
    assert [item.source.count("local memory_is_full = true") for item in (commit, commit.when_full)] == [0, 1]
    assert commit.when_full.leased
    append = scripts.get("log/append_record")
    assert append.when_full is not None
    assert append.source.startswith("-- ")
    assert append.when_full.source.startswith("#!lua flags=allow-oom\n-- ")
