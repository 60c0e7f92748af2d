"""How far groups are behind, as a broker of Korvet has counted it last and tells in /metrics.

Kafka's protocol has no word for a count of records, or for their age; this does, exact in both storage formats and in
compacted topics. Knows the two metrics, and only as much of the text format as they are written in.
"""

from __future__ import annotations

import http.client
import math
import re

import msgspec

from korvet.admin.connection import Address
from korvet.admin.errors import BadAnswerError, ConnectionFailedError
from korvet.admin.topology import TopicPartition

PAGE_BYTES_MAX = 128 * 1024 * 1024
"""Largest page that is read."""

GroupPartition = tuple[str, TopicPartition]


class Lags(msgspec.Struct, frozen=True):
    """How far groups are behind: `records` not committed yet, and the age of the first of them in `seconds`."""

    records: dict[GroupPartition, int]
    seconds: dict[GroupPartition, float]


_LINE = re.compile(
    r"^korvet_consumer_group_lag_(?P<unit>records|seconds)\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE
)
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_OK = 200


def group_lags(address: Address, timeout: float) -> Lags:
    """Return how far groups are behind, each in each partition of which there is a figure.

    Only the broker whose keeper acts has figures, taken every `log.figures.interval.ms`, and those of very many
    partitions are summed: then there is none. `timeout` is in seconds. Raises ConnectionFailedError, BadAnswerError.
    """
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        page = response.read(PAGE_BYTES_MAX + 1)
    except (OSError, UnicodeError) as error:
        raise ConnectionFailedError(f"no metrics of {address}: {error}") from error
    except http.client.HTTPException as error:
        raise BadAnswerError(f"{address} does not speak HTTP: {error!r}") from error
    finally:
        connection.close()
    if response.status != _OK or len(page) > PAGE_BYTES_MAX:
        raise BadAnswerError(f"{address} has no page of metrics (status {response.status})")
    return lags_of(page.decode(errors="replace"))


def lags_of(page: str) -> Lags:
    """Return the figures that stand on a page, without those of sums; what is no figure is passed over."""
    found = Lags({}, {})
    for line in _LINE.finditer(page):
        labels = {
            each["name"]: _ESCAPED.sub(_meant, each["value"]) for each in _LABEL.finditer(line["labels"])
        }
        try:
            place = TopicPartition(labels["topic"], int(labels["partition"]))
            key, value = (labels["group"], place), float(line["value"])
            if not math.isfinite(value):
                continue
            if line["unit"] == "records":
                found.records[key] = int(value)
            else:
                found.seconds[key] = value
        except (KeyError, ValueError):
            continue
    return found


def _meant(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]
