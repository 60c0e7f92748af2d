"""The console by keyboard, on a small screen, in both themes, with and without the token."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.test_reading import PAGES, heading
from tests.support.broker import Broker
from tests.support.console import TOKEN, Caller
from tests.support.group_consumer import sharing
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client


def test_the_keyboard_reaches_everything(page: Page, client: Client, name: str) -> None:
    for letter in "ab":
        client.create(f"{name}-{letter}")
    page.goto("/")
    heading(page, "Overview")
    page.keyboard.press("2")
    heading(page, "Topics")
    page.keyboard.press("/")
    expect(page.get_by_label("Filter topics")).to_be_focused()
    # A key in a field is text.
    page.keyboard.type(f"{name}-")
    expect(page.get_by_role("table", name="Topics").locator("tbody tr")).to_have_count(2)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name=f"{name}-b")).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    heading(page, f"{name}-a")
    page.keyboard.press("4")
    heading(page, "Records")


LIT = "(row) => getComputedStyle(row).cursor"


def test_a_row_that_lights_up_opens_wherever_it_is_clicked(page: Page, client: Client, name: str) -> None:
    client.create(name)
    client.append(name, b"value")
    page.goto("/#/topics")
    row = page.get_by_role("table", name="Topics").locator(f'tr[data-key="{name}"]')
    row.locator("td").nth(2).hover()
    assert row.evaluate(LIT) == "pointer"
    row.locator("td").nth(2).click()
    heading(page, name)
    # A row that does not open does not light up.
    config = page.get_by_role("table", name="Configs").locator("tbody tr").first
    config.hover()
    assert config.evaluate(LIT) != "pointer"
    page.get_by_role("table", name="Partitions").locator("tbody td").nth(3).click()
    heading(page, "Records")
    cells = page.get_by_role("table", name="Records").locator("tbody tr").first.locator("td")
    value = cells.nth(4)
    # Text can be selected without that the row opens.
    box = value.locator("code").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 5)
    page.mouse.up()
    assert page.evaluate("getSelection().toString()")
    expect(page.locator(".record")).to_have_count(0)
    cells.nth(0).click()
    expect(page.locator(".record")).to_contain_text("value")
    # A click in the opened part does not close it.
    page.get_by_role("region", name="Value").locator("pre").click()
    expect(page.locator(".record")).to_be_visible()
    value.click()
    expect(page.locator(".record")).to_have_count(0)


def test_the_first_tab_leads_to_the_content(page: Page) -> None:
    page.goto("/")
    heading(page, "Overview")
    page.evaluate("document.activeElement.blur(); document.body.focus()")
    page.locator("body").press("Tab")
    link = page.get_by_role("link", name="Skip to content")
    link.focus()
    expect(link).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_shortcuts_are_listed_and_can_be_disabled(page: Page) -> None:
    page.goto("/")
    heading(page, "Overview")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Keyboard")
    dialog.get_by_label("Enable single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.keyboard.press("2")
    page.keyboard.press("p")
    expect(page.locator("#pause")).to_have_text("Live")
    expect(page.locator("h1")).to_have_text("Overview")
    page.keyboard.press("?")
    expect(dialog.get_by_label("Enable single-key shortcuts")).not_to_be_checked()


def test_pausing_stops_requests(page: Page, client: Client, name: str) -> None:
    page.goto("/#/topics")
    heading(page, "Topics")
    page.keyboard.press("p")
    expect(page.locator("#pause")).to_have_text("Paused")
    urls: list[str] = []
    page.on("request", lambda sent: urls.append(sent.url))
    client.create(name)
    page.keyboard.press("r")
    expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    assert len([item for item in urls if "/api/topics" in item]) == 1


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("width", [320, 420, 800])
def test_a_small_screen_does_not_scroll_sideways(page: Page, path: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.goto(f"/#/{path}")
    expect(page.locator("h1")).to_be_focused()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def ground(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_the_theme_is_the_systems_until_one_is_chosen(broker: Broker, browser: Browser) -> None:
    grounds = {}
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        context = browser.new_context(base_url=f"http://{broker.ops_address}", color_scheme=scheme)
        page = context.new_page()
        page.goto("/")
        heading(page, "Overview")
        grounds[scheme] = ground(page)
        if scheme == "dark":
            page.keyboard.press("d")
            assert ground(page) == grounds["light"]
            page.reload()
            heading(page, "Overview")
            assert ground(page) == grounds["light"]
            expect(page.locator("#theme")).to_have_accessible_name("Theme: light")
        context.close()
    assert grounds["light"] != grounds["dark"]


def unlock(page: Page, token: str = TOKEN) -> None:
    page.get_by_role("button", name="Unlock").click()
    page.get_by_label("Token").fill(token)
    page.get_by_label("Token").press("Enter")


def test_changes_require_the_token(page: Page) -> None:
    page.goto("/#/topics")
    heading(page, "Topics")
    expect(page.get_by_role("button", name="Create topic")).to_have_count(0)
    unlock(page, "a wrong token, long enough")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("require the token")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_label("Token").press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Create topic")).to_be_visible()
    # It is kept nowhere but in the page.
    assert (
        page.evaluate(
            "[JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie].join()"
        ).find(TOKEN)
        < 0
    )
    page.reload()
    heading(page, "Topics")
    expect(page.get_by_role("button", name="Create topic")).to_have_count(0)


def test_a_topic_is_created_changed_and_deleted(page: Page, console: Caller, name: str) -> None:
    page.goto("/#/topics")
    heading(page, "Topics")
    unlock(page)
    page.get_by_role("button", name="Create topic").click()
    page.locator("dialog input[name=name]").fill(name)
    page.get_by_role("spinbutton", name="Partitions").fill("2")
    page.get_by_role("textbox", name="Configs").fill("retention.ms=60000")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("link", name=name, exact=True).click()
    heading(page, name)
    page.get_by_role("button", name="Change retention.ms").click()
    page.get_by_role("textbox", name="Value").fill("soon")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("INVALID_CONFIG")
    page.get_by_role("textbox", name="Value").fill("90000")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    config = page.get_by_role("table", name="Configs").locator('tr[data-key="retention.ms"]')
    expect(config).to_contain_text("90000")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_label("Type the name").fill("another")
    page.get_by_role("button", name="Delete topic").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("does not match")
    page.get_by_label("Type the name").fill(name)
    page.get_by_role("button", name="Delete topic").click()
    heading(page, "Topics")
    assert console.get("/api/topic", name=name).status == 404


def test_offsets_are_shown_before_they_are_reset(
    page: Page, console: Caller, client: Client, name: str
) -> None:
    client.create(name, storage_format="batch")
    client.append(name, b"one", b"two")
    console.changed("POST", "groups/offsets", {"name": name, "to": "latest", "topic": name, "execute": True})
    page.goto(f"/#/group?name={name}")
    heading(page, name)
    unlock(page)
    page.get_by_role("button", name="Reset offsets").click()
    reset = page.get_by_role("dialog").get_by_role("button", name="Reset")
    reset.click()
    expect(page.get_by_role("table", name="Moves")).to_contain_text(f"{name}:0")
    assert console.data("group", name=name)["offsets"][0]["committed"] == "2"
    reset.click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert console.data("group", name=name)["offsets"][0]["committed"] == "0"


def test_a_share_group_has_members_and_starts_and_none_of_them_is_reset(
    page: Page, console: Caller, client: Client, name: str
) -> None:
    topic_id = client.create(name)
    with sharing(client, name, name) as member_id:
        page.goto(f"/#/group?name={name}")
        heading(page, name)
        expect(page.locator("main")).to_contain_text("1 partition: The group has not begun")
        consumer = ShareConsumer(client, name, joins=False).on(topic_id)
        consumer.id = member_id
        assert consumer.poll() == []
        client.append(name, b"one", b"two")
        page.reload()
        unlock(page)
        expect(page.locator("main")).to_contain_text("1 member · share group · simple · lag 2")
        expect(page.get_by_role("table", name="Members")).to_contain_text(member_id)
        expect(page.get_by_role("table", name="Partitions").get_by_role("columnheader")).to_have_text(
            ["Topic", "Partition", "Start", "End", "Lag"]
        )
        expect(page.get_by_role("button", name="Reset offsets")).to_have_count(0)
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("What it has read is forgotten.")
    page.get_by_label("Type the name").fill(name)
    page.get_by_role("button", name="Delete group").click()
    heading(page, "Groups")
    assert console.get("/api/group", name=name).status == 404
