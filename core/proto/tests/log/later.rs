//! What was found, up to a high watermark that replicas of Redis have, and with the bounds of a later read.

use korvet_proto::log::{Found, Known, Outcome, Read};
use korvet_proto::partition::Layout;

use crate::batches::Bytes;
use crate::support::{
    Counters, DENSE, Log, array, committed, found, log, outcome, partition_of, read, record, stored, walk,
};

fn records(ends: std::ops::RangeInclusive<i64>) -> Vec<Bytes> {
    ends.map(|end| record(end, b"v")).collect()
}

fn limited(mut page: Found, high_watermark: i64, stable: i64) -> Found {
    page.limit(high_watermark, stable);
    page
}

fn page(layout: Layout) -> Found {
    match layout {
        Layout::Batch => found(
            &read(&partition_of(layout), 1),
            &log(6),
            &[stored(3, &[b"b", b"c"]), stored(4, &[b"d"]), stored(6, &[b"e", b"f"])],
        ),
        Layout::Record { .. } => found(&read(&partition_of(layout), 1), &log(6), &records(2..=6)),
    }
}

#[test]
fn past_the_high_watermark_nothing_is_shown() {
    for layout in [DENSE, Layout::Batch] {
        let cut = limited(page(layout), 4, 4);
        assert_eq!((cut.high_watermark, cut.log_end, cut.end_offset(), cut.stable_offset()), (4, 6, 6, 4));
        let (offsets, has_more) = walk(&cut);
        assert_eq!((offsets.last(), has_more, cut.next_offset()), (Some(&3), false, Some(4)));
    }
    // Of a batch that lies across it nothing.
    let cut = limited(page(Layout::Batch), 5, 5);
    assert_eq!((walk(&cut), cut.high_watermark), ((vec![1, 3], false), 5));
}

#[test]
fn a_high_watermark_past_what_is_found_changes_nothing() {
    for watermark in [6, 7] {
        let cut = limited(page(DENSE), watermark, 3);
        assert_eq!((cut.high_watermark, cut.open, walk(&cut)), (6, None, (vec![1, 2, 3, 4, 5], false)));
    }
}

#[test]
fn an_unknown_high_watermark_is_the_first_offset_which_shows_nothing() {
    let mut state = log(6);
    state.counters = Counters { start: 2, first: 2, ..state.counters };
    let cut = limited(found(&read(&partition_of(DENSE), 2), &state, &records(3..=6)), -1, -1);
    assert_eq!((cut.high_watermark, cut.stable_offset(), cut.holds_any()), (2, 2, false));
    assert_eq!((walk(&cut), cut.next_offset()), ((vec![], false), None));
    state.counters.remote_start = 0;
    let archived = Log { archived: "4", ..state };
    let cut = limited(found(&read(&partition_of(DENSE), 2), &archived, &records(3..=6)), -1, -1);
    assert_eq!((cut.high_watermark, cut.stable_offset(), cut.first_offset), (2, 2, 0));
}

#[test]
fn a_transaction_is_open_as_long_as_its_marker_lies_past_the_high_watermark() {
    let all = found(&committed(&partition_of(DENSE), 1), &log(6), &records(2..=6));
    let cut = limited(all, 5, 3);
    assert_eq!((cut.high_watermark, cut.open, cut.stable_offset()), (5, Some(3), 3));
    assert_eq!(walk(&cut), (vec![1, 2], false));
    let cut = limited(page(DENSE), 5, 3);
    assert_eq!((cut.stable_offset(), walk(&cut)), (3, (vec![1, 2, 3, 4], false)));
}

#[test]
fn a_page_that_ends_below_the_high_watermark_has_more() {
    let two = Read { entries_max: 2, ..read(&partition_of(DENSE), 1) };
    let full = || found(&two, &log(6), &records(2..=3));
    assert_eq!(walk(&limited(full(), 5, 5)), (vec![1, 2], true));
    assert_eq!(walk(&limited(full(), 3, 3)), (vec![1, 2], false));
}

