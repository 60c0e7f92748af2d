"""The native part of Korvet: frames, messages and record batches of Kafka; connections to Redis.

Codecs are the numbers in a batch's attributes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd. Times are in milliseconds since
the epoch, -1 for a record without one. Every function raises TypeError for an argument of another type.
"""

from collections.abc import Buffer, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeAlias, TypeVar, final

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

    def add_columns(
        self,
        offsets: list[int],
        timestamps: list[int],
        keys: list[bytes] | None,
        values: list[bytes],
        /,
    ) -> None:
        """Take records without headers, from the first on until `full`; without `keys` each has a null key."""

    def add(self, records: list[_Record], /) -> None:
        """Take records, from the first on until `full`.

        Raises RuntimeError if a record's own code calls the builder; the records before it were taken.
        """

    def add_control(self, record: _Record, /) -> None:
        """Take the record of a marker, which is a batch of its own, by the producer that was set."""

    def finish(self) -> list[bytes | bytearray | memoryview]:
        """Return the batches, each a memoryview; they may be asked for again."""

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

        Arrays of 64 elements or more are gone through by `each_of`. Bytes in the place of a struct are that struct,
        encoded in the same version. Raises ValueError for a field that the version lacks and that holds more than its
        default, TypeError or OverflowError for a value that its type cannot be.
        """

_Arg: TypeAlias = bytes | str | int | memoryview
_Command: TypeAlias = Sequence[_Arg | Sequence[_Arg]]
"""A command's words; those of an inner tuple or list stand in its place. TypeError for a bool or another type.

