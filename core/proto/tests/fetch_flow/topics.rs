//! Topics that are not there, are deleted, and come again.

use std::time::Duration;

use crate::support::{OPTIONS, Worker, partition};
use crate::wire::{Asks, Fetch, Response, at, fetch};

const UNKNOWN_NAME: i16 = 3;
const UNKNOWN_ID: i16 = 100;
const VERSIONS: [(i16, i16); 2] = [(12, UNKNOWN_NAME), (13, UNKNOWN_ID)];

/// A request for partitions of the topic `b`.
fn of_b(version: i16, asked: &[Asks]) -> Fetch {
    Fetch { version, topics: vec![("b", asked.to_vec())], ..fetch(&[]) }
}

fn errors(response: &Response) -> Vec<i16> {
    response.results.iter().map(|result| result.error).collect()
}

#[test]
fn a_partition_that_is_not_there_ends_no_wait_for_others() {
    for (version, code) in VERSIONS {
        let mut worker = Worker::new(OPTIONS);
        let number = worker.parked(&of_b(version, &[at(0, 0), at(99, 0)]));
        worker.pass(Duration::from_millis(500));
        let response = worker.answer(number);
        assert_eq!(errors(&response), [0, code]);
        assert_eq!((response.results[0].high_watermark, response.results[1].high_watermark), (0, -1));
        // Nothing else is asked for.
        assert_eq!(errors(&worker.fetch(&of_b(version, &[at(99, 0)]))), [code]);
    }
}

#[test]
fn who_waits_is_answered_that_the_topic_is_gone() {
    for (version, code) in VERSIONS {
        let mut worker = Worker::new(OPTIONS);
        let number = worker.parked(&of_b(version, &[at(0, 0), at(1, 0)]));
        worker.delete("b");
        worker.settle();
        let response = worker.answer(number);
        assert!(errors(&response).contains(&code), "{response:?}");
        assert!(errors(&response).iter().all(|error| [0, code].contains(error)));
    }
}

#[test]
fn a_topic_that_came_again_is_found_by_its_name_and_not_by_its_id() {
    for (version, code) in [(12, 0), (13, UNKNOWN_ID)] {
        let mut worker = Worker::new(OPTIONS);
        worker.fetch(&Fetch { wait_ms: 0, ..of_b(version, &[at(0, 0)]) });
        worker.delete("b");
        worker.create("b", 1);
        worker.append_silently("b:0", 1, 10, |_| {});
        let response = worker.fetch(&of_b(version, &[at(0, 0)]));
        assert_eq!(errors(&response), [code]);
        assert_eq!(response.results[0].offsets(), (code == 0).then_some((0, 1)));
        let response = worker.fetch(&Fetch { incarnation: 1, ..of_b(version, &[at(0, 0)]) });
        assert_eq!(response.results[0].offsets(), Some((0, 1)));
    }
}

#[test]
fn a_topic_that_redis_does_not_know_and_the_owner_knows_still_is_an_error() {
    for (version, code) in VERSIONS {
        let mut worker = Worker::new(OPTIONS);
        worker.redis.logs.remove("b:0");
        assert_eq!(errors(&worker.fetch(&of_b(version, &[at(0, 0)]))), [code]);
    }
}

#[test]
fn who_waits_for_a_topic_that_came_again_hears_of_it() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_silently("b:0", 5, 10, |_| {});
    worker.parked(&of_b(12, &[at(0, 5)]));
    worker.announce("b:0");
    worker.pass(Duration::from_millis(500));
    worker.answers.clear();
    // Nobody has heard of this, and the channel is the same.
    worker.redis.logs.clear();
    worker.create("b", 1);
    worker.fetch(&of_b(12, &[at(0, 0)]));
    let number = worker.parked(&of_b(12, &[at(0, 0)]));
    worker.append_silently("b:0", 1, 10, |_| {});
    worker.announce("b:0");
    worker.settle();
    assert_eq!(worker.answer(number).results[0].offsets(), Some((0, 1)));
}

