"""Any bytes of a peer are a message or a ProtocolError: nothing else, and no memory by the peer's number."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from korvet.errors import ProtocolError
from korvet.protocol.compile import decode, encode
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.fetch import FetchRequest, FetchResponse
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.schema import Api, Message, Part
from korvet.protocol.wire import STRING_BYTES_MAX, int8
from tests.protocol import reference
from tests.protocol.reference import varint
from tests.protocol.samples import EVERY_MESSAGE, LAST_OF_EACH_FORM, sample, versions

ELEMENTS_MAX, TAGGED_FIELDS_MAX = 1_000_000, 1024
"""The core's bounds of a message (core/proto/src/wire.rs)."""

LIES = (
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\x7f\xff",
    b"\xff\xfe",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\x7f",
    b"\xff\x7f",
    b"\x00",
)
"""What a hostile peer writes where a length, a count or a tag stands, in either form."""

EXAMPLES = settings().max_examples
"""Random frames of each message; one that fails is in the note of its error."""

ALLOCATED_MAX = 1 << 18
"""Bytes that decoding a frame of a few hundred bytes may take; a lie above would take millions."""


def content_of(cls: type[Message], version: int, variant: str = "filled") -> bytes:
    return b"".join(encode(sample(cls, version, variant), version))


def try_decode(cls: type[Message], version: int, content: bytes) -> Message | None:
    """Decode `content`, which may be refused in one way only."""
    try:
        return decode(cls, version, content)
    except ProtocolError:
        return None
    except Exception as error:
        error.add_note(f"{cls.__name__} v{version}: {content.hex()}")
        raise


@EVERY_MESSAGE
def test_a_message_cut_short_anywhere_is_refused(cls: type[Message]) -> None:
    for version in versions(cls):
        content = content_of(cls, version)
        for length in range(len(content)):
            assert try_decode(cls, version, content[:length]) is None, (version, length)


def hostile_bytes(rng: random.Random, length: int) -> bytes:
    """Return bytes at the edges of lengths and varints as often as any others."""
    return bytes(rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256))) for _ in range(length))


@EVERY_MESSAGE
def test_random_bytes_are_a_message_or_refused(cls: type[Message]) -> None:
    rng = random.Random()
    for _ in range(EXAMPLES):
        try_decode(cls, rng.choice(versions(cls)), hostile_bytes(rng, rng.randint(0, 200)))


@EVERY_MESSAGE
def test_damaged_messages_are_a_message_or_refused(cls: type[Message]) -> None:
    rng = random.Random()
    whole = {version: content_of(cls, version) for version in versions(cls)}
    for _ in range(EXAMPLES):
        version = rng.choice(versions(cls))
        content = bytearray(whole[version])
        for _ in range(rng.randint(1, 4)):
            first = rng.randint(0, len(content))
            content[first : first + rng.randint(0, 4)] = hostile_bytes(rng, rng.randint(0, 6))
        try_decode(cls, version, bytes(content))


def lies(content: bytes) -> Iterator[bytes]:
    """Yield `content` with every lie at every position."""
    for position in range(len(content)):
        for lie in LIES:
            yield content[:position] + lie + content[position + len(lie) :]


@pytest.mark.parametrize(("cls", "version"), LAST_OF_EACH_FORM)
def test_no_number_of_a_peer_sizes_an_allocation(cls: type[Message], version: int) -> None:
    content = content_of(cls, version, "single")
    assert try_decode(cls, version, content) is not None
    frames = list(lies(content))
    tracemalloc.start()
    try:
        # Some of them: tracing makes decoding a hundred times as slow.
        for lie in random.sample(frames, min(len(frames), 2 * EXAMPLES)):
            # What earlier ones left goes when the collector comes.
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try_decode(cls, version, lie)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < ALLOCATED_MAX, lie.hex()
    finally:
        tracemalloc.stop()
    for lie in frames:
        try_decode(cls, version, lie)


@pytest.mark.parametrize(("cls", "version"), LAST_OF_EACH_FORM)
def test_text_that_is_not_utf_8_has_a_replacement_character(cls: type[Message], version: int) -> None:
    content = content_of(cls, version)
    position = content.find(b"name-")
    while position >= 0:
        message = decode(cls, version, content[:position] + b"\xff" + content[position + 1 :])
        # What is declared as bytes holds what it likes: record batches, metadata of group members.
        encoded = b"".join(encode(message, version))
        assert encoded.count(b"\xef\xbf\xbdame-") + encoded.count(b"\xffame-") == 1
        position = content.find(b"name-", position + 1)


@EVERY_MESSAGE
def test_tagged_fields_of_a_later_kafka_are_skipped_at_every_level(cls: type[Message]) -> None:
    for version in versions(cls):
        message = sample(cls, version)
        content = reference.encode(message, version, unknown_tags=True)
        assert (reference.UNKNOWN_CONTENT in content) == cls.api.is_flexible(version), version
        assert decode(cls, version, content) == message, version


FETCH_HEAD = struct.pack(">iiibii", 0, 0, 0, 0, 0, -1) + b"\x01\x01\x01"
"""FetchRequest v17 without its tagged fields: no topics, nothing forgotten, an empty rack."""


