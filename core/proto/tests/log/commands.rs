//! The commands of reads, byte for byte.

use korvet_proto::log::{Known, Read};
use korvet_proto::partition::Layout;
use korvet_proto::resp::{Element, Elements};

use crate::batches::RECORDS;
use crate::support::{DENSE, Log, array, committed, log, outcome, partition_of, read};

const HMGET: &str = "HMGET korvet:orders:3:state topic log clean clean_end archived epochs open aborted";

/// The commands of a read, their words with blanks between them.
fn commands(read: &Read, known: &Known) -> Vec<String> {
    let mut text = b"before".to_vec();
    let (count, _) = read.put(known, &mut text);
    let mut elements = Elements::of(text.strip_prefix(b"before").unwrap());
    let mut commands = Vec::new();
    while let Some(element) = elements.next() {
        let Element::Array(words) = element else { panic!("{element:?} is no command") };
        let words = (0..words).map(|_| match elements.next() {
            Some(Element::Bulk(word)) => String::from_utf8(word.to_vec()).unwrap(),
            other => panic!("{other:?} is no argument"),
        });
        commands.push(words.collect::<Vec<_>>().join(" "));
    }
    assert_eq!(commands.len(), count);
    assert_eq!(elements.left(), b"");
    commands
}

fn block(commands: &[&str]) -> Vec<String> {
    let all = ["MULTI", HMGET].iter().chain(commands).chain(&["EXEC"]);
    all.map(ToString::to_string).collect()
}

#[test]
fn a_read_begins_after_the_entry_before_its_offset() {
    let none = Known::default();
    for (layout, offset, range) in [
        (DENSE, 7, "(0-7 +"),
        (DENSE, 0, "(0-0 +"),
        (Layout::Batch, 123, "(0-123 +"),
        (Layout::Batch, -1, "(0-0 +"),
        (RECORDS, (5 << 20) + 3, "(5-2 +"),
        (RECORDS, 5 << 20, "(4-1048575 +"),
        (RECORDS, 0, "(0-0 +"),
        (RECORDS, i64::MAX, "(8796093022207-1048574 +"),
    ] {
        let range = format!("XRANGE korvet:orders:3 {range} COUNT 10");
        assert_eq!(commands(&read(&partition_of(layout), offset), &none), block(&[&range]));
    }
}

#[test]
fn a_read_may_end_between_two_entries() {
    let ending = |layout, offset, end| Read { end: Some(end), ..read(&partition_of(layout), offset) };
    let found = commands(&ending(RECORDS, 5 << 20, 6 << 20), &Known::default());
    assert_eq!(found, block(&["XRANGE korvet:orders:3 (4-1048575 5-1048575 COUNT 10"]));
    let found = commands(&ending(Layout::Batch, 5, 9), &Known::default());
    assert_eq!(found, block(&["XRANGE korvet:orders:3 (0-5 0-9 COUNT 10"]));
}

#[test]
fn a_read_of_no_entries_asks_for_the_state_alone_without_a_transaction() {
    for is_committed in [false, true] {
        let bounds = Read { entries_max: 0, is_committed, ..read(&partition_of(DENSE), 7) };
        assert_eq!(commands(&bounds, &Known::default()), [HMGET]);
    }
}

#[test]
fn what_is_known_of_a_log_decides_where_its_reads_look_and_what_they_ask() {
    let partition = partition_of(Layout::Batch);
    let mut known = Known::default();
    let all = read(&partition, 3);
    let state = Log { clean: "1", clean_end: "5", aborted: "8", ..log(9) };
    outcome(&all, &mut known, &[state.reply(), array(&[])]);
    let range = |stream: &str, offset: i64| format!("XRANGE {stream} (0-{offset} + COUNT 10");
    let aborted = |offset: i64| format!("ZRANGEBYSCORE korvet:orders:3:aborted {offset} +inf LIMIT 0 1000");
    let (clean, own) = ("korvet:orders:3:clean:1", "korvet:orders:3");
    assert_eq!(commands(&all, &known), block(&[&range(clean, 3)]));
    assert_eq!(commands(&read(&partition, 5), &known), block(&[&range(own, 5)]));
    assert_eq!(commands(&committed(&partition, 4), &known), block(&[&range(clean, 4), &aborted(4)]));
    assert_eq!(commands(&committed(&partition, 8), &known), block(&[&range(own, 8), &aborted(8)]));
    assert_eq!(commands(&committed(&partition, 9), &known), block(&[&range(own, 9)]));
    let bounds = Read { entries_max: 0, ..committed(&partition, 3) };
    assert_eq!(commands(&bounds, &known), [HMGET]);
}
