//! What consumers get of what reads found.

use std::sync::Arc;

use korvet_proto::ErrorCode;
use korvet_proto::batch::{CONTROL_BIT, HEADER_BYTES, Header, LENGTH_FROM, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT};
use korvet_proto::compression::Codec;
use korvet_proto::log::{Collector, Found, Taken};
use korvet_proto::partition::{Layout, Partition, TopicConfig};
use korvet_proto::shared::Piece;

use crate::batches::{Bytes, CONFIG, RECORDS, batch, partition, valued};
use crate::stored::{at_rest, large};
use crate::support::{DENSE, Log, array, entry, foreign, found, log, partition_of, read, record, stored};

const PLENTY: usize = 1 << 20;
const EPOCH_AT: usize = 12;
const SMALL_BYTES: usize = 4 << 10;

fn page(partition: &Arc<Partition>, log: &Log<'_>, entries: &[Bytes]) -> Found {
    found(&read(partition, 0), log, entries)
}

fn joined(pieces: &[Piece]) -> Bytes {
    pieces.iter().flat_map(|piece| piece.as_ref().to_vec()).collect()
}

/// The batches of a response, found by their lengths.
fn split(pieces: &[Piece]) -> Vec<(Header, Bytes)> {
    let (bytes, mut batches) = (joined(pieces), Vec::new());
    let mut left = &bytes[..];
    while let Some(header) = Header::read(left) {
        let (batch, rest) = left.split_at(usize::try_from(header.batch_length).unwrap() + LENGTH_FROM);
        batches.push((header, batch.to_vec()));
        left = rest;
    }
    assert_eq!(left, b"");
    batches
}

/// What is taken of one page.
fn collected(found: &Found, room: usize, at_least_one: bool) -> (Taken, Vec<(Header, Bytes)>) {
    let mut collector = Collector::new(&found.partition, 0, PLENTY);
    let taken = collector.take(found, room, at_least_one).unwrap();
    (taken, split(&collector.finish().unwrap()))
}

/// Offsets, values and header names of the records in a batch.
fn records(header: &Header, batch: &[u8]) -> Vec<(i64, Bytes, Vec<Bytes>)> {
    let plain = header.decompressed(batch, PLENTY).unwrap();
    let read = header.records(&plain).map(|record| {
        let record = record.unwrap();
        let names = record.headers().map(|(name, _)| name.to_vec()).collect();
        (header.base_offset + i64::from(record.offset_delta), record.value.unwrap_or_default().to_vec(), names)
    });
    read.collect()
}

fn owned(end: i64, producer: &str) -> Bytes {
    let fields = [("value", &b"v"[..]), ("timestamp", b"5"), ("korvet.producer", producer.as_bytes())];
    entry(&format!("0-{end}"), &fields)
}

fn marker(end: i64, kind: &str, producer: &str) -> Bytes {
    let fields = [("korvet.marker", kind.as_bytes()), ("korvet.producer", producer.as_bytes()), ("timestamp", b"5")];
    entry(&format!("0-{end}"), &fields)
}

#[test]
fn records_are_built_into_a_batch() {
    let with_header = entry("0-4", &[("timestamp", b"6"), ("header.h", b"1"), ("value", b"c")]);
    let found = page(&partition_of(DENSE), &log(4), &[record(1, b"a"), record(2, b"b"), with_header]);
    let (taken, batches) = collected(&found, PLENTY, false);
    let [(header, batch)] = &batches[..] else { panic!("{batches:?}") };
    let names = vec![b"h".to_vec()];
    let expected = [(0, b"a".to_vec(), vec![]), (1, b"b".to_vec(), vec![]), (3, b"c".to_vec(), names)];
    assert_eq!(records(header, batch), expected);
    assert_eq!((header.record_count, header.max_timestamp, header.attributes), (3, 6, 0));
    assert_eq!(taken, Taken { bytes: batch.len(), entries: 3, ..Taken::default() });
    assert_eq!(header.sealed_with(&batch[HEADER_BYTES..]), *batch);
}

