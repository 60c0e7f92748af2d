"""What axe-core, a checker of accessibility, finds in each page: nothing, at both widths and in both themes."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from korvet.errors import ErrorCode
from tests.browser import packages
from tests.browser.test_using import unlock
from tests.support.batches import Record, batch
from tests.support.broker import Broker
from tests.support.console import Caller
from tests.support.topic_client import Client

AXE = "axe-core@4.14.1"
AXE_SHA256 = "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"
PAGES = ["", "topics", "topic?name={}", "groups", "group?name={}", "records?topic={}", "lake", "transactions"]
PAGES += ["no-page"]
TITLES = {
    "": "Overview",
    "topics": "Topics",
    "topic": "{}",
    "groups": "Groups",
    "group": "{}",
    "records": "Records of {}",
    "lake": "Lake",
    "transactions": "Transactions",
    "no-page": "Page not found",
}


@pytest.fixture(scope="session")
def axe() -> str:
    """Give the program, fetched unless it is there."""
    return packages.script(AXE, AXE_SHA256, "axe.min.js")


def violations(page: Page) -> list[str]:
    """Return what axe-core finds, best practices included."""
    result: Any = page.evaluate("axe.run(document)")
    assert result["passes"]
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
        for rule in result["violations"]
        for node in rule["nodes"]
    ]


@pytest.fixture
def filled(console: Caller, client: Client, name: str) -> str:
    """Give the name of a topic with a record and of a group; a batch has been refused."""
    client.create(name, partitions=2, storage_format="batch", retention_ms="60000")
    for _ in range(2):
        client.append(name, Record(b'{"a": 1, "b": null, "c": "text"}', b"key", 5, [("header", b"\xff")]))
    assert client.produce(name, batch(b"x")[:-1] + b"?").error_code == ErrorCode.CORRUPT_MESSAGE
    console.changed("POST", "groups/offsets", {"name": name, "to": "latest", "topic": name, "execute": True})
    return name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_violates_a_rule(
    broker: Broker, browser: Browser, axe: str, filled: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(
        base_url=f"http://{broker.ops_address}",
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        # The checker is a program that is not the console's.
        bypass_csp=True,
    )
    page = context.new_page()
    page.goto("/")
    page.evaluate(axe)
    result = {}
    for path in PAGES:
        page.evaluate("(hash) => { location.hash = hash; }", f"#/{path.format(filled)}")
        expect(page).to_have_title(re.compile(TITLES[path.partition("?")[0]].format(filled)))
        expect(page.locator("h1")).to_be_focused()
        if path.startswith("records"):
            for offset in "01":
                page.get_by_role("button", name=offset, exact=True).click()
                expect(
                    page.get_by_role("table", name=f"Headers, partition 0, offset {offset}")
                ).to_be_visible()
        result[path] = violations(page)
        assert page.locator("h1").count() == 1
        assert page.locator("table:not(:has(caption))").count() == 0
    unlock(page)
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.evaluate("(hash) => { location.hash = hash; }", f"#/topic?name={filled}")
    expect(page.get_by_role("button", name="Change retention.ms")).to_be_visible()
    result["unlocked"] = violations(page)
    page.get_by_role("button", name="Change retention.ms").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    result["dialog"] = violations(page)
    context.close()
    assert {path: item for path, item in result.items() if item} == {}
