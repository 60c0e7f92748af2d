"""The pictures of the documentation: `python -m tests.browser.pictures` makes them.

`console.png` is the console of a broker with a topic. Mermaid draws `request.svg` from `request.mmd` here, so that no
reader's browser has to load it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser import chromium, packages
from tests.support.batches import Record
from tests.support.broker import korvet_broker
from tests.support.docs import ROOT
from tests.support.topic_client import Client

PICTURES = ROOT / "docs" / "pictures"
MERMAID = "mermaid@12.3.0"
MERMAID_SHA256 = "be0684e8d20bfc874df12c0f04927a5c482f57f2200eec54cca52a4583fd4040"
_DRAW = """async (text) => {
    mermaid.initialize({startOnLoad: false, deterministicIds: true, theme: "neutral", look: "classic"});
    // Pages may be dark.
    return (await mermaid.render("request", text)).svg.replace('style="', 'style="background: white; ');
}"""
SIZE: Any = {"width": 1100, "height": 640}
PRODUCTS = ("widget", "gadget", "gear", "spring", "bolt")


def record(number: int) -> Record:
    """Return an order as a record with a key, JSON and a header."""
    amount, customer = number % 7 + 1, 1000 + number * 37 % 900
    value = json.dumps({"product": PRODUCTS[number % 5], "amount": amount, "customer": customer})
    now = int(time.time() * 1000)
    return Record(value.encode(), f"order-{number}".encode(), now, [("source", b"web")])


def draw_request(browser: Browser) -> None:
    """Draw the diagram of a request."""
    page = browser.new_page()
    page.add_script_tag(content=packages.script(MERMAID, MERMAID_SHA256, "dist/mermaid.min.js"))
    drawn = page.evaluate(_DRAW, (PICTURES / "request.mmd").read_text())
    (PICTURES / "request.svg").write_text(f"{drawn}\n")


def take_console(browser: Browser) -> None:
    """Fill a broker and take the picture of its records."""
    with tempfile.TemporaryDirectory() as directory, korvet_broker(Path(directory), workers=1) as broker:
        with Client(broker.address) as client:
            client.create("orders", partitions=1)
            client.append("orders", *[record(number) for number in range(1, 201)])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"http://{broker.ops_address}/#/records?topic=orders")
        rows = page.get_by_role("table", name="Records").locator("tbody tr")
        expect(rows.first).to_contain_text("order-")
        rows.nth(1).get_by_role("button").click()
        expect(page.locator(".record")).to_contain_text("source")
        page.screenshot(path=PICTURES / "console.png")


def main() -> None:
    """Make all pictures."""
    result = chromium.find()
    environment: Any = {**os.environ, **result.environment}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=result.path, env=environment)
        draw_request(browser)
        take_console(browser)
        browser.close()


if __name__ == "__main__":
    main()
