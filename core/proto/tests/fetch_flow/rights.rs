//! Rights of readers, brokers that follow others, and partitions named again.

use korvet_proto::ErrorCode;
use korvet_proto::access::Right;
use korvet_proto::fetch::{Decision, Question};

use crate::support::{OPTIONS, Worker, away, peer, refusal};
use crate::wire::{Fetch, Response, at, fetch};

const UNKNOWN: i16 = 3;
const NOT_LEADER: i16 = 6;
const DENIED: i16 = 29;
const STORAGE: i16 = 56;

/// A worker with a client 2 that may not do everything.
fn worker() -> Worker {
    let mut worker = Worker::new(OPTIONS);
    worker.connect(2, false);
    worker
}

fn both(wait_ms: i32) -> Fetch {
    Fetch { topics: vec![("a", vec![at(0, 0)]), ("b", vec![at(0, 0), at(1, 0)])], wait_ms, ..fetch(&[]) }
}

fn errors(response: &Response) -> Vec<i16> {
    response.results.iter().map(|result| result.error).collect()
}

#[test]
fn what_may_not_be_read_is_an_error_and_the_rest_is_served() {
    let mut worker = worker();
    worker.owner.denied.insert("b");
    worker.append(0, 10);
    let response = worker.fetch_as(2, &both(500));
    assert_eq!(errors(&response), [0, DENIED, DENIED]);
    assert_eq!(response.results[0].offsets(), Some((0, 1)));
}

#[test]
fn a_name_that_no_topic_has_is_neither_looked_up_nor_asked_for() {
    let name: &'static str = "x".repeat(250).leak();
    for client in [1, 2] {
        let mut worker = worker();
        let response = worker.fetch_as(client, &Fetch { topics: vec![(name, vec![at(0, 0)])], ..fetch(&[]) });
        assert_eq!((errors(&response), worker.owner.asked.len()), (vec![UNKNOWN], 0));
    }
}

#[test]
fn who_may_read_nothing_is_answered_at_once() {
    let mut worker = worker();
    worker.owner.denied.extend(["a", "b"]);
    assert_eq!(errors(&worker.fetch_as(2, &both(500))), [DENIED; 3]);
}

#[test]
fn who_may_read_nothing_of_its_session_is_answered_at_once() {
    let mut worker = worker();
    let created = worker.fetch_as(2, &Fetch { session: (0, 0), ..both(0) });
    worker.owner.denied.extend(["a", "b"]);
    let asks = Fetch { session: (created.session, 1), topics: Vec::new(), ..both(500) };
    assert_eq!(errors(&worker.fetch_as(2, &asks)), [DENIED; 3]);
}

#[test]
fn a_right_is_asked_for_once_until_it_may_have_been_taken_away() {
    let mut worker = worker();
    worker.fetch_as(2, &both(0));
    worker.owner.asked.clear();
    for name in ["a", "b"] {
        worker.flow.grant(peer(2), Right::Topic(name.into()));
    }
    worker.fetch_as(2, &both(0));
    assert!(worker.owner.asked.is_empty());
    worker.flow.forget_rights();
    worker.fetch_as(2, &both(0));
    assert_eq!(worker.owner.asked.len(), 2);
    for name in ["a", "b"] {
        worker.flow.grant(peer(2), Right::Topic(name.into()));
    }
    worker.flow.trust_rights(worker.now);
    worker.owner.asked.clear();
    worker.fetch_as(2, &both(0));
    assert_eq!(worker.owner.asked.len(), 2);
}

#[test]
fn a_right_that_is_taken_away_is_missed_by_the_next_request_of_a_session_and_counts_when_it_is_given_again() {
    let mut worker = worker();
    let created = worker.fetch_as(2, &Fetch { session: (0, 0), ..both(0) });
    let asks = |epoch: i32| Fetch { session: (created.session, epoch), topics: Vec::new(), ..both(0) };
    assert_eq!(worker.fetch_as(2, &asks(1)).results.len(), 0);
    worker.owner.denied.insert("b");
    assert_eq!(errors(&worker.fetch_as(2, &asks(2))), [DENIED, DENIED]);
    assert_eq!(errors(&worker.fetch_as(2, &asks(3))), [DENIED, DENIED]);
    worker.owner.denied.clear();
    worker.append_silently("b:1", 1, 10, |_| {});
    let results = worker.fetch_as(2, &asks(4)).results;
    let found: Vec<_> = results.iter().map(|result| (result.index, result.error, result.batches.len())).collect();
    assert_eq!(found, [(0, 0, 0), (1, 0, 1)]);
}

