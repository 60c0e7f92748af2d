"""One real broker and one real browser for all tests, each in a context of its own that notices what goes wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser import chromium
from tests.support.broker import Broker, korvet_broker
from tests.support.console import TOKEN, Caller
from tests.support.fixtures import client, name

__all__ = ["broker", "browser", "client", "console", "name", "page"]

_WAIT_MS_MAX = 30_000

expect.set_options(timeout=_WAIT_MS_MAX)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker whose console takes changes."""
    directory = tmp_path_factory.mktemp("console")
    (directory / "token").write_text(TOKEN)
    flags = ("--set", f"console.token.file={directory / 'token'}")
    with korvet_broker(directory, *flags, workers=1) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Give the browser."""
    result = chromium.find()
    with sync_playwright() as playwright:
        environment: Any = {**os.environ, **result.environment}
        running = playwright.chromium.launch(executable_path=result.path, env=environment)
        yield running
        running.close()


@pytest.fixture
def page(broker: Broker, browser: Browser) -> Iterator[Page]:
    """Give a page that has nothing open yet; what fails in it, or leaves the broker, fails the test."""
    context = browser.new_context(
        base_url=f"http://{broker.ops_address}", viewport={"width": 1280, "height": 800}
    )
    context.set_default_timeout(_WAIT_MS_MAX)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
    # A refusal by status is an answer; the browser reports it as an error besides.
    page.on(
        "console",
        lambda reported: (
            wrong.append(reported.text)
            if reported.type == "error" and "Failed to load resource" not in reported.text
            else None
        ),
    )
    page.on(
        "request",
        lambda sent: (
            wrong.append(sent.url) if not sent.url.startswith(f"http://{broker.ops_address}/") else None
        ),
    )
    yield page
    context.close()
    assert wrong == []


@pytest.fixture
def console(broker: Broker) -> Caller:
    """Give a caller who has the token, beside the browser."""
    return Caller(broker.ops_address)
