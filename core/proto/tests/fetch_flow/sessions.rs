//! Sessions (KIP-227): the partitions that a request without names reads, and its response.

use std::time::Duration;

use korvet_proto::fetch::Options;
use korvet_proto::fetch::session::EVICTION;

use crate::support::{LINGER, MS, OPTIONS, Worker};
use crate::wire::{Asks, Fetch, Response, at, fetch};

const WAIT: Duration = Duration::from_millis(500);
/// How old bounds may be.
const AGE: Duration = Duration::from_secs(10);
const NOT_FOUND: i16 = 70;

/// A client with a session.
struct Client {
    id: i32,
    epoch: i32,
    wait_ms: i32,
}

impl Client {
    /// One whose session has these partitions, which were read once, and once in it.
    fn new(worker: &mut Worker, asked: &[Asks]) -> Self {
        let (mut client, _) = Self::created(worker, &Fetch { wait_ms: 0, ..fetch(asked) });
        client.fetch(worker, &[]);
        client.wait_ms = 500;
        client
    }

    fn created(worker: &mut Worker, asks: &Fetch) -> (Self, Response) {
        let response = worker.fetch(&Fetch { session: (0, 0), ..asks.clone() });
        assert_ne!(response.session, 0);
        (Self { id: response.session, epoch: 0, wait_ms: asks.wait_ms }, response)
    }

    fn asks(&mut self, asked: &[Asks]) -> Fetch {
        self.epoch += 1;
        Fetch { session: (self.id, self.epoch), wait_ms: self.wait_ms, ..fetch(asked) }
    }

    fn fetch(&mut self, worker: &mut Worker, asked: &[Asks]) -> Response {
        let asks = self.asks(asked);
        let response = worker.fetch(&asks);
        assert_eq!((response.error, response.session), (0, self.id));
        response
    }

    fn parked(&mut self, worker: &mut Worker, asked: &[Asks]) -> u64 {
        let asks = self.asks(asked);
        worker.parked(&asks)
    }
}

/// The partitions that are answered.
fn indexes(response: &Response) -> Vec<i32> {
    response.results.iter().map(|result| result.index).collect()
}

#[test]
fn what_is_quiet_is_not_read_again_and_not_answered() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0), at(1, 0)]);
    worker.ran();
    // What was read before it was listened to is read once more.
    let number = client.parked(&mut worker, &[]);
    worker.pass(WAIT);
    assert_eq!(worker.answer(number).results, []);
    worker.ran();
    let number = client.parked(&mut worker, &[]);
    assert_eq!(worker.ran(), (0, 0, 0));
    worker.pass(WAIT);
    assert_eq!(worker.ran(), (0, 0, 2));
    assert_eq!(worker.answer(number).results, []);
}

#[test]
fn what_was_announced_between_two_requests_is_read_by_the_second() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0), at(1, 0), at(2, 0)]);
    let number = client.parked(&mut worker, &[]);
    worker.pass(WAIT);
    worker.answer(number);
    worker.append(1, 10);
    worker.ran();
    let response = client.fetch(&mut worker, &[]);
    assert_eq!((indexes(&response), response.results[0].offsets()), (vec![1], Some((0, 1))));
    assert_eq!(worker.ran(), (1, 0, 0));
    // It has no other offset, and is answered again.
    assert_eq!(indexes(&client.fetch(&mut worker, &[])), [1]);
}

#[test]
fn what_is_announced_wakes_a_request_that_did_not_read_it() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0), at(1, 0)]);
    for round in 0..3 {
        let number = client.parked(&mut worker, &[at(1, round)]);
        worker.append(1, 10);
        worker.settle();
        let response = worker.answer(number);
        assert_eq!((indexes(&response), response.results[0].offsets()), (vec![1], Some((round, round + 1))));
    }
}

#[test]
fn a_search_in_vain_answers_nothing_about_what_it_has_searched() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0), at(1, 0)]);
    for _ in 0..4 {
        let number = client.parked(&mut worker, &[]);
        worker.append_silently("b:0", 1, 10, |_| {});
        worker.pass(WAIT);
        assert_eq!(worker.answer(number).results, []);
    }
    worker.append_silently("a:1", 1, 10, |_| {});
    let number = client.parked(&mut worker, &[]);
    worker.pass(WAIT);
    assert_eq!(indexes(&worker.answer(number)), [1]);
}

#[test]
fn what_nobody_announced_is_found_though_others_never_let_a_request_wait() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0), at(1, 0)]);
    worker.append_silently("a:1", 1, 10, |_| {});
    let mut answered = Vec::new();
    for offset in 0..8 {
        worker.append(0, 10);
        worker.pass(100 * MS);
        answered.extend(indexes(&client.fetch(&mut worker, &[at(0, offset)])));
    }
    assert!(answered.contains(&1));
}

