"""`korvet features` lists and sets the levels of a cluster's features, as kafka-features does."""

from __future__ import annotations

import click

from korvet.admin.client import AdminClient
from korvet.cli.options import parse_settings, validate_option, with_admin
from korvet.cli.output import NONE, print_json, print_table, printable
from korvet.cli.run import CommandGroup
from korvet.protocol.types import FeatureUpgradeType

_DOWNGRADES = {"safe": FeatureUpgradeType.SAFE_DOWNGRADE, "unsafe": FeatureUpgradeType.UNSAFE_DOWNGRADE}
_LEVEL = click.IntRange(0, 2**15 - 1)


@click.group(cls=CommandGroup)
def features() -> None:
    """List and set the levels of features; of any Kafka cluster."""


@features.command("list")
@with_admin
def list_features(admin: AdminClient, *, as_json: bool) -> None:
    """List the features with the levels that brokers support, and the one that the cluster has settled on."""
    found = admin.cluster.features()
    names = sorted({*found.supported, *found.finalized})
    supported = {name: [each.first, each.last] for name, each in found.supported.items()}
    finalized = {name: found.finalized[name].last if name in found.finalized else 0 for name in names}
    if as_json:
        levels = [
            {"feature": name, "supported": supported.get(name), "finalized": finalized[name]}
            for name in names
        ]
        print_json({"epoch": found.epoch, "features": levels})
        return
    rows = [
        (name, "-".join(map(str, supported.get(name, ()))) or NONE, str(finalized[name])) for name in names
    ]
    print_table(("Feature", "Supported", "Finalized"), rows, ("Finalized",), empty="no features")


@features.command("set")
@click.argument("levels", nargs=-1, required=True, metavar="NAME=LEVEL...")
@click.option(
    "--downgrade",
    type=click.Choice(tuple(_DOWNGRADES)),
    help="The levels are lower ones: safe is refused if something would be lost, unsafe is not.",
)
@validate_option
@with_admin
def set_features(
    admin: AdminClient,
    levels: tuple[str, ...],
    downgrade: str | None,
    *,
    validate_only: bool,
    as_json: bool,
) -> None:
    """Set levels of features, all or none; 0 removes a feature."""
    kind = _DOWNGRADES[downgrade] if downgrade else FeatureUpgradeType.UPGRADE
    wanted = {name: _LEVEL(text) for name, text in parse_settings("set", levels).items()}
    admin.cluster.update_features(wanted, kind, validate_only=validate_only)
    if as_json:
        print_json(wanted)
        return
    for name, level in wanted.items():
        click.echo(f"{'could be set' if validate_only else 'set'} {printable(name)}={level}")
