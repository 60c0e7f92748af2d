//! Waiting for records: what wakes a request, how its wait ends, and what is listened to.

use std::time::Duration;

use crate::support::{LINGER, MS, OPTIONS, Worker};
use crate::wire::{Fetch, at, fetch};

const WAIT: Duration = Duration::from_millis(500);

#[test]
fn what_is_there_is_answered_at_once() {
    let mut worker = Worker::new(OPTIONS);
    worker.append(0, 10);
    let response = worker.fetch(&fetch(&[at(0, 0)]));
    assert_eq!(response.results[0].offsets(), Some((0, 1)));
    assert_eq!((worker.flow.count(), worker.flow.due()), (0, None));
}

#[test]
fn the_time_of_a_request_is_divided_into_its_stages() {
    let mut worker = Worker::new(OPTIONS);
    worker.append(0, 10);
    worker.fetch(&fetch(&[at(0, 0)]));
    worker.flow.take_noted();
    worker.sends_after = 3 * MS;
    worker.begin(&fetch(&[at(0, 0)]));
    worker.now += 10 * MS;
    worker.settle();
    worker.flow.note_written(1, worker.now + MS);
    let answered = worker.flow.take_noted().answered;
    assert_eq!(answered[0].stages, [Duration::ZERO, 3 * MS, 7 * MS, Duration::ZERO, MS]);
    assert_eq!(answered[0].whole, 11 * MS);
}

#[test]
fn an_append_wakes_who_waits_at_the_end_of_that_log_and_that_alone_is_read() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.parked(&fetch(&[at(0, 0), at(1, 0), at(2, 0)]));
    worker.ran();
    worker.append(1, 10);
    worker.settle();
    let response = worker.answer(number);
    assert_eq!(response.results.iter().map(|result| result.batches.len()).collect::<Vec<_>>(), [0, 1, 0]);
    assert_eq!(worker.ran(), (1, 0, 0));
    assert_eq!(worker.flow.parked(), 0);
}

#[test]
fn an_append_between_the_read_and_the_first_announcement_that_is_heard_wakes_as_well() {
    let mut worker = Worker::new(OPTIONS);
    worker.is_prompt = false;
    let number = worker.begin(&fetch(&[at(0, 0)]));
    for request in std::mem::take(&mut worker.asking) {
        worker.decide(request);
    }
    worker.turn();
    worker.settle();
    assert_eq!((worker.flow.parked(), &worker.asked[..]), (1, &["a:0".to_owned()][..]));
    worker.append(0, 10);
    worker.settle();
    assert!(worker.answers.is_empty(), "nobody has heard of it");
    worker.live("a:0");
    worker.turn();
    worker.settle();
    assert_eq!(worker.answer(number).results[0].offsets(), Some((0, 1)));
}

#[test]
fn an_append_while_the_log_is_read_is_read_as_well() {
    let mut worker = Worker::new(OPTIONS);
    let first = worker.parked(&fetch(&[at(0, 0)]));
    worker.connect(2, true);
    let second = worker.begin_as(2, &fetch(&[at(0, 0)]));
    let call = worker.calls.pop_front().unwrap();
    worker.append(0, 10);
    worker.settle();
    assert_eq!(worker.answer(first).results[0].offsets(), Some((0, 1)));
    worker.reply(&call);
    worker.settle();
    assert_eq!(worker.answer(second).results[0].offsets(), Some((0, 1)));
}

#[test]
fn an_append_that_was_read_already_wakes_nobody() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_silently("a:0", 1, 10, |_| {});
    worker.parked(&fetch(&[at(0, 1)]));
    worker.ran();
    worker.announce("a:0");
    assert_eq!((worker.ran(), worker.flow.parked()), ((0, 0, 0), 1));
}

#[test]
fn what_was_announced_of_a_log_that_was_cut_since_is_not_read_again_and_again() {
    let mut worker = Worker::new(OPTIONS);
    worker.parked(&fetch(&[at(0, 0)]));
    let (servers, now) = (&worker.servers, worker.now);
    worker.flow.announced("a:0", 100, servers, now);
    worker.turn();
    worker.settle();
    assert_eq!((worker.answers.len(), worker.flow.parked()), (0, 1));
}

#[test]
fn an_append_to_a_log_that_was_cut_wakes_though_it_ends_before_what_was_announced() {
    let mut worker = Worker::new(OPTIONS);
    worker.parked(&fetch(&[at(0, 0)]));
    for _ in 0..9 {
        worker.append(0, 10);
    }
    worker.settle();
    worker.answers.clear();
    worker.redis.log("a:0").cut(5);
    let number = worker.parked(&fetch(&[at(0, 5)]));
    worker.append(0, 10);
    worker.settle();
    assert_eq!(worker.answer(number).results[0].offsets(), Some((5, 6)));
}

