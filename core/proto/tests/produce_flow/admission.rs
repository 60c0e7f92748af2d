//! What is to be known before a request is sent.

use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::access::{Right, Session};
use korvet_proto::partition::Layout;
use korvet_proto::partition::TopicName;
use korvet_proto::produce::{Decision, Event, Question};
use korvet_proto::serving::Incoming;
use korvet_proto::shared::Shared;

use crate::support::{Frame, Got, OPTIONS, Worker, batch, partition, peer, plain, refusal, request, verdicts};

fn of_topics(transactional_id: Option<&'static str>, names: &[&'static str]) -> Vec<u8> {
    let batches = || vec![(0, Some(batch(|header| header)))];
    let topics = names.iter().map(|name| (*name, batches())).collect();
    Frame { transactional_id, acks: 1, topics }.bytes()
}

fn topic(name: &str) -> Question {
    Question::Right(Right::Topic(name.into()))
}

/// A worker with a client 2 that has no rights yet.
fn guarded() -> Worker {
    let mut worker = Worker::new(OPTIONS);
    worker.flow.put_session(peer(2), Session::default());
    worker
}

#[test]
fn a_client_without_rights_is_asked_about_by_topic() {
    let mut worker = guarded();
    worker.flow.put_partition(partition("b", 2, 0, Layout::Batch));
    let number = worker.begin(2, of_topics(None, &["a", "b", "a"]));
    let (asked, questions) = worker.asked();
    assert_eq!(questions, [topic("a"), topic("b")]);
    assert!(!worker.flow.may_begin(peer(2)));
    worker.decide(asked, vec![refusal(ErrorCode::TopicAuthorizationFailed), Decision::Go]);
    assert!(matches!(worker.events()[..], [Event::Room { peer: woken }] if woken == peer(2)));
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 29, -1), (0, 0, 7), (0, 29, -1)], 0)]);
}

#[test]
fn a_topic_is_asked_about_again_if_others_stand_between() {
    const NAMES: [&str; 16] = ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q"];
    for (between, asked) in [(15, 16), (16, 18)] {
        let names = [&["a"], &NAMES[..between], &["a"]].concat();
        let mut worker = guarded();
        worker.begin(2, of_topics(None, &names));
        assert_eq!(worker.asked().1.len(), asked);
    }
}

#[test]
fn a_right_holds_for_later_requests_until_it_is_forgotten_or_not_believed() {
    let mut worker = guarded();
    let asks = |worker: &mut Worker| {
        worker.begin(2, plain(&[0]));
        let sends = worker.flush();
        let Some(sending) = sends.first() else {
            worker.decided(Decision::Go);
            let sending = worker.sent(1);
            worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
            worker.got();
            return true;
        };
        worker.replied(sending, 0, &verdicts(&[(0, 7)]));
        worker.got();
        false
    };
    // To go on is no right yet.
    assert!(asks(&mut worker) && asks(&mut worker));
    worker.flow.grant(peer(2), Right::Topic("a".into()));
    assert!(!asks(&mut worker));
    worker.flow.trust_rights(worker.now);
    assert!(asks(&mut worker));
    worker.flow.trust_rights(worker.now + Duration::from_secs(1));
    assert!(!asks(&mut worker));
    worker.flow.forget_rights();
    assert!(asks(&mut worker));
}

#[test]
fn the_right_to_a_transactional_id_comes_first_and_is_for_the_whole_request() {
    let mut worker = guarded();
    worker.flow.grant(peer(2), Right::Topic("a".into()));
    let number = worker.begin(2, of_topics(Some("t"), &["a", "b"]));
    let question = worker.decided(refusal(ErrorCode::TransactionalIdAuthorizationFailed));
    assert_eq!(question, Question::Right(Right::TransactionalId("t".into())));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 53, -1), (0, 53, -1)], 0)]);
    worker.begin(2, of_topics(Some("t"), &["a", "b"]));
    worker.decided(Decision::Go);
    assert_eq!(worker.asked().1, [topic("b")]);
}

#[test]
fn a_right_to_a_long_name_is_not_remembered() {
    for (size, is_remembered) in [(249, true), (250, false)] {
        let id: &'static str = "t".repeat(size).leak();
        let mut worker = guarded();
        worker.flow.grant(peer(2), Right::TransactionalId(id.into()));
        worker.begin(2, of_topics(Some(id), &["a"]));
        let first = if is_remembered { topic("a") } else { Question::Right(Right::TransactionalId(id.into())) };
        assert_eq!(worker.asked().1, [first]);
    }
}

