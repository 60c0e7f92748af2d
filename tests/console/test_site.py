"""The files of the console's pages, and the headers that restrict them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from korvet.config.topic_configs import TOPIC_CONFIGS
from korvet.console import app
from korvet.console.app import HEADERS, read_files
from tests.support.broker import echo_broker
from tests.support.console import Caller

pytestmark = pytest.mark.slow

WEB = Path(app.__file__).parent / "web"
FILES = sorted(WEB.iterdir())


@pytest.mark.parametrize(
    "path", ["/", "/console", "/console/app.js", "/api/overview", "/api/none", "/api/session"]
)
def test_every_answer_has_the_restricting_headers(console: Caller, path: str) -> None:
    headers = console.get(path).headers
    assert {name.lower(): value for name, value in HEADERS}.items() <= headers.items()
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers
    assert "set-cookie" not in headers


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_file_is_served_with_its_type(console: Caller, file: Path) -> None:
    reply = console.get(f"/console/{file.name}")
    assert reply.status == 200
    assert reply.body == file.read_bytes()
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    assert reply.headers["content-type"].partition(";")[0] == kinds[file.suffix]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_pages_load_nothing_from_elsewhere_and_make_no_markup_of_text(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)\S+", text) == []
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|srcdoc", text)
        == []
    )
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=\"", text) == []


def test_every_imported_module_exists() -> None:
    for file in FILES:
        if file.suffix == ".js":
            imported = re.findall(r'from "\./([a-z]+\.js)"', file.read_text(encoding="utf-8"))
            assert [item for item in imported if not (WEB / item).exists()] == []
    document = (WEB / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'(?:href|src)="(/[^"]*)"', document)) <= read_files().keys()


@pytest.mark.parametrize("path", ["/console/", "/console/../ops.py", "/console/%2e%2e/ops.py", "/index.html"])
def test_other_paths_are_not_found(console: Caller, path: str) -> None:
    assert console.get(path).status == 404


def test_pages_are_read_only(console: Caller) -> None:
    assert console.call("HEAD", "/").body == b""
    assert console.call("POST", "/", b"{}").status == 405


def test_a_disabled_console_has_neither_pages_nor_data(tmp_path: Path) -> None:
    with echo_broker(tmp_path, "console.enable=false", workers=1) as broker:
        caller = Caller(broker.ops_address)
        for path in ("/", "/console/app.js", "/api/overview", "/api/topics"):
            assert caller.get(path).status == 404
        assert caller.get("/healthz").status == 200


def test_the_page_of_a_topic_recognizes_configs_without_effect() -> None:
    [phrase] = re.findall(
        r"!/(.*?)/\.test\(each\.documentation", (WEB / "topics.js").read_text(encoding="utf-8")
    )
    assert phrase in TOPIC_CONFIGS["flush.ms"].doc
    assert phrase not in TOPIC_CONFIGS["retention.ms"].doc
