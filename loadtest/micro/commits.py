"""How long a commit of offsets holds Redis, by the size of the group and the number of partitions.

Run as `python loadtest/micro/commits.py` from the repository. Starts a private embedded server without persistence; the
time is the server's own (INFO commandstats, EVALSHA). The Redis groups that follow are sent apart, and are not in it.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.groups.offsets import Commit, Committer, OffsetStore
from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.store import TopicStore
from korvet.topics.types import Partition, TopicRow
from loadtest.micro import logs
from loadtest.micro.members import Group, held_us

MEMBERS = (1, 100, 10_000)
PARTITIONS = (1, 10, 100)
COMMITS = 300


def partitions(redis: Redis, keys: Keys) -> list[Partition]:
    """Make a topic with an entry in every partition."""
    count = max(PARTITIONS)
    TopicStore(redis, keys).create(TopicRow(name="orders", id="id", partitions=count))
    store = LogStore(redis, redis, keys)
    made = [store.partition("orders", index, "id", 10, "batch") for index in range(count)]
    redis.pipeline([("XADD", each.stream, "1-0", "batch", "x") for each in made])
    return made


def median(redis: Redis, store: OffsetStore, by: Committer, some: list[Partition]) -> int:
    """Return how long a commit for these partitions takes, in the middle."""
    times = []
    for offset in range(COMMITS):
        commits = [Commit(each, offset, 0, "") for each in some]
        times.append(held_us(redis, partial(store.commit, by, commits)))
    return sorted(times)[COMMITS // 2]


def main() -> None:
    """Print a table of medians."""
    keys = Keys("korvet")
    print(f"{'members':>10}" + "".join(f"{f'{count} partitions':>16}" for count in PARTITIONS) + "   us")
    with logs.server() as redis:
        store = OffsetStore(redis, keys, mirror=False)
        for size in MEMBERS:
            group = Group(redis, size)
            for name in group.names:
                group.join(name, new=True)
            if size > 1:
                group.join(group.names[0])
            group.sync()
            made = partitions(redis, keys)
            by = Committer("g", group.generation, group.names[-1])
            store.commit(by, [Commit(made[0], 0, 0, "")])  # the server has the script from now on
            group.store.schedule.flush()
            cells = [median(redis, store, by, made[:count]) for count in PARTITIONS]
            print(f"{size:10}" + "".join(f"{each:16}" for each in cells), flush=True)


if __name__ == "__main__":
    main()
