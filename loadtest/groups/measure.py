"""The measurements, one function each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from loadtest.groups.cluster import Cluster
from loadtest.groups.crowd import Crowd
from loadtest.groups.report import Report

_SETTLE_SECONDS = 2.0


@contextlib.contextmanager
def _crowd(
    cluster: Cluster, group: str, size: int, addresses: Sequence[tuple[str, int]] = ()
) -> Iterator[Crowd]:
    crowd = Crowd(cluster, group, size, addresses)
    try:
        crowd.rebalance()
        yield crowd
    finally:
        crowd.close()


def rebalances(cluster: Cluster, report: Report, size: int, rounds: int) -> None:
    """Have all members of a group join again, round by round."""
    with _crowd(cluster, f"rebalances-{size}", size) as crowd:
        done = [crowd.rebalance() for _ in range(rounds)]
        for number, held in enumerate(cluster.connections()):
            report.add(f"{size} members: connections of worker {number + 1}", "", held)
    report.add_times(f"{size} members: last join to last answer of a join", [each.joined for each in done])
    report.add_times(f"{size} members: last join to last assignment", [each.synced for each in done])
    woken = [seconds for each in done for seconds in each.woken]
    report.add_times(f"{size} members: transition to the answer of one that waited", woken)


def lost_events(cluster: Cluster, report: Report, size: int, rounds: int) -> None:
    """Cut the workers' subscriptions just before the last join of each round."""
    with _crowd(cluster, f"lost-{size}", size) as crowd:
        done = [crowd.rebalance(cluster.cut_subscriptions) for _ in range(rounds)]
    woken = [seconds for each in done for seconds in each.woken]
    report.add_times(f"{size} members, subscriptions cut: transition to the answer of one that waited", woken)


def unheard_events(cluster: Cluster, report: Report, size: int, rounds: int) -> None:
    """Let the workers of all but the leader hear nothing of the last join of each round, without knowing it."""
    with cluster.hard_of_hearing() as (address, tell):
        addresses = [cluster.addresses[0], *[address] * (size - 1)]
        with _crowd(cluster, f"unheard-{size}", size, addresses) as crowd:
            done = []
            for _ in range(rounds):
                done.append(crowd.rebalance(lambda: tell("deaf")))
                tell("hear")
    woken = [seconds for each in done for seconds in each.woken]
    report.add_times(f"{size} members, nothing announced: transition to the answer of one that waited", woken)


def heartbeats(cluster: Cluster, report: Report, size: int, seconds: float) -> None:
    """Have every member of a large group send a heartbeat each second, and count what that costs above idling."""
    with _crowd(cluster, f"heartbeats-{size}", size) as crowd:
        time.sleep(_SETTLE_SECONDS)
        before = cluster.cpu()
        time.sleep(seconds)
        idle = cluster.cpu().since(before)
        before, began = cluster.cpu(), time.monotonic()
        taken = crowd.heartbeats(seconds)
        used, took = cluster.cpu().since(before), time.monotonic() - began
    share = took / seconds
    report.add(f"{size:,} members: heartbeats", "a second", len(taken) / took)
    report.add_times(f"{size:,} members: heartbeat", taken)
    redis_us = (used.redis - idle.redis * share) * 1e6 / len(taken)
    broker_us = (used.broker - idle.broker * share) * 1e6 / len(taken)
    report.add(f"{size:,} members: Redis CPU of a heartbeat", "us", redis_us)
    report.add(f"{size:,} members: worker CPU of a heartbeat", "us", broker_us)
