"""What the broker's image is made of, made without Docker: the Dockerfile's own instructions, run in a directory.

Its paths, such as /opt/korvet, are paths of that directory. Files come from the checkout only by a COPY, and only if
.dockerignore lets them through. The interpreter is the one of the tests, not the one of the base image.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.deploy.files import DEPLOY, ROOT, Instruction, dockerfile

_STAGES = ("dependencies", "core", "wheels", "broker-build")
"""In one directory: the later ones begin with what the first made, and the last takes /dist from the one before it."""

_ABSOLUTE = re.compile(r"(?:^|(?<=[\s=:]))/(?=\w)")
_MAGIC = re.compile(r"\*\*/|\*|[^*]+")
_TRANSLATED = {"**/": "(?:.*/)?", "*": "[^/]*"}


def build(root: Path) -> Path:
    """Run the instructions in an empty directory; returns the environment, which is all that the image has of it."""
    stages = _Stages(root)
    for instruction in dockerfile(DEPLOY / "docker/Dockerfile"):
        if instruction.stage in _STAGES:
            stages.follow(instruction)
    for path in root.iterdir():
        if path.name != "opt":
            shutil.rmtree(path)
    return root / "opt/korvet"


class Ignored:
    """A .dockerignore: the last pattern that matches a path, or a directory above it, decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        self._patterns = [(_pattern(line.removeprefix("!")), line.startswith("!")) for line in lines]

    def __contains__(self, path: PurePosixPath) -> bool:
        names = [str(parent) for parent in (path, *path.parents)]
        deciding = [lets_in for pattern, lets_in in self._patterns if any(map(pattern.fullmatch, names))]
        return bool(deciding) and not deciding[-1]


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile("".join(_TRANSLATED.get(part, re.escape(part)) for part in _MAGIC.findall(text)))


class _Stages:
    """The directory, and what instructions before the next one have set."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ignored = Ignored((ROOT / ".dockerignore").read_text())
        self._directory = root
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # The crates of others are compiled already.
        self._variables = {**os.environ, "PATH": path, "CARGO_TARGET_DIR": str(ROOT / "core/target")}

    def follow(self, instruction: Instruction) -> None:
        """Do what an instruction says; its arguments have no values, as in a build without flags."""
        match instruction.name:
            case "WORKDIR":
                self._directory = self._root / instruction.text.lstrip("/")
                self._directory.mkdir(parents=True, exist_ok=True)
            case "ENV":
                for word in shlex.split(self._inside(instruction.text)):
                    name, _, value = word.partition("=")
                    self._variables[name] = string.Template(value).substitute(self._variables)
            case "COPY":
                self._copy(*instruction.words())
            case "RUN":
                self._run(self._inside(instruction.text))
            case "FROM" | "ARG":
                pass
            case _:
                raise AssertionError(f"{instruction.name} has no meaning here yet")

    def _inside(self, text: str) -> str:
        return _ABSOLUTE.sub(f"{self._root}/", text)

    def _copy(self, *words: str) -> None:
        *sources, target = words
        if sources[0].startswith("--from="):
            assert sources[0].removeprefix("--from=") in _STAGES
            assert sources[1:] == [target], "a stage's directory that is copied elsewhere"
            return
        for source in sources:
            into = self._directory / target / ("" if (ROOT / source).is_dir() else source)
            for file in self._files(source):
                copied = into / (ROOT / file).relative_to(ROOT / source)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, copied)

    def _files(self, source: str) -> Iterator[PurePosixPath]:
        paths = [ROOT / source, *sorted((ROOT / source).rglob("*"))]
        files = [PurePosixPath(path.relative_to(ROOT)) for path in paths if path.is_file()]
        seen = [file for file in files if file not in self._ignored]
        assert seen, f".dockerignore keeps {source} from Docker, or it is not there"
        yield from seen

    def _run(self, command: str) -> None:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self._directory,
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
