//! The ends of a log.

use korvet_proto::ErrorCode;
use korvet_proto::log::{Bounds, Remote};
use korvet_proto::partition::Layout;
use korvet_proto::resp::{Element, Elements};

use crate::batches::{Bytes, RECORDS};
use crate::support::{Counters, DENSE, Log, array, bulk, entry, foreign, log, partition_of, record};

fn bounds(log: &Log<'_>, first: &[Bytes], last: &[Bytes]) -> Option<Bounds> {
    Bounds::read(&partition_of(DENSE), &array(&[log.reply(), array(first), array(last)])).unwrap()
}

fn ends(found: Option<Bounds>) -> (i64, i64, i64) {
    found.map(|found| (found.log_start, found.first_offset, found.end)).unwrap()
}

fn started(log: Log<'static>, start: u64, first: i64) -> Log<'static> {
    Log { counters: Counters { start, first, ..log.counters }, ..log }
}

#[test]
fn the_state_alone_says_the_bounds_of_batches() {
    let partition = partition_of(Layout::Batch);
    let read = |log: &Log<'_>| ends(Bounds::read(&partition, &log.reply()).unwrap());
    assert_eq!(read(&log(0)), (0, 0, 0));
    assert_eq!(read(&started(log(9), 0, 3)), (0, 3, 9));
    assert_eq!(read(&started(log(9), 5, 3)), (5, 5, 9));
    let mut text = Vec::new();
    Bounds::put(&partition, &mut text);
    let mut elements = Elements::of(&text);
    assert_eq!((elements.next(), elements.next()), (Some(Element::Array(10)), Some(Element::Bulk(b"HMGET"))));
}

#[test]
fn the_first_entry_is_the_first_record_unless_the_log_starts_past_it() {
    assert_eq!(ends(bounds(&log(9), &[record(3, b"v")], &[record(9, b"v")])), (0, 2, 9));
    assert_eq!(ends(bounds(&started(log(9), 5, 3), &[record(3, b"v")], &[record(9, b"v")])), (5, 5, 9));
    assert_eq!(ends(bounds(&log(9), &[], &[])), (0, 9, 9));
    // The first entry of the stream lies past the compacted part.
    let compacted = Log { clean: "0", clean_end: "7", ..started(log(9), 0, 2) };
    assert_eq!(ends(bounds(&compacted, &[record(8, b"v")], &[record(9, b"v")])), (0, 2, 9));
}

#[test]
fn what_lies_past_the_end_is_to_be_taken_in_first() {
    assert_eq!(bounds(&log(9), &[record(1, b"v")], &[foreign(10)]), None);
    let moving = Log { counters: Counters { moving: 1, ..log(9).counters }, ..log(9) };
    assert_eq!(bounds(&moving, &[record(1, b"v")], &[record(9, b"v")]), None);
    let no_offset = entry("5-1", &[("value", b"v")]);
    assert_eq!(bounds(&log(9), &[record(1, b"v")], &[no_offset]), None);
}

#[test]
fn the_log_starts_where_the_remote_tier_does() {
    let counters = Counters { start: 5, first: 5, remote_start: 2, ..log(9).counters };
    let state = Log { counters, archived: "7", epochs: "2@4 1@0", open: "8", ..log(9) };
    let found = bounds(&state, &[record(6, b"v")], &[record(9, b"v")]).unwrap();
    assert_eq!((found.log_start, found.first_offset, found.archived), (2, 2, 7));
    assert_eq!(found.remote, Some(Remote { start: 2, end: 5, archived: 7 }));
    assert_eq!((found.max_timestamp, found.open, found.epochs.iter().count()), (5, Some(8), 2));
}

#[test]
fn what_is_no_answer_is_malformed() {
    let state = log(9).reply();
    let entries = array(&[record(1, b"v")]);
    let id = array(&[array(&[bulk(b"x"), array(&[bulk(b"a"), bulk(b"b")])])]);
    for reply in [
        array(&[state.clone(), entries.clone()]),
        array(&[state.clone(), entries.clone(), b"+OK\r\n".to_vec()]),
        array(&[state.clone(), id.clone(), entries.clone()]),
        array(&[state, entries, id]),
        b"*-1\r\n".to_vec(),
    ] {
        let failure = Bounds::read(&partition_of(RECORDS), &reply).unwrap_err();
        assert_eq!(failure.code, ErrorCode::KafkaStorageError, "{failure:?}");
    }
}
