"""The Sentinels of a broker: whether each answers, all name one master, and they could promote a replica."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import redis

from korvet.config.settings import Settings
from korvet.redis.blocking import connect_to, is_away, one_line
from korvet.redis.url import RedisTarget
from korvet.server.finding import Finding, error, ok, warning


def examine(target: RedisTarget, settings: Settings) -> Iterator[Finding]:
    named = defaultdict[str, list[str]](list)
    replicas, others = 0, 0
    for address in target.addresses:
        try:
            with connect_to(address, settings) as client:
                state = client.sentinel_master(target.master_name)
                named[f"{state['ip']}:{state['port']}"].append(str(address))
                others = max(others, int(state["num-other-sentinels"]))
                results = client.sentinel_slaves(target.master_name)
                # Other flags say that it is down, or disconnected.
                replicas = max(replicas, sum(result["flags"] == "slave" for result in results))
                untyped: Any = client  # redis-py's types leave this out
                untyped.execute_command("SENTINEL CKQUORUM", target.master_name)
        except redis.RedisError as problem:
            said = f"{address}: {one_line(problem)}"
            if is_away(problem):
                yield warning("sentinels", said, "start it, or take it out of redis.url")
            else:
                yield error("sentinels", said, "correct this: no failover happens")
    if len(named) > 1:
        item = "; ".join(f"{', '.join(by)} name {master}" for master, by in named.items())
        advice = "wait until a failover is over; a Sentinel that stays wrong needs SENTINEL RESET"
        yield error("sentinels", f"they disagree about the master: {item}", advice)
    if not named:
        return
    answered = sum(map(len, named.values()))
    yield ok("sentinels", f"{answered} of {len(target.addresses)} answer and name {', '.join(named)}")
    if len(target.addresses) == 1 and others:
        said = f"redis.url names one of {others + 1}: without it no connection finds the master"
        yield warning("sentinels", said, "name all of them in redis.url")
    yield _failover(replicas, settings.replicas_wanted)


def _failover(replicas: int, awaited: int) -> Finding:
    if not replicas:
        said = "Sentinels know no replica that they could promote"
        return error("failover", said, "start replicas of Redis")
    if replicas - 1 < awaited:
        said = f"acks=all waits for {awaited} replicas, and a failover leaves {replicas - 1}: such writes then fail"
        return warning("failover", said, "start another replica of Redis")
    return ok("failover", f"{replicas} replicas could be promoted")
