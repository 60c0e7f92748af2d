"""Compiles the modules of the request path, by mypyc, and what is in C when a wheel is built with COMPILED=1.

pyproject.toml lists both.

Such a wheel is for one version of Python on one kind of machine. The sources of these modules are in it too: Python
quotes them in tracebacks. tests/test_compiled.py says what mypyc compiles to something else than Python does.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

C_CODE = "build/mypyc"
LIBRARIES = f"{C_CODE}/libraries"
"""Laid out as in the wheel."""

OPTIMIZATION = "3"


class CompiledModules(BuildHookInterface[BuilderConfig]):
    """Adds the compiled modules to a wheel."""

    @property
    def _asked_for(self) -> bool:
        return os.environ.get("COMPILED") == "1"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel is an editable one: a checkout is never compiled in place."""
        if not self._asked_for or version == "editable":
            return
        # Only here: other wheels need none of them. mypy reads the types of all that Korvet needs: `make` has them.
        import setuptools  # noqa: PLC0415
        from mypyc.build import mypycify  # noqa: PLC0415

        shutil.rmtree(LIBRARIES, ignore_errors=True)
        extensions = mypycify(
            self.config["modules"],
            target_dir=C_CODE,
            group_name="korvet",
            opt_level=OPTIMIZATION,
            debug_level="0",  # which would name directories of the machine that builds
        )
        # For its own loops over records: what they gain, mypyc does not (docs/performance.md).
        flags = ["-O" + OPTIMIZATION, "-g0", "-Wall", "-Wextra", "-Werror"]
        extensions += [
            setuptools.Extension(name, sources, extra_compile_args=flags)
            for name, sources in self.config["extensions"].items()
        ]
        distribution = setuptools.Distribution({"name": "korvet", "ext_modules": extensions})
        command: Any = distribution.get_command_obj("build_ext")
        command.build_lib, command.build_temp = LIBRARIES, C_CODE
        command.ensure_finalized()
        command.run()
        build_data["pure_python"], build_data["infer_tag"] = False, True
        for library in Path(LIBRARIES).rglob("*.so"):
            build_data["force_include"][str(library)] = str(library.relative_to(LIBRARIES))