#[test]
fn a_request_waits_until_it_has_as_many_bytes_as_it_wants() {
    let mut worker = Worker::new(OPTIONS);
    let mut asks = fetch(&[at(0, 0), at(1, 0)]);
    asks.bytes_min = 500;
    worker.append(0, 100);
    let number = worker.parked(&asks);
    worker.append(0, 100);
    worker.settle();
    assert!(worker.answers.is_empty());
    worker.append(1, 100);
    worker.settle();
    let results = worker.answer(number).results;
    assert_eq!((results[0].offsets(), results[1].offsets()), (Some((0, 2)), Some((0, 1))));
}

#[test]
fn below_that_it_is_answered_with_what_there_is_at_the_end_of_its_time() {
    let mut worker = Worker::new(OPTIONS);
    let mut asks = fetch(&[at(0, 0)]);
    asks.bytes_min = 10_000;
    worker.append(0, 100);
    let number = worker.parked(&asks);
    worker.pass(499 * MS);
    assert!(worker.answers.is_empty());
    worker.pass(MS);
    assert_eq!(worker.answer(number).results[0].offsets(), Some((0, 1)));
}

#[test]
fn a_request_that_wants_nothing_or_has_no_time_does_not_wait() {
    for (wait_ms, bytes_min) in [(0, 1), (-1, 1), (500, 0), (500, -1)] {
        let mut worker = Worker::new(OPTIONS);
        let mut asks = fetch(&[at(0, 0)]);
        (asks.wait_ms, asks.bytes_min) = (wait_ms, bytes_min);
        let response = worker.fetch(&asks);
        assert_eq!((response.results[0].batches.len(), response.results[0].high_watermark), (0, 0));
        assert_eq!(worker.ran().2, 0);
    }
}

#[test]
fn nobody_waits_longer_than_a_connection_may_say_nothing() {
    let mut worker = Worker::new(korvet_proto::fetch::Options { wait_max: Some(100 * MS), ..OPTIONS });
    let number = worker.parked(&fetch(&[at(0, 0)]));
    worker.pass(100 * MS);
    worker.answer(number);
}

#[test]
fn at_the_end_of_a_wait_in_vain_quiet_logs_are_searched_and_not_read() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.parked(&fetch(&[at(0, 0), at(1, 0)]));
    worker.ran();
    worker.pass(WAIT);
    assert_eq!(worker.ran(), (0, 0, 2));
    assert_eq!(worker.answer(number).results.len(), 2);
}

#[test]
fn what_nobody_has_announced_is_found_at_the_end_of_a_wait() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.parked(&fetch(&[at(0, 0), at(1, 0)]));
    worker.append_silently("a:1", 1, 10, |_| {});
    worker.ran();
    worker.pass(WAIT);
    let results = worker.answer(number).results;
    assert_eq!((results[0].offsets(), results[1].offsets()), (None, Some((0, 1))));
    assert_eq!(worker.ran(), (1, 0, 2));
}

#[test]
fn logs_that_another_has_searched_meanwhile_are_not_searched_again() {
    let mut worker = Worker::new(OPTIONS);
    worker.connect(2, true);
    worker.begin(&fetch(&[at(0, 0)]));
    worker.pass(100 * MS);
    worker.begin_as(2, &fetch(&[at(0, 0)]));
    worker.settle();
    worker.ran();
    worker.pass(WAIT);
    assert_eq!((worker.answers.len(), worker.ran()), (2, (0, 0, 1)));
}

#[test]
fn what_another_has_read_that_nobody_announced_is_found_all_the_same() {
    let mut worker = Worker::new(OPTIONS);
    worker.connect(2, true);
    let first = worker.parked(&Fetch { wait_ms: 5000, ..fetch(&[at(0, 0)]) });
    worker.begin_as(2, &fetch(&[at(0, 0)]));
    worker.settle();
    worker.append_silently("a:0", 1, 10, |_| {});
    worker.pass(600 * MS);
    let (_, response) = worker.answers.pop_front().unwrap();
    assert_eq!(response.results[0].offsets(), Some((0, 1)));
    // It looks at the log again, from where it has come to on.
    worker.begin_as(2, &fetch(&[at(0, 1)]));
    worker.settle();
    worker.pass(600 * MS);
    assert_eq!(worker.answers.pop_front().unwrap().1.results[0].offsets(), None);
    worker.pass(Duration::from_secs(4));
    assert_eq!(worker.answer(first).results[0].offsets(), Some((0, 1)));
}

#[test]
fn after_a_long_wait_all_is_read_for_the_log_may_start_elsewhere() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_silently("a:0", 3, 10, |_| {});
    let mut asks = fetch(&[at(0, 3)]);
    asks.wait_ms = 10_000;
    let number = worker.parked(&asks);
    worker.redis.log("a:0").delete_until(3);
    worker.pass(Duration::from_secs(10));
    assert_eq!(worker.answer(number).results[0].start, 3);
}

