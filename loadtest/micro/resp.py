"""CPU per small command on the way to Redis: Korvet's shared connection beside redis-py.

Run as `python loadtest/micro/resp.py` from the repository. Starts a private embedded server without
persistence and takes this process' CPU time, not wall time, so that a busy machine disturbs little. redis-py
is measured in a process of its own: to run among greenlets it needs gevent's monkey-patching, which Korvet's
workers do not use.
"""

# ruff: noqa: PLC0415 - each side imports its own: redis-py only after gevent has patched its process
from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

GREENLETS = (1, 8, 64, 256)
COMMANDS = 40_000
REDIS_PY_COMMANDS = 8_000
PATCHED = "--redis-py"

Commands = dict[str, Callable[[], object]]


def measure(commands: Commands, count: int) -> None:
    """Print microseconds of CPU per command, one row per command, one column per number of greenlets."""
    import gevent

    def repeat(command: Callable[[], object], times: int) -> None:
        for _ in range(times):
            command()

    for name, command in commands.items():
        row = []
        for greenlets in GREENLETS:
            command()
            begun = time.process_time()
            gevent.joinall([gevent.spawn(repeat, command, count // greenlets) for _ in range(greenlets)])
            row.append((time.process_time() - begun) / count * 1e6)
        print(f"{name:<34}" + "".join(f"{us:>10.1f}" for us in row), flush=True)


def korvet(url: str) -> None:
    """Measure Korvet's connection."""
    from korvet.redis.client import Redis
    from korvet.redis.scripts import Script

    connection = Redis(url, timeout_ms=10_000, connect_timeout_ms=10_000)
    source = "return 1"
    script = Script("one", source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
    large = b"x" * 100_000
    reads = [("HMGET", "h", "a", "b"), ("GET", "k")]
    commands: Commands = {
        "korvet GET": lambda: connection.call("GET", "k"),
        "korvet HMGET, 3 fields": lambda: connection.call("HMGET", "h", "a", "b", "c"),
        "korvet EVALSHA, 2 keys, 10 args": lambda: connection.script(script, ["h", "k"], [b"arg"] * 10),
        "korvet MULTI of two reads": lambda: connection.transaction(reads),
    }
    measure(commands, COMMANDS)
    measure({"korvet SET of 100 kB": lambda: connection.call("SET", "large", large)}, REDIS_PY_COMMANDS)
    measure({"korvet GET of 100 kB": lambda: connection.call("GET", "large")}, REDIS_PY_COMMANDS)
    connection.close()


def redis_py(url: str) -> None:
    """Measure redis-py; expects a patched process."""
    import redis

    client = redis.Redis.from_url(url, max_connections=max(GREENLETS))
    client.hset("h", mapping={"a": 1, "b": 2, "c": 3})
    client.set("k", "v")
    commands: Commands = {
        "redis-py GET": lambda: client.get("k"),
        "redis-py HMGET, 3 fields": lambda: client.hmget("h", ["a", "b", "c"]),
    }
    measure(commands, REDIS_PY_COMMANDS)


def main() -> None:
    """Print the table."""
    if PATCHED in sys.argv:
        from gevent import monkey

        monkey.patch_all()
        redis_py(sys.argv[-1])
        return
    from tests.support import redis_servers

    with redis_servers.server() as url:
        columns = "".join(f"{count:>10}" for count in GREENLETS)
        print(f"{'us of CPU per command, greenlets:':<34}{columns}", flush=True)
        # Its own file and our own server: nothing here comes from outside.
        subprocess.run([sys.executable, __file__, PATCHED, url], check=True, cwd=ROOT)
        korvet(url)


if __name__ == "__main__":
    main()