Bytes are a command as `pack_command` makes it, whose key is its second word.
"""

def pack_command(command: _Command, /) -> bytes:
    """Return a command as Redis reads it; raises ValueError if it has no words, which Redis does not answer."""

class RespReader:
    """Makes objects of replies, RESP2 or RESP3, that come in pieces of any size.

    A status and a string are bytes, an error is what `error_of` returns for its text (or raises), an array, a set and a
    push are lists, a map is a list of pairs; attributes are left out.
    """

    def __init__(self, error_of: Callable[[str], object], /) -> None: ...
    def feed(self, data: Buffer, /) -> None:
        """Take what has arrived."""

    def next_reply(self, missing: object, /) -> object:
        """Return the next reply, or `missing` if it is not whole yet; raises ValueError for what is not RESP."""

@final
class RawReply:
    """The bytes of a whole reply, of which no objects were made."""

    def __init__(self, reply: Buffer, /) -> None: ...
    def __bytes__(self) -> bytes: ...

@final
class Fetched:
    """What a read of a log has found; it may be nothing, and begin after the offset read from if the log has a gap.

    Entries are records in format `record`, in format `batch` batches, the first of which holds the offset, maybe in its
    middle. A batch that holds more than `plain_bytes_max` bytes, as LogReader was given, cannot be read. Methods that
    make something of records raise RefusedError: MESSAGE_TOO_LARGE, CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE.
    """

    @property
    def log_start(self) -> int:
        """The lowest offset that may be asked for."""

    @property
    def first_offset(self) -> int:
        """The log start as responses report it."""

    @property
    def high_watermark(self) -> int:
        """It is exact when the entries reach it or are none, else at least past the last entry."""

    @property
    def end_offset(self) -> int:
        """The end of the log; as in Kafka it is no error to ask for what lies between it and the high watermark."""

    @property
    def stable_offset(self) -> int:
        """The last stable offset: all transactions that have records below it have ended."""

    @property
    def visible_end(self) -> int:
        """The end of what such a read may find."""

    @property
    def compacted_end(self) -> int:
        """Below it compaction has removed records."""

    @property
    def remote(self) -> tuple[int, int, int] | None:
        """What only the remote tier holds, from where to where, and up to where that holds the log.

        A read of such an offset finds nothing here.
        """

    @property
    def remote_end(self) -> int | None:
        """The end of what only the remote tier holds."""

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """Leader epochs of the log, and where each begins, oldest first."""

    @property
    def is_committed(self) -> bool:
        """Whether only what lies below the last stable offset was read, and which of it was aborted."""

    @property
    def aborted(self) -> list[tuple[int, int]]:
        """Transactions of which a committed read may have found records, by producer id and first offset.

        They have markers from its offset on.
        """

    @property
    def more(self) -> bool:
        """Whether reading on at once may find more."""

    @property
    def foreign(self) -> int:
        """How many entries are no batches where batches belong: they are not there."""

    @property
    def damaged(self) -> tuple[int, str] | None:
        """Offset and encoding of the first value that does not decompress: it is there as it is stored."""

    def __len__(self) -> int:
        """How many entries there are."""

    @property
    def size_bytes(self) -> int:
        """The size of the batches as they are served; 0 in format `record`."""

    @property
    def first(self) -> int | None:
        """The offset of the first record, or of the first batch, maybe before the offset read from."""

    @property
    def next_offset(self) -> int | None:
        """The offset after the last entry."""

    @property
    def first_timestamp(self) -> int | None:
        """The timestamp (ms) of the first record."""

    @property
    def first_appended_ms(self) -> int | None:
        """When the first record was appended, by the clock of Redis or of its broker; None if the log does not keep it.

        An offset may be a time; a batch has it with LogAppendTime alone.
        """

    def spans(self) -> list[tuple[int, int]]:
        """Return first and last offset of each run of consecutive records, in format `batch` of each batch."""

    def record_spans(self) -> list[tuple[int, int]]:
        """Return those of the runs of consecutive records in batches."""

    def ends(self) -> list[tuple[int, int]]:
        """Return of each entry the offset after it, and its largest timestamp (ms)."""

    def first_since(self, timestamp: int, first: int, /) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record from `first` on that is not older.

        For a batch that cannot be read its header answers.
        """

    def largest(self, timestamp: int, first: int, end: int, /) -> tuple[int, int] | None:
        """Return those of the first with the largest timestamp from `first` to `end`, if that is not older."""

    def limit(self, high_watermark: int, stable: int, /) -> Fetched:
        """Return it without what lies at or past a high watermark, -1 if none is known.

        `stable` is the last stable offset of the log up to there: without its marker a transaction is open.
        """

    def fitting(self, room: int, at_least_one: bool, /) -> tuple[Fetched, int] | None:
        """Return the first entries that fit into about `room` bytes, and their size; None if there are some, too large.

        With `at_least_one` the first entry has any size.
        """

    def to_go_on(self) -> Fetched:
        """Return it as one after which there may be more."""

    def with_batches(self, data: Buffer, /) -> Fetched:
        """Return it with the batches of an answer of the remote tier, after which there may be more."""

    def archived(self) -> list[tuple[int, int]]:
        """Return where lies what nobody is to get: first and last offset of markers, and of what was aborted."""

    def visible(self) -> Fetched:
        """Return it without that."""

    def each(self) -> list[Fetched]:
        """Return it with each of its entries alone, after which there may be more."""

    def collect(
        self, ranges: list[tuple[int, int]], /, *, codec: int, log_append_time: bool
    ) -> tuple[list[Buffer], int]:
        """Return batches with all records in ranges of offsets, first and last, which rise; and how many they have.

        Records become batches of `codec`, with the time of appends if `log_append_time`; a batch is passed on whole.
        """

    def arrow_columns(
        self, payloads_bytes_max: int, /, *, keys: bool, values: bool, headers: bool, log_append_time: bool
    ) -> _ArrowColumns:
        """Return the records as buffers of Apache Arrow; a column that is not wanted is None.

        Several batches hold `payloads_bytes_max` bytes uncompressed at the most. The timestamps of records in format
        `record` are those of their appends with `log_append_time`.
        """

    def as_stored(self) -> list[Buffer]:
        """Return each batch with its offset, and without a leader epoch."""

    def records(self) -> list[_Record]:
        """Return the records; of the first batch those before the offset read from are among them."""

@final
class LogRead:
    """A read of a log."""

    @property
    def commands(self) -> list[bytes]:
        """Return the commands, of which the last is EXEC: `outcome` takes its reply."""

@final
class LogReader:
    """Reads logs. It remembers the state of each log: from it follows where the next read looks, and how far."""

    def __init__(self, plain_bytes_max: int, /) -> None:
        """No value is decompressed that holds more than `plain_bytes_max` bytes."""

    def begin(
        self,
        partition: object,
        offset: int,
        entries_max: int,
        end: int | None,
        is_committed: bool,
        aborted_max: int,
        /,
    ) -> LogRead:
        """Return the read of a partition (korvet.topics.types.Partition) that these ask for (korvet.log.types.Read)."""

    def bounds_commands(self, partition: object, /) -> list[bytes]:
        """Return the commands that ask for the bounds of a log: `bounds` takes the reply to the last."""

    def bounds(
        self, partition: object, reply: RawReply, /
    ) -> (
        tuple[
            int,
            int,
            int,
            int,
            int,
            tuple[int, int, int] | None,
            int,
            tuple[tuple[int, int], ...],
            int | None,
        ]
        | tuple[int, str, bool]
        | None
    ):
        """Return the fields of korvet.log.types.Bounds, or as `outcome` what is wrong.

        None: entries of other clients of Redis are not in the log yet.
        """

    def outcome(
        self, read: LogRead, reply: RawReply, /
    ) -> tuple[bool, Fetched] | LogRead | tuple[int, str, bool]:
        """Return what was found, after whether nothing of other clients may belong there; or what to read instead.

        Or a code of Kafka, a sentence, and whether Redis is away, slow or refusing.
        """

