"""Iceberg tables over files in an object store, which the options of the lake lead to."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from deltalake import DeltaTable
from pyarrow.fs import FileSelector
from pyiceberg.catalog import load_catalog

from korvet.lake import iceberg
from korvet.lake.iceberg import IcebergTables
from korvet.lake.source import SourceTopic
from tests.stores.s3 import Store
from tests.support.archives import Topics, all_kinds
from tests.support.iceberg import NAMESPACE, by_pyiceberg, plain, properties


def lists(topics: Topics, topic: SourceTopic) -> int:
    """Return how many lists of manifests lie there: one for each snapshot."""
    files = topics.source.lake.filesystem(topic.of).get_file_info(FileSelector(iceberg.METADATA))
    return sum(file.base_name.startswith("snap-") for file in files)


def test_iceberg_is_in_step_in_an_object_store(
    topics: Topics, shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.source = msgspec.structs.replace(topics.source, iceberg=properties(tmp_path))
    topic = topics.make("orders", "batch", partitions=2)
    archives = topics.archiver()
    for _ in range(2):
        all_kinds(topics, topic)
        assert archives.round(topics.run).failures == []
    topics.check(topic)
    reached = {
        "s3.endpoint": shared.options["AWS_ENDPOINT_URL"],
        "s3.region": "us-east-1",
        "s3.access-key-id": shared.options["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": shared.options["AWS_SECRET_ACCESS_KEY"],
    }
    lake = topics.source.lake
    with load_catalog(iceberg.CATALOG, **properties(tmp_path), **reached) as catalog:
        table = catalog.load_table((NAMESPACE, "orders"))
        delta = DeltaTable(lake.uri(topic.of), storage_options=lake.storage_options).to_pyarrow_table()
        assert by_pyiceberg(table) == plain(delta)
        # Two days later all but the last snapshot have expired, and what only they named is deleted.
        assert lists(topics, topic) == 2
        later = time.time() + 48 * 3600
        with monkeypatch.context() as patched:
            patched.setattr("korvet.lake.iceberg.time", SimpleNamespace(time=lambda: later))
            IcebergTables(lake, NAMESPACE, properties(tmp_path)).maintain(topic.of, 24)
        table.refresh()
        assert len(table.snapshots()) == 1
        assert lists(topics, topic) == 1
        assert by_pyiceberg(table) == plain(delta)
