"""How a message is declared: one struct for all its versions, the validity of each field beside its type.

`compile` makes the codecs from the declarations. A request opens with its `Api`, which its response shares:

    class HeartbeatRequest(Message, kw_only=True):
        api = Api(key=12, versions=(0, 4), flexible=4)

        group_id: string
        group_instance_id: Annotated[string | None, since(3)] = None

All validity is said in one vocabulary, `since(...)`; `| None` makes a field nullable and the default is
Kafka's. Source of every declaration: the message schemas of Apache Kafka, by the field names there.
"""

from __future__ import annotations

import sys
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import msgspec

from korvet.protocol.wire import Fixed, Sized, int16, int32, string

VERSION_MAX = 32767


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """Which API a message belongs to: its key, the versions served, and the first flexible one.

    `flexible` is None if no version is. `advertised_from` is the first version that ApiVersions lists, if that is
    below the first one served.
    """

    key: int
    versions: tuple[int, int]
    flexible: int | None = None
    advertised_from: int | None = None

    @property
    def advertised(self) -> tuple[int, int]:
        """The versions that ApiVersions lists, inclusive."""
        first, last = self.versions
        return (first if self.advertised_from is None else self.advertised_from), last

    def is_flexible(self, version: int) -> bool:
        """Whether `version` uses compact types and tagged fields (KIP-482)."""
        return self.flexible is not None and version >= self.flexible


class Validity(msgspec.Struct, frozen=True):
    """In which versions a field exists: from `first` up to and including `until`.

    `tag` makes it a tagged field; a tagged struct that is None is not sent. `nullable` is the first version in which
    null is allowed, if that is later than the field itself. `ignorable` fields are dropped without an error from
    versions that lack them; others raise there when they hold anything but their default.
    """

    first: int = 0
    until: int = VERSION_MAX
    tag: int | None = None
    nullable: int | None = None
    ignorable: bool = False


since = Validity


class Part(msgspec.Struct, kw_only=True, gc=False):
    """A struct inside a message."""


class Message(Part, kw_only=True, gc=False):
    """A request or response. Its class attribute `api` says which, and in which versions it exists."""

    api: ClassVar[Api]

    def __init_subclass__(cls) -> None:
        """Give a response the Api of its request, which stands before it in the same file."""
        if "api" not in vars(cls) and cls.__module__ != __name__:
            request = cls.__name__.removesuffix("Response") + "Request"
            cls.api = vars(sys.modules[cls.__module__])[request].api

    @classmethod
    def is_request(cls) -> bool:
        """Whether this is the request of its API (and not the response)."""
        return cls.__name__.endswith("Request")


class Response(Message, kw_only=True):
    """A response that says in every version for how long its client is throttled."""

    throttle_time_ms: int32 = 0


class ResponseWithCode(Response, kw_only=True):
    """A response that begins with an error of the whole request."""

    error_code: int16 = 0


class ResponseWithMessage(ResponseWithCode, kw_only=True):
    """A response that begins with an error of the whole request, and its text."""

    error_message: string | None = None


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a request; `body` is the position in the frame at which the message begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


class ListOf(msgspec.Struct, frozen=True):
    """The wire type of an array."""

    element: Any


class PartOf(msgspec.Struct, frozen=True):
    """The wire type of a nested struct."""

    cls: type[Part]


WireType = Fixed | Sized | ListOf | PartOf


class Field(msgspec.Struct, frozen=True):
    """One field of a message as the compiler needs it."""

    name: str
    kind: WireType
    validity: Validity
    optional: bool
    required: bool
    default: Any

    def present(self, version: int) -> bool:
        """Whether the field exists in `version`."""
        return self.validity.first <= version <= self.validity.until

    def nullable(self, version: int) -> bool:
        """Whether null is allowed in `version`."""
        if not self.optional or (self.validity.tag is not None and isinstance(self.kind, PartOf)):
            return False
        return version >= (self.validity.nullable or 0)


@cache
def fields(cls: type[Part]) -> tuple[Field, ...]:
    """Return the fields of `cls` in wire order.

    Raises TypeError for a field whose annotation is no wire type: a mistake in a declaration, found at start.
    """
    hints = get_type_hints(cls, include_extras=True)
    result = []
    for field in msgspec.structs.fields(cls):
        kind, validity, optional = _read(hints[field.name], f"{cls.__name__}.{field.name}")
        default: Any = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        result.append(Field(field.name, kind, validity, optional, field.required, default))
    return tuple(result)


def _read(hint: object, name: str) -> tuple[WireType, Validity, bool]:
    """Split an annotation into its wire type, its validity and whether it may be None."""
    validity = Validity()
    optional = False
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        validity = next((note for note in notes if isinstance(note, Validity)), validity)
        wire = next((note for note in notes if isinstance(note, Fixed | Sized)), None)
        if wire is not None:
            return wire, validity, False
        hint = inner
    if get_origin(hint) in (Union, UnionType):
        others = [arg for arg in get_args(hint) if arg is not type(None)]
        optional = len(others) < len(get_args(hint))
        hint = others[0]
    if get_origin(hint) is Annotated:
        kind, _, _ = _read(hint, name)
    elif get_origin(hint) is list:
        kind = ListOf(_read(get_args(hint)[0], name)[0])
    elif isinstance(hint, type) and issubclass(hint, Part):
        kind = PartOf(hint)
    else:
        raise TypeError(f"{name} has no wire type: {hint!r}")
    return kind, validity, optional