LogPage: TypeAlias = tuple[int | None, int, int]
"""Of entries: the offset after the last one, None without any; how many; and about how many bytes."""

@final
class LogCleaner:
    """Decides which entries of a log a pass of compaction retains: of each key the latest record.

    `map` is given what the pass compacts for the first time, then `retain` all of it, as replies to XRANGE. Both raise
    RefusedError KAFKA_STORAGE_ERROR, with a third argument: whether Redis is away, slow or refusing.
    """

    def __init__(
        self,
        partition: object,
        /,
        *,
        start: int,
        dirty_start: int,
        end: int,
        plain_bytes_max: int,
        map_bytes_max: int,
        keys_max: int,
        at_rest: tuple[str, int],
        aborted: list[tuple[int, int, int]],
        periods: list[tuple[int, bool]],
    ) -> None:
        """Clean the log of a partition, which goes from `start` to `end`, and was compacted below `dirty_start`.

        A batch of more than `plain_bytes_max` bytes uncompressed cannot be read, and stays. `aborted` are transactions
        by producer id, first offset and marker, in order of the last. A part of the compacted log goes up to the first
        number of a period; its tombstones are removed if the second says so, and so are those of no period. A batch of
        which some records stay is compressed `at_rest`: codec, and the bytes from which on.

        The map is of up to `keys_max` keys, or of as many as fit `map_bytes_max` bytes if these are fewer.
        """

    @property
    def keys(self) -> int:
        """How many keys are in the map."""

    @property
    def seen(self) -> int:
        """How many records `retain` has looked at."""

    @property
    def unkeyed(self) -> int:
        """How many of them go because they have no key."""

    @property
    def has_new_tombstones(self) -> bool:
        """Whether some tombstones, or markers, were compacted for the first time."""

    def map(self, reply: RawReply, /) -> tuple[LogPage, int | None]:
        """Remember the latest offset of each key; returns also the first offset whose key has no room, if any."""

    def retain(
        self, reply: RawReply, /
    ) -> tuple[LogPage, list[tuple[bytes, list[bytes], int, int, int, int, str | None]]]:
        """Return what is left of the entries.

        Each is its id, its fields and values, the offset after it, its records, its size in bytes, its largest
        timestamp, and why it cannot be read, if so.
        """

def weights(partition: object, reply: RawReply, /) -> list[tuple[int, int, int, int]]:
    """Return of each entry in a reply to XRANGE: the offset after it, its records, its bytes, its largest timestamp.

    What is no batch where batches belong counts nothing, and has -1. Raises RefusedError as LogCleaner.
    """

_Owner = TypeVar("_Owner")

_PeerEvent: TypeAlias = tuple[_Owner | None, str, str | bytes | None]
"""What has happened to a connection: its owner, a word, and what there is to say.

"open": the TLS handshake is done, before any "frame"; the peer's certificate in DER, or None. "frame": `next_frame`
has something, after it had nothing. "written": all answers are with the kernel, after `answer` returned False.
"timer", without an owner: `due_s` has changed.

After the others nothing comes: "closed" by the peer, "idle", "slow", "malformed" (text), "over budget" (text), "lost"
(text), "ended" by the owner, "handshake" (text: why it failed; None: the first bytes are none of TLS), "refused" (text:
why the peer's certificate is not accepted).
"""

@final
class TlsServer:
    """TLS of a listener, for connections that begin from now on."""

    def __init__(
        self,
        *,
        key_store: str,
        trust_store: str,
        client_auth: str,
        versions: Sequence[str],
        suites: Sequence[str],
    ) -> None:
        """Take PEM: the private key and the chain, the own certificate first; and what clients are trusted by.

        `client_auth`: "none", "requested", "required". `versions`: "TLSv1.2", "TLSv1.3". `suites`: IANA's names, all if
        there are none. Raises ValueError, with a sentence.
        """

    @staticmethod
    def all_suites() -> list[str]:
        """Return IANA's names of the suites that there are."""

