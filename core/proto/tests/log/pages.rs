//! What a read has found as a page: where entries lie, what of them is for whom, and their times.

use korvet_proto::batch::{CONTROL_BIT, HEADER_BYTES, Header, LENGTH_FROM, TRANSACTIONAL_BIT};
use korvet_proto::compression::{Codec, Frames};
use korvet_proto::log::{Aborted, Epochs, Page, Walked};
use korvet_proto::partition::Layout;
use korvet_proto::shared::{Piece, Shared};

use crate::batches::{Bytes, NOW, RECORDS, at, batch, batch_of, valued};
use crate::stored::{at_rest, large};
use crate::support::{DENSE, array, entry, foreign, found, log, partition_of, read, record, stored};

const END: u64 = 1000;
const PLENTY: usize = 1 << 24;

fn walked(layout: Layout, entries: &[Bytes]) -> (Page, Walked) {
    Page::of(&found(&read(&partition_of(layout), 0), &log(END), entries), PLENTY).unwrap()
}

fn page(layout: Layout, entries: &[Bytes]) -> Page {
    walked(layout, entries).0
}

fn timed(end: i64, time: i64) -> Bytes {
    entry(&format!("0-{end}"), &[("value", b"v"), ("timestamp", time.to_string().as_bytes())])
}

fn of_producer(end: i64, producer: &str) -> Bytes {
    let fields = [("value", &b"v"[..]), ("timestamp", b"5"), ("korvet.producer", producer.as_bytes())];
    entry(&format!("0-{end}"), &fields)
}

fn marker(end: i64, kind: &[u8], producer: &str) -> Bytes {
    let fields = [("korvet.marker", kind), ("korvet.producer", producer.as_bytes()), ("timestamp", b"5")];
    entry(&format!("0-{end}"), &fields)
}

/// The entry of a batch of `count` records of a producer's transaction, or of a marker.
fn transactional(end: i64, count: usize, producer_id: i64, is_marker: bool) -> Bytes {
    let attributes = TRANSACTIONAL_BIT | if is_marker { CONTROL_BIT } else { 0 };
    let records = vec![valued(b"v"); count];
    let bytes = batch_of(&records, Codec::None, |header| Header { attributes, producer_id, ..header });
    entry(&format!("0-{end}"), &[("batch", &bytes)])
}

fn aborted(rows: &[(i64, i64)]) -> Vec<Aborted> {
    rows.iter()
        .map(|(producer_id, first_offset)| Aborted { producer_id: *producer_id, first_offset: *first_offset })
        .collect()
}

/// Base offset, producer id, attributes, epoch and number of records of a batch.
type Collected = (i64, i64, i16, i32, i32);

fn collected(page: &Page, ranges: &[(i64, i64)]) -> (Vec<Collected>, usize) {
    let epochs = Epochs::parse(b"2@4 1@0").unwrap();
    let (pieces, count) = page.collect(ranges, &epochs, Codec::None, false).unwrap();
    let bytes: Bytes = pieces.iter().flat_map(|piece: &Piece| piece.as_ref().to_vec()).collect();
    let (mut left, mut batches) = (&bytes[..], Vec::new());
    while let Some(header) = Header::read(left) {
        let (id, bits) = (header.producer_id, header.attributes);
        batches.push((header.base_offset, id, bits, header.partition_leader_epoch, header.record_count));
        left = &left[header.batch_length as usize + LENGTH_FROM..];
    }
    (batches, count)
}

#[test]
fn spans_are_runs_of_records_and_single_batches() {
    let records = page(DENSE, &[record(1, b"a"), record(2, b"b"), record(4, b"c")]);
    assert_eq!((records.spans(), records.len()), (vec![(0, 1), (3, 3)], 3));
    assert_eq!((records.first_offset(), records.next_offset()), (Some(0), Some(4)));
    let (batches, walked) = walked(Layout::Batch, &[stored(2, &[b"a", b"b"]), foreign(3), stored(4, &[b"c"])]);
    assert_eq!((batches.spans(), batches.len(), walked.foreign), (vec![(0, 1), (3, 3)], 2, 1));
    assert_eq!((batches.first_offset(), batches.next_offset()), (Some(0), Some(4)));
    let nothing = page(DENSE, &[]);
    assert_eq!((nothing.first_offset(), nothing.next_offset(), nothing.first_timestamp()), (None, None, None));
}