#[test]
fn a_log_start_that_moves_is_answered_within_the_age_of_bounds_though_nothing_else_happens() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_silently("a:0", 3, 10, |_| {});
    let mut client = Client::new(&mut worker, &[at(0, 3)]);
    worker.redis.log("a:0").delete_until(3);
    let begun = worker.now;
    let response = loop {
        let number = client.parked(&mut worker, &[]);
        worker.pass(WAIT);
        let response = worker.answer(number);
        if !response.results.is_empty() {
            break response;
        }
        assert!(worker.now < begun + AGE + WAIT);
    };
    assert_eq!(response.results[0].start, 3);
}

#[test]
fn without_a_wait_all_is_read() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_silently("a:0", 3, 10, |_| {});
    let mut client = Client::new(&mut worker, &[at(0, 3), at(1, 0)]);
    client.wait_ms = 0;
    worker.redis.log("a:0").delete_until(3);
    worker.ran();
    assert_eq!(client.fetch(&mut worker, &[]).results[0].start, 3);
    assert_eq!(worker.ran(), (2, 0, 0));
}

#[test]
fn one_that_always_has_records_does_not_use_up_what_the_others_may_have() {
    let mut worker = Worker::new(OPTIONS);
    for _ in 0..50 {
        worker.append(0, 1000);
        worker.append(1, 1000);
    }
    let (mut client, _) = Client::created(&mut worker, &fetch(&[at(0, 0), at(1, 0)]));
    let mut answered = Vec::new();
    for _ in 0..4 {
        let asks = Fetch { bytes_max: 2000, ..client.asks(&[]) };
        let results = worker.fetch(&asks).results;
        answered.push(results.iter().find(|result| !result.batches.is_empty()).unwrap().index);
    }
    assert_eq!(answered, [0, 1, 0, 1]);
}

#[test]
fn a_channel_that_fails_between_two_requests_is_listened_to_again_by_the_next() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0)]);
    let number = client.parked(&mut worker, &[]);
    worker.pass(WAIT);
    worker.answer(number);
    worker.heard.remove("a:0");
    let (servers, now) = (&worker.servers, worker.now);
    worker.flow.failed("a:0", "away", servers, now);
    let number = client.parked(&mut worker, &[]);
    worker.append(0, 10);
    worker.settle();
    assert_eq!(indexes(&worker.answer(number)), [0]);
}

#[test]
fn what_a_request_was_answered_without_is_read_by_the_next() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0), at(1, 0)]);
    let number = client.parked(&mut worker, &[]);
    worker.pass(WAIT);
    worker.answer(number);
    let asks = client.asks(&[at(0, 0)]);
    let number = worker.begin(&asks);
    worker.append(1, 10);
    worker.heard.remove("a:0");
    let (servers, now) = (&worker.servers, worker.now);
    worker.flow.failed("a:0", "away", servers, now);
    worker.settle();
    let results = worker.answer(number).results;
    assert_eq!(results.iter().map(|result| (result.index, result.error)).collect::<Vec<_>>(), [(0, 56)]);
    let response = client.fetch(&mut worker, &[]);
    let read = response.results.iter().find(|result| result.index == 1).unwrap();
    assert_eq!((read.offsets(), read.high_watermark), (Some((0, 1)), 1));
}

#[test]
fn what_is_not_listened_to_is_read_by_each_request() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0)]);
    worker.interrupt("a:0");
    worker.is_prompt = false;
    let number = client.parked(&mut worker, &[]);
    worker.pass(WAIT);
    worker.answer(number);
    worker.append(0, 10);
    assert_eq!(indexes(&client.fetch(&mut worker, &[])), [0]);
}

#[test]
fn announcements_between_requests_take_no_memory() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0), at(1, 0)]);
    let number = client.parked(&mut worker, &[]);
    worker.pass(WAIT);
    worker.answer(number);
    for _ in 0..50 {
        worker.append(0, 10);
        worker.append(1, 10);
    }
    worker.ran();
    assert_eq!(indexes(&client.fetch(&mut worker, &[])), [0, 1]);
}

#[test]
fn a_session_that_ends_under_a_request_is_woken_still_and_not_gone_on_with() {
    let mut worker = Worker::new(Options { sessions_max: 1, ..OPTIONS });
    let mut client = Client::new(&mut worker, &[at(0, 0)]);
    worker.pass(EVICTION + MS);
    let number = client.parked(&mut worker, &[]);
    // It is old, and smaller than another.
    worker.connect(2, true);
    let asks = Fetch { session: (0, 0), wait_ms: 0, ..fetch(&[at(1, 0), at(2, 0)]) };
    assert_ne!(worker.fetch_as(2, &asks).session, 0);
    worker.append(0, 10);
    worker.settle();
    let response = worker.answer(number);
    assert_eq!((response.session, response.results[0].offsets()), (client.id, Some((0, 1))));
    let asks = client.asks(&[]);
    assert_eq!(worker.fetch(&asks).error, NOT_FOUND);
    worker.pass(LINGER);
    assert!(!worker.heard.contains("a:0"));
}

