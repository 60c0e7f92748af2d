"""An idempotent producer under way in a process of its own, whose progress a test can watch.

It sends numbered values to the partitions of its topic in turn until it is stopped, by a program of
tests/jepsen/programs.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.processes import dying_with_tests
from tests.support.records import Received

_END_SECONDS_MAX = 60.0


class Load:
    """One producer. `sent` counts records given to the client, `acknowledged` holds partition and offset of each.

    `library` is one of programs/produce.py; the producer rests for `pause_ms` after every ten records.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, library: str = "librdkafka", pause_ms: int = 5
    ) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: list[tuple[int, int]] = []
        self.errors: list[str] = []
        self._partitions = partitions
        work = (library, bootstrap, topic, str(partitions), "", "0", str(pause_ms), "many")
        self._command = [sys.executable, "-m", "tests.jepsen.programs.produce", *work]

    def start(self) -> None:
        """Begin."""
        self._process = subprocess.Popen(
            dying_with_tests(self._command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._reader = threading.Thread(target=self._read, name=self.topic, daemon=True)
        self._reader.start()

    def end(self) -> None:
        """Send no more and wait until everything is answered."""
        assert self._process.stdin
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS_MAX)
        code = self._process.poll()
        self.abandon()
        assert code == 0, f"{self.topic}: {len(self.acknowledged)} of {self.sent} answered"

    def abandon(self) -> None:
        """End it, also with requests unanswered."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()

    def check(self, received: list[Received]) -> None:
        """Fail unless every record is there once, in order, where its acknowledgement said."""
        assert self.errors == []
        for partition in range(self._partitions):
            values = [record.value for record in received if record.partition == partition]
            assert values == [b"%d" % number for number in range(partition, self.sent, self._partitions)]
        places = sorted((record.partition, record.offset) for record in received)
        assert len(set(places)) == self.sent
        assert sorted(self.acknowledged) == places

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "sent":
                self.sent += 1
            elif kind == "acknowledged":
                partition, _, offset = map(int, rest.split())
                self.acknowledged.append((partition, offset))
            else:
                self.errors.append(rest)
