"""`korvet lake register`: names of archived topics in a Hive metastore, for engines that find tables there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.lake_options import LakeTarget, rounds, rounds_options, with_place
from korvet.cli.output import print_error, print_json, print_rows
from korvet.cli.run import FAILED

if TYPE_CHECKING:
    from korvet.lake.registration import CatalogPlan


@click.command()
@with_place
@click.option(
    "--metastore",
    required=True,
    metavar="URI",
    help="Hive metastore: thrift://HOST:9083, or jdbc:... if there is only its database.",
)
@click.option("--database", default="lake", show_default=True, metavar="NAME", help="Database of the names.")
@click.option("--location", metavar="URI", help="The lake as other engines call it, as s3a://...")
@click.option(
    "--hive-conf", "settings", multiple=True, metavar="NAME=VALUE", help="More settings of Hive's client."
)
@rounds_options
def register(  # noqa: PLR0913 - click gives each flag by its name
    target: LakeTarget,
    metastore: str,
    database: str,
    location: str | None,
    settings: tuple[str, ...],
    interval: float | None,
    *,
    once: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Give archived topics names in a Hive metastore, for engines that find tables there.

    A topic's name leads to its table. Tables of topics that were deleted or re-created are under a name with the
    beginning of the topic's id, until they have expired. It changes what is not so, and no name that is not Korvet's;
    no data is deleted. Exit code 1 if somebody else has a name.
    """
    configs = {}
    for each in settings:
        name, found, value = each.partition("=")
        if not found:
            raise click.UsageError(f"--hive-conf: {each!r} is not NAME=VALUE")
        configs[name] = value

    def work() -> int:
        from korvet.lake.registration import plan  # noqa: PLC0415 - other commands start without Delta
        from korvet.spark.metastore import opened  # noqa: PLC0415 - other commands start without Java

        lake = target.source.lake
        with opened(metastore, configs, database) as store, target.source.opened() as stores:
            planned = plan(stores, location or lake.path, store.entries())
            if not dry_run:
                store.apply(planned)
        # Of repeated rounds, only those that did something.
        if interval is None or any(planned):
            _print(planned, as_json=as_json)
        for each in planned.taken:
            print_error(f"{database}.{each.name} is not a table of this lake, and stays as it is")
        return FAILED if planned.taken else 0

    return rounds(work, interval, once=once, dry_run=dry_run)


def _print(planned: CatalogPlan, *, as_json: bool) -> None:
    rows = [
        {
            "name": each.name,
            "topic": each.of and each.of.topic,
            "id": each.of and each.of.topic_id,
            "change": change,
        }
        for change, entries in planned._asdict().items()
        for each in entries
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(
            {name: name.capitalize() for name in ("name", "topic", "id", "change")}, rows, empty="no changes"
        )
