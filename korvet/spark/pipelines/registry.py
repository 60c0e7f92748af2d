"""A schema registry: Confluent's REST interface, as Apicurio, Karapace and others have it too.

Records begin with the id of their schema. A schema never changes, so it is fetched once and
kept. Requests have a deadline and replies a size; credentials go nowhere else, for redirects are not followed.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import time
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from korvet.spark.pipelines.spec import PipelineError, RegistrySpec

_SECONDS_MAX = 10.0
"""How long a request may take in all."""

_REPLY_BYTES_MAX = 4 << 20
"""The largest reply: schemas have kilobytes."""

_ATTEMPTS = 3
_PAUSE_S = 0.5
_RETRIED = (429, 500, 502, 503, 504)

_ABSENT = (40401, 40402, 40403)
"""What the registry says of a subject, a version and a schema that it has not. A wrong path has 404 alone."""

_REFERENCES_MAX = 200
"""How many other schemas one may need."""


class RegistryError(PipelineError):
    """The registry cannot be asked, or has no such subject or version."""


class Reference(msgspec.Struct, frozen=True):
    """Another schema that one needs: of Avro the full name of a type, of Protobuf the file that is imported."""

    name: str
    subject: str
    version: int


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema with the schemas that it needs, by name in `references`: each after the ones that it needs itself.

    `version` is its number in the subject that was asked for, 0 of one that was asked for by id.
    """

    id: int
    kind: str
    text: str
    version: int = 0
    references: dict[str, str] = {}


class _SchemaReply(msgspec.Struct):
    """What the registry says of a schema; without a type it is Avro."""

    schema: str
    id: int = 0
    version: int = 0
    schema_type: str = msgspec.field(name="schemaType", default="AVRO")
    references: list[Reference] | None = None


class _Problem(msgspec.Struct):
    error_code: int
    message: str = ""


_T = TypeVar("_T")


class SchemaRegistry:
    """One registry. It may be pickled: tasks ask it too, and need no file for that."""

    def __init__(self, spec: RegistrySpec) -> None:
        """Raise RegistryError if the URL or a file is of no use."""
        try:
            parts = urlsplit(spec.url)
            _ = parts.port
        except ValueError as error:
            raise RegistryError(f"registry.url: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RegistryError(f"registry.url: {parts.scheme}://{parts.hostname} is not http or https")
        if parts.username is not None or parts.query:
            raise RegistryError("registry.url: credentials are in user and password_file")
        self._name = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._address = parts.netloc
        self._path = parts.path.rstrip("/")
        self._is_secure = parts.scheme == "https"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        try:
            self._authorities = None if spec.ca_file is None else Path(spec.ca_file).read_text()
            if self._authorities is not None and not self._authorities.strip():
                # Python would take those of the system.
                raise RegistryError(f"registry.ca_file: {spec.ca_file} is empty")
            if spec.user is not None and spec.password_file is not None:
                secret = f"{spec.user}:{Path(spec.password_file).read_text().rstrip(chr(10))}"
                self._headers["Authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
            if self._is_secure:
                self._context()
        except (OSError, ValueError) as error:
            raise RegistryError(f"registry: {getattr(error, 'strerror', None) or error}") from error

    def __repr__(self) -> str:
        return f"SchemaRegistry({self._name!r})"

    def schema(self, number: int) -> Schema | None:
        """Return the schema of an id, None if the registry has none; raises RegistryError."""
        reply = self._get(f"schemas/ids/{number}", _SchemaReply)
        return None if reply is None else self._with_references(number, reply)

    def version(self, subject: str, version: str | int) -> Schema:
        """Return a version of a subject, a number or `latest`; raises RegistryError, also if there is none."""
        reply = self._get(
            f"subjects/{quote(subject, safe='')}/versions/{quote(str(version), safe='')}", _SchemaReply
        )
        if reply is None:
            raise RegistryError(f"registry {self._name} has no version {version} of the subject {subject}")
        return self._with_references(reply.id, reply)

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, none if it does not exist; raises RegistryError."""
        return self._get(f"subjects/{quote(subject, safe='')}/versions", list[int]) or []

    def _with_references(self, number: int, reply: _SchemaReply) -> Schema:
        texts: dict[str, str] = {}
        self._resolve(reply, texts, [])
        return Schema(
            id=number, kind=reply.schema_type, text=reply.schema, version=reply.version, references=texts
        )

    def _resolve(self, reply: _SchemaReply, texts: dict[str, str], path: list[str]) -> None:
        for reference in reply.references or ():
            if reference.name in path or len(texts) >= _REFERENCES_MAX:
                raise RegistryError(
                    f"registry {self._name}: {reference.subject} needs itself, or more than {_REFERENCES_MAX} schemas"
                )
            if reference.name in texts:
                continue
            where = f"subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
            other = self._get(where, _SchemaReply)
            if other is None:
                raise RegistryError(
                    f"registry {self._name} has no version {reference.version} of {reference.subject}"
                )
            self._resolve(other, texts, [*path, reference.name])
            texts[reference.name] = other.schema

    def _get(self, path: str, kind: type[_T]) -> _T | None:
        """Return what is at a path, None if the registry says that nothing is."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                status, body = self._request(f"{self._path}/{path}")
            except (OSError, http.client.HTTPException) as error:
                if attempt == _ATTEMPTS:
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    raise RegistryError(f"registry {self._name}: {reason}") from error
            else:
                if status not in _RETRIED or attempt == _ATTEMPTS:
                    return self._parsed(status, body, path, kind)
            time.sleep(_PAUSE_S * attempt)
        raise AssertionError

    def _parsed(self, status: int, body: bytes, path: str, kind: type[_T]) -> _T | None:
        try:
            if status == http.HTTPStatus.OK:
                return msgspec.json.decode(body, type=kind)
            # A proxy or a wrong path has no such body, and says nothing about schemas.
            problem = msgspec.json.decode(body, type=_Problem)
        except msgspec.DecodeError as error:
            raise RegistryError(
                f"registry {self._name}: {path} has status {status}, and no reply of a registry"
            ) from error
        if status == http.HTTPStatus.NOT_FOUND and problem.error_code in _ABSENT:
            return None
        raise RegistryError(f"registry {self._name}: {path}: {problem.message or status}")

    def _request(self, path: str) -> tuple[int, bytes]:
        deadline = time.monotonic() + _SECONDS_MAX
        connection = (
            http.client.HTTPSConnection(self._address, timeout=_SECONDS_MAX, context=self._context())
            if self._is_secure
            else http.client.HTTPConnection(self._address, timeout=_SECONDS_MAX)
        )
        try:
            connection.request("GET", path, headers=self._headers)
            response = connection.getresponse()
            body = bytearray()
            while part := response.read1(1 << 16):
                body += part
                if len(body) > _REPLY_BYTES_MAX:
                    raise http.client.HTTPException(f"a reply of more than {_REPLY_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError(None, f"no whole reply within {_SECONDS_MAX:.0f} s")
            return response.status, bytes(body)
        finally:
            connection.close()

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self._authorities)
