//! What a client gets, and what is to be known before.

use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::access::{Right, Session};
use korvet_proto::append::Marker;
use korvet_proto::client::Prevented;
use korvet_proto::partition::{Layout, TopicConfig};
use korvet_proto::produce::{Asked, Decision, Event, Options, Question};

use crate::batches::CONFIG;
use crate::support::{
    Frame, Got, OPTIONS, Worker, batch, bulk, error, idempotent, partition, peer, plain, refusal, request, verdicts,
    verdicts_with,
};

const ACKS_ALL: i16 = -1;

#[test]
fn an_idempotent_producer_finds_out_what_became_of_a_batch_without_a_reply() {
    let mut worker = Worker::new(OPTIONS);
    worker.begin(1, request(1, &[0], &idempotent(0)));
    let sending = worker.sent(1);
    worker.prevented(&sending, Prevented::Unknown);
    assert_eq!(worker.got(), [Got::Close { is_unanswered: true }]);
    let mut worker = Worker::new(OPTIONS);
    let (number, sending) = worker.appending(&[0]);
    worker.prevented(&sending, Prevented::Unknown);
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 7, -1)], 0)]);
}

#[test]
fn a_client_whose_connection_has_to_close_begins_nothing() {
    let mut cut = plain(&[0]);
    cut.truncate(40);
    for frame in [request(1, &[0], &idempotent(0)), request(0, &[0], &idempotent(0)), cut] {
        let mut worker = Worker::new(OPTIONS);
        worker.begin(1, frame);
        for sending in worker.flush() {
            worker.prevented(&sending, Prevented::Unknown);
        }
        assert!(matches!(worker.got()[..], [Got::Close { .. }]));
        assert!(worker.flow.serves(peer(1), worker.now) && !worker.flow.may_begin(peer(1)));
    }
}

#[test]
fn nothing_is_sent_behind_a_batch_without_a_reply() {
    let mut worker = Worker::new(OPTIONS);
    worker.begin(1, request(1, &[0], &idempotent(0)));
    let unknown = worker.sent(1);
    worker.begin(1, request(1, &[0], &idempotent(1)));
    let unsent = worker.sent(1);
    worker.begin(1, request(1, &[99], &idempotent(2)));
    let (asking, _) = worker.asked();
    worker.prevented(&unsent, Prevented::History);
    worker.prevented(&unknown, Prevented::Unknown);
    assert_eq!(worker.got()[0], Got::Close { is_unanswered: true });
    worker.flow.put_partition(partition("a", 1, 99, Layout::Batch));
    worker.decide(asking, vec![Decision::Go]);
    assert_eq!(worker.flush().len(), 0);
    assert_eq!(worker.flow.count(), 0);
}

#[test]
fn what_waits_for_an_epoch_is_not_sent_behind_a_batch_without_a_reply() {
    let mut worker = Worker::new(OPTIONS);
    worker.begin(1, request(1, &[0], &idempotent(0)));
    let unknown = worker.sent(1);
    worker.servers.histories[0] = "later".into();
    worker.begin(1, request(1, &[0], &idempotent(1)));
    assert_eq!(worker.flush().len(), 0);
    assert!(matches!(worker.events()[..], [Event::WantsEpoch { node: 0 }]));
    worker.prevented(&unknown, Prevented::Unknown);
    assert_eq!(worker.got(), [Got::Close { is_unanswered: true }]);
    worker.flow.put_epoch(0, "later", 2);
    assert_eq!(worker.flush().len(), 0);
    assert_eq!(worker.flow.count(), 0);
}

#[test]
fn what_came_before_a_batch_without_a_reply_is_done_to_its_end() {
    let mut worker = Worker::new(OPTIONS);
    let (number, before) = worker.appending(&[0]);
    worker.begin(1, request(1, &[0], &idempotent(0)));
    let unknown = worker.sent(1);
    worker.prevented(&unknown, Prevented::Unknown);
    assert_eq!(worker.got(), []);
    worker.replied(&before, 0, &error("NOSCRIPT No matching script."));
    let again = worker.sent(1);
    worker.replied(&again, 0, &verdicts(&[(0, 7)]));
    let answer = Got::Answer(number, vec![(0, 0, 7)], 0);
    assert_eq!(worker.got(), [answer, Got::Close { is_unanswered: true }]);
}