@final
class ClientSockets(Generic[_Owner]):
    """The connections of a worker's clients: sockets, frames, and bounds on both. Sizes in bytes, times in seconds.

    A connection has a number that is never given again. A call with the number of a connection that is gone does
    nothing. Every call may end other connections, whose owners learn it from the same call, or else from `turn`.
    """

    def __init__(
        self,
        *,
        idle_s: float | None,
        receive_s: float,
        produce_frame_max: int,
        other_frame_max: int,
        frames_max: int,
        ahead_bytes: int,
        budget_bytes: int,
        login_budget_bytes: int,
        half_budget_bytes: int,
        handshakes_max: int,
        now_s: float,
    ) -> None:
        """Begin without connections.

        A peer may say nothing for `idle_s`, and take `receive_s` for the next bytes of a frame, for those of an
        answer and for a TLS handshake. `frames_max` of its frames are with the owner at once, and `ahead_bytes` of
        the next are read. Budgets: large frames, those before a login, incomplete small ones. `now_s` is
        `time.monotonic()`. Raises OSError, ValueError.
        """

    def fileno(self) -> int:
        """Return a descriptor that is readable when `turn` has something to do."""

    @property
    def due_s(self) -> float | None:
        """After how many seconds `tick` is to be called."""

    @property
    def count(self) -> int:
        """How many connections there are."""

    @property
    def held(self) -> tuple[int, int, int]:
        """What is held of each budget, in the order of the arguments."""

    def adopt(self, fd: int, owner: _Owner, login: tuple[int, float] | None, tls: TlsServer | None, /) -> int:
        """Take over a connected socket, and return the number of the connection.

        `login`: the largest frame before the peer has logged in, and how long that may take. Raises OSError,
        ValueError; the descriptor is closed then.
        """

    def turn(self) -> list[_PeerEvent[_Owner]]:
        """Read and write where there is something to read, or room. Raises OSError."""

    def tick(self) -> list[_PeerEvent[_Owner]]:
        """Do what is due."""

    def next_frame(self, connection: int, /) -> tuple[int, memoryview, float, float] | None:
        """Take the next frame, if the peer may have it served now.

        Returns its number, its bytes, when the last of it arrived, and when the socket was last found empty before its
        first; both by `time.monotonic()`. None for a request that `DataPath` serves.
        """

    def answer(
        self, connection: int, answers: Sequence[tuple[int, Sequence[Buffer]]], /
    ) -> tuple[bool, list[_PeerEvent[_Owner]]]:
        """Answer frames, by their numbers, in one write; without a buffer if the client expects nothing.

        The buffers are not to change before they are written. Returns whether all of them are with the kernel.
        """

    def mute(self, connection: int, seconds: float, /) -> None:
        """Take no further frame of the peer for so long."""

    def set_login(self, connection: int, frame_max: int | None, is_token: bool, left_s: float, /) -> None:
        """Change what the peer may send before it has logged in, and how long that may take; None: it has.

        With `is_token` the next frame is a SASL token without a request's header.
        """

    def leave(self, connection: int, linger_s: float, shuts_down: bool, /) -> list[_PeerEvent[_Owner]]:
        """Take no further frame, and end the connection when all is answered and the peer has closed too.

        A frame that has arrived in part while none is served is taken still. After `linger_s` it ends in any case. With
        `shuts_down` the peer sees the end of what it is sent.
        """

    def end(self, connection: int, /) -> list[_PeerEvent[_Owner]]:
        """End the connection when the answers that were given are written; there will be none to other frames."""

    def close(self, connection: int, /) -> list[_PeerEvent[_Owner]]:
        """End the connection at once."""

    def is_gone(self, connection: int, /) -> bool:
        """Whether the peer has closed, or at least its sending half, even if not all is received yet."""

_Batch: TypeAlias = tuple[Any, Buffer | tuple[int, int, int, bool], int | None]
"""A partition, with the attributes of `AppendPartition`; a batch, or the marker of a producer: its id, its epoch, the
number of its transaction, whether it commits; and the number of the batch's transaction.
"""

_Decision: TypeAlias = int | tuple[int, int] | tuple[int, str, str] | None
"""None to go on, a number, a throttle in ms and the number of its reason, or an error: Kafka's code, a sentence, and
whether it is a "rule", or Redis is "unavailable" or "away"."""

_FetchDecision: TypeAlias = int | tuple[Any, ...] | None
"""None to go on; a number; or a word and what it is about: "bounds", high watermark, last stable offset; "batches",
bytes, records, whether there are more; "later"; "throttle", ms, the number of its reason; "refuse", Kafka's code, a
sentence, and whether it is a "rule", or Redis is "unavailable" or "away"."""

