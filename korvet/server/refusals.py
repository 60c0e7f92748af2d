"""Why producers are refused at this moment, by a look at each server of Redis: for /readyz, a start, `korvet doctor`.

Workers refuse by readings of their own (korvet/cluster/backpressure.py, korvet/log/replication.py), by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import redis
from redis.exceptions import NoPermissionError

from korvet.cluster.usage import UNUSED, Disk, ServerUsage, disk_share, memory_share
from korvet.config.settings import Settings
from korvet.redis.blocking import Masters, one_line
from korvet.redis.replies import insync_in, replication_info

Fields = Mapping[str, str]


def info_of(client: redis.Redis) -> Fields:
    """Return the fields of INFO, none if the user may not ask for it; raises redis.RedisError."""
    try:
        # As one word the client leaves the answer as it is.
        return replication_info(client.execute_command("INFO default"))  # type: ignore[no-untyped-call]  # untyped there
    except NoPermissionError:
        return {}


def by_server(
    info: Fields, settings: Settings, name: str = "Redis", data_dir: Path | None = None
) -> list[str]:
    """Return why a server's producers are refused, a sentence for each reason, by its fields of INFO.

    `name` is the server's, `data_dir` the directory of the embedded one.
    """
    usage = ServerUsage.of(info)
    disk = UNUSED
    if data_dir is not None:
        files = Disk(data_dir)
        disk = disk_share(files.used_bytes(), files.free_bytes(), settings.embedded_disk_max_bytes)
    refused_from = settings.memory_refuse_percent / 100
    reasons = [share.reason for share in (memory_share(usage, name), disk) if share.used >= refused_from]
    if usage.write_failed:
        reasons.append(f"{name} could not write its append-only file, and takes no writes until it can")
    if info.get("role") == "slave":
        reasons.append(f"{name} is a replica, and takes no writes")
    elif info and (wanted := settings.replicas_wanted):
        in_sync = insync_in(info) - 1
        if in_sync < wanted:
            reasons.append(f"acks=all needs {wanted} replicas, and {name} has {in_sync} in sync")
    return reasons


def of_masters(masters: Masters, settings: Settings, data_dir: Path | None = None) -> list[str]:
    """Return the reasons of all servers; one that does not answer is a reason too. Raises redis.RedisError."""
    reasons: list[str] = []
    for node, info in masters.each(info_of).items():
        name = node or "Redis"
        if isinstance(info, redis.RedisError):
            reasons.append(f"{name} does not answer: {one_line(info)}")
        else:
            reasons += by_server(info, settings, name, data_dir)
    return reasons
