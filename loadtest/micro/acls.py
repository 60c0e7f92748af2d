"""What ACLs cost: CPU per authorized request, per decision that is not cached, and how soon a change counts elsewhere.

Run as `python loadtest/micro/acls.py` from the repository. It needs redis-server or valkey-server on PATH.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.config.settings import Settings
from korvet.handlers import authorization
from korvet.handlers.registry import HANDLERS, Caller
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.pubsub import Subscriptions
from korvet.security.acls import Acl, AclIndex, ResourcePattern, Rule
from korvet.security.authorizer import ALL_RIGHTS, AclStore, Authorizer
from korvet.security.session import Principal, Session
from korvet.server import registry_watcher
from tests.support import redis_servers

CALLS, ROUNDS, CHANGES = 50_000, 9, 50
KEYS = Keys("korvet")
ALICE = Session("10.0.0.1:5000", principal=Principal("User", "alice"))
WRITE, TOPIC = AclOperation.WRITE, AclResourceType.TOPIC


def an_acl(topic: str, pattern: PatternType = PatternType.LITERAL) -> Acl:
    """Allow alice to write."""
    return Acl(
        ResourcePattern(TOPIC, pattern, topic), Rule("User:alice", "*", WRITE, AclPermissionType.ALLOW)
    )


def a_client(url: str) -> Redis:
    """Return a connection as a worker has it."""
    return Redis(url, timeout_ms=60_000, connect_timeout_ms=10_000)


def us_per_call(authorizer: Authorizer | None) -> float:
    """Return the CPU of one ListOffsets request from dispatch to a handler that does nothing."""
    reply = ListOffsetsResponse(topics=[])
    handler = msgspec.structs.replace(HANDLERS[2], handle=lambda *_: reply)
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = ListOffsetsTopic(name="orders", partitions=[partition])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic])
    services: Any = SimpleNamespace(topics=None)
    began = time.process_time()
    for _ in range(CALLS):
        rights = ALL_RIGHTS if authorizer is None else authorizer.rights(ALICE, "ListOffsets")
        authorization.call(handler, request, Caller("c", ALICE, 9, rights=rights), services)
    return (time.process_time() - began) / CALLS * 1e6


def us_per_decision(count: int) -> float:
    """Return the CPU of a decision among `count` ACLs, half of them prefixed."""
    patterns = (PatternType.LITERAL, PatternType.PREFIXED)
    index = AclIndex(an_acl(f"topic-{each}", patterns[each % 2]) for each in range(count))
    began = time.process_time()
    for each in range(CALLS):
        index.decide("User:alice", "10.0.0.1", WRITE, TOPIC, f"topic-{each % count}-more")
    return (time.process_time() - began) / CALLS * 1e6


def ms_of_changes(url: str, others: int) -> list[float]:
    """Return how long each of some changes takes, among others, from its begin until another worker acts on it."""
    row = '[{"host":"*","operation":"WRITE","permission":"ALLOW","principal":"User:bob"}]'
    with closing(a_client(url)) as redis:
        for each in range(others):
            redis.call("HSET", KEYS.acls, f"TOPIC:LITERAL:other-{each}", row)
    here, there = (Authorizer(AclStore(a_client(url), KEYS), Settings()) for _ in "12")
    subscriptions = Subscriptions(Redis(url, timeout_ms=10_000, connect_timeout_ms=10_000), linger_ms=1000)
    here.refresh()
    there.refresh()
    watching = gevent.spawn(registry_watcher.watch, subscriptions, KEYS.topics_channel, [there.refresh])
    gevent.sleep(0.5)
    taken = []
    for each in range(CHANGES):
        topic = f"changed-{others}-{each}"
        began = time.monotonic()
        assert here.add([an_acl(topic)]) == [None]
        while not there.rights(ALICE, "Produce").allows(WRITE, TOPIC, topic, log=False):
            gevent.sleep(0.0002)
        taken.append((time.monotonic() - began) * 1000)
    watching.kill()
    subscriptions.close()
    return taken


def main() -> None:
    """Measure and print."""
    with redis_servers.server() as url:
        authorizer = Authorizer(AclStore(a_client(url), KEYS), Settings())
        authorizer.add([an_acl("orders")])
        without, with_acls = (
            statistics.median(us_per_call(each) for _ in range(ROUNDS)) for each in (None, authorizer)
        )
        print(f"a ListOffsets request: {without:.2f} us without an authorizer, {with_acls:.2f} us with one")
        for count in (100, 10_000):
            middle = statistics.median(map(us_per_decision, [count] * ROUNDS))
            print(f"a decision that is not cached, of {count} ACLs: {middle:.2f} us")
        for count in (0, 90_000):
            changes = sorted(ms_of_changes(url, count))
            middle, last = statistics.median(changes), changes[-1]
            print(f"a change elsewhere, among {count} other ACLs: {middle:.1f} ms, {last:.1f} ms at the most")


if __name__ == "__main__":
    main()
