//! What is held for clients and of replies of Redis, and that it is given back.

use std::time::Duration;

use korvet_proto::fetch::NAMED_MAX;
use korvet_proto::shared::Shared;

use crate::support::{Call, OPTIONS, Worker};
use crate::wire::{Asks, Fetch, at, fetch};

/// What a worker has room for of places that wait: of five of the largest requests.
const LARGE: i32 = NAMED_MAX as i32 - 10;

/// Give the replies to a read as they lie among other bytes; returns these, with all that is held of them.
fn reply_among(worker: &mut Worker, call: &Call, others: usize) -> Vec<Shared> {
    let mut all = Vec::new();
    for (place, reply) in (call.first..).zip(&call.replies) {
        let bytes = Shared::from([&vec![0; others], &reply[..]].concat());
        let reply = bytes.part(others..others + reply.len());
        worker.flow.replied(call.group, place, &reply, &worker.servers, worker.now);
        all.push(bytes);
    }
    worker.turn();
    all
}

/// One that hears of a log of so many batches of 5000 bytes.
fn worker(batches: i64) -> Worker {
    let mut worker = Worker::new(OPTIONS);
    for _ in 0..batches {
        worker.append_silently("a:0", 1, 5000, |_| {});
    }
    worker.connect(2, true);
    worker.begin_as(2, &fetch(&[at(0, batches)]));
    worker.settle();
    worker
}

fn is_held(bytes: Vec<Shared>) -> bool {
    bytes.into_iter().any(|bytes| bytes.into_vec().is_err())
}

#[test]
fn what_is_taken_of_a_reply_much_larger_than_expected_keeps_none_of_the_rest() {
    for (others, is_kept) in [(0, true), (20_000, true), (80_000, false)] {
        let mut worker = worker(2);
        worker.begin(&Fetch { bytes_min: 1 << 20, ..fetch(&[at(0, 0)]) });
        // The first batch alone, then the other one.
        let first = worker.calls.pop_front().unwrap();
        worker.reply(&first);
        let second = worker.calls.pop_front().unwrap();
        let bytes = reply_among(&mut worker, &second, others);
        assert_eq!((worker.flow.parked(), is_held(bytes)), (2, is_kept), "{others}");
    }
}

#[test]
fn parts_that_are_small_each_and_not_together_stay_where_they_lie() {
    let mut worker = worker(21);
    worker.begin(&Fetch { bytes_min: 1 << 20, ..fetch(&[at(0, 0)]) });
    let first = worker.calls.pop_front().unwrap();
    worker.reply(&first);
    let rest = worker.calls.pop_front().unwrap();
    let bytes = reply_among(&mut worker, &rest, 0);
    assert_eq!((worker.flow.parked(), is_held(bytes)), (2, true));
}

#[test]
fn what_is_read_ahead_keeps_nothing_that_came_with_it() {
    let mut worker = Worker::new(OPTIONS);
    for _ in 0..9 {
        worker.append_silently("a:0", 1, 1000, |_| {});
    }
    worker.begin(&fetch(&[Asks { bytes_max: 3000, ..at(0, 0) }]));
    while worker.answers.is_empty() {
        let call = worker.calls.pop_front().unwrap();
        worker.reply(&call);
    }
    let ahead = worker.calls.pop_front().unwrap();
    assert!(!is_held(reply_among(&mut worker, &ahead, 100_000)));
    worker.answers.clear();
    worker.ran();
    assert_eq!(worker.fetch(&fetch(&[at(0, 3)])).results[0].batches[0].offset, 3);
}

#[test]
fn what_was_read_of_a_partition_is_made_into_batches_before_more_is_read_of_others() {
    let mut worker = Worker::new(OPTIONS);
    for stream in ["a:0", "a:1", "a:0", "a:1"] {
        worker.append_silently(stream, 1, 5000, |_| {});
    }
    let number = worker.begin(&fetch(&[at(0, 0), at(1, 0)]));
    let is_done = |worker: &Worker| format!("{:?}", worker.flow).matches("is_done: true").count() == 1;
    while !is_done(&worker) {
        let call = worker.calls.pop_front().unwrap();
        worker.reply(&call);
    }
    assert_eq!(format!("{:?}", worker.flow).matches("collector: Some").count(), 1);
    worker.settle();
    assert!(worker.answer(number).results.iter().all(|result| result.offsets() == Some((0, 2))));
}

#[test]
fn what_others_got_of_what_is_read_ahead_is_forgotten_with_it() {
    let mut worker = Worker::new(OPTIONS);
    worker.connect(2, true);
    for _ in 0..200 {
        worker.append_silently("a:0", 1, 100, |_| {});
    }
    let (mut offset, mut known) = (0, Vec::new());
    for _ in 0..60 {
        let asks = fetch(&[Asks { bytes_max: 200, ..at(0, offset) }]);
        worker.fetch_as(1, &asks);
        (_, offset) = worker.fetch_as(2, &asks).results[0].offsets().unwrap();
        worker.pass(Duration::from_millis(200));
        known.push(format!("{:?}", worker.flow).matches("Start {").count());
    }
    assert!(known[59] > 0 && known[59] <= known[29], "{known:?}");
}

#[test]
fn requests_that_would_have_too_many_places_wait_do_not_wait() {
    let mut worker = Worker::new(OPTIONS);
    worker.owner.denied.insert("b");
    let asked = (0..LARGE).map(|index| at(index, 0)).collect();
    let large = Fetch { topics: vec![("a", vec![at(0, 0)]), ("b", asked)], ..fetch(&[]) };
    for number in 2..7 {
        worker.connect(number, false);
        worker.begin_as(number, &large);
        worker.settle();
    }
    assert_eq!((worker.flow.parked(), worker.answers.len()), (5, 0));
    worker.parked(&fetch(&[at(0, 0)]));
    worker.connect(7, false);
    let results = worker.fetch_as(7, &large).results;
    assert_eq!((results.len(), results[0].error), (LARGE as usize + 1, 0));
    worker.disconnect(2);
    worker.begin_as(7, &large);
    worker.settle();
    assert_eq!((worker.flow.parked(), worker.answers.len()), (6, 0));
}
