"""The console on a phone: all of every table is on the screen, and what is cut ends with a sign."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.batches import Record
from tests.support.broker import Broker
from tests.support.console import Caller
from tests.support.group_consumer import joined
from tests.support.topic_client import Client

WIDTH = 390

# What is wider than its box, unless the box says so.
CUT = """() => [...document.querySelectorAll("main *, header *")]
    .filter((each) => each.checkVisibility() && each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 1)
    .filter((each) => getComputedStyle(each).overflowX !== "visible")
    .filter((each) => getComputedStyle(each).textOverflow !== "ellipsis" && !each.matches("input, select, pre.hex"))
    .map((each) => each.outerHTML.slice(0, 200))"""


@pytest.fixture
def phone(page: Page) -> Page:
    """Give a page as wide as a phone."""
    page.set_viewport_size({"width": WIDTH, "height": 844})
    return page


def on_screen(cell: Locator) -> None:
    """Check that a cell is between the left and the right edge."""
    expect(cell).to_be_visible()
    box = cell.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= WIDTH


@pytest.fixture
def filled(broker: Broker, console: Caller, client: Client, name: str) -> str:
    """Give the name of a topic and of a group, both with more than a phone has room for."""
    long = f"{name}-{'with-a-long-name.' * 6}"
    client.create(long, partitions=3, storage_format="batch", remote_storage_enable="false")
    for number in range(5):
        client.append(long, Record(b"value " * 60, b"\xff" * 64, 1000 + number), partition=number % 3)
    move = {"name": long, "to": "offset", "value": "1", "topic": long, "execute": True}
    console.changed("POST", "groups/offsets", move)
    return long


@pytest.mark.parametrize(
    "path", ["topics", "topic?name={}", "groups", "group?name={}", "records?topic={}", ""]
)
def test_nothing_is_cut_without_a_sign(phone: Page, filled: str, path: str) -> None:
    phone.goto(f"/#/{path.format(filled)}")
    expect(phone.locator("h1")).to_be_focused()
    expect(phone.locator("main tbody tr").first).to_be_visible()
    assert phone.evaluate(CUT) == []
    assert phone.evaluate("document.documentElement.scrollWidth") <= WIDTH


def test_the_lag_of_a_group_is_on_the_screen(phone: Page, filled: str) -> None:
    phone.goto("/#/groups")
    row = phone.get_by_role("table", name="Groups").locator(f'tr[data-key="{filled}"]')
    lag = row.locator('td[data-title="Lag"]')
    on_screen(lag)
    expect(lag).to_have_text("2")
    # The table is a table to those who hear it, too.
    expect(phone.get_by_role("columnheader", name="Lag")).to_be_attached()
    row.click()
    rows = phone.get_by_role("table", name="Partitions").locator('td[data-title="Lag"]')
    for index in range(3):
        on_screen(rows.nth(index))


def test_key_and_value_of_a_record_are_on_the_screen(phone: Page, filled: str) -> None:
    phone.goto(f"/#/records?topic={filled}")
    row = phone.get_by_role("table", name="Records").locator("tbody tr").first
    for title in ("Partition", "Offset", "Time", "Key", "Value", "Size"):
        on_screen(row.locator(f'td[data-title="{title}"]'))
    row.get_by_role("button").click()
    for part in ("Key", "Value"):
        on_screen(phone.get_by_role("region", name=part))


def test_a_group_without_commits_says_so(broker: Broker, phone: Page, client: Client, name: str) -> None:
    client.create(name, storage_format="batch")
    client.append(name, b"one", b"two", b"three")
    with joined(broker.bootstrap, name, name):
        phone.goto(f"/#/group?name={name}")
        row = phone.get_by_role("table", name="Partitions").locator("tbody tr")
        expect(row.locator('td[data-title="Committed"]')).to_have_text("none")
        expect(row.locator('td[data-title="Lag"]')).to_have_text("up to 3")
        expect(phone.locator("main")).to_contain_text("No offset is committed in 1 partition")
