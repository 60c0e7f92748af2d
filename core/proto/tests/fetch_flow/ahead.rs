//! Reading ahead: what comes next is on its way while a consumer works on what it has.

use std::time::Duration;

use korvet_proto::client::Prevented;

use crate::support::{MS, OPTIONS, Worker};
use crate::wire::{Asks, Fetch, at, fetch};

/// For how long a piece is held.
const HELD: Duration = Duration::from_secs(2);

fn asks(offset: i64) -> Fetch {
    fetch(&[Asks { bytes_max: 10_000, ..at(0, offset) }])
}

fn worker() -> Worker {
    let mut worker = Worker::new(OPTIONS);
    for number in 2..4 {
        worker.connect(number, true);
    }
    for _ in 0..60 {
        worker.append_silently("a:0", 1, 1000, |_| {});
    }
    worker
}

/// One that has read some of the log; returns where it goes on.
fn begun() -> (Worker, i64) {
    let mut worker = worker();
    let (_, end) = worker.fetch(&asks(0)).results[0].offsets().unwrap();
    worker.ran();
    (worker, end)
}

#[test]
fn a_consumer_that_goes_on_gets_what_was_read_ahead_with_the_bounds_of_now() {
    let (mut worker, offset) = begun();
    worker.append_silently("a:0", 1, 1000, |_| {});
    let result = worker.fetch(&asks(offset)).results.remove(0);
    assert_eq!(result.high_watermark, 61);
    assert_eq!(result.batches[0].offset, offset);
    assert!(worker.ran().1 >= 1);
}

#[test]
fn a_consumer_that_catches_up_gets_all_in_order() {
    let mut worker = worker();
    let mut offset = 0;
    while offset < 60 {
        let (begin, end) = worker.fetch(&asks(offset)).results[0].offsets().unwrap();
        assert_eq!(begin, offset);
        offset = end;
    }
}

#[test]
fn what_is_on_its_way_is_waited_for() {
    let mut worker = worker();
    let number = worker.begin(&asks(0));
    while worker.answers.is_empty() {
        let call = worker.calls.pop_front().unwrap();
        worker.reply(&call);
    }
    let (_, offset) = worker.answer(number).results[0].offsets().unwrap();
    let ahead = worker.calls.pop_front().unwrap();
    worker.ran();
    let number = worker.begin(&asks(offset));
    worker.settle();
    assert!(worker.answers.is_empty());
    worker.reply(&ahead);
    worker.settle();
    assert_eq!(worker.answer(number).results[0].batches[0].offset, offset);
    assert_eq!(worker.ran().1, 1);
}

#[test]
fn what_was_waited_for_and_does_not_come_is_read() {
    let mut worker = worker();
    let number = worker.begin(&asks(0));
    while worker.answers.is_empty() {
        let call = worker.calls.pop_front().unwrap();
        worker.reply(&call);
    }
    let (_, offset) = worker.answer(number).results[0].offsets().unwrap();
    let ahead = worker.calls.pop_front().unwrap();
    let number = worker.begin(&asks(offset));
    worker.settle();
    worker.prevent(&ahead, Prevented::Unknown);
    worker.settle();
    assert_eq!(worker.answer(number).results[0].batches[0].offset, offset);
}

#[test]
fn what_is_waited_for_longer_than_it_is_held_is_dropped_after_that() {
    let mut worker = worker();
    let number = worker.begin(&asks(0));
    while worker.answers.is_empty() {
        let call = worker.calls.pop_front().unwrap();
        worker.reply(&call);
    }
    let (_, offset) = worker.answer(number).results[0].offsets().unwrap();
    let ahead = worker.calls.pop_front().unwrap();
    worker.begin(&asks(offset));
    worker.settle();
    worker.pass(2 * HELD);
    worker.disconnect(1);
    worker.reply(&ahead);
    worker.pass(3 * HELD);
    assert!(format!("{:?}", worker.flow).contains("pieces: {}"));
    assert_eq!(worker.flow.due(), None);
}

#[test]
fn a_piece_that_nobody_asks_for_is_dropped_in_time() {
    let (mut worker, _) = begun();
    assert!(!format!("{:?}", worker.flow).contains("pieces: {}"));
    worker.pass(HELD + MS);
    assert!(format!("{:?}", worker.flow).contains("pieces: {}"));
}

#[test]
fn a_partition_that_may_take_nothing_is_not_read_far_ahead() {
    let mut worker = worker();
    worker.fetch(&Fetch { bytes_max: -1, ..fetch(&[Asks { bytes_max: i32::MIN, ..at(0, 0) }]) });
    assert!(worker.reply_bytes < 2000, "{}", worker.reply_bytes);
}

