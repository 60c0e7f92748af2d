"""`korvet lake query`: SQL over topics, what is archived and what is not."""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.bootstrap import print_table
from korvet.cli.lake_options import Lake, failures_of_lake_told, lake_of, lake_options

if TYPE_CHECKING:
    from korvet.spark.query import Result

_NULL = "NULL"


@click.command()
@lake_options
@click.option(
    "--master", metavar="URL", help="Spark's master; by default all cores of this machine, local[*,4]."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, the names of the columns first.")
@click.option(
    "--parquet", "directory", metavar="DIRECTORY", help="Write Parquet files to this directory, a new one."
)
@click.argument("sql")
def query(
    master: str | None,
    directory: str | None,
    sql: str,
    *,
    as_csv: bool,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> None:
    """Run an SQL query of Spark's, in which each topic is a view: SELECT count(*) FROM orders.

    It sees what is archived and what is not, with a cold tier or without, and asks no broker. The columns are those of
    the tables: partition, offset, timestamp, key, value, headers and a few more. Keys and values are bytes: CAST(value
    AS STRING). A name with other characters than letters, digits and _ stands in backticks. With --json each row is an
    object on a line of its own. Bytes are printed as UTF-8 where they are, else with escapes.
    """
    if as_csv + as_json + (directory is not None) > 1:
        raise click.UsageError("--csv, --json and --parquet exclude each other")
    wanted = lake_of(**where)
    with failures_of_lake_told():
        _query(wanted, master, sql, directory, as_csv=as_csv, as_json=as_json)


def _query(
    wanted: Lake, master: str | None, sql: str, directory: str | None, *, as_csv: bool, as_json: bool
) -> None:
    from korvet.lake.tables import Lake as Tables  # noqa: PLC0415 - other commands start without Delta
    from korvet.spark.query import frame_of, result, write_parquet  # noqa: PLC0415 - the same
    from korvet.spark.session import session  # noqa: PLC0415 - the same

    tables = Tables(wanted.uri, wanted.storage_options)
    with session("korvet lake query", master=master) as spark:
        frame = frame_of(spark, wanted.source, tables, sql, wanted.topics)
        if directory is not None:
            write_parquet(frame, directory)
        else:
            _print(result(frame), as_csv=as_csv, as_json=as_json)


def _print(found: Result, *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        for row in found.rows:
            values = {title: _for_json(value) for title, value in zip(found.titles, row, strict=True)}
            click.echo(json.dumps(values, ensure_ascii=False))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(found.titles)
        # As usual in CSV, nothing stands for NULL.
        writer.writerows(["" if value is None else _text(value) for value in row] for row in found.rows)
    else:
        rows = [[_NULL if value is None else _text(value) for value in row] for row in found.rows]
        print_table(found.titles, rows, numbers=found.numbers)


def _text(value: object) -> str:
    plain = _for_json(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _for_json(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list):
        return [_for_json(each) for each in value]
    if isinstance(value, dict):
        return {str(_for_json(name)): _for_json(each) for name, each in value.items()}
    return value
