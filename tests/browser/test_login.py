"""A console that wants a token to read: the browser's own login, with which the pages work on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, HttpCredentials, expect

from tests.support.broker import Broker, korvet_broker
from tests.support.console import TOKEN

READ_TOKEN = "another-token-for-tests-to-read"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory: Path = tmp_path_factory.mktemp("secured")
    flags = []
    for name, token in (("console.token.file", TOKEN), ("console.read.token.file", READ_TOKEN)):
        (directory / name).write_text(token)
        flags += ["--set", f"{name}={directory / name}"]
    with korvet_broker(directory, *flags, workers=1) as running:
        yield running


@pytest.mark.parametrize("password", [None, "wrong"])
def test_without_the_token_there_is_no_page(secured: Broker, browser: Browser, password: str | None) -> None:
    login = HttpCredentials(username="anybody", password=password) if password else None
    with browser.new_context(http_credentials=login) as context:
        answer = context.request.get(f"http://{secured.ops_address}/api/topics")
        assert answer.status == 401
        page = context.new_page()
        page.goto(f"http://{secured.ops_address}/", wait_until="commit")
        expect(page.locator("h1")).to_have_count(0)


def test_pages_read_by_the_browsers_login_and_change_by_their_own(secured: Broker, browser: Browser) -> None:
    login = HttpCredentials(username="anybody", password=READ_TOKEN)
    with browser.new_context(base_url=f"http://{secured.ops_address}", http_credentials=login) as context:
        page = context.new_page()
        page.goto("/#/topics")
        expect(page.locator("h1")).to_have_text("Topics")
        expect(page.get_by_role("alert")).to_have_count(0)
        page.get_by_role("button", name="Unlock").click()
        page.get_by_label("Token").fill(READ_TOKEN)
        page.get_by_role("dialog").get_by_role("button", name="Unlock").click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("changes require")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("dialog").get_by_role("button", name="Unlock").click()
        expect(page.get_by_role("button", name="Lock", exact=True)).to_be_visible()
