"""Protobuf to columns, in Spark's Python workers: its own from_protobuf needs a jar that PySpark does not bring.

Types are as from_protobuf has them: enums by name, uint64 as DECIMAL(20,0), Timestamp as TIMESTAMP. A field that knows
whether it is there is NULL if it is not; any other has its default then, as in every language of Protobuf.
"""

from __future__ import annotations

import base64
import binascii
import functools
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from korvet.spark.pipelines.registry import Schema
from korvet.spark.pipelines.schemas import HEADER_BYTES, NO_HEADER, Lookup
from korvet.spark.pipelines.spec import PipelineError

VALUE, PROBLEM = "value", "problem"

_FILE = "korvet_schema.proto"
"""What a schema without a name is compiled as."""

_INDEXES_MAX = 32
"""How deep a message may be declared in others."""

_NO_INDEXES = "no indexes of a message"
_SECONDS_MAX = 60.0
"""How long the compiler may take."""

_NANOS = 1_000_000_000
_SECONDS: Mapping[str, tuple[DataType, int, int]] = {
    "google.protobuf.Timestamp": (TimestampType(), -62_135_596_800, 253_402_300_799),
    "google.protobuf.Duration": (DayTimeIntervalType(), -315_576_000_000, 315_576_000_000),
}
"""Messages that are times to Spark, and the seconds that they may have."""


Names = Mapping[tuple[int, ...], str]
"""The messages of a file by their places: each is the index of a message, among those that the one before declares."""


def compiled(schema: Schema, directory: Path | None = None) -> descriptor_pb2.FileDescriptorSet:
    """Return a schema with all that it imports, its own file last; raises PipelineError.

    It is the text of a .proto file, which may import those of a directory, or a FileDescriptorProto in base64, as
    Confluent's client for Python registers it.
    """
    files = {_FILE: schema.text} | dict(schema.references)
    serialized = {name: _serialized(text, name) for name, text in files.items()}
    given = [item for item in serialized.values() if item is not None]
    texts = {name: text for name, text in files.items() if serialized[name] is None}
    return _protoc(texts, descriptor_pb2.FileDescriptorSet(file=given), directory)


def _serialized(text: str, name: str) -> descriptor_pb2.FileDescriptorProto | None:
    try:
        serialized = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, message.DecodeError):
        return None
    serialized.name = name
    return serialized


def _protoc(
    texts: Mapping[str, str], given: descriptor_pb2.FileDescriptorSet, imports: Path | None
) -> descriptor_pb2.FileDescriptorSet:
    with tempfile.TemporaryDirectory() as directory:
        # Names of schemas are anyone's: what is written besides is elsewhere.
        serialized, result, root = (Path(directory).resolve() / name for name in ("given", "result", "root"))
        for name, text in texts.items():
            try:
                path = (root / name).resolve()
                if not path.is_relative_to(root):
                    raise PipelineError(f"it imports {name}, which is outside")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            except (OSError, ValueError) as error:
                raise PipelineError(f"it imports {name!r}, which is no name of a file: {error}") from error
        root.mkdir(exist_ok=True)
        serialized.write_bytes(given.SerializeToString())
        paths = [root, *([] if imports is None else [imports]), _common()]
        command = [sys.executable, "-m", "grpc_tools.protoc", *(f"--proto_path={item}" for item in paths)]
        if given.file:
            command.append(f"--descriptor_set_in={serialized}")
        command += ["--include_imports", f"--descriptor_set_out={result}", _FILE]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS_MAX)  # noqa: S603 - of this interpreter
        except subprocess.TimeoutExpired as error:
            raise PipelineError(f"the compiler took more than {_SECONDS_MAX:.0f} s") from error
        if done.returncode:
            lines = (line for line in done.stderr.splitlines() if ".proto:" in line)
            reason = next(lines, "the compiler failed").rpartition(f"{_FILE}:")[2]
            raise PipelineError(f"it is no Protobuf schema: {reason}")
        return descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes())


def _common() -> Path:
    """Return where the files of google/protobuf are."""
    module = importlib.util.find_spec("grpc_tools")
    if module is None or module.origin is None:
        raise PipelineError("a .proto file needs grpcio-tools, of korvet[protobuf]")
    return Path(module.origin).parent / "_proto"


