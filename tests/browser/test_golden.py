"""The words of each page of the console: its text in tests/browser/golden, with N for each number.

With GOLDEN=write in the environment the files are written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from korvet.admin.client import AdminClient
from korvet.admin.types import TopicPartition, settled
from tests.browser.test_accessibility import PAGES
from tests.support.batches import Record
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client

GOLDEN = Path(__file__).parent / "golden"
TOPIC = "orders"
VARYING = [
    (re.compile(r"[\w-]{22}(?=\n|$)"), "ID"),
    (re.compile(r"\d[\d.,:]*(?:[ \u00a0](?:[kMG]?i?B|ms|s|min|h)\b)?"), "N"),
]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker with one topic, and a group of its name."""
    with korvet_broker(tmp_path_factory.mktemp("golden"), workers=1) as broker:
        with Client(broker.address) as client:
            client.create(TOPIC, partitions=2, storage_format="batch", retention_ms="60000")
            client.append(TOPIC, Record(b'{"a": 1}', b"key", 5, [("header", b"x")]))
        with AdminClient(broker.bootstrap) as admin:
            settled(admin.offsets.alter(TOPIC, {TopicPartition(TOPIC, 0): 0}))
        yield broker


@pytest.mark.parametrize("address", PAGES)
def test_a_page_has_the_words_of_its_file(filled: Broker, browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=f"http://{filled.ops_address}", reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"/#/{address.format(TOPIC)}")
    expect(page.locator("main .waiting")).to_have_count(0)
    expect(page.locator("h1")).to_be_focused()
    text = page.locator("body").inner_text()
    context.close()
    for pattern, mark in VARYING:
        text = pattern.sub(mark, text)
    lines = [re.sub(r"[ \t\u00a0]+", " ", line).strip() for line in text.splitlines()]
    words = "\n".join(line for line in lines if line) + "\n"
    file = GOLDEN / f"{address.partition('?')[0] or 'overview'}.txt"
    if os.environ.get("GOLDEN") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(words, encoding="utf-8")
    assert words == file.read_text(encoding="utf-8")
