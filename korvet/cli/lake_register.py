"""`korvet lake register`: names of archived topics in a Hive metastore, for engines that find tables there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.lake_options import LakeTarget, rounds, rounds_options, with_lake
from korvet.cli.options import option, parse_settings
from korvet.cli.output import print_error
from korvet.cli.run import FAILED
from korvet.cli.tables import print_result, texts

if TYPE_CHECKING:
    from korvet.lake.registration import CatalogPlan


_NAME = texts("name", "topic", "id", "change")


@click.command()
@with_lake
@option(
    "--metastore URI",
    "Hive metastore: thrift://HOST:9083, or jdbc:... if there is only its database.",
    required=True,
)
@option("--database NAME", "Database of the names.", default="lake")
@option("--location URI", "The lake as other engines call it, as s3a://...")
@option("--hive-conf NAME=VALUE", "More settings of Hive's client.", name="settings", multiple=True)
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
) -> int:
    """Give archived topics names in a Hive metastore, for engines that find tables there.

    A topic's name leads to its table. Tables of topics that were deleted or re-created are under a name with the
    beginning of the topic's id, until they have expired. It changes what is not so, and no name that is not Korvet's;
    no data is deleted. Exit code 1 if somebody else has a name.
    """
    configs = parse_settings("--hive-conf", settings)

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
            _print(planned)
        for entry in planned.taken:
            print_error(f"{database}.{entry.name} is not a table of this lake, and stays as it is")
        return FAILED if planned.taken else 0

    return rounds(work, interval, once=once, dry_run=dry_run)


def _print(planned: CatalogPlan) -> None:
    rows = [
        {
            "name": entry.name,
            "topic": entry.of and entry.of.topic,
            "id": entry.of and entry.of.topic_id,
            "change": change,
        }
        for change, entries in planned._asdict().items()
        for entry in entries
    ]
    print_result(rows, _NAME, empty="no changes")
