"""korvet/spark/pipelines/registry.py: what is asked of a registry, and replies that are none. tests/jvm has one."""

from __future__ import annotations

import base64
import contextlib
import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from korvet.spark.pipelines import registry
from korvet.spark.pipelines.registry import RegistryError, SchemaRegistry
from korvet.spark.pipelines.spec import RegistrySpec

Replies = dict[str, tuple[int, bytes]]


@contextlib.contextmanager
def server(replies: Replies, asked: list[tuple[str, str | None]]) -> Iterator[str]:
    """Give the URL of a server with these replies by path; `asked` gets each path, and who asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            status, body = replies[self.path]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *of: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/api"
        running.shutdown()
        thread.join()


def reply(**fields: Any) -> tuple[int, bytes]:
    return 200, json.dumps(fields).encode()


def needs(name: str) -> dict[str, Any]:
    return {"name": name, "subject": name, "version": 1}


def test_a_schema_comes_with_all_that_it_needs_and_by_credentials_of_a_file(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("se:cret\n")
    replies: Replies = {
        "/api/schemas/ids/7": reply(schema="a", references=[needs("b"), needs("c/d")]),
        "/api/subjects/b/versions/1": reply(schema="b", id=2, references=[needs("c/d")]),
        "/api/subjects/c%2Fd/versions/1": reply(schema="c", id=3, schemaType="AVRO"),
        "/api/schemas/ids/8": (404, b'{"error_code":40403,"message":"Schema not found"}'),
        "/api/subjects/a%2F..%3F/versions/latest": reply(schema="x", id=9, schemaType="PROTOBUF"),
        "/api/subjects/none/versions": (404, b'{"error_code":40401,"message":"Subject not found."}'),
    }
    asked: list[tuple[str, str | None]] = []
    with server(replies, asked) as url:
        spec = RegistrySpec(url=f"{url}/", user="me", password_file=str(password))
        # As tasks have it, which have no such file.
        result: SchemaRegistry = pickle.loads(pickle.dumps(SchemaRegistry(spec)))  # noqa: S301 - its own
        schema = result.schema(7)
        assert schema is not None
        assert (schema.id, schema.kind, schema.text) == (7, "AVRO", "a")
        assert list(schema.references.items()) == [("c/d", "c"), ("b", "b")]
        assert result.schema(8) is None
        latest = result.version("a/..?", "latest")
        assert (latest.id, latest.kind) == (9, "PROTOBUF")
        assert result.versions("none") == []
        assert "cret" not in repr(result)
    assert [path for path, _ in asked] == [*list(replies)[:3], *list(replies)[3:]]
    assert {login for _, login in asked} == {f"Basic {base64.b64encode(b'me:se:cret').decode()}"}


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (404, b'{"error_code":404,"message":"HTTP 404 Not Found"}', "schemas/ids/7: HTTP 404 Not Found"),
        (404, b"<html>", "schemas/ids/7 has status 404, and no reply of a registry"),
        (302, b"", "schemas/ids/7 has status 302, and no reply of a registry"),
        (200, b'{"schema":1}', "schemas/ids/7 has status 200, and no reply of a registry"),
        (401, b'{"error_code":401,"message":"Unauthorized"}', "schemas/ids/7: Unauthorized"),
        (200, b'{"schema":"' + b"x" * (5 << 20) + b'"}', "a reply of more than 4194304 bytes"),
        (500, b'{"error_code":50001,"message":"store"}', "schemas/ids/7: store"),
    ],
)
def test_what_is_no_answer_about_a_schema_is_an_error(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, problem: str
) -> None:
    monkeypatch.setattr(registry, "_PAUSE_S", 0.0)
    asked: list[tuple[str, str | None]] = []
    replies = {"/api/schemas/ids/7": (status, body)}
    with server(replies, asked) as url, pytest.raises(RegistryError, match=f"^registry {url}: {problem}$"):
        SchemaRegistry(RegistrySpec(url=url)).schema(7)
    # What may pass is tried again.
    assert len(asked) == (3 if status == 500 or len(body) > 1 << 20 else 1)


def test_schemas_that_need_each_other_or_a_version_that_is_gone_are_errors() -> None:
    replies: Replies = {
        "/api/schemas/ids/1": reply(schema="a", references=[needs("b")]),
        "/api/subjects/b/versions/1": reply(schema="b", references=[needs("b")]),
        "/api/schemas/ids/2": reply(schema="a", references=[needs("gone")]),
        "/api/subjects/gone/versions/1": (404, b'{"error_code":40401}'),
    }
    with server(replies, []) as url:
        result = SchemaRegistry(RegistrySpec(url=url))
        with pytest.raises(RegistryError, match=r"b needs itself, or more than 200 schemas$"):
            result.schema(1)
        with pytest.raises(RegistryError, match=r"has no version 1 of gone$"):
            result.schema(2)
        with pytest.raises(RegistryError, match=r"has no version 1 of the subject gone$"):
            result.version("gone", 1)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"url": "ftp://host"}, "registry.url: ftp://host is not http or https"),
        ({"url": "http://[x"}, "registry.url: Invalid IPv6 URL"),
        ({"url": "http://host:99999"}, "registry.url: Port out of range"),
        ({"url": "http://me:secret@host"}, "registry.url: credentials are in user and password_file"),
        ({"user": "me", "password_file": "/nowhere"}, "registry: No such file or directory"),
        ({"url": "https://host", "ca_file": "/dev/null"}, "registry.ca_file: /dev/null is empty"),
        ({"url": "https://host", "ca_file": __file__}, "registry: "),
        ({"url": "http://127.0.0.1:9"}, "registry http://127.0.0.1:9: Connection refused"),
    ],
)
def test_what_cannot_be_asked_is_an_error_without_secrets(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, str], problem: str
) -> None:
    monkeypatch.setattr(registry, "_PAUSE_S", 0.0)
    with pytest.raises(RegistryError, match=f"^{problem}") as raised:
        SchemaRegistry(RegistrySpec(**{"url": "http://host"} | more)).schema(1)
    assert "secret" not in str(raised.value)