#[test]
fn an_append_to_a_topic_that_came_again_wakes_though_one_to_the_last_is_heard_of_late() {
    let mut worker = Worker::new(OPTIONS);
    worker.create("b", 1);
    let parked = |worker: &mut Worker| {
        let number = worker.begin(&Fetch { incarnation: 1, wait_ms: 5000, ..of_b(13, &[at(0, 0)]) });
        worker.settle();
        assert_eq!(worker.flow.parked(), 1);
        number
    };
    let number = parked(&mut worker);
    for (incarnation, end) in [(0, 9), (1, 1)] {
        if incarnation == 1 {
            worker.append_silently("b:0", 1, 10, |_| {});
        }
        worker.flow.appended(&partition("b", incarnation, 0), end, &worker.servers, worker.now);
        worker.turn();
        worker.settle();
    }
    assert_eq!(worker.answer(number).results[0].offsets(), Some((0, 1)));
}

#[test]
fn no_answer_has_records_of_two_incarnations() {
    let mut worker = Worker::new(OPTIONS);
    for _ in 0..40 {
        worker.append_silently("b:0", 1, 1000, |_| {});
    }
    let number = worker.begin(&of_b(12, &[at(0, 0)]));
    let call = worker.calls.pop_front().unwrap();
    worker.reply(&call);
    // The first round is over, and Redis runs the second after this.
    let second = worker.calls.pop_front().unwrap();
    worker.redis.logs.clear();
    worker.create("b", 1);
    for _ in 0..40 {
        worker.append_silently("b:0", 1, 10, |_| {});
    }
    // What a read of the old incarnation is answered now.
    let gone = [b"*2\r\n*8\r\n$2\r\nb1\r\n".to_vec(), b"$-1\r\n".repeat(7), b"*0\r\n".to_vec()].concat();
    let mut replies = second.replies.clone();
    *replies.last_mut().unwrap() = gone;
    worker.reply(&crate::support::Call { replies, ..second });
    worker.settle();
    let result = worker.answer(number).results.remove(0);
    assert_eq!((result.error, result.offsets()), (0, Some((0, 1))));
    assert!(result.batches[0].rest.len() > 1000);
}

#[test]
fn a_session_follows_a_topic_that_comes_again() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_silently("b:0", 3, 10, |_| {});
    let asks = Fetch { session: (0, 0), wait_ms: 0, ..of_b(12, &[at(0, 3)]) };
    let id = worker.fetch(&asks).session;
    let mut epoch = 0;
    let mut next = |worker: &mut Worker, asked: &[Asks]| {
        epoch += 1;
        let topics = if asked.is_empty() { Vec::new() } else { vec![("b", asked.to_vec())] };
        worker.begin(&Fetch { session: (id, epoch), topics, ..of_b(12, &[]) })
    };
    let number = next(&mut worker, &[]);
    worker.settle();
    worker.delete("b");
    worker.settle();
    assert_eq!(errors(&worker.answer(number)), [UNKNOWN_NAME]);
    worker.create("b", 1);
    let number = next(&mut worker, &[at(0, 0)]);
    worker.settle();
    worker.pass(Duration::from_millis(500));
    let result = worker.answer(number).results.remove(0);
    assert_eq!((result.error, result.high_watermark), (0, 0));
    let number = next(&mut worker, &[]);
    worker.settle();
    worker.append_silently("b:0", 1, 10, |_| {});
    worker.announce("b:0");
    worker.settle();
    assert_eq!(worker.answer(number).results[0].offsets(), Some((0, 1)));
}

#[test]
fn another_incarnation_in_the_table_is_found_by_the_next_request_of_a_session() {
    let mut worker = Worker::new(OPTIONS);
    let id = worker.fetch(&Fetch { session: (0, 0), wait_ms: 0, ..of_b(12, &[at(0, 0)]) }).session;
    let asks = |epoch: i32| Fetch { session: (id, epoch), topics: Vec::new(), ..of_b(12, &[]) };
    for epoch in 1..3 {
        worker.parked(&asks(epoch));
        worker.pass(Duration::from_millis(500));
        worker.answers.clear();
    }
    worker.redis.logs.clear();
    worker.create("b", 1);
    worker.append_silently("b:0", 1, 10, |_| {});
    worker.flow.put_partition(partition("b", 1, 0));
    assert_eq!(worker.fetch(&asks(3)).results[0].offsets(), Some((0, 1)));
}