def described(content: bytes) -> descriptor_pb2.FileDescriptorSet:
    """Return what a .desc file has, as protoc writes it; raises PipelineError."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(content)
    except message.DecodeError as error:
        raise PipelineError("it is no file of descriptors") from error
    if not files.file:
        raise PipelineError("it has no descriptors")
    return files


class MessageWriter(NamedTuple):
    """The messages of a schema that records are written with, or why none can be read.

    `unread` has the fields that the reader's messages lack.
    """

    messages: Names | str
    unread: Sequence[str] = ()


def writer(schema: Schema, reader: descriptor_pb2.FileDescriptorSet, name: str) -> MessageWriter:
    """Return what records of a schema are read with, of which the message `name` is read by the reader's."""
    if schema.kind != "PROTOBUF":
        return MessageWriter(f"it is {schema.kind}, not Protobuf")
    try:
        files = compiled(schema)
        names = message_names(files)
        if name not in names.values():
            return MessageWriter(names)
        read, written = (
            _pool(descriptor_set.SerializeToString()).FindMessageTypeByName(name)
            for descriptor_set in (reader, files)
        )
        return MessageWriter(names, list(_unread(read, written, set())))
    except PipelineError as error:
        return MessageWriter(str(error))
    except TypeError as error:
        return MessageWriter(f"the schema cannot be used: {error}")


def _unread(reader: Descriptor, writer: Descriptor, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the fields that a writer's message, or a message in it, has and the reader's lacks; `seen`: such pairs."""
    seen.add((reader.full_name, writer.full_name))
    for field in writer.fields:
        there = reader.fields_by_number.get(field.number)
        if there is None:
            yield f"{writer.full_name}.{field.name}"
        elif field.message_type is not None and there.message_type is not None:
            inner = there.message_type, field.message_type
            if (inner[0].full_name, inner[1].full_name) not in seen:
                yield from _unread(*inner, seen)


def message_names(files: descriptor_pb2.FileDescriptorSet) -> Names:
    """Return the messages of a schema's own file."""
    file = files.file[-1]

    def within(
        declared: Iterable[descriptor_pb2.DescriptorProto], scope: str, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], str]]:
        for at, item in enumerate(declared):
            name = f"{scope}.{item.name}" if scope else item.name
            yield (*path, at), name
            yield from within(item.nested_type, name, (*path, at))

    return dict(within(file.message_type, file.package, ()))


def chosen(files: descriptor_pb2.FileDescriptorSet, name: str | None) -> str:
    """Return which message is read, the only one by default; raises PipelineError."""
    try:
        pool = _pool(files.SerializeToString())
    except TypeError as error:
        raise PipelineError(f"the schema cannot be used: {error}") from error
    names = [full_name for path, full_name in message_names(files).items() if len(path) == 1]
    if name is None:
        if len(names) != 1:
            raise PipelineError(f"message is required: the schema has {', '.join(names) or 'none'}")
        return names[0]
    try:
        pool.FindMessageTypeByName(name)
    except KeyError as error:
        raise PipelineError(f"the schema has no message {name}") from error
    return name


