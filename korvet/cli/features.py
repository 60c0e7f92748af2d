"""`korvet features` lists and sets the levels of a cluster's features, as kafka-features does."""

from __future__ import annotations

import click

from korvet.admin.client import AdminClient
from korvet.cli.options import option, parse_settings, validate_option, with_admin
from korvet.cli.output import printable, printed_json
from korvet.cli.run import CommandGroup
from korvet.cli.tables import Column, number, tabulate
from korvet.protocol.types import FeatureUpgradeType

_DOWNGRADES = {"safe": FeatureUpgradeType.SAFE_DOWNGRADE, "unsafe": FeatureUpgradeType.UNSAFE_DOWNGRADE}
_LEVEL = click.IntRange(0, 2**15 - 1)
_FEATURE = (
    Column("feature"),
    Column("supported", text=lambda levels: "-".join(map(str, levels))),
    number("finalized"),
)


@click.group(cls=CommandGroup)
def features() -> None:
    """List and set the levels of features; of any Kafka cluster."""


@features.command("list")
@with_admin
def list_features(admin: AdminClient) -> None:
    """List the features with the levels that brokers support, and the one that the cluster has settled on."""
    cluster = admin.cluster.features()
    rows = []
    for name in sorted({*cluster.supported, *cluster.finalized}):
        supported, finalized = cluster.supported.get(name), cluster.finalized.get(name)
        levels = [supported.first, supported.last] if supported else None
        rows.append({"feature": name, "supported": levels, "finalized": finalized.last if finalized else 0})
    if not printed_json({"epoch": cluster.epoch, "features": rows}):
        tabulate(rows, _FEATURE, empty="no features")


@features.command("set")
@click.argument("levels", nargs=-1, required=True, metavar="NAME=LEVEL...")
@option(
    "--downgrade",
    "The levels are lower ones: safe is refused if something would be lost, unsafe is not.",
    click.Choice(tuple(_DOWNGRADES)),
)
@validate_option
@with_admin
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
