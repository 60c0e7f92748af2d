"""What Redis says of itself: its memory, where the log begins, and what held it for long.

Knows the embedded server's socket and Korvet's documented keys; nothing of what is measured with them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import redis

from korvet.log.packed import LOG_FIELD, PackedLog
from korvet.redis import scripts
from loadtest.log.wire import TOPIC

_STREAM = f"korvet:{TOPIC}:0"
_STATE = f"{{{_STREAM}}}:state"
_LUA = Path(__file__).parents[2] / "lua"
_SLOWER_THAN_US = 1000
_ENTRIES_MAX = 100_000
_LOOK_SECONDS = 0.02


class RedisSide:
    """A client of the embedded server beside the broker's own."""

    def __init__(self, data_dir: Path) -> None:
        self._redis: redis.Redis = redis.Redis(unix_socket_path=str(data_dir / "server.sock"))
        names = (path.relative_to(_LUA).with_suffix("").as_posix() for path in _LUA.glob("*/*.lua"))
        self._scripts = {scripts.get(name).sha: name for name in names if not name.startswith("shared/")}

    def watch(self) -> None:
        """Begin to note all that holds Redis for a millisecond or more."""
        self._redis.config_set("slowlog-log-slower-than", _SLOWER_THAN_US)
        self._redis.config_set("slowlog-max-len", _ENTRIES_MAX)
        self._redis.slowlog_reset()

    def slowest(self) -> dict[str, float]:
        """Return the longest run (ms) of each command or script since `watch`, the longest of all first."""
        longest: dict[str, float] = {}
        for entry in self._redis.slowlog_get(_ENTRIES_MAX):
            what = self._named(entry["command"])
            longest[what] = max(longest.get(what, 0.0), entry["duration"] / 1000)
        return dict(sorted(longest.items(), key=lambda pair: -pair[1]))

    def memory_mib(self) -> float:
        """Return the memory in use."""
        return float(self._redis.info("memory")["used_memory"]) / 2**20

    def await_rest(self, seconds: float) -> None:
        """Wait until Redis has brought its file into order after many writes, for `seconds` at most."""
        deadline = time.monotonic() + seconds
        while self._busy_with_its_file() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _busy_with_its_file(self) -> bool:
        state = self._redis.info("persistence")
        return any(
            state.get(f"aof_{what}", 0)
            for what in ("rewrite_in_progress", "rewrite_scheduled", "pending_bio_fsync")
        )

    def await_freed(self, seconds: float) -> None:
        """Wait until Redis has freed what was unlinked, for `seconds` at most."""
        deadline = time.monotonic() + seconds
        while self._redis.info("memory")["lazyfree_pending_objects"] and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def beginning(self) -> tuple[int, bytes]:
        """Return the log start and the id of the first entry that is still there."""
        with self._redis.pipeline() as look:
            look.hget(_STATE, LOG_FIELD)
            look.xrange(_STREAM, count=1)
            packed, first = look.execute()
        return PackedLog.unpack(packed).start, first[0][0] if first else b""

    def _named(self, command: Any) -> str:  # noqa: ANN401 - bytes or text, as redis-py decodes it
        words = command.decode("utf-8", "replace") if isinstance(command, bytes) else str(command)
        name, _, rest = words.partition(" ")
        return self._scripts.get(rest.partition(" ")[0], name) if name.upper() == "EVALSHA" else name.upper()