@functools.lru_cache(maxsize=16)
def _pool(files: bytes) -> descriptor_pool.DescriptorPool:
    """Return the types of a FileDescriptorSet, in which each file stands after what it imports."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    return pool


_Convert: TypeAlias = Callable[[Any], Any]


def _same(value: Any) -> Any:  # noqa: ANN401 - a value of Protobuf
    return value


def _text(value: str | bytes) -> str:
    """Return a text; raises ValueError for one of proto2 that is none, which is bytes in Python."""
    if isinstance(value, bytes):
        raise ValueError("a text is not valid UTF-8")  # noqa: TRY004 - a problem of the record
    return value


_SIMPLE: Mapping[int, tuple[DataType, _Convert]] = {
    FieldDescriptor.CPPTYPE_INT32: (IntegerType(), _same),
    FieldDescriptor.CPPTYPE_INT64: (LongType(), _same),
    FieldDescriptor.CPPTYPE_UINT32: (LongType(), _same),
    FieldDescriptor.CPPTYPE_UINT64: (DecimalType(20, 0), Decimal),
    FieldDescriptor.CPPTYPE_DOUBLE: (DoubleType(), _same),
    FieldDescriptor.CPPTYPE_FLOAT: (FloatType(), _same),
    FieldDescriptor.CPPTYPE_BOOL: (BooleanType(), _same),
}


def _struct(descriptor: Descriptor, within: tuple[str, ...] = ()) -> tuple[DataType, _Convert]:
    """Return the type of a message, and what makes a value of it; raises PipelineError for a recursive one."""
    name = descriptor.full_name
    if name in _SECONDS:
        return _SECONDS[name][0], functools.partial(_microseconds, name, *_SECONDS[name][1:])
    if name in within:
        raise PipelineError(f"{name} contains itself: recursive messages are not supported")
    fields = [
        (field.name, field.has_presence, *_field(field, (*within, name))) for field in descriptor.fields
    ]

    def convert(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a message
        return {
            name: make(getattr(value, name)) if not has_presence or value.HasField(name) else None
            for name, has_presence, _, make in fields
        }

    return StructType([StructField(name, kind) for name, _, kind, _ in fields]), convert


def _microseconds(name: str, first: int, last: int, value: Any) -> int:  # noqa: ANN401 - a message
    if not (first <= value.seconds <= last and abs(value.nanos) < _NANOS):
        raise ValueError(f"a {name} is out of range")
    return int(value.seconds) * 1_000_000 + int(value.nanos) // 1000


def _field(field: FieldDescriptor, within: tuple[str, ...]) -> tuple[DataType, _Convert]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_single(field.message_type.fields_by_name[name], within) for name in ("key", "value"))
        make_key, make = key[1], value[1]
        return MapType(key[0], value[0]), lambda field: [
            (make_key(name), make(element)) for name, element in field.items()
        ]
    kind, make = _single(field, within)
    if not field.is_repeated:
        return kind, make
    return ArrayType(kind), list if make is _same else lambda field: [make(part) for part in field]


def _single(field: FieldDescriptor, within: tuple[str, ...]) -> tuple[DataType, _Convert]:
    if field.message_type is not None:
        return _struct(field.message_type, within)
    if field.enum_type is not None:
        names = {number: enum_value.name for number, enum_value in field.enum_type.values_by_number.items()}
        # One that the reader does not know has a number only.
        return StringType(), lambda number: names.get(number, str(number))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BinaryType(), _same
    return (StringType(), _text) if field.type == FieldDescriptor.TYPE_STRING else _SIMPLE[field.cpp_type]


class MessageReader:
    """Reads messages of one type. It is pickled for tasks: what is compiled is made again there.

    `writers` are the messages of schemas that records were written with, by their ids, or why none can be read.
    """

    def __init__(
        self,
        files: descriptor_pb2.FileDescriptorSet,
        name: str,
        writers: Mapping[int, Names | str],
        lookup: Lookup | None,
    ) -> None:
        """Raise PipelineError if the message is recursive."""
        self._files = files.SerializeToString()
        self._name = name
        self._writers = writers
        self._lookup = lookup
        self._kind, _ = _struct(_pool(self._files).FindMessageTypeByName(name))

    def column(self, data: Column) -> Column:
        """Return a struct of the value and the problem of bytes, both NULL of NULL."""
        result = StructType([StructField(VALUE, self._kind), StructField(PROBLEM, StringType())])
        decode: Any = arrow_udf(self._decoded, result)  # type: ignore[call-overload]  # Spark reads its hints
        decoded: Column = decode.asNondeterministic()(data)
        return decoded

    def _decoded(self, records: pa.Array) -> pa.Array:
        descriptor = _pool(self._files).FindMessageTypeByName(self._name)
        make = message_factory.GetMessageClass(descriptor)
        _, convert = _struct(descriptor)
        values: list[Any] = []
        problems: list[str | None] = []
        for data in records.to_pylist():
            value = problem = None
            if data is not None:
                try:
                    of: Any = make.FromString(self._payload(data))
                    if missing := of.FindInitializationErrors():
                        raise ValueError(f"{', '.join(missing)} is missing")  # noqa: TRY301 - caught with all that is wrong with a record
                    value = convert(of)
                except message.DecodeError:
                    problem = f"not a message {self._name}"
                except ValueError as error:
                    problem = str(error)
            values.append(value)
            problems.append(problem)
        columns = [
            pa.array(values, to_arrow_type(self._kind, timezone="UTC")),
            pa.array(problems, pa.string()),
        ]
        return pa.StructArray.from_arrays(columns, [VALUE, PROBLEM])

    def _payload(self, data: bytes) -> bytes:
        """Return the message in a record's bytes; raises ValueError if its header is wrong."""
        if self._lookup is None:
            return data
        if len(data) < HEADER_BYTES or data[0] != 0:
            raise ValueError(NO_HEADER)
        schema_id = int.from_bytes(data[1:HEADER_BYTES], "big")
        if schema_id not in self._writers:
            raise ValueError(self._lookup.problem(schema_id))
        path, end = _indexes(data)
        names = self._writers[schema_id]
        if isinstance(names, str):
            raise ValueError(f"schema id {schema_id}: {names}")  # noqa: TRY004 - a problem of the record
        if path not in names:
            raise ValueError(f"schema id {schema_id} has no message {'.'.join(map(str, path))}")
        if names[path] != self._name:
            raise ValueError(f"a message {names[path]}, not {self._name}")
        return data[end:]


def _indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the place of the message in its schema, and where it begins; raises ValueError."""
    count, at = _varint(data, HEADER_BYTES)
    if count == 0:
        # The first message, as most are.
        return (0,), at
    if not 0 < count <= _INDEXES_MAX:
        raise ValueError(_NO_INDEXES)
    path = []
    for _ in range(count):
        index, at = _varint(data, at)
        path.append(index)
    return tuple(path), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint of 32 bits, and where it ends."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte
            return (value >> 1) ^ -(value & 1), at
    raise ValueError(_NO_INDEXES)
