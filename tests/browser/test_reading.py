"""What the console shows, whatever the broker contains."""

from __future__ import annotations

import re
from urllib.parse import quote

from confluent_kafka import Producer
from playwright.sync_api import Browser, Page, Route, expect

from korvet.errors import ErrorCode
from tests.support.batches import Record, batch
from tests.support.broker import Broker
from tests.support.console import Caller
from tests.support.topic_client import Client

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
PAGES = ["", "topics", "groups", "records", "lake", "transactions"]


def heading(page: Page, text: str) -> None:
    """Wait until a page has been entered."""
    expect(page.locator("h1")).to_have_text(text)
    expect(page.locator("h1")).to_be_focused()


def test_the_overview_shows_readiness_processes_storage_amounts_and_refused_batches(
    page: Page, console: Caller, client: Client, name: str
) -> None:
    client.create(name)
    console.changed("POST", "groups/offsets", {"name": name, "to": "latest", "topic": name, "execute": True})
    assert client.produce(name, batch(b"x")[:-1] + b"?").error_code == ErrorCode.CORRUPT_MESSAGE
    page.goto("/")
    heading(page, "Overview")
    expect(page.get_by_label("State")).to_contain_text("Ready")
    processes = page.get_by_role("table", name="Processes")
    expect(processes.get_by_role("row")).to_have_count(4)
    expect(processes).to_contain_text("worker 0")
    expect(page.get_by_role("table", name="Brokers")).to_contain_text("controller")
    cards = page.get_by_label("Cluster and storage")
    for title in ("Redis memory", "Durability", "Replicas", "Topics", "Groups", "Largest lag"):
        expect(cards.locator(".card", has_text=title)).to_be_visible()
    expect(cards.locator(".card", has_text="Durability")).to_contain_text("append-only file, fsync")
    expect(page.get_by_label("Traffic")).to_contain_text("Records in")
    refused = page.get_by_role("table", name="Refused batches").locator('tr[data-key="CORRUPT_MESSAGE"]')
    expect(refused).to_contain_text(re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"))
    cards.get_by_role("link").first.click()
    heading(page, "Topics")


def test_topics_are_filtered_and_opened(page: Page, client: Client, name: str) -> None:
    client.create(name, partitions=3, retention_ms="60000")
    client.create(f"{name}-other")
    page.goto("/#/topics")
    heading(page, "Topics")
    page.get_by_label("Filter topics").fill(f"{name}-o")
    rows = page.get_by_role("table", name="Topics").locator("tbody tr")
    expect(rows).to_have_count(1)
    page.get_by_label("Filter topics").fill(name)
    expect(rows).to_have_count(2)
    page.get_by_role("link", name=name, exact=True).click()
    heading(page, name)
    expect(page.get_by_role("table", name="Partitions").locator("tbody tr")).to_have_count(3)
    config = page.get_by_role("table", name="Configs").locator('tr[data-key="retention.ms"]')
    expect(config).to_contain_text("60000")


def test_an_open_transaction_has_its_partitions(
    page: Page, broker: Broker, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{HOSTILE}-{name}"})
    producer.init_transactions()
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(name, b"value", partition=partition)
    producer.flush()
    page.goto("/#/transactions")
    heading(page, "Transactions")
    page.get_by_label("Filter transactions").fill(name)
    rows = page.get_by_role("table", name="Transactions").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Ongoing")
    expect(rows).to_contain_text("<script>")
    producer.commit_transaction()
    expect(rows).to_contain_text("CompleteCommit")
    expect(rows.get_by_role("link")).to_have_count(0)


def test_markup_in_a_record_stays_text(page: Page, client: Client, name: str) -> None:
    client.create(name)
    text = HOSTILE.encode()
    client.append(name, Record(text, text, 5, [(HOSTILE, text)]))
    page.goto(f"/#/records?topic={name}")
    row = page.get_by_role("table", name="Records").locator("tbody tr").first
    expect(row).to_contain_text("<script>")
    row.get_by_role("button").click()
    expect(page.locator(".record")).to_contain_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.hacked") is None


def test_markup_in_the_name_of_a_group_stays_text(
    page: Page, console: Caller, client: Client, name: str
) -> None:
    client.create(name)
    group = f"{name}{HOSTILE}/../?&#%\u202e"
    spec = {"name": group, "to": "latest", "topic": name, "execute": True}
    console.changed("POST", "groups/offsets", spec)
    page.goto("/#/groups")
    page.get_by_role("link", name=re.compile(f"^{name}<img")).click()
    expect(page.locator("h1")).to_have_text(group)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.hacked") is None


def test_the_browser_refuses_markup_made_from_text(broker: Broker, browser: Browser) -> None:
    # A page of its own: here the browser shall report an error.
    page = browser.new_context(base_url=f"http://{broker.ops_address}").new_page()
    page.goto("/")
    heading(page, "Overview")
    refused = page.evaluate(
        """() => new Promise((done) => {
            document.addEventListener("securitypolicyviolation", (each) => done(each.effectiveDirective), {once: true});
            try { document.body.innerHTML += "<b>x</b>"; } catch { done("trusted-types"); }
            setTimeout(() => done("nothing"), 5000);
        })"""
    )
    assert refused in {"trusted-types", "require-trusted-types-for"}
    assert page.locator("body > b").count() == 0
    page.context.close()


def test_json_keeps_its_digits_and_bytes_are_shown_in_hex(page: Page, client: Client, name: str) -> None:
    client.create(name)
    text = '{"id": 12345678901234567890, "b": {"z": [], "a": 1.10}, "u\\u202e": "\u202eabc"}'
    client.append(name, Record(text.encode(), b"\xff\x00A", 5))
    page.goto(f"/#/records?topic={name}")
    page.get_by_role("table", name="Records").get_by_role("button").click()
    value = page.get_by_role("region", name="Value").locator("pre")
    expect(value).to_have_text(
        '{\n  "id": 12345678901234567890,\n  "b": {\n    "z": [],\n    "a": 1.10\n  },\n'
        '  "u\\u202e": "\\u202eabc"\n}',
        use_inner_text=True,
    )
    expect(page.get_by_role("region", name="Key").locator("pre")).to_contain_text("ff 00 41")
    page.get_by_role("group", name="How Value is shown").get_by_role("button", name="Hex").click()
    expect(value).to_contain_text("7b 22 69 64")


def test_opening_a_record_reads_its_whole_value(page: Page, client: Client, name: str) -> None:
    client.create(name)
    client.append(name, b"x" * 50_000 + b"end")
    page.goto(f"/#/records?topic={name}")
    page.get_by_role("table", name="Records").get_by_role("button").click()
    expect(page.get_by_role("region", name="Value").locator("pre")).to_contain_text("xend")


def test_records_from_an_offset_are_read_page_by_page(page: Page, client: Client, name: str) -> None:
    client.create(name, storage_format="batch")
    for number in range(60):
        client.append(name, b"value %d." % number)
    page.goto("/#/records")
    page.get_by_label("Topic").fill(name)
    page.get_by_label("From").select_option("offset")
    page.get_by_label("Offset", exact=True).fill("7")
    page.locator("select[name=count]").select_option("25")
    page.get_by_role("button", name="Show").click()
    rows = page.get_by_role("table", name="Records").locator("tbody tr")
    expect(rows).to_have_count(25)
    expect(rows.first).to_contain_text("value 7.")
    page.get_by_role("link", name="Next").click()
    expect(rows.first).to_contain_text("value 32.")
    page.get_by_role("link", name="Next").click()
    expect(rows).to_have_count(3)
    expect(page.get_by_role("link", name="Next")).to_have_count(0)
    page.go_back()
    expect(rows.first).to_contain_text("value 32.")


def test_following_shows_new_records(page: Page, client: Client, name: str) -> None:
    client.create(name)
    client.append(name, b"before")
    page.goto(f"/#/records?topic={name}")
    rows = page.get_by_role("table", name="Records").locator("tbody tr")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Follow").click()
    for number in range(3):
        client.append(name, b"after %d" % number)
        expect(rows.first).to_contain_text(f"after {number}")
    expect(rows).to_have_count(4)


def test_newest_records_that_were_not_read_in_time_are_a_note_with_a_way_to_go_on(
    page: Page, client: Client, name: str
) -> None:
    def unfinished(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"unfinished": [1]})

    client.create(name, partitions=2)
    client.append(name, b"first")
    page.route("**/api/records?*", unfinished)
    page.goto(f"/#/records?topic={name}")
    expect(page.locator("main")).to_contain_text("Not all of the newest records were read in time.")
    expect(page.locator("main .alert")).to_have_count(0)
    page.locator("main").get_by_role("link", name="Partition 1").click()
    expect(page).to_have_url(re.compile("partition=1"))
    expect(page.locator("main")).to_contain_text("Choose fewer records, or go on.")


def test_the_focus_and_an_open_record_stay_when_newer_ones_arrive(
    page: Page, client: Client, name: str
) -> None:
    client.create(name)
    client.append(name, b"first")
    page.goto(f"/#/records?topic={name}&count=25")
    page.get_by_role("table", name="Records").get_by_role("button").first.click()
    for number in range(25):
        client.append(name, b"later %d" % number)
    rows = page.get_by_role("table", name="Records").locator("tbody tr:not(.detail)")
    expect(rows).to_have_count(26)
    expect(page.locator(".record")).to_contain_text("first")
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"


def test_an_unreachable_broker_is_reported_and_found_again(page: Page) -> None:
    page.goto("/#/topics")
    heading(page, "Topics")
    page.context.set_offline(True)
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.locator("#state")).to_contain_text("no answer")
    # Older data stays.
    expect(page.get_by_role("table", name="Topics")).to_be_visible()
    page.context.set_offline(False)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_errors_of_the_broker_are_shown(page: Page) -> None:
    page.goto(f"/#/topic?name={quote('no/topic')}")
    expect(page.get_by_role("alert")).to_contain_text("INVALID_TOPIC_EXCEPTION")
    page.goto("/#/group?name=none")
    expect(page.get_by_role("alert")).to_contain_text("GROUP_ID_NOT_FOUND")


def test_an_address_that_leads_nowhere_says_so(page: Page) -> None:
    page.goto("/#/no-page?x=<b>")
    heading(page, "Page not found")
    expect(page.locator("main")).to_contain_text("#/no-page?x=")
    expect(page).to_have_title("Page not found \u2013 Korvet")
    expect(page.locator("#nav [aria-current]")).to_have_count(0)
    page.locator("main").get_by_role("link", name="Overview").click()
    heading(page, "Overview")
