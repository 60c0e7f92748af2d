"""What a table of the lake holds, as each engine that analysts use reads it, by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from korvet.lake.files import StorageOptions
from korvet.lake.schema import milliseconds_of
from tests.support.records import Received

_ORDER = [("partition", "ascending"), ("offset", "ascending")]

ReadTable: TypeAlias = Callable[[str, StorageOptions], pa.Table]
"""Reads a table whole, by its URI and the options of its store."""


def by_deltalake(uri: str, options: StorageOptions) -> pa.Table:
    """Read by deltalake, which Korvet uses too."""
    return DeltaTable(uri, storage_options=options).to_pyarrow_table()


def by_polars(uri: str, options: StorageOptions) -> pa.Table:
    """Read by Polars' own reader of Parquet; the log is deltalake's part."""
    return pl.scan_delta(uri, storage_options=options).collect().to_arrow()


def by_duckdb(uri: str, options: StorageOptions) -> pa.Table:
    """Read by DuckDB through a data set of Arrow: its extension for Delta is no package."""
    files = DeltaTable(uri, storage_options=options).to_pyarrow_dataset()
    with duckdb.connect() as database:
        database.register("records", files)
        result = database.sql("SELECT * FROM records")
        assert result is not None
        return result.to_arrow_table()


READERS: dict[str, ReadTable] = {"deltalake": by_deltalake, "Polars": by_polars, "DuckDB": by_duckdb}


def received(table: pa.Table) -> list[Received]:
    """Return rows as a consumer would get them, in the order of offsets; a row that is there twice comes twice."""
    result = []
    for rows in table.sort_by(_ORDER).combine_chunks().to_batches():
        columns = (
            rows.column(name).to_pylist() for name in ("partition", "offset", "key", "value", "headers")
        )
        times = milliseconds_of(rows.set_column(*_micros(rows))).tolist()
        for (partition, offset, key, value, headers), timestamp in zip(
            zip(*columns, strict=True), times, strict=True
        ):
            names = tuple((header["key"], header["value"]) for header in headers or ())
            result.append(Received(partition, offset, key, value, names, timestamp))
    return result


def _micros(rows: pa.RecordBatch) -> tuple[int, str, pa.Array]:
    """Return the column of times in the unit of the lake: each engine has one of its own."""
    at = rows.schema.get_field_index("timestamp")
    return at, "timestamp", rows.column(at).cast(pa.timestamp("us", tz="UTC"))