#[test]
fn rights_that_nobody_knows_refuse_the_whole_request() {
    let mut worker = worker();
    worker.is_prompt = false;
    let number = worker.begin_as(2, &both(500));
    let request = worker.asking.pop().unwrap();
    let (servers, now) = (&worker.servers, worker.now);
    worker.flow.decide(request, vec![away(), Decision::Go], servers, now);
    worker.turn();
    let response = worker.answer(number);
    assert_eq!((response.error, errors(&response)), (STORAGE, vec![STORAGE; 3]));
}

#[test]
fn no_broker_is_a_follower_of_a_partition() {
    let mut worker = worker();
    worker.append(0, 10);
    worker.ran();
    for (from, wait_ms) in [(1, 500), (2, 500), (2, 0)] {
        let response = worker.fetch_as(from, &Fetch { replica_id: 3, ..both(wait_ms) });
        assert_eq!(errors(&response), [NOT_LEADER; 3]);
    }
    assert_eq!(worker.ran(), (0, 0, 0));
    let rights = worker.owner.asked.iter().filter(|question| matches!(question, Question::Right(_)));
    assert!(rights.eq(&[Question::Right(Right::Cluster), Question::Right(Right::Cluster)]));
}

#[test]
fn a_follower_is_refused_what_exists_and_the_rest_is_unknown_to_it() {
    let mut worker = worker();
    for session in [(0, -1), (0, 0)] {
        let topics = vec![("a", vec![at(0, 0)]), ("c", vec![at(0, 0)])];
        let response = worker.fetch_as(2, &Fetch { replica_id: 3, session, topics, ..both(500) });
        assert_eq!(errors(&response), [NOT_LEADER, UNKNOWN]);
        assert_eq!(worker.ran(), (0, 0, 0));
    }
}

#[test]
fn who_may_not_follow_reads_nothing_in_a_session_either() {
    for may_follow in [false, true] {
        let mut worker = worker();
        worker.owner.denied.extend(["a", "b"]);
        worker.append(0, 10);
        let asks = Fetch { session: (0, 0), ..both(0) };
        let created = worker.fetch_as(2, &asks);
        let decision = if may_follow { Decision::Go } else { refusal(ErrorCode::TopicAuthorizationFailed) };
        worker.owner.decisions.push_back(decision);
        let asks = Fetch { replica_id: 3, session: (created.session, 1), topics: Vec::new(), ..both(500) };
        let expected = if may_follow { NOT_LEADER } else { DENIED };
        assert_eq!(errors(&worker.fetch_as(2, &asks)), [expected; 3]);
        assert_eq!(worker.ran(), (0, 0, 0));
    }
}

#[test]
fn a_partition_that_is_named_again_is_read_as_it_was_named_last() {
    let mut worker = Worker::new(OPTIONS);
    for _ in 0..3 {
        worker.append(0, 10);
    }
    let topics = vec![("a", vec![at(0, 0), at(1, 0), at(0, 1)]), ("b", vec![at(0, 0)]), ("a", vec![at(0, 2)])];
    let read = |response: &Response| -> Vec<_> {
        response.results.iter().map(|result| (result.topic.clone(), result.index, result.offsets())).collect()
    };
    let all = [("a".into(), 0, Some((2, 3))), ("a".into(), 1, None), ("b".into(), 0, None)];
    let response = worker.fetch(&Fetch { topics: topics.clone(), ..fetch(&[]) });
    assert_eq!(read(&response), all);
    let response = worker.fetch(&Fetch { session: (0, 0), topics, ..fetch(&[]) });
    assert_eq!(read(&response), all);
    let asks = Fetch { session: (response.session, 1), ..fetch(&[at(0, 0), at(0, 1)]) };
    assert_eq!(read(&worker.fetch(&asks)), [("a".into(), 0, Some((1, 3)))]);
}

#[test]
fn a_request_that_is_malformed_closes_its_connection() {
    let mut worker = Worker::new(OPTIONS);
    let mut frame = fetch(&[at(0, 0)]).bytes();
    frame.truncate(30);
    let incoming = korvet_proto::serving::Incoming { number: 1, frame: frame.into(), arrived: worker.now, late: None };
    worker.flow.begin(peer(1), &incoming, &worker.servers, worker.now);
    worker.turn();
    assert_eq!((worker.closed.len(), worker.flow.count()), (1, 0));
}
