"""Whether there is the Java that Spark needs; imports nothing of Spark, so that a broker can check before it starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

VERSION_MIN = 17
"""What Spark 4 asks for ("Spark Overview")."""

_TIMEOUT_S = 60
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def problem() -> str | None:
    """Return in one line why Spark would not run here, None if it would."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    needed = f"Spark needs Java {VERSION_MIN} or later, on PATH or where JAVA_HOME says"
    if java is None:
        return f"{needed}; there is none in {where}"
    try:
        done = subprocess.run(  # noqa: S603 - a program that the operator has put there
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{needed}; {java} does not run: {error}"
    result = _VERSION.search(done.stderr + done.stdout)
    if result is None or int(result[1]) < VERSION_MIN:
        version = f"Java {result[1]}" if result else "no Java that prints its version"
        return f"{needed}; {java} is {version}"
    return None
