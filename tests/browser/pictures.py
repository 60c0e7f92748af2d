"""The picture of the console in README: `python -m tests.browser.pictures` takes it of a broker with two topics."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

from tests.browser import chromium
from tests.support.batches import Record
from tests.support.broker import korvet_broker
from tests.support.docs import ROOT
from tests.support.topic_client import Client

PICTURE = ROOT / "docs" / "pictures" / "console.png"
SIZE: Any = {"width": 1100, "height": 640}
PRODUCTS = ("widget", "gadget", "gear", "spring", "bolt")


def record(number: int) -> Record:
    """Return an order as a record with a key, JSON and a header."""
    amount, customer = number % 7 + 1, 1000 + number * 37 % 900
    value = json.dumps({"product": PRODUCTS[number % 5], "amount": amount, "customer": customer})
    now = int(time.time() * 1000)
    return Record(value.encode(), f"order-{number}".encode(), now, [("source", b"web")])


def main() -> None:
    """Fill a broker and take the picture of its records."""
    found = chromium.find()
    with (
        tempfile.TemporaryDirectory() as directory,
        korvet_broker(Path(directory), workers=1) as broker,
        sync_playwright() as playwright,
    ):
        with Client(broker.address) as client:
            client.create("orders", partitions=1)
            client.append("orders", *[record(number) for number in range(1, 201)])
        environment: Any = {**os.environ, **found.environment}
        browser = playwright.chromium.launch(executable_path=found.path, env=environment)
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"http://{broker.ops_address}/#/records?topic=orders")
        rows = page.get_by_role("table", name="Records").locator("tbody tr")
        expect(rows.first).to_contain_text("order-")
        rows.nth(1).get_by_role("button").click()
        expect(page.locator(".record")).to_contain_text("source")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    main()
