//! Reads of a log whose beginning is compacted: where they look, what lies between the streams, what is out of date.

use std::ops::RangeInclusive;
use std::sync::Arc;

use korvet_proto::log::{Found, Known, Outcome, Read};
use korvet_proto::partition::{Keys, Layout, Partition, Topic};
use korvet_proto::shared::Shared;

use crate::support::{DENSE, Log, again, array, log, outcome, partition_of, read, record, sent, stored, walk};

const KNOWN_MAX: usize = 100_000;

/// Of the records 0 to 8 those below 5 are compacted.
fn compacted() -> Log<'static> {
    Log { clean: "1", clean_end: "5", ..log(9) }
}

fn found(outcome: Outcome) -> Found {
    match outcome {
        Outcome::Found(found) => found,
        other => panic!("{other:?}"),
    }
}

/// A read of one of many logs.
fn named(like: &Partition, number: usize) -> Read {
    let keys = Keys { stream: format!("log:{number}").into(), ..like.keys.clone() };
    read(&Arc::new(Partition { keys, ..like.clone() }), 2)
}

/// Read many logs, which all have the same state.
fn learn(like: &Partition, numbers: RangeInclusive<usize>, state: &Log<'_>, known: &mut Known) {
    let reply = Shared::from(array(&[state.reply(), array(&[])]));
    for number in numbers {
        let read = named(like, number);
        let (_, sent) = sent(&read, known);
        assert!(!matches!(read.outcome(sent, &reply, known), Outcome::Refused(_)));
    }
}

/// The key of the stream in which a read looks.
fn stream(read: &Read, known: &Known) -> String {
    let mut text = Vec::new();
    read.put(known, &mut text);
    let text = String::from_utf8(text).unwrap();
    text.split("XRANGE\r\n").nth(1).unwrap().split("\r\n").nth(1).unwrap().to_owned()
}

#[test]
fn a_read_that_looked_in_the_wrong_stream_is_done_again_in_the_right_one() {
    for layout in [DENSE, Layout::Batch] {
        let mut known = Known::default();
        let read = read(&partition_of(layout), 2);
        assert_eq!(stream(&read, &known), "korvet:orders:3");
        let next = again(outcome(&read, &mut known, &[compacted().reply(), array(&[])]));
        assert_eq!((next.offset, stream(&next, &known)), (2, "korvet:orders:3:clean:1".to_owned()));
        let left = if layout == DENSE { record(4, b"v") } else { stored(4, &[b"v"]) };
        let page = found(outcome(&next, &mut known, &[compacted().reply(), array(&[left])]));
        // The log goes on in the other stream.
        assert_eq!((walk(&page), page.compacted_end, page.is_full()), ((vec![3], true), 5, true));
    }
}

#[test]
fn after_the_last_record_of_the_compacted_part_the_rest_is_read() {
    let mut known = Known::default();
    let read = read(&partition_of(DENSE), 4);
    again(outcome(&read, &mut known, &[compacted().reply(), array(&[])]));
    let next = again(outcome(&read, &mut known, &[compacted().reply(), array(&[])]));
    assert_eq!((next.offset, stream(&next, &known)), (5, "korvet:orders:3".to_owned()));
    let page = found(outcome(&next, &mut known, &[compacted().reply(), array(&[record(6, b"v")])]));
    assert_eq!(walk(&page), (vec![5], false));
}

#[test]
fn of_a_log_whose_last_records_went_too_the_end_is_found_empty() {
    for layout in [DENSE, Layout::Batch] {
        let state = Log { clean: "0", clean_end: "9", ..log(9) };
        let mut known = Known::default();
        let first = read(&partition_of(layout), 4);
        again(outcome(&first, &mut known, &[state.reply(), array(&[])]));
        let next = again(outcome(&first, &mut known, &[state.reply(), array(&[])]));
        let page = found(outcome(&next, &mut known, &[state.reply(), array(&[])]));
        assert_eq!((next.offset, page.high_watermark, walk(&page)), (9, 9, (vec![], false)));
    }
}

#[test]
fn where_the_compacted_part_is_the_whole_log_it_has_no_more_than_its_entries() {
    let state = Log { clean: "0", clean_end: "9", ..log(9) };
    let mut known = Known::default();
    let read = read(&partition_of(Layout::Batch), 4);
    again(outcome(&read, &mut known, &[state.reply(), array(&[])]));
    let page = found(outcome(&read, &mut known, &[state.reply(), array(&[stored(7, &[b"v"])])]));
    assert_eq!((walk(&page), page.is_full()), ((vec![6], false), false));
}

#[test]
fn the_state_says_when_a_pass_has_ended_since() {
    let mut known = Known::default();
    let read = read(&partition_of(DENSE), 2);
    again(outcome(&read, &mut known, &[compacted().reply(), array(&[])]));
    let later = Log { clean: "0", clean_end: "7", ..log(9) };
    again(outcome(&read, &mut known, &[later.reply(), array(&[])]));
    assert_eq!(stream(&read, &known), "korvet:orders:3:clean:0");
    again(outcome(&read, &mut known, &[log(9).reply(), array(&[])]));
    assert_eq!(stream(&read, &known), "korvet:orders:3");
}

#[test]
fn what_is_known_of_a_topic_says_nothing_about_the_next_one_of_its_name() {
    let mut known = Known::default();
    let partition = partition_of(DENSE);
    again(outcome(&read(&partition, 2), &mut known, &[compacted().reply(), array(&[])]));
    let topic = Topic { id_text: "another".into(), ..(*partition.topic).clone() };
    let next = Arc::new(Partition { topic: Arc::new(topic), ..(*partition).clone() });
    assert_eq!(stream(&read(&next, 2), &known), "korvet:orders:3");
    assert_eq!(stream(&read(&partition, 2), &known), "korvet:orders:3:clean:1");
}

#[test]
fn too_many_logs_are_forgotten_and_learned_again() {
    let (like, mut known) = (partition_of(DENSE), Known::default());
    learn(&like, 1..=KNOWN_MAX, &compacted(), &mut known);
    assert_eq!(stream(&named(&like, 1), &known), "korvet:orders:3:clean:1");
    learn(&like, 0..=0, &compacted(), &mut known);
    assert_eq!(stream(&named(&like, 1), &known), "log:1");
    assert_eq!(stream(&named(&like, 0), &known), "korvet:orders:3:clean:1");
}

#[test]
fn a_log_that_is_not_compacted_and_has_no_aborted_transactions_takes_no_room() {
    let (like, mut known) = (partition_of(DENSE), Known::default());
    learn(&like, 0..=0, &compacted(), &mut known);
    learn(&like, 1..=KNOWN_MAX, &log(2), &mut known);
    assert_eq!(stream(&named(&like, 0), &known), "korvet:orders:3:clean:1");
}

#[test]
fn a_read_that_was_misled_too_often_says_so() {
    let failure = read(&partition_of(DENSE), 0).misled();
    assert_eq!(failure.message, "korvet:orders:3: passes of compaction end faster than the log can be read");
}
