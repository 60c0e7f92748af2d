"""The driver of an exactly-once sink in a process of its own, to be killed.

Run as `python -m tests.support.sink_driver commit OPTIONS STAGED 'POINT TIMES'`: it commits what tasks have staged,
writes the point's name to stdout when it is there for the TIMES-th time, and waits for a line of stdin. As
`python -m tests.support.sink_driver stream OPTIONS SOURCE` it is a whole driver of Spark: it writes the files of a
directory, each as a batch, until it has written them all. OPTIONS are those of the sink, in JSON.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from korvet.admin.producer import IdempotentProducer, TransactionalProducer
from korvet.spark.options import sink_options
from korvet.spark.sink import BatchSink
from tests.support.archive_driver import surround
from tests.support.processes import die_with_tests

POINTS = (
    ("before a renewal", 1),
    ("after a renewal", 1),
    ("before a batch", 2),
    ("after a batch", 3),
    ("before a renewal", 2),
    ("after a renewal", 2),
)
"""Points of a commit: its first renewal takes the transactional id over, and the second one ends the transaction."""


def commit(options: str, staged: str, point: str) -> None:
    """Commit what was staged, up to the point."""
    surround(IdempotentProducer, "send", _at("before a batch", point), _at("after a batch", point))
    surround(TransactionalProducer, "_renew", _at("before a renewal", point), _at("after a renewal", point))
    BatchSink(sink_options(json.loads(options))).commit(pickle.loads(Path(staged).read_bytes()))  # noqa: S301 - our own


def _at(name: str, point: str) -> Callable[[], None]:
    numbers = count(1)

    def here() -> None:
        if f"{name} {next(numbers)}" == point:
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
            sys.stdin.readline()

    return here


def stream(options: str, source: str) -> None:
    """Write what is in the directory."""
    from korvet.spark.session import session
    from korvet.spark.source import register

    with session("driver", master="local[2]") as spark:
        register(spark)
        rows = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).parquet(source)
        writer = rows.writeStream.format("korvet").options(**json.loads(options)).trigger(availableNow=True)
        writer.start().awaitTermination()


@contextmanager
def driver(what: str, options: Mapping[str, str], *given: str) -> Iterator[subprocess.Popen[str]]:
    """Start one; kill it after the block with all that it has started."""
    command = [sys.executable, "-m", "tests.support.sink_driver", what]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [*command, json.dumps(options), *given],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if what == "commit" else None,
        text=True,
        cwd=root,
        process_group=0,
        preexec_fn=die_with_tests,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "commit":
        commit(*sys.argv[2:])
    else:
        stream(*sys.argv[2:])
