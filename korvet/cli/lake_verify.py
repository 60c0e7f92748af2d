"""`korvet lake verify`: reads tables whole, and says what of them is not as it is to be."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.bootstrap import print_table, shown
from korvet.cli.lake_options import Lake, failures_of_lake_told, lake_of, lake_options
from korvet.cli.progress import Progress
from korvet.cli.run import FAILED
from korvet.errors import LakeError

if TYPE_CHECKING:
    from korvet.lake.verify import Verified


@click.command()
@lake_options
def verify(
    *,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> int:
    """Look for gaps, duplicates, disorder, wrong statistics and damaged files, and compare with Redis.

    Every file is read whole; "Compared" are the records that Redis holds too. In storage format `record` offsets are
    sparse: there a record is missed only while Redis has it. Exit code 1 where something is wrong; a line on stderr
    each says what.
    """
    wanted = lake_of(**where)
    with failures_of_lake_told():
        found, failed = _verify(wanted)
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        titles = ("Topic", "Partition", "Files", "Records", "Compared", "Findings")
        rows = [
            (
                each.topic,
                *map(str, (each.partition, each.files, each.rows, each.compared, len(each.findings))),
            )
            for each in found
        ]
        print_table(titles, rows, numbers=titles[1:])
    for each in found:
        for finding in each.findings:
            text = f"{each.topic}-{each.partition}: {finding.kind}: {finding.message}"
            click.echo(shown(f"Error: {text}"), err=True)
    for topic, message in failed.items():
        click.echo(shown(f"Error: {topic}: {message}"), err=True)
    return FAILED if failed or any(each.findings for each in found) else 0


def _verify(wanted: Lake) -> tuple[list[Verified], dict[str, str]]:
    """Return what was found, and why a topic could not be looked at."""
    from korvet.lake.tables import Lake as Tables  # noqa: PLC0415 - other commands start without Delta
    from korvet.lake.verify import verify as look  # noqa: PLC0415 - the same

    tables = Tables(wanted.uri, wanted.storage_options)
    found: list[Verified] = []
    failed: dict[str, str] = {}
    progress = Progress(shown=sys.stderr.isatty())
    with wanted.source.opened() as stores:
        for topic in wanted.source.topics(stores, wanted.topics):
            try:
                for each in look(stores, tables, topic, wanted.source.decompressed_bytes_max):
                    found.append(each)
                    progress.add(each.rows, 0)
            except LakeError as error:
                failed[topic.name] = str(error)
    progress.end()
    return found, failed