#[test]
fn batches_are_in_the_codec_of_the_topic_if_that_makes_them_smaller() {
    let config = TopicConfig { consumer_codec: Codec::Zstd, ..CONFIG };
    let partition = partition(DENSE, config);
    let value = b"a value that is worth it, ".repeat(30);
    let (taken, batches) = collected(&page(&partition, &log(1), &[record(1, &value)]), PLENTY, false);
    let (header, batch) = &batches[0];
    assert_eq!((header.codec(), &records(header, batch)[0].1), (Some(Codec::Zstd), &value));
    assert!(taken.bytes > value.len() && batch.len() < value.len());
}

#[test]
fn with_log_append_time_a_batch_has_one_timestamp() {
    let partition = partition(DENSE, TopicConfig { has_append_time: true, ..CONFIG });
    let later = entry("0-3", &[("value", b"c"), ("timestamp", b"6")]);
    let (_, batches) = collected(&page(&partition, &log(3), &[record(1, b"a"), record(2, b"b"), later]), PLENTY, false);
    let times: Vec<_> = batches.iter().map(|(header, _)| (header.attributes, header.max_timestamp)).collect();
    assert_eq!(times, [(LOG_APPEND_TIME_BIT, 5), (LOG_APPEND_TIME_BIT, 6)]);
}

#[test]
fn no_batch_has_records_of_two_leader_epochs() {
    let log = Log { epochs: "9@3 7@2", ..log(5) };
    let values: Vec<_> = (1..=5).map(|end| record(end, b"v")).collect();
    let (_, built) = collected(&page(&partition_of(DENSE), &log, &values), PLENTY, false);
    let epochs = |batches: &[(Header, Bytes)]| -> Vec<_> {
        batches.iter().map(|(header, _)| (header.base_offset, header.partition_leader_epoch)).collect()
    };
    assert_eq!(epochs(&built), [(0, 0), (2, 7), (3, 9)]);
    let values: Vec<_> = (1..=5).map(|end| stored(end, &[b"v"])).collect();
    let (_, passed) = collected(&page(&partition_of(Layout::Batch), &log, &values), PLENTY, false);
    assert_eq!(epochs(&passed), [(0, 0), (1, 0), (2, 7), (3, 9), (4, 9)]);
}

#[test]
fn a_batch_has_records_of_one_producer_and_a_marker_is_a_batch_of_its_own() {
    let entries = [
        record(1, b"v"),
        owned(2, "7:0"),
        owned(3, "7:0"),
        owned(4, "8:1"),
        marker(5, "commit", "7:0"),
        owned(6, "7:0"),
        record(7, b"v"),
        marker(8, "abort", "7:1"),
        marker(9, "abort", "8:1"),
        record(10, b"v"),
    ];
    let (taken, batches) = collected(&page(&partition_of(DENSE), &log(10), &entries), PLENTY, false);
    let (data, control) = (TRANSACTIONAL_BIT, TRANSACTIONAL_BIT | CONTROL_BIT);
    let of = |(header, _): &(Header, Bytes)| {
        (header.base_offset, header.record_count, header.attributes, header.producer_id, header.producer_epoch)
    };
    let expected = [
        (0, 1, 0, -1, -1),
        (1, 2, data, 7, 0),
        (3, 1, data, 8, 1),
        (4, 1, control, 7, 0),
        (5, 1, data, 7, 0),
        (6, 1, 0, -1, -1),
        (7, 1, control, 7, 1),
        (8, 1, control, 8, 1),
        (9, 1, 0, -1, -1),
    ];
    assert_eq!(batches.iter().map(of).collect::<Vec<_>>(), expected);
    assert_eq!((taken.entries, taken.bytes), (10, batches.iter().map(|(_, batch)| batch.len()).sum()));
    assert_eq!(records(&batches[3].0, &batches[3].1)[0].1, [0; 6]);
}

