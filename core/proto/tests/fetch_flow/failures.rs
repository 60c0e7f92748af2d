//! Redis is away, or answers what it should not.

use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::client::Prevented;
use korvet_proto::fetch::{Event, Options};

use crate::support::{OPTIONS, Worker, refusal};
use crate::wire::{Asks, Fetch, Response, at, fetch};

const NOT_LEADER: i16 = 6;
const STORAGE: i16 = 56;
const CLUSTER: Options = Options { is_cluster: true, ..OPTIONS };

fn errors(response: &Response) -> Vec<i16> {
    response.results.iter().map(|result| result.error).collect()
}

#[test]
fn a_server_that_is_away_is_an_error_of_the_whole_request() {
    for kind in [Prevented::Away, Prevented::Unknown, Prevented::History, Prevented::Full, Prevented::Closed] {
        let mut worker = Worker::new(OPTIONS);
        let number = worker.begin(&fetch(&[at(0, 0), at(1, 0)]));
        while let Some(call) = worker.calls.pop_front() {
            worker.prevent(&call, kind);
        }
        let response = worker.answer(number);
        assert_eq!((response.error, errors(&response)), (STORAGE, vec![STORAGE; 2]));
        assert!(worker.flow.take_noted().away > 0);
    }
}

#[test]
fn a_server_that_refuses_is_as_one_that_is_away() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.begin(&fetch(&[at(0, 0)]));
    let call = worker.calls.pop_front().unwrap();
    worker.reply_error(&call, "LOADING Redis is loading the dataset in memory");
    assert_eq!(worker.answer(number).error, STORAGE);
}

#[test]
fn a_session_is_closed_whose_client_does_not_know_what_it_was_answered() {
    let mut worker = Worker::new(OPTIONS);
    let id = worker.fetch(&Fetch { session: (0, 0), wait_ms: 0, ..fetch(&[at(0, 0)]) }).session;
    let number = worker.begin(&Fetch { session: (id, 1), ..fetch(&[]) });
    let call = worker.calls.pop_front().unwrap();
    worker.prevent(&call, Prevented::Unknown);
    let response = worker.answer(number);
    assert_eq!((response.error, response.session), (STORAGE, 0));
    assert_eq!(worker.fetch(&Fetch { session: (id, 2), ..fetch(&[]) }).error, 70);
}

#[test]
fn a_node_that_is_away_is_an_error_of_its_partitions_alone() {
    let mut worker = Worker::new(CLUSTER);
    worker.append(1, 10);
    let number = worker.begin(&fetch(&[at(0, 0), at(1, 0), at(2, 0)]));
    while let Some(call) = worker.calls.pop_front() {
        if call.slot % 2 == 0 {
            worker.prevent(&call, Prevented::Away);
        } else {
            worker.reply(&call);
        }
    }
    let response = worker.answer(number);
    assert_eq!((errors(&response), response.results[1].offsets()), (vec![NOT_LEADER, 0, NOT_LEADER], Some((0, 1))));
}

#[test]
fn a_slot_that_no_node_has_is_an_error_of_its_partitions_and_lets_the_map_be_read() {
    let mut worker = Worker::new(CLUSTER);
    worker.servers.slots[1] = None;
    let response = worker.fetch(&fetch(&[at(0, 0), at(1, 0)]));
    assert_eq!(errors(&response), [0, NOT_LEADER]);
    assert!(matches!(worker.others[..], [Event::WantsMap]));
}

#[test]
fn a_state_that_cannot_be_is_an_error_of_its_partition() {
    let mut worker = Worker::new(OPTIONS);
    worker.append(1, 10);
    worker.redis.log("a:0").wrong = Some(b"x".to_vec());
    let response = worker.fetch(&fetch(&[at(0, 0), at(1, 0)]));
    assert_eq!((errors(&response), response.results[1].offsets()), (vec![STORAGE, 0], Some((0, 1))));
}

#[test]
fn what_was_read_before_an_error_is_served() {
    let mut worker = Worker::new(CLUSTER);
    for _ in 0..5 {
        worker.append_silently("a:0", 1, 1000, |_| {});
    }
    let number = worker.begin(&fetch(&[at(0, 0)]));
    let call = worker.calls.pop_front().unwrap();
    worker.reply(&call);
    let call = worker.calls.pop_front().unwrap();
    worker.prevent(&call, Prevented::Away);
    let response = worker.answer(number);
    assert_eq!((response.results[0].error, response.results[0].offsets()), (0, Some((0, 1))));
}