#[test]
fn a_page_is_cut_between_entries() {
    let records = page(DENSE, &[record(1, b"a"), record(2, b"b"), record(6, b"c"), record(7, b"d")]);
    for (end, expected) in [(8, Some(7)), (7, Some(7)), (6, Some(6)), (5, Some(2)), (2, Some(2)), (0, None)] {
        assert_eq!(records.until(end).next_offset(), expected, "{end}");
    }
    let batches = page(Layout::Batch, &[stored(2, &[b"a", b"b"]), stored(5, &[b"c"])]);
    for (end, expected) in [(5, Some(5)), (4, Some(2)), (2, Some(2)), (1, None)] {
        assert_eq!(batches.until(end).next_offset(), expected, "{end}");
    }
    let cut = records.until(2).whole().unwrap();
    assert_eq!((cut.spans(), cut.columns().unwrap().offsets.len()), (vec![(0, 1)], 2));
}

#[test]
fn as_much_fits_as_there_is_room_for_and_one_entry_at_any_size() {
    let records = page(DENSE, &[record(1, &[0; 80]), record(2, &[0; 80]), record(3, &[0; 80])]);
    let fit = |room, at_least_one| records.fitting(room, at_least_one).map(|(page, bytes)| (page.len(), bytes));
    assert_eq!(
        [fit(300, false), fit(299, false), fit(99, true), fit(99, false)],
        [Some((3, 300)), Some((2, 200)), Some((1, 100)), None]
    );
    let size = batch(&[valued(b"a")]).len();
    let batches = page(Layout::Batch, &[stored(1, &[b"a"]), stored(2, &[b"b"])]);
    assert_eq!(batches.fitting(2 * size - 1, false).map(|(page, bytes)| (page.len(), bytes)), Some((1, size)));
    assert!(page(DENSE, &[]).fitting(0, false).unwrap().0.is_empty());
}

#[test]
fn what_was_aborted_and_markers_are_nobodys() {
    let records = [
        record(1, b"plain"),
        of_producer(2, "7:0"),
        of_producer(3, "8:0"),
        of_producer(4, "7:0"),
        marker(5, b"abort", "7:0"),
        of_producer(6, "7:0"),
        marker(7, b"commit", "7:0"),
        marker(8, b"commit", "8:0"),
    ];
    let batches = [
        stored(1, &[b"plain"]),
        transactional(2, 1, 7, false),
        transactional(3, 1, 8, false),
        transactional(4, 1, 7, false),
        transactional(5, 1, 7, true),
        transactional(6, 1, 7, false),
        transactional(7, 1, 7, true),
        transactional(8, 1, 8, true),
    ];
    for (layout, entries) in [(DENSE, records), (Layout::Batch, batches)] {
        let page = page(layout, &entries);
        let flat =
            |spans: Vec<(i64, i64)>| spans.into_iter().flat_map(|(first, last)| first..=last).collect::<Vec<_>>();
        assert_eq!(flat(page.archived(&aborted(&[(7, 1)]))), [1, 3, 4, 6, 7]);
        assert_eq!(flat(page.visible(&aborted(&[(7, 1)])).unwrap().spans()), [0, 2, 5]);
        // All is known of the markers alone if nothing was aborted.
        assert_eq!(flat(page.archived(&[])), [4, 6, 7]);
        assert_eq!(page.each().unwrap().iter().map(Page::len).sum::<usize>(), 8);
    }
}

