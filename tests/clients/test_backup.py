"""The backup that deploy/README.md describes: Redis' append-only file is copied while clients work, and restored."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path

import pytest
import redis

from tests.support import processes, reading
from tests.support.broker import korvet_broker
from tests.support.load import ConfluentLoad

PARTITIONS = 2
MANIFEST = "appendonlydir/appendonly.aof.manifest"


@pytest.mark.embedded
def test_a_copy_made_under_load_holds_what_was_acknowledged_before_it(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with korvet_broker(tmp_path / "first", data_dir=data) as broker:
        load = ConfluentLoad(broker.bootstrap, "kept", PARTITIONS)
        # In this format a log has as many records as its end offset says.
        reading.create_topic(broker.bootstrap, load.topic, PARTITIONS, {"storage.format": "batch"})
        load.start()
        processes.wait_until(lambda: len(load.acknowledged) > 2000, "records are acknowledged")
        with redis.Redis(unix_socket_path=str(data / "server.sock")) as client:
            # The steps of the runbook: no rewrite begins, none is under way, copy, as before.
            percentage = client.config_get("auto-aof-rewrite-percentage")["auto-aof-rewrite-percentage"]
            client.config_set("auto-aof-rewrite-percentage", 0)
            processes.wait_until(
                lambda: not client.info("persistence")["aof_rewrite_in_progress"], "no rewrite is under way"
            )
            before = list(load.acknowledged)
            broker.wait_until_written()
            shutil.copytree(data / "appendonlydir", backup / "appendonlydir")
            assert filecmp.cmp(data / MANIFEST, backup / MANIFEST, shallow=False)
            client.config_set("auto-aof-rewrite-percentage", percentage)
        load.end()
    with (
        korvet_broker(tmp_path / "second", data_dir=backup) as broker,
        reading.consumer(broker.bootstrap, load.topic, range(PARTITIONS)) as running,
    ):
        count = sum(running.get_watermark_offsets(each)[1] for each in running.assignment())
        received = reading.read(running, count)
    places = {(record.partition, record.offset) for record in received}
    assert set(before) <= places
    # And nothing that was not acknowledged at all.
    assert places <= set(load.acknowledged)
    for partition in range(PARTITIONS):
        values = [record.value for record in received if record.partition == partition]
        assert values == [b"%d" % (partition + PARTITIONS * number) for number in range(len(values))]
