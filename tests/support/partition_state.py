"""The packed fields of a partition's state, for tests: read as numbers, and written as nobody but a script may."""

from __future__ import annotations

from typing import Any

import msgspec

from korvet.cluster.data_format import OWN
from korvet.log.packed import LOG_FIELD, PRODUCER_FIELDS, PackedLog, ProducerRow
from korvet.redis.keys import Keys


def write_format(client: Any) -> None:
    """Note that this version has written the data, as the registration of a broker does."""
    client.hset(Keys("korvet").data_format, mapping=msgspec.structs.asdict(OWN))


def log_of(client: Any, state: str) -> PackedLog:
    """Return the counters of a log."""
    return PackedLog.unpack(client.hget(state, LOG_FIELD))


def change_log(client: Any, state: str, **counters: int) -> PackedLog:
    """Set some of the counters of a log, those of an empty one if there is none; return all of them."""
    packed = client.hget(state, LOG_FIELD)
    log = (PackedLog.unpack(packed) if packed else PackedLog())._replace(**counters)
    client.hset(state, LOG_FIELD, log.pack())
    return log


def producers_of(client: Any, state: str) -> dict[int, ProducerRow]:
    """Return the rows of a partition's producers, by their ids."""
    rows = client.hscan_iter(state, match=PRODUCER_FIELDS)
    return {int(name): ProducerRow.unpack(packed) for name, packed in rows}


def set_producer(client: Any, state: str, producer_id: int, row: ProducerRow) -> None:
    """Put a producer's row in the place of the one that is there."""
    client.hset(state, str(producer_id), row.pack())