#[test]
fn a_consumer_gets_every_record_that_it_has_acquired() {
    let entries: Vec<_> = (1..=8).map(|end| record(end, b"v")).collect();
    let records = page(DENSE, &entries);
    assert_eq!(collected(&records, &[(0, 1), (3, 5)]), (vec![(0, -1, 0, 1, 3), (4, -1, 0, 2, 2)], 5));
    assert_eq!(collected(&records, &[(9, 12)]), (vec![], 0));
    // Of a batch all is passed on.
    let batches = page(Layout::Batch, &[stored(3, &[b"a", b"b", b"c"]), stored(4, &[b"d"]), stored(6, &[b"e", b"f"])]);
    assert_eq!(collected(&batches, &[(1, 1), (5, 5)]), (vec![(0, -1, 0, 1, 3), (4, -1, 0, 2, 2)], 5));
    let bytes = large();
    let at_rest = page(Layout::Batch, &[at_rest(2, &bytes, Codec::Zstd)]);
    assert_eq!(collected(&at_rest, &[(0, 0)]), (vec![(0, -1, 0, 1, 2)], 2));
}

#[test]
fn no_batch_has_records_of_two_producers_or_transactions() {
    let entries = [
        record(1, b"v"),
        of_producer(2, "7:0"),
        of_producer(3, "7:0"),
        marker(4, b"commit", "7:0"),
        of_producer(5, "7:0"),
        of_producer(6, "8:1"),
        record(7, b"v"),
    ];
    let expected = vec![
        (0, -1, 0, 1, 1),
        (1, 7, TRANSACTIONAL_BIT, 1, 2),
        (3, 7, TRANSACTIONAL_BIT | CONTROL_BIT, 1, 1),
        (4, 7, TRANSACTIONAL_BIT, 2, 1),
        (5, 8, TRANSACTIONAL_BIT, 2, 1),
        (6, -1, 0, 2, 1),
    ];
    let records = page(DENSE, &entries);
    assert_eq!(collected(&records, &[(0, 6)]), (expected.clone(), 7));
    // Without the marker between them, two transactions are none.
    let without = [&expected[..2], &expected[3..]].concat();
    assert_eq!(collected(&records, &[(0, 2), (4, 6)]), (without, 6));
}

#[test]
fn times_are_found_from_an_offset_on() {
    let entries = [timed(1, 10), timed(2, 30), timed(3, 20), timed(4, 30)];
    let in_batches = [(2, vec![at(10), at(30)]), (4, vec![at(20), at(30)])]
        .map(|(end, records): (i64, Vec<_>)| entry(&format!("0-{end}"), &[("batch", &batch(&records))]));
    for page in [page(DENSE, &entries), page(Layout::Batch, &in_batches)] {
        let since = |time, first| page.first_since(time, first, PLENTY);
        assert_eq!([since(15, 0), since(15, 2), since(31, 0), since(0, 4)], [Some((1, 30)), Some((2, 20)), None, None]);
        let largest = |time, first, end| page.largest(time, (first, end), PLENTY);
        assert_eq!(
            [largest(0, 0, 4), largest(0, 2, 4), largest(0, 2, 3), largest(21, 2, 3)],
            [Some((1, 30)), Some((3, 30)), Some((2, 20)), None]
        );
        assert_eq!(page.first_timestamp(), Some(10));
    }
    assert_eq!(page(DENSE, &entries[..2]).ends(), [(1, 10), (2, 30)]);
    assert_eq!(page(Layout::Batch, &in_batches).ends(), [(2, 30), (4, 30)]);
}

#[test]
fn the_header_answers_for_a_batch_that_cannot_be_read() {
    let mut bytes = batch(&[at(NOW), at(NOW + 5)]);
    bytes[HEADER_BYTES] = 0x7F; // the length of the first record
    let page = page(Layout::Batch, &[entry("0-2", &[("batch", &bytes)])]);
    assert_eq!(page.first_since(NOW, 0, PLENTY), Some((0, NOW + 5)));
    assert!(page.record_spans(PLENTY).is_err());
}