_FetchNoted: TypeAlias = tuple[
    tuple[int, int, int, int],
    list[tuple[float, list[float], int]],
    list[float],
    tuple[int, str | None],
    list[tuple[str, str, int, int]],
    tuple[int, int, int, int],
    dict[int, int],
]

_Noted: TypeAlias = tuple[
    tuple[int, int, int, int],
    list[tuple[float, list[float]]],
    tuple[list[float], list[float]],
    tuple[dict[int, int], dict[int, int]],
    tuple[dict[int, int], int, str | None, bool],
    list[tuple[str, str, int, int]],
]
"""Requests begun, their bytes, requests ended, bytes of responses; of each answered its seconds and those of its
stages; of the scripts for formats batch and record the seconds of each call, and the refusals by code; failed batches
by code, those for which Redis was away, why, and whether any request had no failure; and by topic and id the records
and bytes that came.
"""

@final
class DataPath(Generic[_Owner]):
    """Serves Produce and Fetch between the sockets of clients and those of Redis, and appends for the worker itself.

    What it has to say comes by `on_news`, as tuples of a word and two values: "asked", a request, and who has the
    connection or None: `questions`, then `decide`. "done", a request of `append`. "epoch", a node: `put_epoch` or
    `no_epoch`. "pressure", a node, and "full", a node that has refused for want of memory: `put_pressure`. "map": no
    master of the cluster has the slot of a partition. "row", a stream: its index got a row. "moved", a stream, and
    how many entries of others were moved or removed. "noted": `take_noted` or `take_fetch_noted` has something.

    "fetch", a request and who has the connection: `fetch_questions`, then `decide_fetch`. "seen", a stream and its
    leader epoch, end and epochs. "foreign", a stream and how many entries that are no batches were passed over.
    "damaged", a stream and the offset and encoding of a value that does not decompress. "timer": call
    `take_timer_s`.

    Owners of connections hear of "throttled" (the number of the reason and ms, as a text), and of what ends them:
    "unanswered", "failed" (text).
    """

    def __init__(
        self,
        redis: RedisClient[Any],
        lanes: tuple[int, int],
        scripts: tuple[Any, Any],
        on_news: Callable[[list[tuple[str, Any, Any]]], object],
        *,
        is_cluster: bool,
        plain_bytes_max: int,
        held_bytes_max: int,
        timeout_s: float,
        replicas: int,
        sessions_max: int,
        seed: int,
        wait_max_s: float | None,
        now_s: float,
    ) -> None:
        """Append over the first lane of `redis` with the scripts for formats batch and record, and read over the other.

        `now_s` is `time.monotonic()`. There are `sessions_max` fetch sessions, whose ids follow from `seed`. A fetch
        waits for `wait_max_s` at the most.

        A batch has `plain_bytes_max` bytes uncompressed at the most. No request begins while what was made of others
        takes `held_bytes_max`. What moves within Redis is followed for `timeout_s`. With acks=all `replicas` have to
        have an append. `on_news` must not wait; it is called wherever this is.
        """

    def join(self) -> None:
        """Have `redis` bring what becomes of appends; to be called once, before any other."""

    def serve_clients(self, sockets: ClientSockets[_Owner], /) -> None:
        """Serve Produce and Fetch of these connections, of each from its first `put_session` on."""

    def hear_by(self, channels: Channels, /) -> None:
        """Hear by these what comes to logs; to be called once."""

    def put_partition(self, partition: Any, /) -> None:  # noqa: ANN401 - it has the attributes of AppendPartition
        """Let clients append to a partition. Raises ValueError for an unknown codec."""

    def forget_topic(self, name: str, /) -> None:
        """Ask again for the partitions of a topic."""

    def forget_topics(self) -> None:
        """Ask again for all partitions."""

    def put_session(self, connection: int, may_all: bool, ends_s: float | None, /) -> None:
        """Serve a connection, until `time.monotonic()` is `ends_s`."""

    def grant(self, connection: int, writes: bool, kind: str, name: str | bytes, /) -> None:
        """Note a right to write, or read: to a "topic", a "topic id", a "transactional id" or the "cluster"."""

    def forget_rights(self) -> None:
        """Ask again for all rights."""

    def trust_rights(self, until_s: float, /) -> None:
        """Ask again for all rights once `time.monotonic()` is `until_s`."""

    def set_metered(self, is_metered: bool, /) -> None:
        """Ask for each request how long its client is to be throttled."""

    def set_lease(self, end_boot_s: float, late_until_s: float, length_s: float, /) -> None:
        """Ask about requests after the end (CLOCK_BOOTTIME), and those that came before `late_until_s` or waited."""

    def set_full_throttle(self, throttle_ms: int, /) -> None:
        """Throttle clients whose batches Redis refuses for want of memory."""

    def reordered(self) -> None:
        """Note that what was refused until now is not refused from now on."""

    def put_epoch(self, node: int, history: str, epoch: int, /) -> None:
        """Put the leader epoch of a node in a history of writes."""

    def no_epoch(self, node: int, text: str, /) -> None:
        """Give up what waits for the leader epoch of a node."""

    def put_pressure(
        self, node: int, throttle_ms: int, refusal: str | None, due_s: float, until_s: float, /
    ) -> None:
        """Put what applies to writes to a node, when another reading is due, and until when this one counts."""

    def put_insync(self, node: int, history: str, count: int, until_s: float, /) -> None:
        """Put how many servers are in sync with a node in a history, and until when that counts (time.monotonic)."""

    def append(self, batches: Sequence[_Batch], /) -> int:
        """Append batches and markers of the worker itself; returns the number of the request. Raises ValueError."""

    def outcomes(self, request: int, /) -> list[tuple[Any, ...]]:
        """Take what became of each batch of `append`, once.

        Base offset, log start, whether it was there before, bytes that ever came into the log if its index got a row,
        history, timestamp, node; or Kafka's code, a sentence, whose failure it is, and records with theirs.
        """

    def questions(self, request: int, /) -> list[tuple[Any, ...]]:
        """Return what a request asks, each a word and what it is about.

        "late", since when (time.monotonic); "right", kind, name; "topic", name, id or None, index, whether Redis does
        not know the one that was put; "in sync", stream; "verify", transactional id, version of Produce, producer id,
        epoch, streams; "external", stream; "stale", node, later epoch or None; "elsewhere", error replies, attempt;
        "time at", stream, offset; "rest", to be decided on once all others had a turn; "confirm", node, history,
        count; "charge", client id, bytes, seconds.
        """

    def decide(self, request: int, decisions: Sequence[_Decision], /) -> None:
        """Decide on the questions of a request, in their order; an unknown code is UNKNOWN_SERVER_ERROR."""

    def fetch_questions(self, request: int, /) -> list[tuple[Any, ...]]:
        """Return what a Fetch request asks, each a word and what it is about.

        "right", kind, name; "topic", name, id or None, index, whether Redis does not know the one that was put;
        "limit", client id: how many bytes it may fetch at once; "epoch", stream, the leader epoch that the client
        knows, that of the log; "external", stream, offset; "watermark", stream, node or None, history, end, last stable
        offset, offset up to which something is to be shown, whether committed records alone are; "remote", stream,
        start, end, archived and epochs of what the remote tier has, offset, bytes, whether the first record may exceed
        these, whether the answer may be waited for, readable end; "charge", client id, bytes, seconds.
        """

    def decide_fetch(self, request: int, decisions: Sequence[_FetchDecision], /) -> None:
        """Decide on the questions of a Fetch request, in their order; an unknown code is UNKNOWN_SERVER_ERROR."""

    def drain(self) -> None:
        """Answer all that wait for records, and let none wait from now on."""

    def tick(self) -> None:
        """Do what is due."""

    def take_timer_s(self) -> float | None:
        """Return in how many seconds `tick` is to be called, None: not at all. "timer" says when to ask."""

    @property
    def parked(self) -> int:
        """How many requests wait for records."""

    def set_fetch_bytes_max(self, bytes_max: int, /) -> None:
        """Answer no request with more bytes, but for one batch."""

    @property
    def fetch_room(self) -> int:
        """How many bytes an answer that is made elsewhere may take of the memory for records."""

    def hold_fetched(self, taken: int, released: int, /) -> None:
        """Take bytes of the memory for records, and release what was taken."""

    def take_fetch_noted(self) -> _FetchNoted:
        """Take what was counted of Fetch since the last time.

        Requests that began, their bytes, that ended, the bytes of responses; seconds of each answered one, of its
        stages, and its error; seconds of each read; requests for which Redis was away, and the words about the first;
        by topic and id the records and bytes sent; requests that wait, sessions, their partitions, evictions; errors of
        partitions by their codes.
        """

    @property
    def count(self) -> int:
        """How many requests have begun and are not answered."""

    def end_of(self, stream: str, /) -> tuple[str, int, int] | None:
        """Return where a log ended as far as is known: its topic's id, the leader epoch, the offset."""

    def put_end(self, stream: str, topic_id: str, epoch: int, end: int, /) -> None:
        """Note where a log ends."""

    def take_noted(self) -> _Noted:
        """Take what was counted."""

