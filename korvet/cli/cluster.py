"""`korvet cluster` shows the brokers of a cluster and what they support, `korvet features` sets levels of features.

`korvet apis` shows what this version serves.
"""

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
from korvet.admin.cluster import FeatureLevels, LogDir
from korvet.admin.errors import AdminError
from korvet.cli.config import loader
from korvet.cli.options import AdminGroup, option, parse_settings, validate_option, without_errors
from korvet.cli.output import json_flag, printable, printed_json, report_failures
from korvet.cli.tables import NONE, Column, as_objects, number, numbers, print_table, tabulate, texts
from korvet.protocol.types import FeatureUpgradeType

if TYPE_CHECKING:
    from korvet.handlers.registry import Handler


def _span(versions: Sequence[int]) -> str:
    return f"{versions[0]}-{versions[1]}"


_DOWNGRADES = {"safe": FeatureUpgradeType.SAFE_DOWNGRADE, "unsafe": FeatureUpgradeType.UNSAFE_DOWNGRADE}
_LEVEL = click.IntRange(0, 2**15 - 1)
API_TITLES = ("Key", "API", "Versions", "Flexible from")
_LOAD = (
    number("commands_per_second", title="Commands/s"),
    number("cpu_seconds", title="CPU s"),
    number("memory"),
    number("memory_max", title="Limit"),
    number("clients"),
)
"""What `redis_state` names of the load of a Redis."""
_DIRECTORY = (
    Column("path", title="Log directory"),
    Column("brokers", text=lambda brokers: ", ".join(map(str, brokers))),
    *numbers("partitions", "bytes"),
    number("total_bytes", title="Volume"),
    number("usable_bytes", title="Free"),
    Column("error"),
)
_BROKER = (
    number("id", title="Broker"),
    *texts("address", "rack", "version"),
    number("format"),
    Column("controller"),
)
_FEATURE = (Column("feature"), Column("supported", text=_span), Column("finalized", text=_span))
_API = (
    number("key"),
    Column("name", title="API", text=lambda name: name or None),
    Column("versions", lambda api: [api.first, api.last], text=_span),
)