#[test]
fn an_answer_of_the_remote_tier_is_a_page_of_its_batches() {
    let moved = |base_offset: i64, values: &[&[u8]]| {
        let records: Vec<_> = values.iter().map(|value| valued(value)).collect();
        batch_of(&records, Codec::None, |header| Header { base_offset, ..header })
    };
    let data = [moved(10, &[b"a", b"b"]), moved(15, &[b"c"])].concat();
    let page = Page::of_batches(&Shared::from(data.clone()));
    assert_eq!(
        (page.spans(), page.record_spans(PLENTY).unwrap()),
        (vec![(10, 11), (15, 15)], vec![(10, 11), (15, 15)])
    );
    let cut = Page::of_batches(&Shared::from(data[..HEADER_BYTES - 1].to_vec()));
    assert!(cut.is_empty());
    assert_eq!(page.fitting(1, true).unwrap().0.spans(), [(10, 11)]);
}

#[test]
fn a_value_that_does_not_decompress_is_noted_and_what_is_no_entry_is_refused() {
    let damaged = entry("0-1", &[("value", b"plain"), ("timestamp", b"5"), ("korvet.encoding", b"lz4")]);
    let (read_page, walked) = walked(DENSE, &[damaged]);
    assert_eq!((read_page.len(), walked.damaged), (1, Some((0, "lz4".to_owned()))));
    let broken = array(&[crate::support::bulk(b"0-2")]);
    let found = found(&read(&partition_of(DENSE), 0), &log(END), &[record(1, b"v"), broken]);
    assert!(Page::of(&found, PLENTY).is_err());
}

#[test]
fn the_time_of_the_first_record_is_that_of_its_fields_or_of_its_offset() {
    let timed = entry("7-1", &[("value", b"v"), ("timestamp", b"5")]);
    let of_times = Page::of(&found(&read(&partition_of(RECORDS), 0), &log(9 << 20), &[timed]), PLENTY).unwrap().0;
    assert_eq!((of_times.first_timestamp(), of_times.first_appended_ms(20)), (Some(5), Some(7)));
    let counted = page(DENSE, &[record(1, b"v")]);
    assert_eq!((counted.first_timestamp(), counted.first_appended_ms(0)), (Some(5), None));
    let batches = page(Layout::Batch, &[foreign(1), stored(2, &[b"v"])]);
    assert_eq!((batches.first_timestamp(), batches.first_appended_ms(0)), (Some(NOW), None));
    for (layout, bits) in [(RECORDS, 20), (DENSE, 0), (Layout::Batch, 0)] {
        let nothing = page(layout, &[]);
        assert_eq!((nothing.first_timestamp(), nothing.first_appended_ms(bits)), (None, None));
    }
}

/// The entry of a record whose value holds so many bytes, and takes few.
fn bomb(end: i64, bytes: usize) -> Bytes {
    let frame = Frames::new(Codec::Zstd).compress(&vec![0; bytes]).unwrap().unwrap();
    entry(&format!("0-{end}"), &[("value", &frame), ("timestamp", b"5"), ("korvet.encoding", b"zstd")])
}

#[test]
fn a_page_ends_where_what_was_compressed_holds_more_than_one_value_may() {
    const VALUE_BYTES: usize = 10_000;
    let batch = batch(&[valued(&[0; VALUE_BYTES])]);
    let records: Vec<Bytes> = (1..=20).map(|end| bomb(end, VALUE_BYTES)).collect();
    let batches: Vec<Bytes> = (1..=20).map(|end| at_rest(end, &batch, Codec::Zstd)).collect();
    for (layout, entries) in [(DENSE, records), (Layout::Batch, batches)] {
        let found = found(&read(&partition_of(layout), 0), &log(20), &entries);
        let (page, walked) = Page::of(&found, 5 * VALUE_BYTES + 1000).unwrap();
        assert_eq!((page.len(), page.next_offset(), walked.has_more), (6, Some(6), true));
        assert_eq!(Page::of(&found, 20 * VALUE_BYTES + 1000).unwrap().0.len(), 20);
    }
    // What was not compressed has come as it is, and takes nothing more.
    let plain: Vec<Bytes> = (1..=20).map(|end| record(end, &[0; VALUE_BYTES])).collect();
    let found = found(&read(&partition_of(DENSE), 0), &log(20), &plain);
    assert_eq!(Page::of(&found, VALUE_BYTES).unwrap().0.len(), 20);
}
