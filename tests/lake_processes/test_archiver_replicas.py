"""What is archived of records that replicas of Redis do not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import redis_servers
from tests.support.archives import FORMATS, Format, topics_in
from tests.support.processes import wait_until


@pytest.mark.parametrize("storage_format", FORMATS)
def test_only_what_replicas_have_is_archived(tmp_path: Path, storage_format: Format) -> None:
    with redis_servers.master() as master, topics_in(master.url, tmp_path / "lake") as topics:
        topic = topics.make("orders", storage_format, min_insync_replicas="2")
        [partition] = topic.partitions
        assert topics.archiver().round(topics.run).failures == []
        topics.produce(partition, b"one")
        alone = topics.archiver().round(topics.run)
        assert alone.records == 0
        assert [failure.error for failure in alone.failures] == [
            "replicas of Redis have not confirmed the end of the log"
        ]
        with master.replica():
            # A round waits for half a second only; the next one tries again.
            wait_until(lambda: topics.archiver().round(topics.run).records == 1, "the replica has it")
            topics.check(topic)
        # There is nothing to archive, and so nothing to confirm.
        assert topics.archiver().round(topics.run).failures == []
