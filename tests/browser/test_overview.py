"""Overview where Redis is nearly full, cannot write, or lacks replicas, and where nothing is counted yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import redis
from playwright.sync_api import Browser, Locator, Page, Route, expect

from korvet.redis.keys import Keys
from tests.browser.test_phone import CUT
from tests.support import redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import wait_until
from tests.support.redis_cluster import redis_cluster

LOOKS: list[tuple[int, Literal["light", "dark"]]] = [
    (390, "light"),
    (390, "dark"),
    (1440, "light"),
    (1440, "dark"),
]


@contextmanager
def overview(
    browser: Browser, broker: Broker, width: int = 1440, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Page]:
    """Give the page, of which nothing is cut or wider than the screen."""
    context = browser.new_context(
        base_url=f"http://{broker.ops_address}", viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    page = context.new_page()
    page.goto("/")
    expect(page.locator("h1")).to_be_focused()
    yield page
    assert page.evaluate(CUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def card(page: Page, title: str) -> Locator:
    """Return what the overview has under a title."""
    return page.get_by_label("Cluster and storage").locator(".card", has_text=title)


def test_a_limit_of_memory_is_shown_and_as_a_problem_where_it_is_near(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        korvet_broker(tmp_path, workers=1) as broker,
        redis.Redis(unix_socket_path=str(broker.data_dir / "server.sock")) as client,
    ):
        server: Any = client
        for times, kind in ((4, "share "), (1.1, "share full")):
            server.config_set("maxmemory", int(server.info("memory")["used_memory"] * times))
            for look in LOOKS:
                with overview(browser, broker, *look) as page:
                    memory = card(page, "Redis memory")
                    expect(memory).to_contain_text(" % of ")
                    expect(memory.get_by_role("img")).to_have_attribute("class", kind)


def test_a_disk_that_takes_no_writes_is_shown(browser: Browser, tmp_path: Path) -> None:
    with (
        # With "always" it would end at the first write that fails.
        redis_servers.DurableServer("--appendfsync", "everysec") as server,
        korvet_broker(tmp_path, "--redis-url", server.url, workers=1) as broker,
        redis.Redis.from_url(server.url) as client,
    ):
        asked: Any = client
        server.limit_files(server.append_only_file().stat().st_size)
        wait_until(lambda: asked.info("persistence")["aof_last_write_status"] == "err", "a write has failed")
        for look in LOOKS:
            with overview(browser, broker, *look) as page:
                expect(card(page, "Durability")).to_contain_text("failing")
                expect(card(page, "Durability")).to_contain_text("the last write to disk failed")
                expect(page.get_by_label("State", exact=True)).to_contain_text("MISCONF")
        server.limit_files()


def test_replicas_that_are_missing_are_shown(browser: Browser, tmp_path: Path) -> None:
    with (
        redis_servers.embedded_server() as url,
        korvet_broker(tmp_path, "--redis-url", url, "--set", "replicas=1", workers=1) as broker,
    ):
        for look in LOOKS:
            with overview(browser, broker, *look) as page:
                expect(card(page, "Replicas")).to_contain_text("0 of 1")
                expect(card(page, "Replicas")).to_contain_text("1 wanted")


def test_a_node_of_redis_that_is_away_is_shown_though_the_broker_is_ready(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        redis_cluster() as cluster,
        korvet_broker(tmp_path, f"--redis-url={cluster.url}", workers=1) as broker,
    ):
        keys = Keys("korvet")
        registry = [cluster.node_of(key) for key in (keys.topics, keys.brokers)]
        away = next(node for node in cluster.nodes if node not in registry)
        away.kill()
        for look in LOOKS:
            with overview(browser, broker, *look) as page:
                state = page.get_by_label("State", exact=True)
                expect(state).to_contain_text(f"Redis: {away.address}: Connection refused")
                expect(state).to_contain_text("Ready")
                expect(state).to_have_class("banner bad")


@pytest.mark.parametrize(
    ("leads", "others", "text"),
    [
        (0, [], "not counted here yet"),
        (1, [{"id": 1, "address": "there:9092", "rack": None, "controller": False, "own": False}], "yet"),
        (0, [{"id": 1, "address": "there:9092", "rack": None, "controller": False, "own": False}], "lease"),
    ],
)
def test_a_lag_that_is_not_counted_says_who_counts_it(
    browser: Browser, broker: Broker, leads: int, others: list[dict[str, Any]], text: str
) -> None:
    def without_counts(route: Route) -> None:
        response = route.fetch()
        result = response.json()
        if "brokers" in result:
            result |= {"lag": None, "brokers": result["brokers"] + others}
        else:
            result["totals"]["keeper_leader"] = leads
        route.fulfill(response=response, json=result)

    with overview(browser, broker) as page:
        for name in ("overview", "cluster"):
            page.route(f"**/api/{name}", without_counts)
        page.reload()
        expect(card(page, "Largest lag")).to_contain_text(text)
        expect(card(page, "Largest lag")).to_contain_text("not counted here")
