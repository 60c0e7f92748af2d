"""Members of one group in processes of their own, and what they have reported.

`Crowd` follows what each owns by its own callbacks, and collects every number that one of them has received. The
brokers' view of the group is in tests/support/group_watch.py.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from tests.support import processes
from tests.support.members import Plan
from tests.support.processes import wait_until

SECONDS_MAX = 60.0
_REPOSITORY = Path(__file__).parents[2]


class Standing:
    """How it is with one member, by what it says; `turns` counts its callbacks, `view` is of its generation."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.is_open = False
        self.is_gone = False
        self.owned: dict[int, float] = {}
        self.turns = 0
        self.view: object = None


class Host:
    """One process; `names` are those of its members that have not ended."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self.names: list[str] = []
        self.process = subprocess.Popen(
            processes.dying_with_tests([sys.executable, "-m", "tests.support.members"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_REPOSITORY,
        )
        self._reader = threading.Thread(target=self._read, name="what members say", daemon=True)
        self._reader.start()

    def say(self, **command: Any) -> None:
        """Give a command."""
        assert self.process.stdin
        self.process.stdin.write(msgspec.json.encode(command) + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill it, and read to the end what its members said."""
        self.process.kill()
        self.process.wait()
        self._reader.join(SECONDS_MAX)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # else it was killed in the middle of it
                self._crowd.hear(msgspec.json.decode(line))


class Crowd:
    """The members of one group; a context manager, at whose end all processes are killed."""

    def __init__(self, bootstrap: str, topic: str, *, session_ms: int, assignor: str = "range") -> None:
        """Name the group like the topic."""
        self.topic = self.group = topic
        self.received: set[int] = set()
        self.problems: list[str] = []
        self.refusals: list[str] = []
        self._bootstrap = bootstrap
        self._session_ms = session_ms
        self._assignor = assignor
        self._hosts: list[Host] = []
        self._lock = threading.Lock()
        self._standing: dict[str, Standing] = {}
        self._spans: dict[int, list[tuple[float, float, str]]] = defaultdict(list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in list(self._hosts):
            self.kill(host)

    def host(self, kind: str, *names: str, static: bool = False) -> Host:
        """Start a process with members of a kind; `static` gives each its name as its instance id."""
        host = Host(self)
        self._hosts.append(host)
        for name in names:
            with self._lock:
                self._standing[name] = Standing(host)
            host.names.append(name)
            plan = Plan(
                kind=kind,
                bootstrap=self._bootstrap,
                group=self.group,
                topic=self.topic,
                name=name,
                assignor=self._assignor,
                instance=name if static else "",
                session_ms=self._session_ms,
            )
            host.say(start=msgspec.to_builtins(plan))
        return host

    def end(self, *names: str) -> None:
        """Close members, and wait until they are gone."""
        for name in names:
            host = self._standing[name].host
            host.names.remove(name)
            host.say(end=name)
        wait_until(
            lambda: self.problems or all(self._standing[name].is_gone for name in names),
            f"{names} are gone",
            SECONDS_MAX,
        )
        self.check_problems()
        for name in names:
            del self._standing[name]

    def kill(self, host: Host) -> None:
        """Kill a process with all its members."""
        host.kill()
        at = time.monotonic()
        self._hosts.remove(host)
        for name in host.names:
            standing = self._standing.pop(name)
            self._end_spans(name, standing, list(standing.owned), at)

    @property
    def count(self) -> int:
        """How many members there are."""
        return len(self._standing)

    def owned(self) -> dict[str, set[int]]:
        """Return what each owns now."""
        with self._lock:
            return {name: set(item.owned) for name, item in self._standing.items()}

    def views(self) -> dict[str, tuple[int, object]]:
        """Return for each how often its partitions have changed, and what it says of its generation."""
        return {name: (item.turns, item.view) for name, item in self._standing.items()}

    def host_pids(self) -> list[int]:
        """Return the processes."""
        return [host.process.pid for host in self._hosts]

    def check_problems(self) -> None:
        """Fail where a member has failed."""
        assert not self.problems, "\n".join(self.problems)

    def check(self, sent: int) -> None:
        """Fail unless all numbers below `sent` came, and no two members owned a partition at the same time."""
        self.check_problems()
        assert self.received == set(range(sent)), sorted(set(range(sent)) ^ self.received)[:10]
        now = time.monotonic()
        for name, standing in self._standing.items():
            self._end_spans(name, standing, list(standing.owned), now)
        for partition, spans in self._spans.items():
            in_turn = sorted(spans)
            for before, after in itertools.pairwise(in_turn):
                assert before[1] <= after[0], f"partition {partition}: {before} and {after}"

    def hear(self, said: dict[str, Any]) -> None:
        """Take what a member reports."""
        name, event, at = said["member"], said["event"], said["at"]
        with self._lock:
            standing = self._standing[name]
            if event == "values":
                self.received |= set(said["values"])
            elif event == "assigned":
                standing.turns += 1
                standing.owned |= dict.fromkeys(said["partitions"], at)
            elif event in ("revoked", "lost"):
                standing.turns += 1
                self._end_spans(name, standing, said["partitions"], at)
            elif event == "leaving":
                self._end_spans(name, standing, list(standing.owned), at)
            elif event == "open":
                standing.is_open = True
            elif event == "gone":
                standing.is_gone = True
            elif event == "view":
                standing.view = said["view"]
            elif event == "refused":
                self.refusals.append(f"{name}: {said['error']}")
            else:
                self.problems.append(f"{name}: {event}: {said['error']}")

    def _end_spans(self, name: str, standing: Standing, partitions: list[int], at: float) -> None:
        for partition in partitions:
            since = standing.owned.pop(partition, None)
            if since is not None:
                self._spans[partition].append((since, at, name))