#[test]
fn what_does_not_fit_is_left_and_nothing_after_it_is_taken() {
    let entries = [record(1, b"a"), record(2, &[7; 500]), record(3, b"c")];
    let found = page(&partition_of(DENSE), &log(3), &entries);
    let whole =
        page(&partition_of(Layout::Batch), &log(3), &[stored(1, &[b"a"]), stored(2, &[&[7; 500]]), stored(3, &[b"c"])]);
    for found in [found, whole] {
        let mut collector = Collector::new(&found.partition, 0, PLENTY);
        let taken = collector.take(&found, 200, false).unwrap();
        assert_eq!((taken.entries, taken.has_more), (1, true));
        assert_eq!((collector.is_full(), collector.next_offset(), collector.record_count()), (true, 1, 1));
        assert_eq!(split(&collector.finish().unwrap()).len(), 1);
        let (taken, batches) = collected(&found, 10, false);
        assert_eq!((taken, batches.len()), (Taken { has_more: true, ..Taken::default() }, 0));
        let (taken, batches) = collected(&found, 10, true);
        assert_eq!((taken.entries, batches[0].0.base_offset), (1, 0));
        assert_eq!(taken.bytes, batches[0].1.len());
    }
}

#[test]
fn one_of_any_size_is_taken_only_if_nothing_was_before() {
    for (layout, large) in [(DENSE, record(1, &[7; 500])), (Layout::Batch, stored(1, &[&[7; 500]]))] {
        let partition = partition_of(layout);
        let mut collector = Collector::new(&partition, 0, PLENTY);
        assert_eq!(collector.take(&page(&partition, &log(0), &[]), 10, true).unwrap(), Taken::default());
        let taken = collector.take(&page(&partition, &log(1), std::slice::from_ref(&large)), 10, true).unwrap();
        assert_eq!((taken.entries, collector.is_full()), (1, false));
        let taken = collector.take(&page(&partition, &log(1), &[large]), 10, true).unwrap();
        assert_eq!((taken.entries, taken.bytes, collector.is_full()), (0, 0, true));
    }
}

#[test]
fn pages_that_follow_each_other_are_one_batch_unless_there_is_less_room_than_there_was() {
    let partition = partition_of(DENSE);
    let pages = [&[record(1, b"a"), record(2, b"b")][..], &[record(3, b"c")]];
    for (room, count) in [(1000, 1), (400, 2)] {
        let mut collector = Collector::new(&partition, 0, PLENTY);
        let mut bytes = 0;
        for (found, room) in pages.iter().map(|entries| page(&partition, &log(3), entries)).zip([1000, room]) {
            bytes += collector.take(&found, room - bytes, false).unwrap().bytes;
        }
        assert_eq!((collector.next_offset(), collector.record_count(), collector.is_full()), (3, 3, false));
        let batches = split(&collector.finish().unwrap());
        assert_eq!((batches.len(), bytes), (count, batches.iter().map(|(_, batch)| batch.len()).sum()));
    }
}

#[test]
fn a_batch_is_served_with_its_offset_and_its_epoch_and_is_the_same_otherwise() {
    let log = Log { epochs: "9@1", ..log(9) };
    let whole = [large(), batch(&[valued(b"small"), valued(b"")])];
    for codec in [None, Some(Codec::Lz4), Some(Codec::Zstd)] {
        let entries = [
            codec.map_or_else(|| entry("0-4", &[("batch", &whole[0])]), |codec| at_rest(4, &whole[0], codec)),
            entry("0-9", &[("batch", &whole[1])]),
        ];
        let (taken, batches) = collected(&page(&partition_of(Layout::Batch), &log, &entries), PLENTY, false);
        assert_eq!(taken.bytes, whole.iter().map(Vec::len).sum());
        for ((base_offset, whole), (header, batch)) in [2, 7].iter().zip(&whole).zip(&batches) {
            assert_eq!((header.base_offset, header.partition_leader_epoch), (*base_offset, 9));
            assert_eq!(batch[8..EPOCH_AT], whole[8..EPOCH_AT]);
            assert_eq!(batch[EPOCH_AT + 4..], whole[EPOCH_AT + 4..]);
        }
    }
}