#[test]
fn what_was_not_sent_is_answered() {
    for (is_cluster, code) in [(false, 56), (true, 6)] {
        for kind in [Prevented::Away, Prevented::Full, Prevented::Closed] {
            let mut worker = Worker::new(Options { is_cluster, ..OPTIONS });
            let number = worker.begin(1, request(1, &[0], &idempotent(0)));
            let sending = worker.sent(1);
            worker.prevented(&sending, kind);
            assert_eq!(worker.got(), [Got::Answer(number, vec![(0, code, -1)], 0)]);
        }
    }
}

#[test]
fn a_request_with_acks_0_has_an_empty_answer_or_closes_the_connection() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.begin(1, request(0, &[0], &idempotent(0)));
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![], 0)]);
    for prevented in [Prevented::Unknown, Prevented::Away] {
        let mut worker = Worker::new(OPTIONS);
        worker.begin(1, request(0, &[0], &idempotent(1)));
        let sending = worker.sent(1);
        worker.prevented(&sending, prevented);
        assert_eq!(worker.got(), [Got::Close { is_unanswered: false }]);
    }
}

#[test]
fn a_frame_that_holds_no_request_closes_the_connection() {
    let mut worker = Worker::new(OPTIONS);
    let mut frame = plain(&[0]);
    frame.truncate(40);
    worker.begin(1, frame);
    assert_eq!(worker.got(), [Got::Close { is_unanswered: false }]);
    assert_eq!((worker.flow.count(), worker.flow.begun_by(peer(1))), (0, 0));
}

#[test]
fn what_is_no_answer_of_a_script_is_a_failure_of_the_storage() {
    for reply in
        [b":1\r\n".to_vec(), b"_\r\n".to_vec(), bulk(b""), bulk(b"\x02\0\0\0\0"), verdicts(&[]), error("ERR no")]
    {
        let mut worker = Worker::new(OPTIONS);
        let (number, sending) = worker.appending(&[0]);
        worker.replied(&sending, 0, &reply);
        assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 56, -1)], 0)]);
    }
}

#[test]
fn a_call_has_one_outcome() {
    let mut worker = Worker::new(OPTIONS);
    let (number, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    worker.prevented(&sending, Prevented::Unknown);
    worker.replied(&sending, 1, &verdicts(&[(0, 8)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7)], 0)]);
}

#[test]
fn what_a_script_did_besides_is_reported() {
    let mut worker = Worker::new(OPTIONS);
    let (_, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &verdicts_with(3, 9000, &[(0, 7)]));
    let events = worker.events();
    let [Event::Moved { partition, count: 3 }, Event::Row { partition: grown }, Event::Answer { .. }] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!((partition.index, grown.index), (0, 0));
    let end = worker.flow.end_of("a:0").unwrap();
    assert_eq!((&*end.topic_id, end.epoch, end.end), ("id1", 1, 8));
}

#[test]
fn the_end_of_a_log_is_after_its_last_record_whichever_reply_comes_first() {
    let mut worker = Worker::new(OPTIONS);
    assert_eq!(worker.flow.end_of("a:0"), None);
    let sent = [worker.appending(&[0]).1, worker.appending(&[0]).1, worker.appending(&[0]).1];
    for (sending, verdict) in sent.iter().zip([(0, 8), (0, 7), (1, 20)]) {
        worker.replied(sending, 0, &verdicts(&[verdict]));
        assert_eq!(worker.flow.end_of("a:0").unwrap().end, 9);
    }
}

#[test]
fn a_full_memory_throttles_the_client_and_is_reported() {
    for reply in [verdicts(&[(13, 0)]), error("OOM command not allowed when used memory > 'maxmemory'.")] {
        let mut worker = Worker::new(OPTIONS);
        worker.flow.set_full_throttle(250);
        let (number, sending) = worker.appending(&[0]);
        worker.replied(&sending, 0, &reply);
        let mut events = worker.events();
        assert!(matches!(events.remove(0), Event::MemoryFull { node: 0 }));
        let [Event::Answer { number: answered, throttle, .. }] = events[..] else { panic!("{events:?}") };
        assert_eq!((answered, throttle), (number, Duration::from_millis(250)));
    }
}

