"""The native part of Korvet: frames, messages and record batches of Kafka; connections to Redis.

Codecs are the numbers in a batch's attributes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd. Times are in milliseconds since
the epoch, -1 for a record without one. Every function raises TypeError for an argument of another type.
"""

from collections.abc import Buffer, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

__version__: str

_Record: TypeAlias = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset, timestamp, key, value, and headers: the name of one that is no UTF-8 has `\\xNN` for a byte."""

_Walk: TypeAlias = tuple[int, int, int, int]
"""Of records: bytes uncompressed, smallest timestamp, largest timestamp, how many have no key."""

class RefusedError(ValueError):
    """A batch is not taken; `args` are Kafka's error code and a sentence.

    CORRUPT_MESSAGE (2): the bytes changed on their way. MESSAGE_TOO_LARGE (10). INVALID_PRODUCER_EPOCH (47).
    UNSUPPORTED_COMPRESSION_TYPE (76). INVALID_RECORD (87): the batch is not what its header says.
    """

class ProtocolError(Exception):
    """The connection has to close, with a log line: a broken protocol, or something that no response can say."""

class PanicException(BaseException):
    """A bug of this module; what it was asked for is not done."""

def check_header(sent: Buffer, message_bytes_max: int, /) -> None:
    """Check all but the records of what a producer sent: exactly one batch, of at most `message_bytes_max` bytes.

    Raises RefusedError with each of its codes.
    """

def walk(
    sent: Buffer, plain_bytes_max: int, codec: int | None = None, append_timestamp: int | None = None, /
) -> tuple[_Walk, bytes | None]:
    """Check the records of a batch whose header was checked, as Kafka's LogValidator does.

    Returns also the batch as it is to be stored, None if that is the one that was sent: in `codec`, with
    `append_timestamp` for all records, with the largest timestamp that it has, without LogAppendTime of a producer.
    Raises RefusedError: MESSAGE_TOO_LARGE beyond `plain_bytes_max` or a million headers, INVALID_RECORD. Raises
    ValueError without a header.
    """

def decode(sent: Buffer, plain_bytes_max: int, /) -> tuple[list[_Record], _Walk]:
    """Return the records, with offsets from 0, and what a walk over them sees; checks and raises as `walk`."""

def compress(codec: int, data: Buffer, /) -> bytes:
    """Return `data` as every client reads it; raises RefusedError UNSUPPORTED_COMPRESSION_TYPE."""

def decompress(codec: int, data: Buffer, limit: int, /) -> bytes:
    """Undo a codec, to `limit` bytes at the most.

    Raises RefusedError: MESSAGE_TOO_LARGE, INVALID_RECORD for damage, UNSUPPORTED_COMPRESSION_TYPE.
    """

def crc32c(data: Buffer, crc: int = 0, /) -> int:
    """Return the CRC-32C of `data`, which follows what has the CRC `crc`."""

class Records(Iterator[_Record]):
    """Yields the records of a stored batch; raises RefusedError CORRUPT_MESSAGE where one cannot be read.

    Their offsets rise, from `base_offset` to `last_offset_delta` after it at the most.
    """

    def __init__(
        self, batch: Buffer, base_offset: int, plain_bytes_max: int, plain: Buffer | None, /
    ) -> None:
        """Decompress the records: those after the header, or `plain`, if the bytes after it are compressed at rest.

        Raises RefusedError as `decompress`, but CORRUPT_MESSAGE for damage.
        """

    def __next__(self) -> _Record: ...

def retain(batch: Buffer, base_offset: int, records: list[_Record], /) -> bytes:
    """Return a batch, which begins at `base_offset`, with only these of its records.

    Raises RefusedError CORRUPT_MESSAGE if their offsets do not rise.
    """

_Binaries: TypeAlias = tuple[bytes | None, bytes, memoryview]
"""Of a column: the bitmap of what is not null (None: nothing is null), int32 positions, and data."""

_HeaderColumn: TypeAlias = tuple[bytes | None, bytes, int, _Binaries, _Binaries]
"""Of lists of headers, null for a record without any: bitmap, int32 positions, how many headers, names, values."""

_ArrowColumns: TypeAlias = tuple[
    int,
    bytes,
    bytes,
    bytes,
    _Binaries | None,
    _Binaries | None,
    _HeaderColumn | None,
    _ProducerColumns | None,
]
"""How many records; int64 offsets and timestamps, int32 timestamp types (1: LogAppendTime); keys, values, headers."""

_ProducerColumns: TypeAlias = tuple[bytes | None, bytes, bytes, bytes]
"""Of records in transactional or control batches: bitmap, int16 attributes, int64 producer ids, int16 epochs."""

def arrow_columns(
    batches: Sequence[tuple[int, bytes, bytes | None]],
    plain_bytes_max: int,
    payloads_bytes_max: int,
    /,
    *,
    keys: bool,
    values: bool,
    headers: bool,
) -> _ArrowColumns:
    """Return the records of stored batches as buffers of Apache Arrow; a column that is not wanted is None.

    A batch is its offset in the log, its bytes, and its records if those are not in its bytes as the producer sent
    them. Uncompressed one has `plain_bytes_max` bytes at the most, and all of several `payloads_bytes_max`.
    Raises RefusedError, which names the offset of a batch: MESSAGE_TOO_LARGE, CORRUPT_MESSAGE,
    UNSUPPORTED_COMPRESSION_TYPE.
    """

class BatchesBuilder:
    """Builds record batches of records with rising offsets."""

    def __new__(
        cls,
        *,
        codec: int,
        leader_epoch: int,
        bytes_max: int,
        at_least_one: bool,
        log_append_time: bool = False,
        next_offset: int = 0,
    ) -> Self:
        """Take `bytes_max` bytes uncompressed at the most; with `at_least_one` the first record at any size (KIP-74).

        `codec` compresses each batch that it makes smaller. With `log_append_time` the timestamps are the broker's: a
        batch has one for all its records. `next_offset` is the one as long as no record was taken.
        """

    @property
    def record_count(self) -> int:
        """How many records were taken."""

    @property
    def next_offset(self) -> int:
        """The offset after the last record that was taken."""

    @property
    def full(self) -> bool:
        """Whether a record did not fit: none is taken any more."""

    @property
    def plain_bytes_left(self) -> int:
        """How many bytes may still be taken."""

    def begin_epoch(self, leader_epoch: int, /) -> None:
        """Set the leader epoch of the records that follow: no batch has records of two."""

    def begin_producer(self, producer_id: int = -1, epoch: int = -1, /) -> None:
        """Set the transactional producer of the records that follow, none by default.

        No batch has records of two, nor of two transactions of one.
        """

    def limit(self, bytes_left: int, /) -> None:
        """Take no more than `bytes_left` from here on."""

    def add(self, records: Sequence[_Record], /) -> None:
        """Take records, a list or Columns, from the first on until `full`.

        Raises RuntimeError if a record's own code calls the builder; the records before it were taken.
        """

    def add_control(self, record: _Record, /) -> None:
        """Take the record of a marker, which is a batch of its own, by the producer that was set."""

    def finish(self) -> list[bytes | bytearray | memoryview]:
        """Return the batches, each a memoryview; they may be asked for again."""

def announced_frame(
    received: Buffer, position: int, other_max: int, produce_max: int | None, /
) -> tuple[int, bool] | None:
    """Return the size of the frame whose size stands at `position`, and whether it is a Produce request.

    None if more has to come before that is known, or whether the size may be. With `produce_max` None it has no header,
    and may be empty. Raises ProtocolError for a size that the frame may not have.
    """

def request_header(frame: Buffer, flexible_from: dict[int, int], /) -> tuple[int, int, int, str | None, int]:
    """Return key, version, correlation id, client id, and the position in `frame` at which the message begins.

    `flexible_from` has the first flexible version of each API that has one. Of an unknown version, or key, the position
    means nothing. Raises ProtocolError if the header ends too early, has more than 1024 tagged fields, or a long client
    id that is not UTF-8.
    """

def skip_tagged_fields(frame: Buffer, position: int, /) -> int:
    """Skip a block of tagged fields, all unknown here (KIP-482); returns the position after it.

    Raises ProtocolError.
    """

class MessageCodec:
    """Decodes and encodes a message in one version; korvet/protocol/compile.py makes it of a declaration.

    A struct is its class, its fields in wire order, its tagged fields in the order of their tags, and names and
    defaults of the fields that may hold nothing else. A field is its name, type, whether it may be null, tag and
    default. A type is a letter of the struct module, `16s`, `string`, `bytes`, `records`, a list of one type, or a
    struct.
    """

    def __init__(self, name: str, version: int, flexible: bool, part: tuple[Any, ...], /) -> None:
        """Take the fields of a version; raises TypeError for what is no such struct."""

    def decode(self, frame: Buffer, position: int, long_array: Callable[[], list[Any]] | None, /) -> Any:  # noqa: ANN401 - of the class that the codec is of
        """Return the message that begins at `position`; what follows it is ignored. Raises ProtocolError.

        Records are views of `frame`. Arrays of 64 elements or more are lists of `long_array`.
        """

    def encode(
        self, message: object, each_of: Callable[[Iterable[Any]], Iterable[Any]] | None, /
    ) -> list[Buffer]:
        """Return the chunks of the message; records, and long values of bytes, are chunks as they are.

        Arrays of 64 elements or more are gone through by `each_of`. Raises ValueError for a field that the version
        lacks and that holds more than its default, TypeError or OverflowError for a value that its type cannot be.
        """

_Arg: TypeAlias = bytes | str | int | memoryview
_Command: TypeAlias = Sequence[_Arg | Sequence[_Arg]]
"""A command's words; those of an inner tuple or list stand in its place. TypeError for a bool or another type."""