#[test]
fn a_request_whose_reads_took_all_of_its_time_is_answered_with_them() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.begin(&fetch(&[at(0, 0)]));
    worker.now += WAIT;
    worker.settle();
    assert_eq!(worker.answer(number).results[0].high_watermark, 0);
    assert_eq!(worker.ran(), (1, 0, 0));
}

#[test]
fn announcements_that_may_be_lost_let_the_log_be_read_again() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.parked(&fetch(&[at(0, 0)]));
    worker.interrupt("a:0");
    worker.is_prompt = false;
    worker.append(0, 10);
    worker.settle();
    assert!(worker.answers.is_empty());
    worker.live("a:0");
    worker.turn();
    worker.settle();
    assert_eq!(worker.answer(number).results[0].offsets(), Some((0, 1)));
}

#[test]
fn a_log_is_listened_to_once_for_all_who_wait_and_a_while_longer() {
    let mut worker = Worker::new(OPTIONS);
    for number in 2..5 {
        worker.connect(number, true);
        worker.begin_as(number, &fetch(&[at(0, 0)]));
    }
    worker.settle();
    assert_eq!((worker.heard.len(), worker.flow.parked()), (1, 3));
    worker.append(0, 10);
    worker.settle();
    assert_eq!((worker.answers.len(), worker.heard.len()), (3, 1));
    worker.pass(LINGER);
    assert_eq!((worker.heard.len(), worker.flow.due()), (0, None));
}

#[test]
fn who_comes_again_in_time_finds_the_log_listened_to() {
    let mut worker = Worker::new(OPTIONS);
    let mut asks = fetch(&[at(0, 0)]);
    asks.wait_ms = 4000;
    for _ in 0..5 {
        let number = worker.parked(&asks);
        worker.pass(4000 * MS);
        worker.answer(number);
        assert_eq!(worker.heard.len(), 1);
    }
    worker.pass(LINGER);
    assert!(worker.heard.is_empty());
}

#[test]
fn a_log_that_cannot_be_listened_to_is_an_error_of_its_partition_and_ends_the_wait() {
    let options = korvet_proto::fetch::Options { is_cluster: true, ..OPTIONS };
    let mut worker = Worker::new(options);
    let number = worker.parked(&fetch(&[at(0, 0), at(1, 0)]));
    worker.connect(2, true);
    worker.begin_as(2, &fetch(&[at(1, 0)]));
    worker.settle();
    let (servers, now) = (&worker.servers, worker.now);
    worker.flow.failed("a:0", "away", servers, now);
    worker.turn();
    worker.settle();
    let results = worker.answer(number).results;
    assert_eq!((results[0].error, results[1].error), (6, 0));
    assert_eq!(worker.flow.parked(), 1, "who reads of other nodes waits on");
    worker.heard.remove("a:0");
    worker.parked(&fetch(&[at(0, 0)]));
    assert!(worker.heard.contains("a:0"), "the next request has it listened to once more");
}

#[test]
fn a_drain_ends_each_wait_and_nobody_waits_after_it() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.parked(&fetch(&[at(0, 0)]));
    let (servers, now) = (&worker.servers, worker.now);
    worker.flow.drain(servers, now);
    worker.turn();
    worker.settle();
    assert_eq!(worker.answer(number).results.len(), 1);
    worker.fetch(&fetch(&[at(0, 0)]));
    assert_eq!(worker.flow.parked(), 0);
}

#[test]
fn a_client_that_goes_while_it_waits_leaves_nothing_behind() {
    let mut worker = Worker::new(OPTIONS);
    worker.parked(&fetch(&[at(0, 0)]));
    worker.disconnect(1);
    worker.append(0, 10);
    worker.settle();
    assert_eq!((worker.flow.count(), worker.flow.parked(), worker.answers.len()), (0, 0, 0));
    worker.pass(LINGER);
    assert_eq!((worker.heard.len(), worker.flow.due()), (0, None));
}

#[test]
fn a_client_that_goes_while_its_logs_are_read_leaves_nothing_behind() {
    let mut worker = Worker::new(OPTIONS);
    let room = worker.flow.room();
    worker.append(0, 10);
    worker.begin(&fetch(&[at(0, 0), at(1, 0)]));
    assert!(worker.flow.room() < room);
    worker.disconnect(1);
    worker.settle();
    assert_eq!((worker.flow.count(), worker.answers.len(), worker.flow.room()), (0, 0, room));
}

#[test]
fn deciding_twice_changes_nothing() {
    let mut worker = Worker::new(OPTIONS);
    worker.is_prompt = false;
    worker.begin(&fetch(&[at(0, 0)]));
    let request = worker.asking.pop().unwrap();
    worker.decide(request);
    worker.turn();
    worker.settle();
    let (servers, now) = (&worker.servers, worker.now);
    worker.flow.decide(request, Vec::new(), servers, now);
    assert_eq!(worker.flow.parked(), 1);
    worker.disconnect(1);
    assert_eq!(worker.flow.parked(), 0);
}
