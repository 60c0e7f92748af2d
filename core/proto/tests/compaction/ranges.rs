//! Entries of a stream, whatever its log is.

use korvet_proto::ErrorCode;
use korvet_proto::compaction::Rules;
use korvet_proto::failure::FailureKind;
use korvet_proto::log::{Range, Weight};
use korvet_proto::partition::Layout;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::batches::{Bytes, NOW, RECORDS, at, batch};
use crate::support::{DENSE, array, bulk, entry, foreign, partition_of, record, stored};
use crate::{cleaner, rules};

const LAYOUTS: [Layout; 3] = [DENSE, RECORDS, Layout::Batch];

fn weights(layout: Layout, entries: &[Bytes]) -> Vec<(i64, i32, usize, i64)> {
    let range = Range::of(&partition_of(layout), &array(entries).into()).unwrap();
    let fields = |weight: Weight| (weight.end, weight.records, weight.bytes, weight.timestamp);
    range.weights().unwrap().into_iter().map(fields).collect()
}

#[test]
fn a_record_weighs_what_its_fields_take_and_has_its_own_time_or_that_of_its_id() {
    let timed = entry("1000-5", &[("value", b"abc"), ("timestamp", b"7"), ("timestamp", b"8")]);
    let wrong_first = entry("1000-6", &[("timestamp", b"x"), ("timestamp", b"8")]);
    let untimed = entry("1000-7", &[("other", b"")]);
    let id = |sequence: i64| (1000 << 20) + sequence + 1;
    let expected = [(id(5), 1, 28, 7), (id(6), 1, 20, 8), (id(7), 1, 5, 1000)];
    assert_eq!(weights(RECORDS, &[timed, wrong_first, untimed]), expected);
}

#[test]
fn a_batch_weighs_what_its_header_says_and_what_is_none_weighs_nothing() {
    let bytes = batch(&[at(NOW), at(NOW + 5), at(NOW - 9)]);
    let damaged = bytes[..70].to_vec();
    let entries = [
        entry("0-3", &[("batch", &bytes)]),
        foreign(4),
        entry("0-8", &[("batch", &damaged)]),
        entry("0-9", &[("batch", b"short")]),
    ];
    let expected = [(3, 3, 5 + bytes.len(), NOW + 5), (4, 0, 0, -1), (8, 3, 5 + damaged.len(), NOW + 5), (9, 0, 0, -1)];
    assert_eq!(weights(Layout::Batch, &entries), expected);
}

#[test]
fn what_is_no_range_is_malformed_and_an_error_of_redis_says_whether_a_retry_is_right() {
    let no_offset = array(&[entry("5-1", &[("value", b"v")])]);
    let odd = array(&[array(&[bulk(b"0-1"), array(&[bulk(b"value")])])]);
    for reply in [&b"+OK\r\n"[..], b"*1\r\n$1\r\nx\r\n", b"*1\r\n*2\r\n$3\r\n0-x\r\n*0\r\n", &no_offset, &odd] {
        for layout in [DENSE, Layout::Batch] {
            let reply = reply.to_vec().into();
            let failure = cleaner(layout, rules()).map(&reply).unwrap_err();
            assert_eq!(failure.code, ErrorCode::KafkaStorageError, "{failure:?}");
            let range = Range::of(&partition_of(layout), &reply).and_then(|range| range.weights());
            assert_eq!(range.unwrap_err().code, ErrorCode::KafkaStorageError);
        }
    }
    for (text, kind) in [("LOADING it is", FailureKind::Unavailable), ("WRONGTYPE of a key", FailureKind::Rule)] {
        let reply = format!("-{text}\r\n").into_bytes().into();
        assert_eq!(Range::of(&partition_of(DENSE), &reply).unwrap_err().kind, kind);
    }
}

proptest! {
    #[test]
    fn any_change_of_a_reply_is_read_or_refused(
        changes in vec((any::<usize>(), any::<u8>()), 0..4), end in any::<usize>(), layout in select(&LAYOUTS[..])
    ) {
        let marker = entry("0-7", &[("korvet.marker", b"abort"), ("korvet.producer", b"7:1"), ("timestamp", b"5")]);
        let mut reply = array(&[record(2, b"v"), stored(4, &[b"a", b"b"]), foreign(5), marker]);
        for (place, byte) in changes {
            let place = place % reply.len();
            reply[place] = byte;
        }
        let size = reply.len();
        for reply in [reply.clone(), reply[..end % size].to_vec()] {
            let mut cleaner = cleaner(layout, Rules { end: 7, ..rules() });
            let reply = reply.into();
            let mapped = cleaner.map(&reply);
            let retained = cleaner.retain(&reply, |_| Ok(()));
            prop_assert_eq!(mapped.is_ok(), retained.is_ok());
            let _ = Range::of(&partition_of(layout), &reply).and_then(|range| range.weights());
        }
    }
}
