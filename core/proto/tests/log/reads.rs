//! What a read finds in a log: bounds, entries that are of the log, and whether there is more.

use korvet_proto::ErrorCode::{CorruptMessage, KafkaStorageError};
use korvet_proto::failure::{Failure, FailureKind};
use korvet_proto::log::{Known, Outcome, Read, Remote};
use korvet_proto::partition::Layout;
use korvet_proto::shared::Shared;

use crate::batches::{Bytes, RECORDS};
use crate::support::{
    Counters, DENSE, Log, again, array, bulk, committed, entry, foreign, found, log, outcome, partition_of, read,
    record, refused, sent, stored, texts, walk,
};

const LAYOUTS: [Layout; 2] = [DENSE, Layout::Batch];
const KEY: &str = "korvet:orders:3";

/// An entry of one record in a layout.
fn one(layout: Layout, end: i64) -> Bytes {
    if layout == Layout::Batch { stored(end, &[b"v"]) } else { record(end, b"v") }
}

fn answered(read: &Read, log: &Log<'_>, entries: &[Bytes]) -> Outcome {
    outcome(read, &mut Known::default(), &[log.reply(), array(entries)])
}

fn is_unsettled(read: &Read, log: &Log<'_>, entries: &[Bytes]) -> bool {
    match answered(read, log, entries) {
        Outcome::Unsettled(found) => !found.holds_any() && walk(&found).0.is_empty(),
        Outcome::Found(_) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_log_is_empty_and_begins_with_zero() {
    for layout in LAYOUTS {
        let found = found(&read(&partition_of(layout), 0), &log(0), &[]);
        assert_eq!((found.log_start, found.first_offset, found.high_watermark, found.log_end), (0, 0, 0, 0));
        assert!(!found.holds_any());
        assert_eq!(found.next_offset(), None);
        assert_eq!(walk(&found), (vec![], false));
    }
}

#[test]
fn what_lies_below_the_end_is_found_up_to_the_end() {
    for layout in LAYOUTS {
        let entries = [one(layout, 4), one(layout, 5), one(layout, 6)];
        let found = found(&read(&partition_of(layout), 3), &Log { epochs: "7@2", ..log(6) }, &entries);
        assert!(found.holds_any());
        assert_eq!((found.high_watermark, found.log_end, found.epochs.at(4)), (6, 6, 7));
        assert_eq!(found.next_offset(), Some(6));
        assert_eq!(walk(&found), (vec![3, 4, 5], false));
    }
}

#[test]
fn a_full_page_says_that_there_may_be_more() {
    for layout in LAYOUTS {
        let two = Read { entries_max: 2, ..read(&partition_of(layout), 0) };
        let entries = [one(layout, 1), one(layout, 2)];
        let full = found(&two, &log(3), &entries);
        assert!(full.is_full());
        assert_eq!(walk(&full), (vec![0, 1], true));
        let part = found(&two, &log(1), &entries[..1]);
        assert!(!part.is_full());
        assert_eq!(walk(&part), (vec![0], false));
    }
}

#[test]
fn at_the_end_only_a_log_of_records_may_have_more_which_other_clients_wrote() {
    for (layout, has_more) in [(DENSE, true), (Layout::Batch, false)] {
        let two = Read { entries_max: 2, ..read(&partition_of(layout), 0) };
        let full = found(&two, &log(2), &[one(layout, 1), one(layout, 2)]);
        assert_eq!(walk(&full), (vec![0, 1], has_more));
    }
}

#[test]
fn the_first_offset_is_that_of_the_first_record_that_is_left() {
    for (first, start, expected) in [(-1, 0, 9), (2, 0, 2), (2, 5, 5), (7, 5, 7)] {
        let mut state = log(9);
        state.counters = Counters { start, first, ..state.counters };
        let found = found(&read(&partition_of(Layout::Batch), 9), &state, &[]);
        assert_eq!((found.log_start, found.first_offset), (start as i64, expected));
    }
}

#[test]
fn an_offset_past_the_end_is_answered_with_the_bounds() {
    for offset in [4, i64::MAX] {
        let found = found(&read(&partition_of(Layout::Batch), offset), &log(3), &[]);
        assert_eq!((found.log_start, found.high_watermark, walk(&found)), (0, 3, (vec![], false)));
        assert!(is_unsettled(&read(&partition_of(DENSE), offset), &log(3), &[]));
    }
    assert!(!is_unsettled(&read(&partition_of(DENSE), 3), &log(3), &[]));
}

#[test]
fn what_other_clients_wrote_past_the_end_is_not_served_and_means_more() {
    let records = read(&partition_of(DENSE), 2);
    let page = found(&records, &log(3), &[record(3, b"v"), record(4, b"external")]);
    assert_eq!((walk(&page), page.next_offset()), ((vec![2], true), Some(3)));
    assert!(is_unsettled(&read(&partition_of(DENSE), 3), &log(3), &[record(4, b"external")]));
    let page = found(&read(&partition_of(Layout::Batch), 3), &log(3), &[foreign(4), stored(5, &[b"v"])]);
    assert_eq!(walk(&page), (vec![], false));
    let page = found(&read(&partition_of(Layout::Batch), 2), &log(3), &[stored(3, &[b"v"]), foreign(4)]);
    assert_eq!(walk(&page), (vec![2], false));
}

#[test]
fn nothing_is_served_after_an_entry_whose_id_is_no_offset() {
    let entry = |id: &str| entry(id, &[("value", b"v"), ("timestamp", b"5")]);
    let first = 5 << 20;
    for between in ["5-1048576", "8589934592-0", "9223372036854775808-0"] {
        let entries = [entry("5-0"), entry(between), entry("6-0")];
        let page = found(&read(&partition_of(RECORDS), first), &log(9 << 20), &entries);
        assert_eq!((walk(&page), page.next_offset()), ((vec![first], true), Some(first + 1)));
        assert!(is_unsettled(&read(&partition_of(RECORDS), first), &log(9 << 20), &entries[1..]));
    }
    assert!(is_unsettled(&read(&partition_of(DENSE), 0), &log(9), &[entry("1-1")]));
}

#[test]
fn while_entries_of_others_move_an_empty_page_is_no_end() {
    let mut moving = log(3);
    moving.counters.moving = 1;
    assert!(is_unsettled(&read(&partition_of(DENSE), 3), &moving, &[]));
    assert!(!is_unsettled(&read(&partition_of(DENSE), 2), &moving, &[record(3, b"v")]));
    assert!(!is_unsettled(&read(&partition_of(Layout::Batch), 3), &moving, &[]));
}

#[test]
fn a_page_of_entries_between_batches_alone_is_passed() {
    let two = Read { entries_max: 2, ..read(&partition_of(Layout::Batch), 3) };
    let next = again(answered(&two, &log(9), &[foreign(5), foreign(7)]));
    assert_eq!((next.offset, next.entries_max), (7, 2));
    // The page is not full: nothing follows.
    assert_eq!(walk(&found(&two, &log(9), &[foreign(5)])), (vec![], false));
    // What lies past the end is removed by the next append.
    assert_eq!(walk(&found(&two, &log(6), &[foreign(5), foreign(7)])), (vec![], false));
    let page = found(&two, &log(9), &[foreign(5), stored(7, &[b"a", b"b"])]);
    assert_eq!((walk(&page), page.next_offset()), ((vec![5], true), Some(7)));
}

#[test]
fn the_first_batch_may_hold_the_offset_in_its_middle() {
    let page = found(&read(&partition_of(Layout::Batch), 4), &log(7), &[stored(6, &[b"d", b"e", b"f"]), foreign(7)]);
    assert_eq!((walk(&page), page.next_offset()), ((vec![3], false), Some(6)));
}

#[test]
fn a_damaged_batch_is_an_error_and_what_lies_before_it_is_served() {
    let damaged = entry("0-2", &[("batch", b"garbage")]);
    let page = found(&read(&partition_of(Layout::Batch), 0), &log(3), &[stored(1, &[b"a"]), damaged.clone()]);
    assert_eq!(walk(&page), (vec![0], true));
    let page = found(&read(&partition_of(Layout::Batch), 1), &log(3), &[damaged, stored(3, &[b"c"])]);
    let mut batches = page.batches();
    let failure = batches.next().unwrap().unwrap_err();
    assert_eq!(failure.code, CorruptMessage);
    assert_eq!(failure.message, format!("{KEY}: an entry (0-2: 7 bytes are no batch) is malformed"));
}

#[test]
fn of_what_only_the_remote_tier_holds_nothing_is_looked_for() {
    let mut archived = Log { archived: "6", open: "7", ..log(9) };
    archived.counters = Counters { start: 5, first: 5, remote_start: 2, ..archived.counters };
    for layout in LAYOUTS {
        for read in [read(&partition_of(layout), 4), committed(&partition_of(layout), 4)] {
            let page = found(&read, &archived, &[one(layout, 6)]);
            assert_eq!((page.log_start, page.first_offset, page.high_watermark), (2, 2, 9));
            assert_eq!(page.remote, Some(Remote { start: 2, end: 5, archived: 6 }));
            assert_eq!((walk(&page), page.open), ((vec![], false), Some(7)));
        }
        let page = found(&read(&partition_of(layout), 5), &archived, &[one(layout, 6)]);
        assert_eq!((page.log_start, page.first_offset), (2, 2));
        assert_eq!(walk(&page), (vec![5], false));
    }
}

#[test]
fn a_read_of_no_entries_has_more_if_the_log_goes_on() {
    for layout in LAYOUTS {
        for (offset, is_committed, has_more) in [(3, false, true), (5, false, false), (3, true, true), (4, true, false)]
        {
            let read = Read { entries_max: 0, is_committed, ..read(&partition_of(layout), offset) };
            let state = Log { open: "4", aborted: "3", clean: "0", clean_end: "4", ..log(5) };
            let Outcome::Found(found) = outcome(&read, &mut Known::default(), &[state.reply()]) else { panic!() };
            assert_eq!((found.high_watermark, found.stable_offset(), found.holds_any()), (5, 4, false));
            assert_eq!(walk(&found), (vec![], has_more), "from {offset}");
        }
    }
    let past = Read { entries_max: 0, ..read(&partition_of(DENSE), 6) };
    assert!(matches!(outcome(&past, &mut Known::default(), &[log(5).reply()]), Outcome::Unsettled(_)));
}

fn refusal(layout: Layout, reply: &[u8]) -> Failure {
    let read = read(&partition_of(layout), 0);
    let mut known = Known::default();
    let (_, sent) = sent(&read, &known);
    refused(read.outcome(sent, &Shared::from(reply.to_vec()), &mut known))
}

#[test]
fn a_block_that_was_not_run_is_a_failure_by_what_redis_says() {
    let aborted = "EXECABORT Transaction discarded because of previous errors.";
    let failure = refusal(DENSE, format!("-{aborted}\r\n").as_bytes());
    assert_eq!(failure, Failure::rule(KafkaStorageError, format!("{KEY}: Redis answered {aborted}")));
    let alone = "EXECABORT Transaction discarded because of: LOADING it is";
    for refused in ["MOVED 5 10.0.0.1:7000", "CLUSTERDOWN The cluster is down", "LOADING it is", alone] {
        let failure = refusal(DENSE, format!("-{refused}\r\n").as_bytes());
        assert_eq!(failure.kind, FailureKind::Unavailable, "{refused}");
    }
    for nothing in ["*-1\r\n", "$-1\r\n", "_\r\n", "+QUEUED\r\n", ":1\r\n", ""] {
        let failure = refusal(DENSE, nothing.as_bytes());
        assert_eq!(failure, Failure::rule(KafkaStorageError, format!("{KEY}: the answer is malformed")));
    }
}

#[test]
fn a_block_of_other_parts_than_were_sent_is_malformed() {
    let parts = [log(3).reply(), array(&[]), array(&[])];
    for wrong in [&parts[..0], &parts[..1], &parts[..]] {
        let failure = refusal(DENSE, &array(wrong));
        assert_eq!(failure, Failure::rule(KafkaStorageError, format!("{KEY}: the answer to EXEC is malformed")));
    }
}

#[test]
fn an_error_in_the_place_of_the_entries_is_about_the_stream() {
    let error = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let failure = refusal(DENSE, &array(&[log(3).reply(), format!("-{error}\r\n").into_bytes()]));
    assert_eq!(failure, Failure::rule(KafkaStorageError, format!("{KEY}: Redis answered {error}")));
    let failure = refusal(DENSE, &array(&[log(3).reply(), b"$-1\r\n".to_vec()]));
    assert_eq!(failure, Failure::rule(KafkaStorageError, format!("{KEY}: the answer is malformed")));
}

#[test]
fn what_is_no_entry_is_malformed() {
    let id = bulk(b"0-1");
    for wrong in [
        id.clone(),
        b":1\r\n".to_vec(),
        array(&[]),
        array(std::slice::from_ref(&id)),
        array(&[id.clone(), b"*-1\r\n".to_vec()]),
        array(&[id.clone(), array(&[])]),
        array(&[id.clone(), texts(&["value"])]),
        array(&[b":1\r\n".to_vec(), texts(&["value", "v"])]),
        array(&[bulk(b"1"), texts(&["value", "v"])]),
        array(&[bulk(b"0-x"), texts(&["value", "v"])]),
        array(&[bulk(b"-1-1"), texts(&["value", "v"])]),
        array(&[id.clone(), texts(&["value", "v"]), id.clone()]),
    ] {
        let reply = array(&[log(3).reply(), array(&[wrong])]);
        let failure = refusal(DENSE, &reply);
        assert_eq!(failure, Failure::rule(KafkaStorageError, format!("{KEY}: an entry is malformed")));
        let failure = refusal(Layout::Batch, &reply);
        assert_eq!(failure.code, CorruptMessage);
        assert!(failure.message.starts_with("korvet:orders:3: an entry ("));
    }
}