_Waiter = TypeVar("_Waiter")
_Done: TypeAlias = tuple[_Waiter | None, Any, str, float]
"""Waiter, or None if `tick` returned it before; reply, or list of replies; operation; seconds."""

def pack_command(command: _Command, /) -> bytes:
    """Return a command as Redis reads it; raises ValueError if it has no words, which Redis does not answer."""

class NotRespError(ValueError):
    """A server sent what is not RESP; the argument is a sentence."""

class RespReader:
    """Makes objects of replies, RESP2 or RESP3, that come in pieces of any size.

    A status and a string are bytes, an error is what `error_of` returns for its text (or raises), an array, a set and a
    push are lists, a map is a list of pairs; attributes are left out.
    """

    def __init__(self, error_of: Callable[[str], object], /) -> None: ...
    def feed(self, data: Buffer, /) -> None:
        """Take what has arrived."""

    def next_reply(self, missing: object, /) -> object:
        """Return the next reply, or `missing` if it is not whole yet; raises NotRespError."""

class RedisLink(Generic[_Waiter]):
    """One connection to Redis: pipelined requests, whose replies come in their order.

    Its constants are bits of what the owner is to do: methods return them, and `exchange` calls `act` with them.
    """

    STUCK: Final[int]
    """Call `write` when the socket takes more, until it returns something else."""
    FLUSH: Final[int]
    """Call `write` at the end of this turn of the event loop."""
    TIMER: Final[int]
    """Call `tick` after `due_s`, which has changed."""
    LOST: Final[int]
    """The connection is lost: stop watching the socket, and call `close`."""
    READ_ONLY: Final[int]
    """The server refused a write, since it is a replica."""
    SILENT: Final[int]
    """Nothing was heard for `silence_s` while a reply was pending."""
    WRITE: Final[int]
    """Without a socket: write what is `unwritten` now."""

    def __init__(
        self,
        fd: int | None,
        error_of: Callable[[str], object],
        new_waiter: Callable[[], _Waiter],
        act: Callable[[int], None],
        *,
        timeout_s: float,
        silence_s: float | None,
        commands_max: int,
        bytes_max: int,
        reply_bytes_max: int,
        takes_unasked: bool,
    ) -> None:
        """Take over a connected socket that does not block; None: the caller has it, as with TLS.

        Of what is under way the limits bound commands, bytes, and bytes of large replies: the request that reaches one
        may exceed it. After `timeout_s` without a byte while a reply is due the connection is lost. A reply that no
        request asked for ends it too, unless `takes_unasked`. `error_of` as in RespReader; `new_waiter` makes what a
        request comes back with. `act` must not raise.
        """

    @property
    def lost(self) -> str | None:
        """Why the connection is lost."""

    @property
    def has_room(self) -> bool:
        """Whether a request with small replies is taken."""

    @property
    def has_reply_room(self) -> bool:
        """Whether there is room for large replies."""

    @property
    def under_way(self) -> tuple[int, int, int]:
        """Commands, bytes, and bytes of large replies."""

    @property
    def silent_s(self) -> float:
        """For how many seconds nothing has arrived."""

    @property
    def due_s(self) -> float | None:
        """After how many seconds `tick` is to be called."""

    def exchange(
        self,
        commands: Sequence[_Command],
        operation: str,
        reply_bytes: int = 0,
        timeout_s: float | None = None,
        is_forced: bool = False,
        /,
    ) -> _Waiter | None:
        """Send commands, at least one, and return who waits for their replies: of one command its reply, else a list.

        Returns None, and sends nothing, if there is no room (with `is_forced` they take it) or the connection is lost.
        The first request leaves at once, and so does a large one; others at the end of the turn. `reply_bytes` are
        those of large replies, 0 for small ones; after `timeout_s`, or that of the link, the waiter is given up.
        `operation` names them for metrics. A memoryview must show the same until it is written. Raises ValueError for
        no commands and for one without words, which Redis does not answer.
        """

    def send(self, commands: Sequence[_Command], /) -> int:
        """Send commands whose replies nobody waits for."""

    def write(self) -> int:
        """Write what the socket takes."""

    def receive(self) -> tuple[list[_Done[_Waiter]], int]:
        """Read what there is, but no more than a turn's; returns what is finished by it, and bits.

        A reply without a request has neither waiter nor operation.
        """

    def received(self, data: Buffer, /) -> tuple[list[_Done[_Waiter]], int]:
        """Do as `receive` with bytes that the caller has read."""

    def unwritten(self, size_max: int, /) -> bytes:
        """Return the next bytes that are to be written, without a socket."""

    def wrote(self, size: int, /) -> None:
        """Note how many of them were written."""

    def tick(self) -> tuple[list[_Waiter], int]:
        """Look at the clock; returns the waiters whose time is up."""

    def lose_for(self, reason: str, /) -> None:
        """Give the connection up, unless it is lost already."""

    def close(self) -> list[_Waiter]:
        """Close the socket; returns the waiters of requests whose outcome is unknown, each once."""