_Waiter = TypeVar("_Waiter")

_ScriptCall: TypeAlias = tuple[Any, Sequence[str | bytes], Sequence[_Arg]]
"""A script, an object with `sha`, `source`, `leased` and `when_full`; its keys; its arguments."""

_Done: TypeAlias = tuple[_Waiter | None, list[Any], str, float]
"""Who waits, the replies, one in each place, the operation, and the seconds of the last exchange; < 0 if none ended."""

_Action: TypeAlias = tuple[Any, ...]
"""What the driver is to do, or to know; the first member says which:

`open`, connection, host, port, whether it is of a Sentinel: open a socket, then call `opened` or `failed`. Host is the
path of a Unix socket. `close`, connection: stop watching it, or the attempt, close it if it is TLS, and call `closed`.
`flush`, connection: write at the end of this turn of the event loop. `write`, connection: with TLS, write now. `stuck`,
connection: call `writable` when the socket takes more, until `unstuck`. `timer`: `due_s` has changed.

`connected`, lane, node, history, whether it is so again. `refused`, lane, node, text: an attempt failed. `lost`, lane,
node, reason. `reordered`: what was refused until now is not refused from then on. `map`: the map changed. `failover`: a
connection that led to a replica was replaced.
"""

_Turn: TypeAlias = tuple[list[_Done[_Waiter]], list[_Action]]

