"""Kafka's wire format, read from the message JSON of kafka-clients: requests are encoded, responses decoded.

Nothing of korvet.protocol is used: a mistake on both sides would hide a difference.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Body = Mapping[str, Any]
FIXED = {
    kind: f">{form}"
    for kind, form in zip(
        ("int8", "int16", "uint16", "int32", "uint32", "int64", "bool", "float64"), "bhHiIq?d", strict=True
    )
}
_API_VERSIONS = 18
_ELEMENTS_MAX = 1_000_000


class UndecodableError(Exception):
    """Bytes that are not what the schema says."""


class Field(NamedTuple):
    """One field of a message. `type` is that of an element if the field is a list; structs have `fields`."""

    name: str
    type: str
    is_list: bool
    versions: range
    nullable: range
    tagged: range
    tag: int
    default: Any
    fields: tuple[Field, ...]


class Api(NamedTuple):
    """One API: its key and both messages."""

    name: str
    key: int
    versions: range
    flexible: range
    request: tuple[Field, ...]
    response: tuple[Field, ...]

    def has(self, path: str, version: int) -> bool:
        """Whether a version of the request has a field, given with the lists around it: Topics.Name."""
        fields = self.request
        for name in path.split("."):
            field = _named(fields, name)
            if version not in field.versions:
                return False
            fields = field.fields
        return True


def load(jar: Path) -> dict[str, Api]:
    """Return each API of the jar of kafka-clients by its name."""
    messages: dict[str, dict[int, Any]] = {"request": {}, "response": {}}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"common/message/\w+(Request|Response)\.json", name):
                spec = json.loads(re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE))
                if spec["validVersions"] != "none":
                    messages[spec["type"]][spec["apiKey"]] = spec
    return {
        spec["name"].removesuffix("Request"): Api(
            spec["name"].removesuffix("Request"),
            key,
            _versions(spec["validVersions"]),
            _versions(spec["flexibleVersions"]),
            *(_fields(messages[kind][key]) for kind in ("request", "response")),
        )
        for key, spec in sorted(messages["request"].items())
    }


def _versions(text: str | None) -> range:
    if text is None or text == "none":
        return range(0)
    first, dash, last = text.removesuffix("+").partition("-")
    return range(int(first), 1 << 15 if text.endswith("+") else int(last if dash else first) + 1)


def _fields(spec: dict[str, Any]) -> tuple[Field, ...]:
    structs = {struct["name"]: struct["fields"] for struct in spec.get("commonStructs", [])}

    def field(given: dict[str, Any]) -> Field:
        kind = given["type"].removeprefix("[]")
        return Field(
            given["name"][0].upper() + given["name"][1:],
            kind,
            given["type"].startswith("[]"),
            _versions(given["versions"]),
            _versions(given.get("nullableVersions")),
            _versions(given.get("taggedVersions")),
            given.get("tag", -1),
            given.get("default"),
            tuple(map(field, given.get("fields") or structs.get(kind, ()))),
        )

    return tuple(map(field, spec["fields"]))


def _named(fields: Sequence[Field], name: str) -> Field:
    for field in fields:
        if field.name == name:
            return field
    raise KeyError(f"{name} is none of {[field.name for field in fields]}")


def default(field: Field) -> Any:
    """Return the value of a field that is not given."""
    if field.default == "null":
        return None
    if field.is_list:
        return []
    if field.type == "bool":
        return str(field.default).lower() == "true"
    if field.type in FIXED:
        return float(field.default or 0) if field.type == "float64" else int(str(field.default or 0), 0)
    zeros = {"uuid": uuid.UUID(int=0), "string": field.default or "", "bytes": b"", "records": None}
    return zeros.get(field.type, {})


class Request(NamedTuple):
    """What is sent besides the fields. `tags` are the tagged fields of header and body as bytes.

    `damage` spoils the first place of its kind: "huge list", "negative list", "null string", "invalid UTF-8".
    """

    client_id: str | None = "differential"
    header_tags: bytes = b"\0"
    body_tags: bytes = b""
    damage: str = ""


def encode(api: Api, version: int, body: Body, correlation_id: int, request: Request) -> bytes:
    """Return a request without its size. Fields that the version lacks are left out; unknown ones are a KeyError."""
    writer = _Writer(version, version in api.flexible, request.damage)
    header = struct.pack(">hhi", api.key, version, correlation_id)
    client_id = (request.client_id or "").encode()
    header += struct.pack(">h", -1 if request.client_id is None else len(client_id)) + client_id
    writer.fields(api.request, body)
    data = bytes(writer.out)
    if writer.flexible:
        header += request.header_tags
        data = data[:-1] + request.body_tags if request.body_tags else data
    return header + data


class _Writer:
    def __init__(self, version: int, flexible: bool, damage: str = "") -> None:  # noqa: FBT001 - of the version
        self.out = bytearray()
        self.version = version
        self.flexible = flexible
        self._damage = damage

    def fields(self, fields: Sequence[Field], body: Body) -> None:
        for name in body:
            _named(fields, name)
        tagged = []
        for field in fields:
            if self.version not in field.versions:
                continue
            value = body.get(field.name, default(field))
            if self.version not in field.tagged:
                self._value(field, value)
            elif value != default(field):
                part = _Writer(self.version, self.flexible)
                part._value(field, value)
                tagged.append((field.tag, bytes(part.out)))
        if self.flexible:
            self.out += varint(len(tagged))
            for tag, data in sorted(tagged):
                self.out += varint(tag) + varint(len(data)) + data

    def _value(self, field: Field, value: Any) -> None:
        if not field.is_list:
            self._element(field, value)
        elif self._spoil("huge list"):
            self._size(0x7FFFFFEF, ">i")
        elif self._spoil("negative list"):
            self.out += varint(0xFFFFFFFE) if self.flexible else struct.pack(">i", -2)
        else:
            self._size(None if value is None else len(value), ">i")
            for element in value or ():
                self._element(field, element)

    def _element(self, field: Field, value: Any) -> None:
        if field.type in FIXED:
            self.out += struct.pack(FIXED[field.type], value)
        elif field.type == "uuid":
            self.out += value.bytes
        elif field.type in ("string", "bytes", "records"):
            data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            if field.type == "string" and self._spoil("null string"):
                data = None
            elif field.type == "string" and self._spoil("invalid UTF-8"):
                data = b"\xff\xfe\x80"
            self._size(None if data is None else len(data), ">h" if field.type == "string" else ">i")
            self.out += data or b""
        else:
            if not field.is_list and self.version in field.nullable:
                self.out += struct.pack(">b", -1 if value is None else 1)
            if value is not None:
                self.fields(field.fields, value)

    def _size(self, size: int | None, plain: str) -> None:
        if self.flexible:
            self.out += varint(0 if size is None else size + 1)
        else:
            self.out += struct.pack(plain, -1 if size is None else size)

    def _spoil(self, damage: str) -> bool:
        if self._damage != damage:
            return False
        self._damage = ""
        return True


def varint(number: int) -> bytes:
    """Return an unsigned number in groups of seven bits, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def decode(api: Api, version: int, data: bytes) -> tuple[int, dict[str, Any]]:
    """Return correlation id and fields of a response; bytes after it are the field `(rest)`."""
    reader = _Reader(data, version, version in api.flexible)
    correlation_id = reader.fixed(">i")
    if reader.flexible and api.key != _API_VERSIONS:  # KIP-511
        list(reader.tags())
    body = reader.fields(api.response)
    if reader.rest:
        body["(rest)"] = reader.rest
    return correlation_id, body


