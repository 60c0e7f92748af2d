"""The model of the log's scripts in core/simulate does what they do: the same calls, replies and keys, by chance.

The scripts are those of lua/, on a server of their own; the list `clock` is in the place of Redis' clock, which no test
sets.
"""

from __future__ import annotations

import subprocess

import pytest
import redis

from korvet.redis import scripts
from tests.support.crates import CORE
from tests.support.redis_servers import embedded_server

pytestmark = pytest.mark.slow

HISTORIES = 80
"""Of some 50 calls each."""

SCRIPTS = (
    *("log/append_batch", "log/append_record", "log/expel", "log/renumber", "log/trim"),
    *("producer/expire", "broker/epoch", "partition/create", "topic/clear"),
)


def loaded(url: str) -> str:
    """Load the scripts, and return their names and SHA-1s as the program takes them."""
    pairs = []
    with redis.Redis.from_url(url) as client:
        for name in SCRIPTS:
            script = scripts.get(name)
            texts = {name: script, f"{name} when full": script.when_full}
            for named, text in texts.items():
                if text is not None:
                    source = text.source.replace("redis.call('TIME')", "redis.call('LRANGE', 'clock', 0, 1)")
                    pairs.append(f"{named}={client.script_load(source)}")
    return ",".join(pairs)


def test_the_model_replies_as_the_scripts_do_and_leaves_the_same_keys() -> None:
    run = ("cargo", "run", "--quiet", "--locked", "--package", "korvet-simulate", "--")
    with embedded_server() as url:
        options = ("--server", url.removeprefix("unix://"), "--scripts", loaded(url))
        limits = ("--histories", str(HISTORIES), "--seconds", "600")
        ran = subprocess.run((*run, *options, *limits), cwd=CORE, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{HISTORIES} histories, 0 failed" in ran.stdout
