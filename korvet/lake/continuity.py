"""Whether a log in Redis is still the one that was archived, record by record.

Knows both tiers. In storage format `batch` offsets are dense, so a Redis that came back with older data gives those it
has lost to other records: the log goes on as if nothing was, and what is archived under these offsets is of another
past. In format `record` offsets are times, and none comes twice.
"""

from __future__ import annotations

from korvet.errors import KafkaError, LakeError, StorageUnavailableError
from korvet.lake.scan import Part, PartReading
from korvet.lake.schema import HEADERS, KEY, TIMESTAMP, TIMESTAMP_MS, VALUE
from korvet.lake.source import SourceTopic
from korvet.log.types import Bounds
from korvet.topics.types import Partition

_COLUMNS = (TIMESTAMP, TIMESTAMP_MS, KEY, VALUE, HEADERS)


def contradiction(
    reading: PartReading, topic: SourceTopic, partition: Partition, bounds: Bounds, next_offset: int
) -> str | None:
    """Return how Redis contradicts the last record that the table holds, below `next_offset`; None where it does not.

    Only where Redis was not told of all that is archived anything can: what it was told it has with all before, or has
    lost with what it was told. Raises StorageUnavailableError.
    """
    last = next_offset - 1
    if partition.format != "batch" or not bounds.local_start <= last < bounds.high_watermark:
        return None
    if bounds.archived >= next_offset:
        return None
    told: list[list[dict[str, object]]] = []
    try:
        for cold in (True, False):
            part = Part(
                topic=topic._replace(partitions=()),
                partition=partition,
                first=last,
                behind=next_offset,
                cold=cold,
            )
            told.append([row for rows in reading.rows(part) for row in rows.select(_COLUMNS).to_pylist()])
    except StorageUnavailableError:
        raise
    except (KafkaError, LakeError) as error:
        return str(error)
    in_lake, in_redis = told
    if in_lake and in_redis and in_lake != in_redis:
        return (
            f"archived up to {next_offset}, but Redis holds another record at offset {last}: Redis has lost records,"
            " and others have their offsets"
        )
    return None
