"""What a running broker publishes over HTTP."""

from __future__ import annotations

import http.client
import re

from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker import Broker


def page(broker: Broker, path: str) -> str:
    """Return what stands on a page."""
    connection = http.client.HTTPConnection(broker.ops_address, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def samples(broker: Broker, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric by the values of their labels, in the order of the labels' names."""
    families = text_string_to_metric_families(page(broker, "/metrics"))
    results = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(value for _, value in sorted(result.labels.items())): result.value for result in results}


def total(broker: Broker, metric: str) -> float:
    """Return the sum of a metric over its labels; 0 before the first value."""
    text = page(broker, "/metrics")
    return sum(float(value) for value in re.findall(rf"^{metric}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))
