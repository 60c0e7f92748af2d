"""compression.type in format `batch`: what is stored of a batch, and that consumers read it."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.log.append import AppendResult
from korvet.log.types import Appended
from korvet.protocol.records.batch import BatchHeader
from korvet.protocol.records.compression import Codec
from korvet.topics.registry import TopicSpec
from korvet.topics.types import PartitionRef, TopicRef
from tests.support.batches import LZ4, NONE, ZSTD, batch, values
from tests.support.domain import domain
from tests.support.log_bench import code_of

VALUES = [b"%d " % n * 100 for n in range(200)]


def append(redis_url: str, sent: bytes, **configs: str) -> tuple[AppendResult, list[bytes | None]]:
    """Append a batch to a topic with these configs; return the result, and the values that a consumer reads."""
    with domain(redis_url, Settings(storage_format="batch")) as here:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        here.topics.create(TopicSpec(name="orders", configs=named))
        [result] = here.appender.append([PartitionRef(TopicRef("orders"), 0, sent)], zstd_known=True)
        [found] = here.fetch(here.wanted("orders"))
        return result, values(b"".join(found.chunks))


@pytest.mark.parametrize("sent", [NONE, LZ4])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed", "producer"])
def test_a_batch_is_stored_in_the_topics_codec_or_its_producers(
    redis_url: str, raw_redis: Any, codec: str, sent: int
) -> None:
    result, read = append(redis_url, batch(*VALUES, codec=sent), compression_type=codec)
    assert isinstance(result, Appended)
    assert read == VALUES
    [(_, fields)] = raw_redis.xrange("korvet:orders:0")
    stored = Codec(BatchHeader.read(fields[b"batch"]).codec).name
    assert stored == {"uncompressed": "none", "producer": Codec(sent).name}.get(codec, codec)


def test_a_batch_that_is_too_large_in_the_topics_codec_is_refused(redis_url: str) -> None:
    refused, _ = append(redis_url, batch(bytes(2_000_000), codec=ZSTD), compression_type="uncompressed")
    assert code_of(refused) == ErrorCode.MESSAGE_TOO_LARGE