#[test]
fn no_answer_has_records_of_two_histories() {
    let mut worker = Worker::new(OPTIONS);
    for _ in 0..5 {
        worker.append_silently("a:0", 1, 1000, |_| {});
    }
    let number = worker.begin(&fetch(&[at(0, 0)]));
    let call = worker.calls.pop_front().unwrap();
    worker.reply(&call);
    // It has failed over before the second round is answered.
    worker.servers.histories[0] = "another".into();
    worker.redis.log("a:0").cut(0);
    worker.settle();
    let result = worker.answer(number).results.remove(0);
    assert_eq!((result.offsets(), result.high_watermark), (Some((0, 1)), 5));
}

#[test]
fn a_read_that_may_be_of_the_history_after_a_failover_is_fenced_before_it_is_out_of_range() {
    for offset in [0, 5] {
        let mut worker = Worker::new(OPTIONS);
        for _ in 0..5 {
            worker.append_silently("a:0", 1, 10, |_| {});
        }
        worker.fetch(&fetch(&[at(0, 0)]));
        worker.redis.log("a:0").cut(2);
        let number = worker.begin(&fetch(&[Asks { epoch: 1, ..at(0, offset) }]));
        // The connection was lost, and the read was sent over the next one.
        worker.servers.histories[0] = "another".into();
        worker.owner.decisions.push_back(refusal(ErrorCode::FencedLeaderEpoch));
        worker.settle();
        let result = worker.answer(number).results.remove(0);
        assert_eq!((result.error, result.offsets()), (ErrorCode::FencedLeaderEpoch as i16, None));
    }
}

#[test]
fn a_read_that_has_followed_its_slot_to_another_node_is_read_there() {
    let mut worker = Worker::new(Options { is_cluster: true, ..OPTIONS });
    worker.append_silently("a:0", 1, 10, |_| {});
    let number = worker.begin(&fetch(&[at(0, 0)]));
    worker.servers.slots[0] = Some(1);
    worker.settle();
    assert_eq!(worker.answer(number).results[0].offsets(), Some((0, 1)));
    assert_eq!(worker.ran().0, 2);
}

#[test]
fn a_search_that_fails_lets_the_log_be_read() {
    for is_cluster in [false, true] {
        let mut worker = Worker::new(Options { is_cluster, ..OPTIONS });
        let number = worker.parked(&fetch(&[at(0, 0)]));
        worker.now += Duration::from_millis(500);
        worker.flow.tick(&worker.servers, worker.now);
        worker.turn();
        let call = worker.calls.pop_front().unwrap();
        worker.prevent(&call, Prevented::Unknown);
        worker.settle();
        assert_eq!(errors(&worker.answer(number)), [0]);
    }
}

#[test]
fn entries_that_are_no_batches_are_passed_over_and_reported() {
    let mut worker = Worker::new(OPTIONS);
    worker.append(0, 10);
    worker.redis.log("a:0").append(1, &[("other", b"x")]);
    worker.append(0, 10);
    assert_eq!(worker.fetch(&fetch(&[at(0, 0)])).results[0].offsets(), Some((0, 3)));
    assert!(worker.others.iter().any(|event| matches!(event, Event::Foreign { count: 1, .. })));
}

#[test]
fn a_log_of_other_entries_alone_does_not_let_anybody_read_without_end() {
    let mut worker = Worker::new(OPTIONS);
    for _ in 0..50 {
        worker.redis.log("a:0").append(1, &[("other", b"x")]);
    }
    worker.begin(&fetch(&[at(0, 0)]));
    worker.settle();
    worker.pass(Duration::from_millis(500));
    let (_, response) = worker.answers.pop_front().unwrap();
    assert_eq!((errors(&response), response.results[0].batches.len()), (vec![0], 0));
    let (reads, bounds, searches) = worker.ran();
    assert!(reads + bounds + searches < 40, "{reads} {bounds} {searches}");
}
