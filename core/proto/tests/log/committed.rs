//! Reads of what was committed: records below the last stable offset, and the aborted transactions among them.

use korvet_proto::ErrorCode::KafkaStorageError;
use korvet_proto::failure::Failure;
use korvet_proto::log::{Aborted, Found, Known, Outcome, Read};
use korvet_proto::partition::Layout;

use crate::batches::Bytes;
use crate::support::{
    Counters, DENSE, Log, again, array, committed, found, log, outcome, partition_of, read, record, refused, stored,
    texts, walk,
};

const ABORTED_KEY: &str = "korvet:orders:3:aborted";

fn records(ends: std::ops::RangeInclusive<i64>) -> Vec<Bytes> {
    ends.map(|end| record(end, b"v")).collect()
}

fn aborted(found: &Found) -> Vec<(i64, i64)> {
    found.aborted.iter().map(|Aborted { producer_id, first_offset }| (*producer_id, *first_offset)).collect()
}

/// What a log is known to have after a read that has learned of its markers.
fn learned(read: &Read, log: &Log<'_>, entries: &[Bytes]) -> Known {
    let mut known = Known::default();
    let next = again(outcome(read, &mut known, &[log.reply(), array(entries)]));
    assert_eq!((next.offset, next.aborted_max), (read.offset, read.aborted_max));
    known
}

/// What a read finds that asks for rows of aborted transactions, and gets these.
fn with_rows(read: &Read, log: &Log<'_>, entries: &[Bytes], rows: &[&str]) -> Outcome {
    let mut known = learned(read, log, entries);
    outcome(read, &mut known, &[log.reply(), array(entries), texts(rows)])
}

fn found_of(outcome: Outcome) -> Found {
    match outcome {
        Outcome::Found(found) => found,
        other => panic!("{other:?}"),
    }
}

#[test]
fn from_the_first_open_transaction_on_nothing_is_shown() {
    let state = Log { open: "2", ..log(4) };
    let page = found(&committed(&partition_of(DENSE), 0), &state, &records(1..=4));
    assert_eq!((page.stable_offset(), page.visible_end(), page.high_watermark), (2, 2, 4));
    assert_eq!((walk(&page), page.next_offset()), ((vec![0, 1], false), Some(2)));
    let page = found(&read(&partition_of(DENSE), 0), &state, &records(1..=4));
    assert_eq!((page.visible_end(), walk(&page)), (4, (vec![0, 1, 2, 3], false)));
    let page = found(&committed(&partition_of(DENSE), 2), &state, &records(3..=4));
    assert!(!page.holds_any());
    assert_eq!((walk(&page), page.next_offset()), ((vec![], false), None));
}

#[test]
fn a_page_that_ends_below_the_stable_offset_has_more() {
    let state = Log { open: "3", ..log(4) };
    let two = Read { entries_max: 2, ..committed(&partition_of(DENSE), 0) };
    assert_eq!(walk(&found(&two, &state, &records(1..=2))), (vec![0, 1], true));
    let three = Read { entries_max: 3, ..two };
    assert_eq!(walk(&found(&three, &state, &records(1..=3))), (vec![0, 1, 2], false));
}

#[test]
fn a_batch_of_an_open_transaction_is_not_shown() {
    let state = Log { open: "2", ..log(5) };
    let entries = [stored(2, &[b"a", b"b"]), stored(5, &[b"c", b"d", b"e"])];
    let page = found(&committed(&partition_of(Layout::Batch), 1), &state, &entries);
    assert_eq!((walk(&page), page.next_offset()), ((vec![0], false), Some(2)));
}

#[test]
fn a_transaction_whose_beginning_was_deleted_is_open_from_the_first_offset_on() {
    let mut state = Log { open: "1", ..log(5) };
    state.counters = Counters { start: 3, first: 3, ..state.counters };
    let page = found(&committed(&partition_of(DENSE), 3), &state, &records(4..=5));
    assert_eq!((page.stable_offset(), page.holds_any()), (3, false));
}

#[test]
fn entries_of_other_clients_past_the_end_are_settled_before_a_committed_read_is_answered() {
    let state = Log { open: "3", ..log(3) };
    let past = [record(4, b"external")];
    let read = committed(&partition_of(DENSE), 3);
    assert!(matches!(outcome(&read, &mut Known::default(), &[state.reply(), array(&past)]), Outcome::Unsettled(_)));
    // What is found is shown though it is not, while a transaction is open: it is of the log.
    let open = Log { open: "2", ..log(3) };
    let page = found(&committed(&partition_of(DENSE), 2), &open, &[record(3, b"open"), record(4, b"external")]);
    assert_eq!((page.holds_any(), walk(&page)), (false, (vec![], false)));
}