#[test]
fn a_page_of_before_has_the_bounds_of_now() {
    let mut state = Log { epochs: "3@4", open: "9", ..log(10) };
    state.counters = Counters { start: 1, first: 2, ..state.counters };
    let bounds = Read { entries_max: 0, ..read(&partition_of(DENSE), 1) };
    let Outcome::Found(now) = outcome(&bounds, &mut Known::default(), &[state.reply()]) else { panic!() };
    let mut earlier = page(DENSE);
    earlier.set_bounds(&now);
    assert_eq!((earlier.log_start, earlier.first_offset, earlier.high_watermark), (1, 2, 10));
    assert_eq!((earlier.log_end, earlier.open, earlier.epochs.last()), (10, Some(9), 3));
    assert_eq!(walk(&earlier), (vec![1, 2, 3, 4, 5], true));
    let cut = limited(earlier, 6, 6);
    assert_eq!(walk(&cut), (vec![1, 2, 3, 4, 5], false));
}

/// A page of before, with the bounds of a log that has the state `now`.
fn earlier(page: Found, now: &Log<'_>) -> Found {
    let (mut page, partition) = (page, partition_of(DENSE));
    page.set_bounds(&found(&read(&partition, 0), now, &[]));
    page
}

#[test]
fn a_page_of_before_that_reaches_the_end_of_now_has_no_more() {
    assert_eq!(walk(&earlier(page(DENSE), &log(6))), (vec![1, 2, 3, 4, 5], false));
    assert_eq!(walk(&earlier(page(DENSE), &log(7))), (vec![1, 2, 3, 4, 5], true));
    let nothing = || found(&read(&partition_of(DENSE), 6), &log(6), &[]);
    assert_eq!(walk(&earlier(nothing(), &log(7))), (vec![], true));
}

#[test]
fn a_page_that_came_after_its_bounds_ends_where_they_do() {
    assert_eq!(walk(&earlier(page(DENSE), &log(4))), (vec![1, 2, 3], false));
    assert_eq!(walk(&limited(earlier(page(DENSE), &log(4)), 4, 4)), (vec![1, 2, 3], false));
}

#[test]
fn what_was_past_the_end_is_not_shown_though_the_log_has_grown() {
    // It may have got another offset since, and another entry have come to this one.
    let external = || found(&read(&partition_of(DENSE), 2), &log(3), &[record(3, b"v"), record(4, b"external")]);
    assert_eq!(walk(&earlier(external(), &log(9))), (vec![2], true));
    let cut = limited(earlier(external(), &log(9)), 8, 8);
    assert_eq!(walk(&cut), (vec![2], true));
}

#[test]
fn a_committed_page_of_before_ends_where_it_did() {
    let open = Log { open: "3", ..log(6) };
    let page = found(&committed(&partition_of(DENSE), 1), &open, &records(2..=6));
    let later = earlier(page, &Log { aborted: "5", ..log(6) });
    assert_eq!((later.stable_offset(), later.next_offset()), (6, Some(3)));
    assert_eq!((walk(&later), later.aborted.len()), ((vec![1, 2], true), 0));
}

#[test]
fn entries_that_the_reply_does_not_have_end_a_walk() {
    let all = read(&partition_of(DENSE), 0);
    let mut known = Known::default();
    let (_, sent) = all.put(&known, &mut Vec::new());
    let reply = array(&[log(6).reply(), array(&records(1..=3))]);
    let cut = reply[..reply.len() - 4].to_vec();
    let Outcome::Found(page) = all.outcome(sent, &cut.into(), &mut known) else { panic!() };
    assert_eq!(page.next_offset(), Some(3));
    let mut records = page.records(100);
    let ends: Vec<_> = std::iter::from_fn(|| records.next().map(|record| record.is_ok())).collect();
    assert_eq!(ends, [true, true, false]);
}