def test_a_tagged_field_with_its_true_size_is_read() -> None:
    content = FETCH_HEAD + b"\x01\x00\x04\x04abc"
    assert decode(FetchRequest, 17, content).cluster_id == "abc"


@pytest.mark.parametrize("size", [0, 3, 5])
def test_a_known_tagged_field_whose_size_lies_is_refused(size: int) -> None:
    content = FETCH_HEAD + b"\x01\x00" + bytes([size]) + b"\x04abc" + bytes(8)
    with pytest.raises(ProtocolError, match="cluster_id has size"):
        decode(FetchRequest, 17, content)


def test_more_tagged_fields_than_any_message_has_are_refused() -> None:
    def content(count: int) -> bytes:
        return varint(count) + b"\x63\x00" * count

    assert decode(FetchRequest, 17, FETCH_HEAD + content(TAGGED_FIELDS_MAX)).rack_id == ""
    for head in (FETCH_HEAD, FETCH_HEAD[:-3] + b"\x02" + bytes(16) + b"\x01"):
        with pytest.raises(ProtocolError, match="tagged fields has length"):
            decode(FetchRequest, 17, head + content(TAGGED_FIELDS_MAX + 1) + bytes(8))


@pytest.mark.parametrize("length", [-2, -(2**31), 2**31 - 1, 2])
def test_an_array_of_impossible_length_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="topics has length"):
        decode(MetadataRequest, 0, struct.pack(">i", length) + b"a")


COMPACT_NULLS = [b"\x00", varint(2**31 + 1), varint(2**32 - 2)]


@pytest.mark.parametrize("length", [-1, -2, -(2**31)])
def test_any_negative_length_is_null(length: int) -> None:
    assert decode(MetadataRequest, 1, struct.pack(">i", length)).topics is None
    with pytest.raises(ProtocolError, match=f"topics has length {length}"):
        decode(MetadataRequest, 0, struct.pack(">i", length))


@pytest.mark.parametrize("length", COMPACT_NULLS)
def test_any_negative_compact_length_is_null(length: bytes) -> None:
    assert decode(MetadataRequest, 9, length + bytes(4)).topics is None
    no_name = b"\x02" + bytes(16) + length + bytes(5)
    assert [topic.name for topic in decode(MetadataRequest, 12, no_name).topics or ()] == [None]
    with pytest.raises(ProtocolError, match="name has length -1"):
        decode(MetadataRequest, 9, b"\x02" + length + bytes(5))
    with pytest.raises(ProtocolError, match="topics has length 2147483647"):
        decode(MetadataRequest, 9, varint(2**31) + bytes(4))


def test_an_array_with_too_many_elements_is_refused_before_it_is_made() -> None:
    content = struct.pack(">i", ELEMENTS_MAX + 1) + bytes(2 * (ELEMENTS_MAX + 1)) + bytes(4)
    with pytest.raises(ProtocolError, match="topic_names has length 1000001"):
        decode(DeleteTopicsRequest, 1, content)


class TableRow(Part, kw_only=True):
    """A row of numbers."""

    numbers: list[int8]


class TableRequest(Message, kw_only=True):
    """Rows of numbers."""

    api = Api(key=999, versions=(0, 1), flexible=1)

    table: list[TableRow]


@pytest.mark.parametrize("version", [0, 1])
def test_arrays_within_arrays_are_counted_together(version: int) -> None:
    def content(size: int) -> bytes:
        return b"".join(encode(TableRequest(table=[TableRow(numbers=[0] * size)] * 2), version))

    half = ELEMENTS_MAX // 2
    assert len(decode(TableRequest, version, content(half - 1)).table) == 2
    with pytest.raises(ProtocolError, match="numbers has length"):
        decode(TableRequest, version, content(half))


def test_an_error_does_not_repeat_what_the_peer_sent() -> None:
    content = struct.pack(">ih", 1, 30_000) + b"\xff" * 30_000
    with pytest.raises(ProtocolError) as caught:
        decode(MetadataRequest, 1, content)
    assert len(str(caught.value)) < 200


def test_the_records_of_a_fetch_stay_within_their_frame() -> None:
    content = content_of(FetchResponse, 11)
    position = content.rindex(b"name-")
    damaged = content[: position - 4] + struct.pack(">i", len(content)) + content[position:]
    with pytest.raises(ProtocolError, match="ends at byte"):
        decode(FetchResponse, 11, damaged)


def test_a_string_is_in_a_compact_form_no_longer_than_in_a_plain_one() -> None:
    longest = MetadataRequest(topics=[MetadataRequestTopic(name="x" * STRING_BYTES_MAX)])
    assert decode(MetadataRequest, 12, b"".join(encode(longest, 12))) == longest
    longer = MetadataRequest(topics=[MetadataRequestTopic(name="x" * (STRING_BYTES_MAX + 1))])
    with pytest.raises(ProtocolError, match="32768"):
        decode(MetadataRequest, 12, b"".join(encode(longer, 12)))
