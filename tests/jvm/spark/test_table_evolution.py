"""Tables of pipelines whose results get other columns: what each `schema_evolution` lets them become."""

from __future__ import annotations

import polars as pl
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError

from tests.jvm.spark.test_pipelines import Runs, order, runs, source, sql, target
from tests.support.archives import Topics

__all__ = ["runs"]

pytestmark = pytest.mark.timeout(600)


def test_a_table_follows_the_result_as_far_as_it_may(runs: Runs, topics: Topics) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, order(1, 1.0))

    def select(columns: str, evolution: str) -> str | None:
        return runs(source() + sql(f"SELECT {columns} FROM orders") + target(schema_evolution=evolution))

    assert select("CAST(value.id AS INT) id", "none") is None
    topics.produce(partition, order(2, 2.0))
    assert "has no column amount" in (select("CAST(value.id AS INT) id, value.amount", "none") or "")
    assert select("CAST(value.id AS INT) id, value.amount", "add_columns") is None
    topics.produce(partition, order(3, 3.0))
    wide = "value.id, value.amount"
    assert 'is int there, and bigint in the result; "widen" makes it so' in (
        select(wide, "add_columns") or ""
    )
    assert select(wide, "widen") is None
    topics.produce(partition, order(4, 4.0))
    # What is narrower goes in as it is.
    assert select("CAST(value.id AS SMALLINT) id", "none") is None
    topics.produce(partition, order(5, 5.0))
    assert "is bigint there, and string" in (select("CAST(value.id AS STRING) id", "widen") or "")
    rows = sorted((row["id"], row["amount"]) for row in runs.table())
    assert rows == [(1, None), (2, 2.0), (3, 3.0), (4, None)]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_table_with_larger_types_is_read_by_any_reader_unless_it_may_change_them_in_place(
    runs: Runs, topics: Topics, *, in_place: bool
) -> None:
    [partition] = topics.make("orders", "batch").partitions

    def select(kind: str) -> str | None:
        topics.produce(partition, order(1, 1.0))
        item = f"named_struct('n', CAST(value.id AS {kind}))"
        columns = f"CAST(value.id AS {kind}) id, 'a' AS part, array({item}) items, map('k', {item}) named"
        options = 'options = { "delta.enableTypeWidening" = "true" }' if in_place else ""
        settings = target(schema_evolution="widen", partition_by=["part"])
        return runs(source() + sql(f"SELECT {columns} FROM orders") + settings + f"\n{options}")

    assert [select("SMALLINT"), select("BIGINT"), select("INT")] == [None] * 3
    path = runs.lake / "tables" / "orders"
    if in_place:
        with pytest.raises(DeltaProtocolError, match="typeWidening"):
            runs.table()
        assert len(list(path.glob("part=a/*.parquet"))) == 3
        return
    assert runs.table() == [{"id": 1, "part": "a", "items": [{"n": 1}], "named": [("k", {"n": 1})]}] * 3
    assert DeltaTable(path).metadata().partition_columns == ["part"]
    frame = pl.read_delta(str(path))
    assert (frame.schema["id"] == pl.Int64, frame["id"].sum()) == (True, 3)
