"""What a running broker tells about itself over HTTP."""

from __future__ import annotations

import http.client
import re

from tests.support.broker import Broker


def total(broker: Broker, metric: str) -> float:
    """Return the sum of a metric over its labels; 0 before the first value."""
    connection = http.client.HTTPConnection(broker.ops_address, timeout=30)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return sum(float(value) for value in re.findall(rf"^{metric}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))