_Listener: TypeAlias = Callable[[bytes | None], None]

_OnNews: TypeAlias = Callable[[list[tuple[_Listener, bytes | None]], list[tuple[str, str | None]]], object]
"""Calls to be made, of a listener with a message, or None to read again. And channels that somebody waits for: why one
is not live, None if it is."""

@final
class Channels:
    """The channels of sharded pub/sub to which a process listens, over a feed (`RedisClient.open_feed`).

    They are subscribed to at the nodes that have their slots, and again over each new connection.
    """

    def listen(self, pairs: Sequence[tuple[str, _Listener]], /) -> None:
        """Call listeners, each an object that is itself alone, with what comes over channels, once per channel.

        For each channel that is not live, `on_news` hears once, within `timeout_s`, whether it has become live.
        Listeners stay until `forget` in either case.
        """

    def forget(self, channel: str, listener: _Listener, /) -> None:
        """Call a listener no more; the channel is unsubscribed from after `linger_s`, if it has no other."""

    def live(self, channel: str, /) -> bool:
        """Return whether Redis has confirmed a channel over the present connection."""

    @property
    def count(self) -> int:
        """How many channels there are, those without listeners among them that are not unsubscribed from yet."""

    @property
    def listeners(self) -> int:
        """How many listeners there are."""

    def reconnect(self, reason: str, /) -> None:
        """Close the connections, and subscribe over others."""

    def close(self) -> None:
        """Close the feed; who waits hears so, and nobody else hears anything any more."""

def slot_of(key: str | bytes, /) -> int:
    """Return the slot of a key: of its hash tag, which is what stands in its first pair of braces, if it has one."""

