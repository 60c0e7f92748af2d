"""compression.type in format `batch`: what is stored of a batch, and that consumers read it."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.protocol.records.batch import BatchHeader
from korvet.protocol.records.compression import Codec
from korvet.topics.registry import TopicSpec
from tests.support.batches import LZ4, NONE, values
from tests.support.domain import domain

VALUES = [b"%d " % n * 100 for n in range(200)]


@pytest.mark.parametrize("sent", [NONE, LZ4])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed", "producer"])
def test_a_batch_is_stored_in_the_topics_codec_or_its_producers(
    redis_url: str, raw_redis: Any, codec: str, sent: int
) -> None:
    with domain(redis_url, Settings(storage_format="batch")) as here:
        here.topics.create(TopicSpec(name="orders", configs={"compression.type": codec}))
        here.append("orders", *VALUES, codec=sent)
        [result] = here.fetch(here.wanted("orders"))
    assert values(b"".join(result.chunks)) == VALUES
    [(_, fields)] = raw_redis.xrange("korvet:orders:0")
    stored = Codec(BatchHeader.read(fields[b"batch"]).codec).name
    assert stored == {"uncompressed": "none", "producer": Codec(sent).name}.get(codec, codec)
