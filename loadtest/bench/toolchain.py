"""Java, Kafka's jars and the load generator's classes, and other brokers built from their sources. Runs none of it.

The tests with Kafka's tools and Kafka Connect get their jars by the same way.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

from loadtest.harness import NotAvailableError

HERE = Path(__file__).parent
CACHE = HERE / ".cache"
_REPOSITORY = HERE.parent.parent
_JARS = CACHE / "jars"
_CLASSES = CACHE / "classes"
_JAVA_MIN = 17
_BUILD_SECONDS_MAX = 3600.0
TANSU_VERSION = "0.6.0"


def prepare() -> None:
    """Fetch the jars and compile the load generator, unless that was done; NotAvailableError without the tools."""
    need_java()
    copy_jars(HERE / "pom.xml", _JARS)
    sources = sorted((HERE / "java").glob("*.java"))
    make_once(
        _CLASSES,
        sources,
        ["javac", "-Xlint:all,-path", "-cp", f"{_JARS}/*", "-d", str(_CLASSES), *map(str, sources)],
    )


def need_java() -> None:
    """Raise NotAvailableError, which says what to install, unless Java and Maven are here."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise NotAvailableError(
                f"{program} is not on PATH (on Debian or Ubuntu: apt-get install openjdk-17-jdk-headless maven)"
            )
    version = subprocess.run(["java", "-version"], check=True, capture_output=True, text=True).stderr  # noqa: S607 - the one on PATH is meant
    result = re.search(r'version "(\d+)', version)
    if result is None or int(result[1]) < _JAVA_MIN:
        raise NotAvailableError(f"Java {_JAVA_MIN} or later is needed, and this is {version.splitlines()[0]}")


def copy_jars(pom: Path, into: Path) -> None:
    """Copy what a pom.xml depends on into a folder, unless that was done; NotAvailableError where Maven fails."""
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={into}"]
    make_once(into, [pom], ["mvn", "--batch-mode", "--quiet", "--file", str(pom), *goal])


def kfake() -> Path:
    """Return the program that runs franz-go's kfake, built unless that was done; NotAvailableError without Go."""
    target, sources = CACHE / "kfake", HERE / "go"
    command = ["go", "build", "-C", str(sources), "-mod=readonly", "-o", str(target / "kfake"), "."]
    make_once(target, sorted(sources.iterdir()), command)
    return target / "kfake"


def tansu() -> Path:
    """Return Tansu's program with its stores in memory, built unless that was done; NotAvailableError without Rust."""
    target = CACHE / f"tansu-{TANSU_VERSION}"
    what = ["tansu", "--version", TANSU_VERSION, "--locked", "--features", "dynostore"]
    make_once(target, [], ["cargo", "install", "--quiet", "--root", str(target), *what])
    return target / "bin" / "tansu"


def make_once(target: Path, sources: list[Path], command: list[str]) -> None:
    """Run a command that fills the folder `target`, unless it was filled from the same sources."""
    if shutil.which(command[0]) is None:
        raise NotAvailableError(f"{command[0]} is not on PATH")
    stamp = target.with_name(f"{target.name}.made")
    made_from = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    if target.is_dir() and stamp.exists() and stamp.read_text() == made_from:
        return
    print(f"==> {command[0]}: making {target.relative_to(_REPOSITORY)}", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_BUILD_SECONDS_MAX)
    if made.returncode:
        words = [
            line for line in (made.stdout + made.stderr).splitlines() if "ERROR" in line or "error" in line
        ]
        raise NotAvailableError(f"{command[0]} failed: {words[0] if words else made.stderr.strip()}")
    stamp.write_text(made_from)


def kafka_version() -> str:
    """Return the version of Apache Kafka that pom.xml names."""
    result = re.search(r"<kafka.version>([^<]+)<", (HERE / "pom.xml").read_text())
    return result[1] if result else "unknown"


def jar(artifact: str) -> Path:
    """Return the jar of an artifact of Apache Kafka."""
    return _JARS / f"{artifact}-{kafka_version()}.jar"


def command(main: str, *flags: str) -> list[str]:
    """Return the command that runs a class with Kafka's jars and the load generator's classes."""
    logs = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", logs, *flags, "-cp", f"{_CLASSES}:{_JARS}/*", main]