class RedisClient(Generic[_Waiter]):
    """Connections to Redis, be it one server, the master that Sentinels name, or a cluster, without an event loop.

    A node is a server, by its number: 0 for the one server. A lane has a connection of its own to each node. A driver
    opens the sockets, calls the methods in which something arrives, and does the actions that they return; `begin` and
    others call `act` with actions.
    """

    def __init__(
        self,
        kind: str,
        addresses: Sequence[tuple[str, int]],
        master_name: str,
        login: tuple[str, str, int],
        sentinel_login: tuple[str, str],
        error_of: Callable[[str], Exception],
        prevented: Callable[[str, str], Exception],
        new_waiter: Callable[[], _Waiter],
        act: Callable[[list[_Action]], object],
        *,
        timeout_s: float,
        connect_timeout_s: float,
        seed: int,
        watches: bool = True,
    ) -> None:
        """`kind` is `server`, `sentinel` or `cluster`; `login` is user name, password and database.

        `error_of` returns the exception of an error reply's text, and `prevented` that of a request without a reply, by
        its kind and text: `away` (not sent: the node cannot be reached), `unknown` (sent, no answer), `history` (not
        sent: another history), `full` (not sent: too much is in flight), `closed`. `act` must not raise.
        """

    def add_lane(
        self,
        *,
        commands_max: int,
        bytes_max: int,
        reply_bytes_max: int,
        first: Sequence[_Command] = (),
    ) -> int:
        """Return a new lane; the limits bound what is in flight over each of its connections.

        `first` is sent first over each connection, and the replies are dropped.
        """

    def open_feed(self, on_news: _OnNews, /, *, linger_s: float, timeout_s: float, ping_s: float) -> Channels:
        """Return channels that have a feed of their own: a lane for pub/sub.

        After `ping_s` of silence a PING finds out whether a server lives. `on_news` must not raise.
        """

    def begin(
        self,
        lane: int,
        commands: Sequence[_Command],
        operation: str,
        node: int | None,
        reply_bytes: int,
        is_raw: bool = False,
        /,
    ) -> _Waiter:
        """Send commands, at least one, and return who waits for their replies; what prevents one stands in its place.

        Without a node to those of the keys, wherever a slot moves; those from MULTI to EXEC go together. `reply_bytes`
        are those of large replies, 0 for small ones. With `is_raw` replies are RawReply, error replies too.
        """

    def begin_scripts(
        self,
        lane: int,
        calls: Sequence[_ScriptCall],
        operation: str,
        node: int | None,
        history: str | None,
        sent: list[tuple[int, str]] | None,
        /,
    ) -> _Waiter:
        """Send scripts as `begin` does commands; with `history` to that one only.

        One that Redis lacks is loaded and run again, and for one that a full memory refuses `when_full` is run. `sent`
        gets node and history of what is sent, when it is.
        """

    def connect(self, lane: int, node: int, /) -> _Waiter:
        """Return who waits for a connection: it gets an empty list, or what prevented it."""

    def lose(self, lane: int, node: int, reason: str, pauses: bool, /) -> None:
        """Close a connection; `pauses`: as after an attempt that failed."""

    def close(self, lane: int, /) -> None:
        """Close a lane for good."""

    def is_ready(self, lane: int, node: int, /) -> bool:
        """Whether a request is sent at once."""

    def is_busy(self, lane: int, node: int, /) -> bool:
        """Whether anything is in flight, or about to be."""

    def under_way(self, lane: int, node: int, /) -> tuple[int, int, int]:
        """Commands, bytes, and bytes of large replies that are in flight."""

    def waiting(self, lane: int, node: int, /) -> tuple[int, int]:
        """How many calls wait for room, and how many for room for large replies."""

    def set_history(self, lane: int, node: int, history: str, /) -> None:
        """Note the history to which a connection leads by now."""

    def set_lease(self, lane: int, node: int, end_ms: int, /) -> None:
        """Set until when scripts with a lease may come, and forget that one came too late; -1: of nodes to come."""

    def lease_end_ms(self, lane: int, node: int, /) -> int:
        """Return what was set."""

    def lease_ended(self, lane: int, node: int, /) -> bool:
        """Whether a script came too late since then."""

    @property
    def map_version(self) -> int:
        """Changes with the map of the cluster; 0 before it is known."""

    def read_map(self, /) -> _Waiter:
        """Read the map; the waiter gets an empty list, or what prevented it."""

    def read_map_soon(self, /) -> None:
        """Read it in the background, unless that was done just now."""

    def node_at(self, slot: int, /) -> int | None:
        """Return the node that has a slot, None if none is known."""

    def slots(self, /) -> list[tuple[int, int, int]]:
        """Return the slots that have a master: first, last, node."""

    def name(self, node: int, /) -> str:
        """Return HOST:PORT of a node."""

    def address(self, node: int, /) -> tuple[str, int]:
        """Return the host and the port of a node of a cluster."""

    def moved(self, slot: int, host: str, port: int, /) -> None:
        """Note where a node said that a slot is."""

    def opened(self, connection: int, fd: int | None, /) -> _Turn[_Waiter]:
        """Take over a connected socket that does not block; None: the driver has it, as with TLS."""

    def failed(self, connection: int, reason: str, /) -> _Turn[_Waiter]:
        """Note that a socket could not be opened, or that one with TLS is lost."""

    def closed(self, connection: int, /) -> None:
        """Close the socket, or forget the attempt: nobody watches it any more. To be called after each `close`."""

    def readable(self, connection: int, /) -> _Turn[_Waiter]:
        """Read what there is, but no more than a turn's."""

    def received(self, connection: int, data: Buffer, /) -> _Turn[_Waiter]:
        """Do the same with bytes that the driver has read."""

    def writable(self, connection: int, /) -> _Turn[_Waiter]:
        """Write what the socket takes."""

    def unwritten(self, connection: int, size_max: int, /) -> bytes:
        """Return the next bytes that are to be written to a connection that the driver has."""

    def wrote(self, connection: int, size: int, /) -> None:
        """Note how many of them were written."""

    def tick(self, /) -> _Turn[_Waiter]:
        """Do what is due."""

    @property
    def due_s(self) -> float | None:
        """After how many seconds `tick` is to be called."""