#[test]
fn a_large_batch_stays_where_it_lies_and_small_ones_share_a_piece() {
    let large = batch(&[valued(&[7; SMALL_BYTES])]);
    let entries = (1..=9).map(|end| if end == 5 { entry("0-5", &[("batch", &large)]) } else { stored(end, &[b"v"]) });
    let found = page(&partition_of(Layout::Batch), &log(9), &entries.collect::<Vec<_>>());
    let mut collector = Collector::new(&found.partition, 0, PLENTY);
    collector.take(&found, PLENTY, false).unwrap();
    let pieces = collector.finish().unwrap();
    let [Piece::Made(_), Piece::Part(part), Piece::Made(_)] = &pieces[..] else { panic!("{pieces:?}") };
    assert_eq!(part.as_ref(), &large[EPOCH_AT + 4..]);
    let passed = found.batches().nth(4).unwrap().unwrap();
    assert_eq!(part.as_ref().as_ptr(), passed.stored[EPOCH_AT + 4..].as_ptr());
    assert_eq!(split(&pieces).len(), 9);
}

#[test]
fn many_small_batches_are_few_pieces() {
    let values = [7; 2000];
    let entries: Vec<_> = (1..=1000).map(|end| stored(end, &[&values])).collect();
    let partition = partition_of(Layout::Batch);
    let found = page(&partition, &log(1000), &entries);
    let mut collector = Collector::new(&partition, 0, PLENTY);
    assert_eq!(collector.take(&found, 4 * PLENTY, false).unwrap().entries, 1000);
    let pieces = collector.finish().unwrap();
    assert!(pieces.len() < 40, "{} pieces", pieces.len());
    assert_eq!(split(&pieces).len(), 1000);
    let owners: Vec<_> = (1..=1000).map(|end| owned(end, &format!("{end}:0"))).collect();
    let found = page(&partition_of(DENSE), &log(1000), &owners);
    let mut collector = Collector::new(&found.partition, 0, PLENTY);
    collector.take(&found, PLENTY, false).unwrap();
    let pieces = collector.finish().unwrap();
    assert!(pieces.len() < 10, "{} pieces", pieces.len());
    assert_eq!(split(&pieces).len(), 1000);
}

#[test]
fn what_lies_before_an_entry_that_is_wrong_is_served() {
    let wrong = array(&[]);
    let partition = partition_of(RECORDS);
    let value = [("value", &b"v"[..])];
    let first = entry("1000-0", &value);
    let mut collector = Collector::new(&partition, 0, PLENTY);
    let taken = collector.take(&page(&partition, &log(1 << 40), &[first, wrong.clone()]), PLENTY, false).unwrap();
    assert_eq!((taken.entries, taken.has_more, collector.next_offset()), (1, true, (1000 << 20) + 1));
    let behind = partition_of(Layout::Batch);
    let (taken, _) = collected(&page(&behind, &log(9), &[foreign(1), stored(2, &[b"v"]), wrong]), PLENTY, false);
    assert_eq!((taken.entries, taken.foreign, taken.has_more), (1, 1, true));
    let damaged = entry("0-1", &[("batch", b"x")]);
    let mut collector = Collector::new(&behind, 0, PLENTY);
    let failure = collector.take(&page(&behind, &log(9), &[damaged]), PLENTY, true).unwrap_err();
    assert_eq!((failure.code, collector.finish().unwrap().len()), (ErrorCode::CorruptMessage, 0));
}

#[test]
fn a_value_that_does_not_decompress_is_reported_with_its_offset() {
    let fields = [("value", &b"x"[..]), ("korvet.encoding", b"lz4")];
    let (taken, _) =
        collected(&page(&partition_of(DENSE), &log(2), &[record(1, b"v"), entry("0-2", &fields)]), PLENTY, false);
    assert_eq!(taken.damaged, Some((1, "lz4".to_owned())));
}