class _DescribingGroup(AdminGroup):
    """Describes if no subcommand is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        if flags and not ctx.resilient_parsing:
            args = ["describe", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DescribingGroup)
def cluster() -> None:
    """Show the brokers of any Kafka cluster. Without a subcommand it describes."""


@cluster.command()
@option("--apis", "Show the APIs that each broker serves, with their versions.", name="with_apis")
@option("--features", "Show the cluster's features, with their levels.", name="with_features")
@option(
    "--log-dirs",
    "Show the log directories with partitions and bytes. Korvet has one for its Redis, or one for each master.",
    name="with_log_dirs",
)
@option(
    "--config FILE",
    "Settings of a broker in TOML: show the load of its Redis too, or of each node, which are asked for it.",
    click.Path(path_type=Path),
    name="config_file",
)
@option("--redis-url URL", "The same, by the URL of Redis.")
def describe(
    admin: AdminClient,
    *,
    with_apis: bool,
    with_features: bool,
    with_log_dirs: bool,
    config_file: Path | None,
    redis_url: str | None,
) -> None:
    """Show the id of the cluster, its brokers, and its controller (the broker that takes changes).

    Brokers are listed with their version of Korvet and the highest format of data that they write; "-": unknown.

    With --config or --redis-url log directories are listed with the load of their Redis: commands a second, seconds of
    CPU since the start, bytes of memory used and allowed (0: no limit), and clients. "-": unknown.
    """
    asks_redis = config_file is not None or redis_url is not None
    loads = _loads(config_file, redis_url) if asks_redis else None
    with_log_dirs = with_log_dirs or loads is not None
    described = admin.cluster.describe()
    builds = admin.cluster.builds(described.brokers)
    shown: dict[str, Any] = {"id": described.cluster_id, "controller": described.controller}
    shown["brokers"] = [
        {"id": broker.broker_id, "host": broker.host, "port": broker.port, "rack": broker.rack}
        | msgspec.structs.asdict(builds[broker.broker_id])
        for broker in described.brokers
    ]
    if with_features:
        features = admin.cluster.features()
        shown["features"] = {"supported": features.supported, "finalized": features.finalized}
    dirs = admin.partitions.log_dirs() if with_log_dirs else {}
    if with_log_dirs:
        shown["log_dirs"] = _log_dirs(dirs)
        if loads is not None:
            for row in shown["log_dirs"]:
                # The directory of a node is redis://HOST:PORT/0; one Redis has no name.
                load = loads.get("") or loads.get(row["path"].partition("://")[2].partition("/")[0], {})
                row["load"] = {column.name: load.get(column.name) for column in _LOAD}
    outcomes = admin.cluster.apis() if with_apis else {}
    if with_apis:
        shown["apis"] = [
            {"broker": broker, "apis": as_objects(apis.values(), _API)}
            for broker, apis in without_errors(outcomes).items()
        ]
    if not printed_json(shown):
        _print(shown)
    report_failures("broker", {**dirs, **outcomes})


def _log_dirs(dirs: Mapping[int, Sequence[LogDir] | AdminError]) -> list[dict[str, Any]]:
    """Return each directory once, with what brokers that share it report of it in all.

    Brokers of Korvet share all of them, and each reports the partitions that it leads. Those of Kafka have their own,
    by names that may be the same.
    """
    rows: dict[str, dict[str, Any]] = {}
    for broker, reported in without_errors(dirs).items():
        for log_dir in reported:
            key = log_dir.path if "://" in log_dir.path else f"{log_dir.path} of broker {broker}"
            row = rows.setdefault(key, {"path": log_dir.path, "brokers": [], "partitions": 0, "bytes": 0})
            row["brokers"].append(broker)
            row["partitions"] += len(log_dir.partitions)
            row["bytes"] += sum(log.size_bytes for log in log_dir.partitions.values())
            # What one of the brokers knows, another may not.
            if row.get("total_bytes") is None:
                row["total_bytes"], row["usable_bytes"] = log_dir.total_bytes, log_dir.usable_bytes
            row["error"] = row.get("error") or (log_dir.error and str(log_dir.error))
    return [rows[key] for key in sorted(rows)]


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
        return {node["node"]: node for node in redis_state(masters, 0)}


def _features(
    supported: Mapping[str, FeatureLevels], finalized: Mapping[str, FeatureLevels]
) -> list[dict[str, Any]]:
    return [
        {"feature": name, "supported": supported.get(name), "finalized": finalized.get(name)}
        for name in sorted({*supported, *finalized})
    ]


def _print(cluster: Mapping[str, Any]) -> None:
    click.echo(f"cluster {printable(cluster['id'] or NONE)}")
    brokers = [
        broker
        | {
            "address": f"{broker['host']}:{broker['port']}",
            "controller": "yes" if broker["id"] == cluster["controller"] else "",
        }
        for broker in cluster["brokers"]
    ]
    tabulate(brokers, _BROKER)
    if "features" in cluster:
        tabulate(_features(**cluster["features"]), _FEATURE, empty="no features")
    if "log_dirs" in cluster:
        dirs = [directory | directory.get("load", {}) for directory in cluster["log_dirs"]]
        loads = _LOAD if any("load" in directory for directory in dirs) else ()
        tabulate(dirs, (*_DIRECTORY, *loads))
    for broker in cluster.get("apis", ()):
        click.echo(f"broker {broker['broker']}")
        tabulate(broker["apis"], _API)


@click.group(cls=AdminGroup)
def features() -> None:
    """List and set the levels of features; of any Kafka cluster."""


@features.command("list")
def list_features(admin: AdminClient) -> None:
    """List the features with the levels that brokers support, and the level that is in effect."""
    levels = admin.cluster.features()
    rows = [
        row | {"finalized": row["finalized"].last if row["finalized"] else 0}
        for row in _features(levels.supported, levels.finalized)
    ]
    if not printed_json({"epoch": levels.epoch, "features": rows}):
        tabulate(rows, (*_FEATURE[:2], number("finalized")), empty="no features")


@features.command("set")
@click.argument("levels", nargs=-1, required=True, metavar="NAME=LEVEL...")
@option(
    "--downgrade",
    "Allow lower levels. safe: refuse if data would be lost; unsafe: do it anyway.",
    click.Choice(tuple(_DOWNGRADES)),
)
@validate_option
def set_features(
    admin: AdminClient, levels: tuple[str, ...], downgrade: str | None, *, validate_only: bool
) -> None:
    """Set levels of features, all or none; 0 removes a feature."""
    kind = _DOWNGRADES[downgrade] if downgrade else FeatureUpgradeType.UPGRADE
    wanted = {name: _LEVEL(text) for name, text in parse_settings("set", levels).items()}
    admin.cluster.update_features(wanted, kind, validate_only=validate_only)
    if printed_json(wanted):
        return
    for name, level in wanted.items():
        click.echo(f"{'could be set' if validate_only else 'set'} {printable(name)}={level}")


@click.command()
@json_flag("One JSON object: name -> key, versions, advertised.")
def apis() -> None:
    """Print the Kafka APIs that this version serves, and their versions."""
    from korvet.handlers.registry import HANDLERS  # noqa: PLC0415 - imports gevent and the broker, which `cluster` never needs

    handlers = [handler for _, handler in sorted(HANDLERS.items())]
    if not printed_json({_name(handler): _versions(handler) for handler in handlers}):
        print_table(API_TITLES, list(map(api_cells, handlers)))


def _versions(handler: Handler) -> dict[str, object]:
    api = handler.request.api
    return {name: getattr(api, name) for name in ("key", "versions", "advertised", "flexible")}


def api_cells(handler: Handler) -> tuple[str, str, str, str]:
    """Return what a table says of an API, by `API_TITLES`."""
    api = handler.request.api
    first, last = api.versions
    versions = f"{first}-{last}"
    if api.advertised != api.versions:
        versions += f" (advertised from {api.advertised[0]})"
    flexible = "none" if api.flexible is None else str(api.flexible)
    return str(api.key), _name(handler), versions, flexible


def _name(handler: Handler) -> str:
    return handler.request.__name__.removesuffix("Request")
