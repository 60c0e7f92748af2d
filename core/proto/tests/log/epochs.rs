//! What the list of a partition's leader epochs says.

use korvet_proto::log::{EpochStart, Epochs};

const LIST: &[u8] = b"9@40 5@10 3@0";

fn list(text: &[u8]) -> Epochs {
    Epochs::parse(text).unwrap()
}

fn ends(list: &Epochs, asked: &[i32], current: i32, log_start: i64) -> Vec<(i32, i64)> {
    let end = |epoch: &i32| list.end_of(*epoch, current, log_start, 50);
    asked.iter().map(end).map(|EpochStart { epoch, start }| (epoch, start)).collect()
}

#[test]
fn the_list_is_read_oldest_first() {
    let read: Vec<_> = list(LIST).iter().map(|begun| (begun.epoch, begun.start)).collect();
    assert_eq!(read, [(3, 0), (5, 10), (9, 40)]);
    assert_eq!(list(LIST).last(), 9);
    assert_eq!(list(b""), Epochs::default());
    assert_eq!(list(b" \n"), Epochs::default());
    assert_eq!(list(b"").last(), -1);
    for wrong in [&b"garbage"[..], b"1", b"x@1", b"1@", b"1@2@3", b"3000000000@1", b"\xff@1"] {
        assert_eq!(Epochs::parse(wrong), None, "{}", String::from_utf8_lossy(wrong));
    }
}

#[test]
fn an_offset_has_the_epoch_that_began_last_before_it() {
    let (all, later) = (list(LIST), list(b"9@40 5@10"));
    assert_eq!([0, 9, 10, 39, 40, 99].map(|offset| all.at(offset)), [3, 3, 5, 5, 9, 9]);
    assert_eq!((list(b"").at(7), later.at(9)), (0, 0));
    assert_eq!([0, 10, 40].map(|offset| all.next_start(offset)), [Some(10), Some(40), None]);
}

#[test]
fn an_epoch_ends_where_the_next_one_begins() {
    let all = list(LIST);
    assert_eq!(
        ends(&all, &[9, 8, 5, 4, 3, 2, -2], 9, 0),
        [(9, 50), (5, 40), (5, 40), (3, 10), (3, 10), (2, 0), (-2, 0)]
    );
    // Nothing was written in 11: it begins at the end.
    assert_eq!(ends(&all, &[9, 11, 10, 12, -1], 11, 0), [(9, 50), (11, 50), (9, 50), (-1, -1), (-1, -1)]);
    // Another worker has begun 9, and this one has not noticed: consumers would start over after (-1, -1).
    assert_eq!(ends(&all, &[9, 8, 10], 5, 0), [(9, 50), (5, 40), (-1, -1)]);
}

#[test]
fn an_epoch_whose_records_are_all_deleted_ends_where_the_log_begins() {
    assert_eq!(ends(&list(LIST), &[-2, 3, 5], 9, 25), [(-2, 25), (3, 25), (5, 40)]);
}

#[test]
fn without_a_list_every_epoch_but_a_later_one_ends_with_the_log() {
    assert_eq!(ends(&list(b""), &[4, 3, 5], 4, 0), [(4, 50), (3, 50), (-1, -1)]);
}
