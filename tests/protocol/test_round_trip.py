"""Any message that a version can carry comes back as it went, and equals what a plain encoder writes."""

from __future__ import annotations

import gc
import random
import sys

import pytest
from hypothesis import settings

from korvet.protocol.compile import decode, encode
from korvet.protocol.messages import all_messages
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.schema import Message
from tests.protocol import reference
from tests.protocol.samples import EVERY_MESSAGE, VARIANTS, random_message, sample, versions

EXAMPLES = settings().max_examples
"""Random messages of each kind; their seed is in the note of a failure."""


@EVERY_MESSAGE
def test_any_message_comes_back_as_it_went(cls: type[Message]) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(EXAMPLES):
        version = rng.choice(versions(cls))
        message = random_message(cls, version, rng)
        content = b"".join(encode(message, version))
        assert decode(cls, version, content) == message, (version, seed)
        assert content == reference.encode(message, version), (version, seed)


@pytest.mark.parametrize("variant", VARIANTS)
@EVERY_MESSAGE
def test_a_message_is_read_from_any_buffer_and_from_any_position(cls: type[Message], variant: str) -> None:
    for version in versions(cls):
        message = sample(cls, version, variant)
        content = b"header" + b"".join(encode(message, version)) + b"trailer"
        for buffer in (content, bytearray(content), memoryview(content)):
            assert decode(cls, version, buffer, 6) == message, version


@pytest.mark.parametrize("version", [3, 13])
def test_records_pass_without_a_copy(version: int) -> None:
    batch = bytearray(b"a record batch")
    partition = PartitionProduceData(index=0, records=memoryview(batch))
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(partition_data=[partition])])
    chunks = encode(request, version)
    assert any(isinstance(chunk, memoryview) and chunk.obj is batch for chunk in chunks)

    frame = b"".join(chunks)
    records = decode(ProduceRequest, version, frame).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    assert records == batch


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 4094, 4095, 16382, 16383, 2**21])
@pytest.mark.parametrize("version", [8, 9])
def test_records_of_any_size_come_back(version: int, size: int) -> None:
    # The sizes at which their varint takes a byte more, or is no longer found in a table.
    partition = PartitionProduceData(index=0, records=bytes(size))
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(partition_data=[partition])])
    content = b"".join(encode(request, version))
    assert decode(ProduceRequest, version, content) == request
    assert content == reference.encode(request, version)


def test_messages_that_are_gone_leave_no_memory_behind() -> None:
    partitions = [PartitionProduceData(index=index, records=bytes(1000)) for index in range(3)]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(partition_data=partitions)])

    def blocks_after(count: int) -> int:
        for _ in range(count):
            decode(ProduceRequest, 9, b"".join(encode(request, 9)))
        gc.collect()
        return sys.getallocatedblocks()

    before = blocks_after(100)
    assert blocks_after(1000) - before < 500


def test_decoded_messages_share_no_list() -> None:
    for cls in all_messages():
        last = cls.api.versions[1]
        content = b"".join(encode(sample(cls, last, "plain"), last))
        one, other = decode(cls, last, content), decode(cls, last, content)
        for name in cls.__struct_fields__:
            value = getattr(one, name)
            assert not isinstance(value, list) or value is not getattr(other, name)
