"""What a running broker tells about itself over HTTP."""

from __future__ import annotations

import http.client
import re

from tests.support.broker import Broker


def page(broker: Broker, path: str) -> str:
    """Return what stands on a page."""
    connection = http.client.HTTPConnection(broker.ops_address, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def total(broker: Broker, metric: str) -> float:
    """Return the sum of a metric over its labels; 0 before the first value."""
    text = page(broker, "/metrics")
    return sum(float(value) for value in re.findall(rf"^{metric}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))
