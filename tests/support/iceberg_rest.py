"""A REST catalog for tests: what Iceberg's specification of one has and Korvet asks for, over a catalog in SQLite.

Iceberg's own server for tests is in no repository of jars; this one has its requests, and the errors that clients act
on. Metadata is written by pyiceberg, and commits are compared and set by the database.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

_STATUS: dict[type[Exception], int] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, *given: Any) -> None:
        """Write no log."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        parts = [unquote(item) for item in urlsplit(self.path).path.strip("/").split("/")[1:]]
        status, answer = 200, ""
        try:
            answer = self._done(self.command, parts, body)
        except tuple(_STATUS) as error:
            status = _STATUS[type(error)]
            said = {"message": str(error), "type": type(error).__name__, "code": status}
            answer = json.dumps({"error": said})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.encode())))
        self.end_headers()
        self.wfile.write(answer.encode())

    def _done(self, method: str, parts: list[str], body: str) -> str:  # noqa: PLR0911 - one for each request
        catalog = self.server.catalog
        match method, parts:
            case "GET", ["config"]:
                return json.dumps({"defaults": {}, "overrides": {}})
            case "POST", ["namespaces"]:
                catalog.create_namespace(tuple(json.loads(body)["namespace"]))
                return body
            case "GET", ["namespaces", namespace]:
                result = catalog.load_namespace_properties((namespace,))
                return json.dumps({"namespace": [namespace], "properties": result})
            case "POST", ["namespaces", namespace, "tables"]:
                asked = CreateTableRequest.model_validate_json(body)
                made = catalog.create_table(
                    (namespace, asked.name),
                    asked.table_schema,
                    asked.location,
                    **({"partition_spec": asked.partition_spec} if asked.partition_spec else {}),
                    sort_order=asked.write_order or UNSORTED_SORT_ORDER,
                    properties=asked.properties,
                )
                return _loaded(made)
            case "GET", ["namespaces", namespace, "tables", name]:
                return _loaded(catalog.load_table((namespace, name)))
            case "POST", ["namespaces", namespace, "tables", name]:
                commit = CommitTableRequest.model_validate_json(body)
                table = catalog.load_table((namespace, name))
                return catalog.commit_table(table, commit.requirements, commit.updates).model_dump_json()
            case "DELETE", ["namespaces", namespace, "tables", name]:
                catalog.drop_table((namespace, name))
            case "POST", ["tables", "rename"]:
                of = {item: (*ends["namespace"], ends["name"]) for item, ends in json.loads(body).items()}
                catalog.rename_table(of["source"], of["destination"])
            case _:
                raise AssertionError(f"no client of Korvet sends {method} {parts}")
        return ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        self.catalog = SqlCatalog("rest", uri=f"sqlite:///{directory}/rest.db")
        super().__init__(("127.0.0.1", 0), _Handler)


def _loaded(table: Table) -> str:
    metadata = table.metadata.model_dump_json()
    return f'{{"metadata-location": {json.dumps(table.metadata_location)}, "metadata": {metadata}, "config": {{}}}}'


@contextlib.contextmanager
def rest_catalog(directory: Path) -> Iterator[dict[str, str]]:
    """Give the properties of a REST catalog with its database in a directory."""
    with _Server(directory) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}"}
        finally:
            server.shutdown()
            thread.join()
            server.catalog.close()