#[test]
fn a_session_that_ends_while_its_request_asks_lets_that_go_on() {
    let mut worker = Worker::new(Options { sessions_max: 1, ..OPTIONS });
    let mut client = Client::new(&mut worker, &[at(0, 0)]);
    worker.pass(EVICTION + MS);
    worker.flow.forget_topics();
    worker.is_prompt = false;
    let asks = client.asks(&[at(0, 0)]);
    let number = worker.begin(&asks);
    let request = worker.asking.pop().unwrap();
    worker.is_prompt = true;
    worker.connect(2, true);
    let asks = Fetch { session: (0, 0), wait_ms: 0, ..fetch(&[at(1, 0), at(2, 0)]) };
    assert_ne!(worker.fetch_as(2, &asks).session, 0);
    worker.append(0, 10);
    worker.decide(request);
    worker.turn();
    worker.settle();
    assert_eq!(worker.answer(number).results[0].offsets(), Some((0, 1)));
}

#[test]
fn a_session_ends_with_its_connection_and_leaves_nothing_behind() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0), at(1, 0)]);
    client.parked(&mut worker, &[]);
    worker.disconnect(1);
    worker.pass(LINGER);
    let counts = worker.flow.take_noted().sessions;
    assert_eq!((counts.sessions, counts.partitions), (0, 0));
    assert_eq!((worker.heard.len(), worker.flow.due(), worker.flow.count()), (0, None, 0));
}

#[test]
fn a_session_ends_by_a_full_request_or_without_partitions() {
    let mut worker = Worker::new(OPTIONS);
    for session in [(1, 0), (1, -1)] {
        let client = Client::new(&mut worker, &[at(0, 0)]);
        let asks = Fetch { session: (client.id, session.1), wait_ms: 0, ..fetch(&[at(0, 0)]) };
        assert_eq!(worker.fetch(&asks).session == 0, session.1 == -1);
        let asks = Fetch { session: (client.id, 2), ..fetch(&[]) };
        assert_eq!(worker.fetch(&asks).error, NOT_FOUND);
    }
    let mut client = Client::new(&mut worker, &[at(0, 0)]);
    // What is named is read, though it is forgotten at the same time and no session is left.
    let asks = Fetch { forgotten: vec![("a", vec![0, 1])], ..client.asks(&[at(1, 0)]) };
    worker.append(1, 10);
    let response = worker.fetch(&asks);
    assert_eq!((response.error, response.session, indexes(&response)), (0, 0, vec![1]));
    assert_eq!(response.results[0].offsets(), Some((0, 1)));
    let mut client = Client::new(&mut worker, &[at(0, 0)]);
    let asks = Fetch { forgotten: vec![("a", vec![0])], ..client.asks(&[]) };
    let response = worker.fetch(&asks);
    assert_eq!((response.error, response.session, response.results.len()), (0, 0, 0));
}

#[test]
fn a_request_that_begins_a_session_forgets_nothing() {
    let mut worker = Worker::new(OPTIONS);
    worker.append(2, 10);
    let asks = Fetch { forgotten: vec![("a", vec![0, 2])], wait_ms: 0, ..fetch(&[at(0, 0), at(1, 0), at(2, 1)]) };
    let (mut client, response) = Client::created(&mut worker, &asks);
    assert_eq!(indexes(&response), [0, 1, 2]);
    // All is as it was answered.
    assert_eq!(client.fetch(&mut worker, &[]).results, []);
    for index in [0, 1, 2] {
        worker.append(index, 10);
    }
    assert_eq!(indexes(&client.fetch(&mut worker, &[])), [0, 1, 2]);
}

#[test]
fn a_partition_that_is_forgotten_wakes_nobody() {
    let mut worker = Worker::new(OPTIONS);
    let mut client = Client::new(&mut worker, &[at(0, 0), at(1, 0)]);
    let number = client.parked(&mut worker, &[]);
    worker.pass(WAIT);
    worker.answer(number);
    let asks = Fetch { forgotten: vec![("a", vec![0])], ..client.asks(&[]) };
    worker.parked(&asks);
    worker.append(0, 10);
    worker.settle();
    assert_eq!((worker.answers.len(), worker.flow.parked()), (0, 1));
    worker.pass(LINGER);
    assert!(!worker.heard.contains("a:0"));
}

#[test]
fn an_error_is_answered_again_until_it_is_over_and_the_others_are_read() {
    let mut worker = Worker::new(OPTIONS);
    let (mut client, _) = Client::created(
        &mut worker,
        &Fetch { wait_ms: 0, topics: vec![("a", vec![at(0, 0)]), ("c", vec![at(0, 0)])], ..fetch(&[]) },
    );
    client.wait_ms = 500;
    for offset in 0..3 {
        worker.append(0, 10);
        let results = client.fetch(&mut worker, &[at(0, offset)]).results;
        let of: Vec<_> = results.iter().map(|result| (&*result.topic, result.error)).collect();
        assert_eq!(of.len(), 2);
        assert!(of.contains(&("a", 0)) && of.contains(&("c", 3)), "{of:?}");
    }
    worker.create("c", 0);
    let results = client.fetch(&mut worker, &[at(0, 2)]).results;
    assert!(results.iter().any(|result| (&*result.topic, result.error) == ("c", 0)));
}