class _Reader:
    def __init__(self, data: bytes, version: int, flexible: bool) -> None:  # noqa: FBT001 - of the version
        self.rest = data
        self.version = version
        self.flexible = flexible

    def fixed(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def tags(self) -> Iterator[tuple[int, bytes]]:
        for _ in range(self._varint()):
            yield self._varint(), self._take(self._varint())

    def fields(self, fields: Sequence[Field]) -> dict[str, Any]:
        present = [field for field in fields if self.version in field.versions]
        body = {
            field.name: default(field) if self.version in field.tagged else self._value(field)
            for field in present
        }
        tagged = {field.tag: field for field in present if self.version in field.tagged}
        for tag, data in self.tags() if self.flexible else ():
            if tag in tagged:
                part = _Reader(data, self.version, flexible=True)
                body[tagged[tag].name] = part._value(tagged[tag])
                data = part.rest  # noqa: PLW2901 - what is left of it
            if data or tag not in tagged:
                body[f"(tag {tag})"] = data
        return body

    def _value(self, field: Field) -> Any:
        if not field.is_list:
            return self._element(field)
        size = self._size(">i")
        if size > _ELEMENTS_MAX:
            raise UndecodableError(f"a list of {size} elements")
        return None if size < 0 else [self._element(field) for _ in range(size)]

    def _element(self, field: Field) -> Any:
        if field.type in FIXED:
            return self.fixed(FIXED[field.type])
        if field.type == "uuid":
            return uuid.UUID(bytes=self._take(16))
        if field.type in ("string", "bytes", "records"):
            size = self._size(">h" if field.type == "string" else ">i")
            data = None if size < 0 else self._take(size)
            return (
                data.decode(errors="backslashreplace")
                if data is not None and field.type == "string"
                else data
            )
        if not field.is_list and self.version in field.nullable and self.fixed(">b") < 0:
            return None
        return self.fields(field.fields)

    def _size(self, plain: str) -> int:
        return self._varint() - 1 if self.flexible else int(self.fixed(plain))

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def _take(self, size: int) -> bytes:
        if size > len(self.rest):
            raise UndecodableError(f"{size} bytes of {len(self.rest)}")
        data, self.rest = self.rest[:size], self.rest[size:]
        return data
