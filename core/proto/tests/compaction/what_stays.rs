//! Which records a pass keeps.

use korvet_proto::compaction::{AbortedTransaction, Cleaner, OffsetMap, Rules};
use korvet_proto::partition::Layout;

use crate::batches::{Bytes, batch, content};
use crate::support::{DENSE, array, entry, foreign, partition_of};
use crate::{cleaner, compacted, ids, rules};

fn keyed(end: i64, key: &[u8]) -> Bytes {
    entry(&format!("0-{end}"), &[("key", key), ("value", b"v"), ("timestamp", b"5")])
}

fn tombstone(end: i64, key: &[u8]) -> Bytes {
    entry(&format!("0-{end}"), &[("key", key), ("timestamp", b"5")])
}

fn marker(end: i64, kind: &[u8]) -> Bytes {
    entry(&format!("0-{end}"), &[("korvet.marker", kind), ("korvet.producer", b"7:1"), ("timestamp", b"5")])
}

fn transactional(end: i64, key: &[u8]) -> Bytes {
    let fields = [("key", key), ("value", b"v"), ("timestamp", b"5"), ("korvet.producer", b"7:1")];
    entry(&format!("0-{end}"), &fields)
}

#[test]
fn of_each_key_the_latest_record_stays_and_one_without_a_key_goes() {
    let unkeyed = entry("0-4", &[("value", b"v")]);
    let mut cleaner = cleaner(DENSE, rules());
    let entries = [keyed(1, b"a"), keyed(2, b"b"), keyed(3, b"a"), unkeyed, keyed(5, b"")];
    assert_eq!(ids(&mut cleaner, &entries), ["0-2", "0-3", "0-5"]);
    assert_eq!((cleaner.seen, cleaner.unkeyed, cleaner.keys(), cleaner.has_new_tombstones), (5, 1, 3, false));
}

#[test]
fn an_entry_that_stays_is_as_it_was() {
    let fields = [("other", &b"x"[..]), ("value", b""), ("key", b"k"), ("key", b"again"), ("timestamp", b"7")];
    let [((id, words, counts), damage)] =
        compacted(&mut cleaner(DENSE, rules()), &[entry("0-9", &fields)]).try_into().unwrap();
    let expected: Vec<_> = fields.iter().flat_map(|(name, content)| [name.as_bytes(), content]).collect();
    assert_eq!(
        (&id[..], words, counts, damage),
        ("0-9", expected.into_iter().map(<[u8]>::to_vec).collect(), (9, 1, 7), None)
    );
}

#[test]
fn the_last_record_of_the_log_stays_whatever_it_is() {
    let unkeyed = entry("0-9", &[("value", b"v")]);
    let passed = Rules { dirty_start: 9, end: 9, ..rules() };
    for (last, unkeyed_before) in [(unkeyed.clone(), 1), (tombstone(9, b"a"), 1), (marker(9, b"commit"), 1)] {
        let before = entry("0-8", &[("value", b"v")]);
        let mut cleaner = cleaner(DENSE, passed.clone());
        assert_eq!(ids(&mut cleaner, &[before, last]), ["0-9"]);
        assert_eq!(cleaner.unkeyed, unkeyed_before);
    }
}

#[test]
fn tombstones_and_markers_stay_until_their_period_is_over() {
    let periods = vec![(2, true), (4, true), (6, false)];
    let rules = Rules { dirty_start: 8, periods, ..rules() };
    let keys = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i", b"j"];
    let tombstones: Vec<_> = (1..).zip(keys).map(|(end, key)| tombstone(end, key)).collect();
    let mut cleaner = cleaner(DENSE, rules);
    // Not subject to a period: the last record of the log at that time always stayed.
    assert_eq!(ids(&mut cleaner, &tombstones), ["0-5", "0-6", "0-9", "0-10"]);
    assert!(cleaner.has_new_tombstones);
    let markers: Vec<_> = (1..=10).map(|end| marker(end, b"commit")).collect();
    assert_eq!(ids(&mut cleaner, &markers), ["0-5", "0-6", "0-9", "0-10"]);
}

#[test]
fn records_of_an_aborted_transaction_go_and_hide_none() {
    let aborted = vec![AbortedTransaction { producer_id: 7, first_offset: 1, marker: 3 }];
    let entries = [
        keyed(1, b"a"),
        transactional(2, b"a"),
        transactional(3, b"b"),
        marker(4, b"abort"),
        transactional(5, b"b"),
        marker(6, b"commit"),
    ];
    let with = Rules { aborted, ..rules() };
    assert_eq!(ids(&mut cleaner(DENSE, with), &entries), ["0-1", "0-4", "0-5", "0-6"]);
    assert_eq!(ids(&mut cleaner(DENSE, rules()), &entries), ["0-2", "0-4", "0-5", "0-6"]);
}

#[test]
fn a_map_that_is_full_says_where() {
    let mut cleaner = Cleaner::new(&partition_of(DENSE), rules(), OffsetMap::new(0, 0));
    let entries: Vec<_> = (1..=60).map(|end| keyed(end, &end.to_be_bytes())).collect();
    let (page, full_at) = cleaner.map(&array(&entries).into()).unwrap();
    assert_eq!((page.next_offset, page.entries, full_at, cleaner.keys()), (Some(60), 60, Some(48), 48));
}

#[test]
fn nothing_is_known_of_what_no_entry_is_in() {
    let (page, full_at) = cleaner(DENSE, rules()).map(&array(&[]).into()).unwrap();
    assert_eq!((page.next_offset, page.entries, full_at), (None, 0, None));
}

#[test]
fn records_below_the_start_of_the_log_take_no_slot_and_are_not_counted() {
    let bytes = batch(&[content(Some(b"a"), Some(b"1")), content(Some(b"b"), Some(b"2"))]);
    let mut cleaner = cleaner(Layout::Batch, Rules { start: 1, dirty_start: 1, ..rules() });
    let left = compacted(&mut cleaner, &[entry("0-2", &[("batch", &bytes)])]);
    assert_eq!((cleaner.seen, cleaner.keys(), left.len()), (1, 1, 1));
    assert_eq!(left[0].0.2.1, 1);
}

#[test]
fn what_other_clients_wrote_between_batches_goes() {
    let bytes = batch(&[content(Some(b"a"), Some(b"1"))]);
    let mut cleaner = cleaner(Layout::Batch, rules());
    assert_eq!(ids(&mut cleaner, &[foreign(1), entry("0-2", &[("batch", &bytes)]), foreign(3)]), ["0-2"]);
    assert_eq!(cleaner.seen, 1);
}