#[test]
fn what_weighs_much_more_than_expected_is_not_held() {
    let mut worker = Worker::new(OPTIONS);
    for bytes in std::iter::repeat_n(1000, 30).chain([40 << 20]) {
        worker.append_silently("a:0", 1, bytes, |_| {});
    }
    let asks = |offset| fetch(&[Asks { bytes_max: 30_000, ..at(0, offset) }]);
    let (_, offset) = worker.fetch(&asks(0)).results[0].offsets().unwrap();
    worker.ran();
    assert_eq!(worker.fetch(&asks(offset)).results[0].batches[0].offset, offset);
    let (reads, bounds, _) = worker.ran();
    assert!(reads > 0 && bounds == 0, "{reads} {bounds}");
}

#[test]
fn after_a_failover_what_was_read_ahead_of_it_is_not_served() {
    let (mut worker, offset) = begun();
    worker.redis.log("a:0").cut(offset);
    worker.append_silently("a:0", 1, 10, |_| {});
    worker.servers.histories[0] = "another".into();
    let result = worker.fetch(&asks(offset)).results.remove(0);
    assert_eq!((result.offsets(), result.high_watermark), (Some((offset, offset + 1)), offset + 1));
    assert!(result.size < 200);
}

#[test]
fn what_was_read_ahead_is_not_served_with_the_bounds_of_another_history() {
    let (mut worker, offset) = begun();
    worker.redis.log("a:0").cut(offset);
    worker.append_silently("a:0", 1, 10, |_| {});
    let number = worker.begin(&asks(offset));
    // The connection was lost, and is made again for the read.
    worker.servers.histories[0] = "another".into();
    worker.settle();
    let result = worker.answer(number).results.remove(0);
    assert_eq!((result.offsets(), result.high_watermark), (Some((offset, offset + 1)), offset + 1));
    assert!(result.size < 200);
}

#[test]
fn a_failover_while_what_was_read_ahead_is_waited_for_serves_nothing_of_it() {
    let mut worker = worker();
    let number = worker.begin(&asks(0));
    while worker.answers.is_empty() {
        let call = worker.calls.pop_front().unwrap();
        worker.reply(&call);
    }
    let (_, offset) = worker.answer(number).results[0].offsets().unwrap();
    let ahead = worker.calls.pop_front().unwrap();
    let first = worker.begin(&asks(offset));
    worker.settle();
    // Another consumer reads ahead at the same place in the new history.
    worker.servers.histories[0] = "another".into();
    worker.redis.log("a:0").cut(offset);
    for _ in 0..30 {
        worker.append_silently("a:0", 1, 10, |_| {});
    }
    worker.begin_as(2, &fetch(&[Asks { bytes_max: 1100, ..at(0, offset - 1) }]));
    worker.settle();
    worker.answers.clear();
    worker.prevent(&ahead, Prevented::History);
    worker.settle();
    let result = worker.answer(first).results.remove(0);
    assert_eq!(result.batches[0].offset, offset);
    assert!(result.batches.iter().all(|batch| batch.rest.len() < 500));
}

#[test]
fn what_was_read_ahead_of_a_topic_that_came_again_is_not_served() {
    let (mut worker, offset) = begun();
    worker.delete("a");
    worker.create("a", 1);
    for _ in 0..=offset {
        worker.append_silently("a:0", 1, 10, |_| {});
    }
    let result = worker.fetch(&asks(offset)).results.remove(0);
    assert_eq!((result.error, result.offsets()), (0, Some((offset, offset + 1))));
    assert!(result.size < 200);
}

#[test]
fn what_was_read_ahead_is_for_readers_of_its_kind() {
    let (mut worker, offset) = begun();
    worker.append_transactional(0, 7);
    let asks = Fetch { is_committed: true, ..asks(offset) };
    let result = worker.fetch(&asks).results.remove(0);
    assert_eq!((result.batches[0].offset, result.stable), (offset, 60));
    assert_eq!(result.aborted, Some(Vec::new()));
}

#[test]
fn consumers_that_read_a_log_at_a_time_share_what_is_read_ahead() {
    let mut worker = worker();
    let mut offset = 0;
    for _ in 0..3 {
        let mut ends = Vec::new();
        for number in 1..4 {
            ends.push(worker.fetch_as(number, &asks(offset)).results[0].offsets().unwrap().1);
        }
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        offset = ends[0];
    }
    worker.ran();
    for number in 1..4 {
        worker.fetch_as(number, &asks(offset));
    }
    let (reads, bounds, _) = worker.ran();
    assert!(reads < 3 && bounds >= 2, "{reads} {bounds}");
}