#[test]
fn a_batch_that_was_there_before_has_the_time_of_its_first_arrival() {
    let config = TopicConfig { has_append_time: true, ..CONFIG };
    let mut worker = Worker::new(OPTIONS);
    let mut stamped = partition("a", 1, 0, Layout::Batch);
    stamped.topic = std::sync::Arc::new(korvet_proto::partition::Topic { config, ..(*stamped.topic).clone() });
    worker.flow.put_partition(stamped);
    let (number, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7)], 0)]);
    worker.begin(1, request(1, &[0], &idempotent(0)));
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(1, 7)]));
    assert!(matches!(worker.decided(Decision::Number(1234)), Question::TimeAt { offset: 7, .. }));
    let events = worker.events();
    let [Event::Answer { response, .. }] = &events[..] else { panic!("{events:?}") };
    let results = [&7_u64.to_be_bytes()[..], &1234_u64.to_be_bytes(), &5_u64.to_be_bytes()].concat();
    assert!(response.windows(results.len()).any(|window| window == results));
}

#[test]
fn with_acks_all_replicas_have_to_be_there_before_and_to_have_it_after() {
    for replicas in [0, 1, 3] {
        let mut worker = Worker::new(Options { replicas, ..OPTIONS });
        let mut wanted = partition("a", 1, 0, Layout::Batch);
        wanted.replicas = 2;
        worker.flow.put_partition(wanted);
        let number = worker.begin(1, request(ACKS_ALL, &[0], &idempotent(0)));
        assert!(matches!(worker.decided(Decision::Go), Question::InSync { .. }));
        let sending = worker.sent(1);
        worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
        let question = worker.decided(refusal(ErrorCode::NotEnoughReplicasAfterAppend));
        let Question::Confirm { node: 0, replicas: wanted, .. } = question else { panic!("{question:?}") };
        assert_eq!(wanted, replicas.max(2));
        assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 20, -1)], 0)]);
    }
}

#[test]
fn the_most_replicas_are_known_once_all_batches_are_sent() {
    let mut worker = Worker::new(OPTIONS);
    let mut wanted = partition("b", 2, 0, Layout::Batch);
    wanted.replicas = 2;
    worker.flow.put_partition(wanted);
    let sent = |index| (index, Some(idempotent(0)));
    let topics = vec![("a", vec![sent(0), sent(0)]), ("b", vec![sent(0)])];
    let number = worker.begin(1, Frame { transactional_id: None, acks: ACKS_ALL, topics }.bytes());
    assert!(matches!(worker.decided(Decision::Go), Question::InSync { .. }));
    for count in [2, 1] {
        let wave = worker.sent(count);
        for call in 0..count {
            worker.replied(&wave, call, &verdicts(&[(0, 7)]));
        }
    }
    assert!(matches!(worker.decided(Decision::Go), Question::Confirm { replicas: 2, .. }));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7), (0, 0, 7), (0, 0, 7)], 0)]);
}

#[test]
fn without_acks_all_or_replicas_nothing_is_asked() {
    for (acks, replicas) in [(1, 3), (ACKS_ALL, 0)] {
        let mut worker = Worker::new(Options { replicas, ..OPTIONS });
        let number = worker.begin(1, request(acks, &[0], &idempotent(0)));
        let sending = worker.sent(1);
        worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
        assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7)], 0)]);
    }
}

