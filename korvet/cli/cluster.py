"""`korvet cluster` shows the brokers of a cluster and what they support; `korvet apis` what this version serves."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.cluster import ApiVersions, FeatureLevels, LogDir
from korvet.admin.errors import AdminError
from korvet.cli.config import loader
from korvet.cli.options import with_admin
from korvet.cli.output import NONE, cell, print_json, print_table, printable, report_failures
from korvet.cli.run import CommandGroup

if TYPE_CHECKING:
    from korvet.handlers.registry import Handler


_LOAD = {
    "commands_per_second": "Commands/s",
    "cpu_seconds": "CPU s",
    "memory": "Memory",
    "memory_max": "Limit",
    "clients": "Clients",
}
"""What `redis_state` names of the load of a Redis, and the titles of its columns."""


class _DescribingGroup(CommandGroup):
    """Describes if no subcommand is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name it."""
        flags = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        if flags and not ctx.resilient_parsing:
            args = ["describe", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DescribingGroup)
def cluster() -> None:
    """Show the brokers of any Kafka cluster. Without a subcommand it describes."""


@cluster.command()
@click.option(
    "--apis", "with_apis", is_flag=True, help="Show the APIs that each broker serves, with their versions."
)
@click.option(
    "--features", "with_features", is_flag=True, help="Show the cluster's features, with their levels."
)
@click.option(
    "--log-dirs",
    "with_log_dirs",
    is_flag=True,
    help="Show the log directories with partitions and bytes; Korvet's are its Redis, or each node of a Redis Cluster.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings of a broker in TOML: show the load of its Redis too, or of each node, which are asked for it.",
)
@click.option("--redis-url", metavar="URL", help="The same, by the URL of Redis.")
@with_admin
def describe(
    admin: AdminClient,
    *,
    with_apis: bool,
    with_features: bool,
    with_log_dirs: bool,
    config_file: Path | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Show the id of the cluster, its brokers and its controller, the broker that takes changes.

    Each broker has the version of its Korvet and the highest format of data it writes; "-" if the broker names none.

    With --config or --redis-url the log directories have the load of their Redis: commands a second, seconds of CPU
    since its start, bytes of memory that it uses and may use (0: no limit), clients. "-" stands for what is not known.
    """
    asks_redis = config_file is not None or redis_url is not None
    loads = _loads(config_file, redis_url) if asks_redis else None
    with_log_dirs = with_log_dirs or loads is not None
    described = admin.cluster.describe()
    builds = admin.cluster.builds(described.brokers)
    found: dict[str, Any] = {"id": described.cluster_id, "controller": described.controller}
    found["brokers"] = [
        {"id": broker.broker_id, "host": broker.host, "port": broker.port, "rack": broker.rack}
        | msgspec.structs.asdict(builds[broker.broker_id])
        for broker in described.brokers
    ]
    if with_features:
        features = admin.cluster.features()
        found["features"] = {
            "supported": _levels(features.supported),
            "finalized": _levels(features.finalized),
        }
    dirs = admin.partitions.log_dirs() if with_log_dirs else {}
    if with_log_dirs:
        found["log_dirs"] = _log_dirs(dirs)
        if loads is not None:
            for row in found["log_dirs"]:
                # The directory of a node is redis://HOST:PORT/0; one Redis has no name.
                load = loads.get("") or loads.get(row["path"].partition("://")[2].partition("/")[0], {})
                row["load"] = {name: load.get(name) for name in _LOAD}
    outcomes = admin.cluster.apis() if with_apis else {}
    if with_apis:
        found["apis"] = [
            {"broker": broker, "apis": _apis(served)}
            for broker, served in outcomes.items()
            if not isinstance(served, AdminError)
        ]
    if as_json:
        print_json(found)
    else:
        _print(found)
    report_failures("broker", {str(key): each for key, each in (*dirs.items(), *outcomes.items())})


def _log_dirs(dirs: Mapping[int, Sequence[LogDir] | AdminError]) -> list[dict[str, Any]]:
    """Return each directory once, with what brokers that share it report of it in all.

    Brokers of Korvet share all of them, and each reports the partitions that it leads. Those of Kafka have their own,
    by names that may be the same.
    """
    found: dict[str, dict[str, Any]] = {}
    for broker, each in dirs.items():
        for one in () if isinstance(each, AdminError) else each:
            key = one.path if "://" in one.path else f"{one.path} of broker {broker}"
            row = found.setdefault(key, {"path": one.path, "brokers": [], "partitions": 0, "bytes": 0})
            row["brokers"].append(broker)
            row["partitions"] += len(one.partitions)
            row["bytes"] += sum(log.size_bytes for log in one.partitions.values())
            # What one of the brokers knows, another may not.
            if row.get("total_bytes") is None:
                row["total_bytes"], row["usable_bytes"] = one.total_bytes, one.usable_bytes
            row["error"] = row.get("error") or (str(one.error) if one.error else None)
    return [found[key] for key in sorted(found)]


