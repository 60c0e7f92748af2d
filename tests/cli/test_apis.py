"""`korvet apis`: what it prints in its three forms."""

from __future__ import annotations

import json

from korvet.cli.cluster import markdown_table
from korvet.handlers.registry import HANDLERS
from tests.cli.commands import korvet


def test_each_api_of_the_dispatch_table_is_listed_with_its_versions() -> None:
    lines = [line.split() for line in korvet("apis").stdout.splitlines()]
    for key, handler in HANDLERS.items():
        first, last = handler.request.api.versions
        name = handler.request.__name__.removesuffix("Request")
        assert any(line[:3] == [str(key), name, f"{first}-{last}"] for line in lines)


def test_json_tells_served_and_advertised_versions() -> None:
    listed = json.loads(korvet("apis", "--json").stdout)
    assert listed["Produce"] == {"key": 0, "versions": [3, 13], "advertised": [0, 13], "flexible": 9}
    assert len(listed) == len(HANDLERS)


def test_an_api_without_a_flexible_version_says_so() -> None:
    [line] = [line.split() for line in korvet("apis").stdout.splitlines() if "OffsetDelete" in line]
    assert line == ["47", "OffsetDelete", "0-0", "none"]
    assert json.loads(korvet("apis", "--json").stdout)["OffsetDelete"]["flexible"] is None


def test_markdown_is_the_table_of_the_readme() -> None:
    handlers = [handler for _, handler in sorted(HANDLERS.items())]
    assert korvet("apis", "--markdown").stdout == markdown_table(handlers)