#[test]
fn a_request_is_charged_to_its_client_before_it_is_answered() {
    let mut worker = Worker::new(OPTIONS);
    worker.flow.set_metered(true);
    let frame = plain(&[0]);
    let bytes = frame.len();
    let number = worker.begin(1, frame);
    let busy = Duration::from_micros(30);
    worker.flow.note_busy(peer(1), busy);
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    let charge = Question::Charge { client_id: Some("me".into()), bytes, busy };
    assert_eq!(worker.decided(Decision::Throttle(70, 2)), charge);
    let events = worker.events();
    let [Event::Answer { number: answered, throttle, reason: 2, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!((answered, throttle), (number, Duration::from_millis(70)));
}

#[test]
fn a_forgotten_client_has_what_it_began_done_to_the_end() {
    let mut worker = Worker::new(OPTIONS);
    let (_, sending) = worker.appending(&[0]);
    worker.flow.forget_session(peer(1));
    assert!(!worker.flow.serves(peer(1), worker.now));
    worker.flow.grant(peer(1), Right::Topic("a".into()));
    worker.replied(&sending, 0, &error("NOSCRIPT No matching script."));
    let again = worker.sent(1);
    worker.replied(&again, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.flow.count(), 0);
    assert!(!worker.flow.may_begin(peer(1)));
}

#[test]
fn a_session_that_has_ended_is_not_served() {
    let mut worker = Worker::new(OPTIONS);
    let ends_at = Some(worker.now + Duration::from_secs(1));
    worker.flow.put_session(peer(1), Session { may_all: true, ends_at });
    assert!(worker.flow.serves(peer(1), worker.now));
    assert!(!worker.flow.serves(peer(1), worker.now + Duration::from_secs(1)));
    assert!(!worker.flow.serves(peer(2), worker.now));
}

#[test]
fn what_was_counted_is_taken_once() {
    let mut worker = Worker::new(OPTIONS);
    let frame = plain(&[0, 1]);
    let sent = batch(|header| header).len() as u64;
    let received = frame.len() as u64 + 4;
    worker.begin(1, frame);
    let sending = worker.sent(2);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    worker.replied(&sending, 1, &verdicts(&[(5, 7)]));
    let again = worker.sent(1);
    worker.replied(&again, 0, &verdicts(&[(5, 7)]));
    let noted = worker.flow.take_noted();
    assert_eq!((noted.begun, noted.received_bytes, noted.ended, noted.answered.len()), (1, received, 1, 1));
    assert!(noted.sent_bytes > 4);
    let traffic: Vec<_> = noted.traffic().map(|traffic| (traffic.records, traffic.bytes)).collect();
    assert_eq!(traffic, [(1, sent)]);
    assert_eq!((noted.failures.get(&45), noted.has_success), (Some(&1), false));
    assert_eq!([noted.round_trips[0].len(), noted.round_trips[1].len()], [3, 0]);
    assert_eq!(worker.flow.take_noted().begun, 0);
}

#[test]
fn what_the_owner_appends_has_its_outcomes_once_and_is_never_unanswered() {
    let mut worker = Worker::new(OPTIONS);
    let ended = Marker { producer_id: 1, epoch: 0, number: 1, commits: true };
    let markers = [0, 1].map(|index| (partition("a", 1, index, Layout::Batch).into(), Asked::Marker(ended), None));
    let clock = worker.clock();
    let request = worker.flow.append(markers.into(), &worker.servers, clock);
    let sending = worker.sent(2);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    worker.prevented(&sending, Prevented::Unknown);
    assert!(matches!(worker.events()[..], [Event::Done { request: done }] if done == request));
    let outcomes = worker.flow.take_outcomes(request);
    assert_eq!(outcomes[0].as_ref().unwrap().base_offset, 7);
    assert_eq!(outcomes[1].as_ref().unwrap_err().code, ErrorCode::RequestTimedOut);
    assert_eq!(worker.flow.take_outcomes(request).len(), 0);
}

#[test]
fn a_refusal_of_one_batch_is_counted_as_one_of_its_script() {
    for (script, layout) in [Layout::Batch, Layout::Record { bits: 20 }].into_iter().enumerate() {
        let mut worker = Worker::new(OPTIONS);
        worker.connect(2);
        worker.flow.put_partition(partition("a", 1, 0, layout));
        worker.begin(1, request(1, &[0], &idempotent(0)));
        worker.begin(2, request(1, &[0], &idempotent(0)));
        let sending = worker.sent(1);
        worker.replied(&sending, 0, &verdicts(&[(0, 7), (3, 4)]));
        let mut counted = [vec![], vec![]];
        counted[script] = vec![(47, 1)];
        let noted = worker.flow.take_noted();
        assert_eq!(noted.script_errors.map(|errors| errors.into_iter().collect::<Vec<_>>()), counted);
        let trips: Vec<_> = noted.round_trips.iter().map(Vec::len).collect();
        assert_eq!((trips[script], trips[1 - script]), (1, 0));
    }
}
