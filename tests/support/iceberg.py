"""An Iceberg catalog beside a lake, and its tables as plain records, read by different libraries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from korvet.lake.iceberg import CATALOG, IcebergTables
from korvet.lake.table import Lake, LakeTopic
from tests.lake.rows import records_of
from tests.support.archives import Topics

NAMESPACE = "korvet"

Row = tuple[Any, ...]


def properties(directory: Path) -> dict[str, str]:
    """Return the properties of a catalog in a file of SQLite."""
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}


def tables(lake: Lake) -> IcebergTables:
    """Return the tables of a lake in the catalog beside it."""
    return IcebergTables(lake, NAMESPACE, properties(Path(lake.path).parent))


def loaded(lake: Lake, name: str) -> Table:
    """Return a table as the catalog has it now."""
    with load_catalog(CATALOG, **properties(Path(lake.path).parent)) as catalog:
        return catalog.load_table((NAMESPACE, name))


def names(lake: Lake) -> list[str]:
    """Return the tables of the catalog."""
    with load_catalog(CATALOG, **properties(Path(lake.path).parent)) as catalog:
        return sorted(name for _, name in catalog.list_tables(NAMESPACE))


def beside(topics: Topics) -> None:
    """Let topics have a catalog beside their lake."""
    topics.source = msgspec.structs.replace(topics.source, iceberg=properties(Path(topics.lake).parent))


def check(lake: Lake, of: LakeTopic, name: str = "") -> Table:
    """Hold that the Iceberg table has the rows of Delta's, and the files; return it."""
    table = loaded(lake, name or of.topic)
    delta = lake.open(of)
    assert delta is not None
    named = [plan_file.file.file_path for plan_file in table.scan().plan_files()]
    assert sorted(named) == sorted(f"file://{lake.uri(of)}/{file.path}" for file in delta.files())
    rows = by_pyiceberg(table)
    assert rows == by_deltalake(lake, of)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["total-records"] == str(len(rows))
    assert snapshot.summary["total-data-files"] == str(len(named))
    return table


def by_pyiceberg(table: Table) -> list[Row]:
    """Read a table by pyiceberg."""
    return plain(table.scan().to_arrow())


def by_duckdb(table: Table) -> list[Row]:
    """Read a table by DuckDB, which gets from pyiceberg what it reads."""
    import duckdb

    records = table.scan().to_arrow_batch_reader()
    with duckdb.connect() as connection:
        connection.register("records", records)
        return plain(connection.sql("select * from records").to_arrow_table())


def by_polars(table: Table) -> list[Row]:
    """Read a table by Polars, which reads the files itself."""
    import polars as pl

    # The faster planner is a package of its own, and what warns of that would fail a test.
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"
    frame = pl.scan_iceberg(table, reader_override="native").collect()
    assert isinstance(frame, pl.DataFrame)
    return plain(frame.to_arrow())


READERS = {"pyiceberg": by_pyiceberg, "duckdb": by_duckdb, "polars": by_polars}


def by_deltalake(lake: Lake, of: LakeTopic) -> list[Row]:
    """Read the Delta table of a topic."""
    return plain(DeltaTable(lake.uri(of)).to_pyarrow_table())


def plain(table: pa.Table) -> list[Row]:
    """Return rows by partition and offset: the partition, the record, and the rest of the columns."""
    table = table.sort_by([("partition", "ascending"), ("offset", "ascending")]).combine_chunks()
    rest = ("timestamp_type", "attributes", "producer_id", "producer_epoch")
    columns = [table.column(name).to_pylist() for name in ("partition", *rest)]
    records = [record for part in table.to_batches() for record in records_of(part)]
    return list(zip(*columns, records, strict=True))