def _loads(config_file: Path | None, redis_url: str | None) -> dict[str, dict[str, Any]]:
    """Return what each node of the Redis of a broker says of its load, by the node's name: "" for one Redis."""
    settings = loader(config_file, (), {"redis_url": redis_url})().settings
    from korvet.redis.blocking import Masters  # noqa: PLC0415 - other commands start without a client of Redis
    from korvet.redis.url import socket_of  # noqa: PLC0415 - the same
    from korvet.telemetry.redis_metrics import redis_state  # noqa: PLC0415 - the same

    if not settings.redis_url:
        socket = socket_of(Path(settings.data_dir).expanduser().resolve())
        settings = dataclasses.replace(settings, redis_url=f"unix://{quote(str(socket))}")
    with contextlib.closing(Masters(settings)) as masters:
        return {each["node"]: each for each in redis_state(masters, 0)}


def _levels(features: Mapping[str, FeatureLevels]) -> dict[str, list[int]]:
    return {name: [each.first, each.last] for name, each in features.items()}


def _apis(served: Mapping[int, ApiVersions]) -> list[dict[str, Any]]:
    return [
        {"key": each.key, "name": each.name, "versions": [each.first, each.last]} for each in served.values()
    ]


def _print(found: Mapping[str, Any]) -> None:
    click.echo(f"cluster {printable(found['id'] or NONE)}")
    brokers = [
        (
            str(each["id"]),
            f"{each['host']}:{each['port']}",
            cell(each["rack"]),
            cell(each["version"]),
            cell(each["format"]),
            "yes" if each["id"] == found["controller"] else "",
        )
        for each in found["brokers"]
    ]
    print_table(
        ("Broker", "Address", "Rack", "Version", "Format", "Controller"), brokers, ("Broker", "Format")
    )
    if "features" in found:
        supported, finalized = found["features"].values()
        names = sorted({*supported, *finalized})
        levels = [(name, _span(supported.get(name)), _span(finalized.get(name))) for name in names]
        print_table(("Feature", "Supported", "Finalized"), levels, empty="no features")
    if "log_dirs" in found:
        dirs = [
            (
                printable(each["path"]),
                ", ".join(map(str, each["brokers"])),
                str(each["partitions"]),
                str(each["bytes"]),
                cell(each["total_bytes"]),
                cell(each["usable_bytes"]),
                cell(each["error"]),
                *map(cell, each.get("load", {}).values()),
            )
            for each in found["log_dirs"]
        ]
        loads = _LOAD.values() if any("load" in each for each in found["log_dirs"]) else ()
        headings = ("Log directory", "Brokers", "Partitions", "Bytes", "Volume", "Free", "Error", *loads)
        print_table(headings, dirs, numbers=("Partitions", "Bytes", "Volume", "Free", *loads))
    for broker in found.get("apis", ()):
        click.echo(f"broker {broker['broker']}")
        rows = [(str(each["key"]), each["name"] or NONE, _span(each["versions"])) for each in broker["apis"]]
        print_table(("Key", "API", "Versions"), rows, numbers=("Key",))


def _span(versions: Sequence[int] | None) -> str:
    return NONE if versions is None else f"{versions[0]}-{versions[1]}"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object: name -> key, versions, advertised.")
@click.option("--markdown", is_flag=True, hidden=True, help="The table of docs/reference/apis.md.")
def apis(*, as_json: bool, markdown: bool) -> None:
    """Print the Kafka APIs that this version serves, and their versions."""
    from korvet.handlers.registry import HANDLERS  # noqa: PLC0415 - imports gevent and the broker, which `cluster` never needs

    handlers = [handler for _, handler in sorted(HANDLERS.items())]
    if markdown:
        click.echo(markdown_table(handlers), nl=False)
    elif as_json:
        print_json({_name(each): _versions(each) for each in handlers})
    else:
        print_table(("Key", "API", "Versions", "Flexible from"), [_cells(each) for each in handlers])


def markdown_table(handlers: list[Handler]) -> str:
    """Write the APIs as a Markdown table, one line each."""
    lines = ["| Key | API | Versions | Flexible from |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(_cells(each))} |" for each in handlers]
    return "\n".join(lines) + "\n"


def _cells(handler: Handler) -> tuple[str, str, str, str]:
    api = handler.request.api
    first, last = api.versions
    versions = f"{first}-{last}"
    if api.advertised != api.versions:
        versions += f" (advertised from {api.advertised[0]})"
    flexible = "none" if api.flexible is None else str(api.flexible)
    return str(api.key), _name(handler), versions, flexible


def _versions(handler: Handler) -> dict[str, int | list[int] | None]:
    api = handler.request.api
    versions, advertised = list(api.versions), list(api.advertised)
    return {"key": api.key, "versions": versions, "advertised": advertised, "flexible": api.flexible}


def _name(handler: Handler) -> str:
    return handler.request.__name__.removesuffix("Request")