#[test]
fn a_partition_that_is_not_known_is_asked_for() {
    let mut worker = Worker::new(OPTIONS);
    worker.flow.forget_topic("a");
    let number = worker.begin(1, plain(&[0, 1, 2]));
    let name = || TopicName::Name("a".into());
    let (asked, questions) = worker.asked();
    assert_eq!(questions, [0, 1, 2].map(|index| Question::Topic { name: name(), index, is_stale: false }));
    worker.flow.put_partition(partition("a", 1, 0, Layout::Batch));
    let decisions = vec![Decision::Go, refusal(ErrorCode::UnknownTopicOrPartition), Decision::Go];
    worker.decide(asked, decisions);
    // The last one was not put: it is asked for again, and not for ever.
    for _ in 0..5 {
        let (asked, questions) = worker.asked();
        assert_eq!(questions, [Question::Topic { name: name(), index: 2, is_stale: false }]);
        worker.decide(asked, vec![Decision::Go]);
    }
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7), (1, 3, -1), (2, -1, -1)], 0)]);
}

#[test]
fn a_topic_may_be_named_by_its_id() {
    let content = batch(|header| header);
    let mut frame = [&b"\0\0\0\x0D\0\0\0\x07\0\x02me\0\0\0\x01\0\0\0\x09\x02"[..], &[1; 16], &[2, 0, 0, 0, 0]].concat();
    frame.push(u8::try_from(content.len() + 1).unwrap());
    frame.extend([&content[..], &[0; 3]].concat());
    let mut worker = guarded();
    worker.begin(2, frame.clone());
    let question = worker.decided(Decision::Go);
    assert_eq!(question, Question::Right(Right::TopicId([1; 16])));
    worker.sent(1);
    worker.flow.grant(peer(2), Right::TopicId([1; 16]));
    worker.flow.forget_topics();
    worker.flow.put_session(peer(2), Session::default());
    worker.begin_as(2, Incoming { number: 0, frame: Shared::from(frame), arrived: worker.now, late: None });
    let name = TopicName::Id([1; 16]);
    assert_eq!(worker.asked().1, [Question::Topic { name, index: 0, is_stale: false }]);
}

#[test]
fn a_late_request_is_served_if_its_owner_says_so() {
    for acks in [0, 1] {
        let mut worker = Worker::new(OPTIONS);
        let came_after = Duration::from_secs(40);
        let frame = Shared::from(request(acks, &[0], &batch(|header| header)));
        let incoming = Incoming { number: 0, frame, arrived: worker.now, late: Some(came_after) };
        let number = worker.begin_as(1, incoming);
        if acks == 0 {
            // Nobody waits for the answer.
            worker.sent(1);
            continue;
        }
        let question = worker.decided(refusal(ErrorCode::KafkaStorageError));
        assert_eq!(question, Question::Late { came_after });
        assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 56, -1)], 0)]);
    }
}

#[test]
fn acks_are_0_1_or_all() {
    for acks in [2, -2, i16::MAX] {
        let mut worker = Worker::new(OPTIONS);
        let number = worker.begin(1, request(acks, &[0], &batch(|header| header)));
        assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 21, -1)], 0)]);
    }
}

#[test]
fn a_batch_that_is_none_is_refused_and_the_others_are_sent() {
    let mut worker = Worker::new(OPTIONS);
    let batches = vec![(0, None), (1, Some(b"no batch".to_vec())), (2, Some(batch(|header| header)))];
    let number = worker.begin(1, Frame { transactional_id: None, acks: 1, topics: vec![("a", batches)] }.bytes());
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    let got = worker.got();
    let [Got::Answer(answered, results, 0)] = &got[..] else { panic!("{got:?}") };
    assert_eq!((*answered, results[2]), (number, (2, 0, 7)));
    assert!(results[..2].iter().all(|(_, code, offset)| *code != 0 && *offset == -1));
}

#[test]
fn a_request_without_batches_is_answered_at_once() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.begin(1, Frame { transactional_id: None, acks: 1, topics: vec![] }.bytes());
    assert_eq!(worker.got(), [Got::Answer(number, vec![], 0)]);
}