#[test]
fn transactions_that_were_aborted_are_asked_for_where_there_may_be_any() {
    let state = Log { aborted: "3", ..log(6) };
    let read = committed(&partition_of(DENSE), 1);
    let outcome = with_rows(&read, &state, &records(2..=6), &["7:0:2", "8:2:4", "9:6:9"]);
    let page = found_of(outcome);
    // The last one begins past what was found.
    assert_eq!((walk(&page).0, aborted(&page)), (vec![1, 2, 3, 4, 5], vec![(7, 0), (8, 2)]));
    let page = found(&committed(&partition_of(DENSE), 4), &state, &records(5..=6));
    assert_eq!((walk(&page).0, aborted(&page)), (vec![4, 5], vec![]));
}

#[test]
fn where_nothing_is_found_nothing_was_aborted() {
    let state = Log { aborted: "3", open: "1", ..log(6) };
    let page = found(&committed(&partition_of(DENSE), 1), &state, &records(2..=6));
    assert_eq!((walk(&page).0, aborted(&page)), (vec![], vec![]));
}

#[test]
fn a_read_of_all_asks_for_no_transactions() {
    let state = Log { aborted: "3", ..log(6) };
    let page = found(&read(&partition_of(DENSE), 1), &state, &records(2..=6));
    assert_eq!((walk(&page).0.len(), aborted(&page)), (5, vec![]));
}

#[test]
fn no_more_is_shown_than_the_rows_say_something_about() {
    let state = Log { aborted: "5", ..log(8) };
    let read = Read { aborted_max: 2, ..committed(&partition_of(DENSE), 0) };
    let page = found_of(with_rows(&read, &state, &records(1..=8), &["7:0:2", "8:2:4"]));
    assert_eq!((walk(&page), page.next_offset()), ((vec![0, 1, 2, 3], true), Some(4)));
    assert_eq!(aborted(&page), [(7, 0), (8, 2)]);
    // They cover all that was found.
    let page = found_of(with_rows(&read, &state, &records(1..=8), &["7:0:2", "8:2:8"]));
    assert_eq!((walk(&page), aborted(&page)), (((0..8).collect(), false), vec![(7, 0), (8, 2)]));
}

#[test]
fn rows_that_do_not_cover_the_first_entry_are_too_few() {
    let state = Log { aborted: "5", ..log(8) };
    for layout in [DENSE, Layout::Batch] {
        let entries = match layout {
            Layout::Batch => vec![stored(4, &[b"a", b"b", b"c", b"d"])],
            Layout::Record { .. } => records(4..=8),
        };
        let read = Read { aborted_max: 2, ..committed(&partition_of(layout), 3) };
        let next = again(with_rows(&read, &state, &entries, &["7:0:2", "8:2:3"]));
        assert_eq!((next.offset, next.aborted_max, next.is_committed), (3, 16, true));
    }
}

#[test]
fn a_row_that_is_no_aborted_transaction_is_named() {
    let state = Log { aborted: "5", ..log(8) };
    let read = committed(&partition_of(DENSE), 0);
    for row in ["text", "", "1:2", "1:2:3:4", "1:2:x", "1::3", "9223372036854775808:1:1"] {
        let failure = refused(with_rows(&read, &state, &records(1..=8), &["7:0:2", row]));
        let message = format!("{ABORTED_KEY}: an aborted transaction is malformed");
        assert_eq!(failure, Failure::rule(KafkaStorageError, message), "{row}");
    }
    let parts = |rows: &[u8]| [state.reply(), array(&records(1..=8)), rows.to_vec()];
    let refusal = |rows: &[u8]| {
        let mut known = learned(&read, &state, &records(1..=8));
        refused(outcome(&read, &mut known, &parts(rows))).message
    };
    assert_eq!(refusal(b"*1\r\n:5\r\n"), format!("{ABORTED_KEY}: an aborted transaction is malformed"));
    assert_eq!(refusal(b"$-1\r\n"), format!("{ABORTED_KEY}: the answer is malformed"));
    assert_eq!(refusal(b"-WRONGTYPE it is\r\n"), format!("{ABORTED_KEY}: Redis answered WRONGTYPE it is"));
}
