"""The tutorials of the lake, and the commands of the pages after them: a broker at the usual ports, and real Sparks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from korvet.lake.table import Lake
from korvet.spark.pipelines.packages import configs
from korvet.spark.pipelines.spec import load
from korvet.spark.session import session
from tests.support.tutorial import File, Step, as_repository, run_alone, same, section_of, steps, steps_of

SECTIONS = (
    "docs/lake/tutorial.md#Ten minutes with the lake",
    "docs/lake/archiving.md#By jobs",
    "docs/lake/upkeep.md#Upkeep of tables",
    "docs/lake/replay.md#Replays",
)
PIPELINES = ("docs/lake/pipelines.md#A pipeline in ten minutes",)
SECONDS_MAX = 900.0
_BY_A_BROKER = {".venv", "korvet-data", "lake", "server.out", "server.err"}


def done(directory: Path, sections: Sequence[str], seconds_max: float) -> set[str]:
    """Follow sections, and return the files that they make in the directory."""
    missing = [name for name in ("unshare", "kcat", "bash", "make") if shutil.which(name) is None]
    assert not missing, f"the tutorial, or a network of its own for it, needs {missing}"
    as_repository(directory)
    printed = run_alone(directory, sections, seconds_max)
    # What a user of a terminal sees of the commands: all of them were run.
    wanted = [step.command for section in sections for step in steps_of(section) if isinstance(step, Step)]
    assert len(wanted) > 10
    assert [command for command in wanted if f"$ {command}\n" not in printed] == []
    return {file.name for file in directory.iterdir() if not file.is_symlink()}


@pytest.mark.timeout(SECONDS_MAX + 30)
def test_the_tutorial_of_the_lake_goes_as_the_page_says(tmp_path: Path) -> None:
    assert done(tmp_path, SECTIONS, SECONDS_MAX) == _BY_A_BROKER | {"report.py"}


@pytest.mark.timeout(3 * SECONDS_MAX)
def test_the_tutorial_of_pipelines_goes_as_the_page_says(tmp_path: Path) -> None:
    files = [step for item in PIPELINES for step in steps_of(item) if isinstance(step, File)]
    for file in files:
        (tmp_path / file.name).write_text(file.text)
    specs = [load(tmp_path / file.name) for file in files if file.name.endswith(".toml")]
    # The tutorial's network leads nowhere: what it takes from Maven Central has to be in the cache of Ivy.
    wanted = {
        name for spec in specs for name in configs(spec, None, Lake())["spark.jars.packages"].split(",")
    }
    with session("packages", master="local[1]", configs={"spark.jars.packages": ",".join(sorted(wanted))}):
        pass
    made = done(tmp_path, PIPELINES, SECONDS_MAX)
    assert made == _BY_A_BROKER | {"pipeline-logs", *(file.name for file in files)}


def test_commands_and_what_they_print_are_taken_as_they_stand() -> None:
    section = section_of(
        """
## Before
    no
### This one

Do `that`:

    one | two
    three "four"

and as a file `five.py`:

```python
if True:
    six()
```

    $ seven
     Title   Files
     ─────────────
     a           1

    b
    $ eight
    9

## Behind

    no
""",
        "This one",
    )
    assert list(steps(section)) == [
        Step("one | two", None),
        Step('three "four"', None),
        File("five.py", "if True:\n    six()\n"),
        Step("seven", " Title   Files\n ─────────────\n a           1\n\nb\n"),
        Step("eight", "9"),
    ]


def test_what_is_printed_is_compared_but_for_space_and_what_hangs_on_the_moment() -> None:
    shown = " Title   Files \n ────────────── \n a           1 "
    assert same(shown, f"\n{shown}\n\n")
    assert same(shown, shown.replace("1", "23"))
    assert not same(shown, shown.replace("a", "b"))
    assert not same(shown, f"{shown}\nWarning: c")
    assert not same(shown, "")
    assert not same("Files", "Size")
