"""Appending for producers: from the batch a producer sent to the log, all partitions of a request in one round trip.

Knows the checks a batch must pass and what a stale topic means; nothing of messages. Offsets, idempotence and the
fence are decided by the append script (KIP-98, KIP-360).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from korvet.config import Settings
from korvet.domain.topics import Topic, Topics
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import ProducedBatch, produced_batch
from korvet.protocol.records.compression import Codec
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Append, AppendBatch, Appended, Partition

Result = Appended | KafkaError


class Delivery(msgspec.Struct, frozen=True):
    """What a producer sent for one partition; `find` finds its topic, again after that turned out to be stale."""

    find: Callable[[], Topic]
    partition: int
    records: bytes | bytearray | memoryview | None


class Appender:
    """Appends for the producers of one worker."""

    def __init__(self, log: LogStore, settings: Settings, topics: Topics) -> None:
        self._log = log
        self._settings = settings
        self._topics = topics

    def append(self, deliveries: Sequence[Delivery], *, zstd_known: bool) -> list[Result]:
        """Append each delivery; returns what became of each, in order.

        `zstd_known` says that the producer's version may send zstd (KIP-110). A topic that was deleted and made anew
        since this worker last looked is fenced by its id; it is looked up once more and the append repeated, which is
        safe since the fence wrote nothing.
        """
        return self.begin(deliveries, zstd_known=zstd_known)()

    def begin(self, deliveries: Sequence[Delivery], *, zstd_known: bool) -> Callable[[], list[Result]]:
        """Check, decode and send as `append` does; what is returned waits for the answers, and must be called.

        Appends that are begun one after the other are written in that order; their answers are to be waited for in
        the same order.
        """
        results: list[Result | None] = [None] * len(deliveries)
        sent = self._send(deliveries, results, zstd_known=zstd_known)

        def finish() -> list[Result]:
            fenced = sent()
            if fenced:
                self._topics.look_again(fenced.values())
                for place in fenced:
                    results[place] = None
                self._send(deliveries, results, zstd_known=zstd_known)()
            return [result for result in results if result is not None]

        return finish

    def _send(
        self, deliveries: Sequence[Delivery], results: list[Result | None], *, zstd_known: bool
    ) -> Callable[[], dict[int, Partition]]:
        """Send what `results` has no answer for; what is returned fills these places.

        It returns the places of the partitions that the log does not know, and these.
        """
        places: list[int] = []
        appends: list[Append | AppendBatch] = []
        for place, delivery in enumerate(deliveries):
            if results[place] is None:
                try:
                    appends.append(self._prepare(delivery, zstd_known=zstd_known))
                    places.append(place)
                except KafkaError as error:
                    # Anew, without the frames it came through: they hold the request and all that was decompressed
                    # of it, and with the results in them a circle, which only the garbage collector would open.
                    results[place] = KafkaError(error.code, error.message)
        written = self._log.begin_append(appends)

        def fill() -> dict[int, Partition]:
            fenced = {}
            for place, append, result in zip(places, appends, written(), strict=True):
                results[place] = result
                if _is_unknown(result):
                    fenced[place] = append.partition
            return fenced

        return fill

    def _prepare(self, delivery: Delivery, *, zstd_known: bool) -> Append | AppendBatch:
        """Check a delivery and make it what the log takes; raises KafkaError with what is wrong."""
        topic, partition = self._topics.partition(delivery.find, delivery.partition)
        batch = produced_batch(delivery.records, topic.config.max_message_bytes)
        if batch.header.codec == Codec.zstd and not zstd_known:
            message = "zstd needs version 7 of Produce"
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        if partition.format == "batch":
            return self._whole(topic, partition, batch)
        header = batch.header
        records = batch.records(self._settings.record_decompressed_max_bytes)
        return Append(
            partition=partition,
            records=records,
            at_rest=topic.config.at_rest,
            batch_bytes=header.size_bytes,
            max_timestamp=max([record.timestamp for record in records]),
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )

    def _whole(self, topic: Topic, partition: Partition, batch: ProducedBatch) -> AppendBatch:
        """Keep a batch as it came, unless the topic's compression.type names another codec."""
        config = topic.config
        if config.recompress and batch.header.codec != config.codec:
            batch = batch.recompressed(config.codec, self._settings.record_decompressed_max_bytes)
        header = batch.header
        if header.size_bytes > config.max_message_bytes:
            message = (
                f"the batch has {header.size_bytes} bytes in the topic's codec, more than max.message.bytes"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        return AppendBatch(
            partition=partition,
            batch=batch.view,
            codec=header.codec,
            record_count=header.record_count,
            max_timestamp=header.max_timestamp,
            at_rest=config.at_rest,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )


def _is_unknown(result: Result) -> bool:
    return isinstance(result, KafkaError) and result.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
