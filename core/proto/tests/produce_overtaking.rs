//! The order in which requests begin and batches are written, and the answers of a connection that has to close.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

#[path = "append/support.rs"]
#[allow(dead_code)] // the tests of appends have more
mod batches;
#[path = "produce_flow/support.rs"]
#[allow(dead_code)] // the tests of the flow have more
mod support;

use std::time::Duration;

use korvet_proto::access::{Right, Session};
use korvet_proto::client::Prevented;
use korvet_proto::partition::{Layout, Partition};
use korvet_proto::produce::{Decision, Event, Options, Pressure, Question, RequestId};

use support::{Got, OPTIONS, Worker, external, idempotent, partition, peer, plain, request, verdicts};

const NOT_LEADER: &str = "-NOT_LEADER_OR_FOLLOWER a has leader epoch 4, not 1\r\n";

/// The requests that ask, with their first questions.
fn asking(worker: &mut Worker) -> Vec<(RequestId, Question)> {
    let events = worker.events().into_iter();
    let requests: Vec<_> = events
        .filter_map(|event| if let Event::Asked { request, .. } = event { Some(request) } else { None })
        .collect();
    requests.into_iter().map(|id| (id, worker.flow.questions(id).next().unwrap().clone())).collect()
}

/// A worker whose client 2 had the right to write to the topic `a`, and has to be asked about again.
fn doubted() -> Worker {
    let mut worker = Worker::new(OPTIONS);
    worker.flow.put_session(peer(2), Session::default());
    worker.flow.grant(peer(2), Right::Topic("a".into()));
    worker
}

#[test]
fn a_request_that_had_questions_does_not_overtake_one_before_it_that_is_to_be_sent_again() {
    for reply in [external(), NOT_LEADER.into(), support::error("NOSCRIPT No matching script.")] {
        let mut worker = doubted();
        worker.begin(2, request(1, &[0], &idempotent(0)));
        let before = worker.sent(1);
        worker.flow.forget_rights();
        worker.begin(2, request(1, &[0], &idempotent(1)));
        let (second, question) = asking(&mut worker).remove(0);
        assert_eq!(question, Question::Right(Right::Topic("a".into())));
        worker.replied(&before, 0, &reply);
        worker.decide(second, vec![Decision::Go]);
        let sends = worker.flush();
        assert!(sends.iter().all(|sending| sending.is_rerun), "{sends:?}");
    }
}

#[test]
fn a_request_that_had_questions_does_not_overtake_one_whose_refusal_is_on_its_way() {
    let mut worker = doubted();
    worker.begin(2, request(1, &[0], &idempotent(0)));
    worker.sent(1);
    worker.flow.forget_rights();
    worker.begin(2, request(1, &[0], &idempotent(1)));
    let (second, _) = asking(&mut worker).remove(0);
    // An epoch has been learned, or a topic been created again: the first was refused, which is not known here yet.
    worker.flow.reordered();
    worker.decide(second, vec![Decision::Go]);
    assert_eq!(worker.flush().len(), 0);
}

#[test]
fn what_another_history_has_left_unsent_goes_before_what_came_after_it() {
    let mut worker = Worker::new(OPTIONS);
    worker.begin(1, request(1, &[0], &idempotent(0)));
    let before = worker.sent(1);
    worker.servers.histories[0] = String::new();
    worker.begin(1, request(1, &[0], &idempotent(1)));
    assert_eq!(worker.flush().len(), 0);
    worker.servers.histories[0] = "later".into();
    worker.prevented(&before, Prevented::History);
    worker.flow.put_epoch(0, "later", 2);
    let sends = worker.flush();
    assert_eq!(sends.iter().map(|sending| sending.is_rerun).collect::<Vec<_>>(), [true]);
}

#[test]
fn a_gap_after_a_refusal_for_want_of_room_is_not_the_producers_fault() {
    let mut worker = Worker::new(OPTIONS);
    let (due, until) = (worker.now + Duration::from_secs(60), worker.now + Duration::from_secs(60));
    let full = Pressure { throttle_ms: 0, refusal: Some("full".into()), due, until };
    worker.flow.put_pressure(0, full.clone());
    worker.begin(1, request(1, &[0], &idempotent(1)));
    worker.got();
    worker.flow.put_pressure(0, Pressure { refusal: None, ..full });
    let number = worker.begin(1, request(1, &[0], &idempotent(2)));
    for _ in 0..2 {
        let sending = worker.sent(1);
        worker.replied(&sending, 0, &verdicts(&[(5, 1)]));
    }
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 56, -1)], 0)]);
}

#[test]
fn a_partition_that_is_forgotten_before_its_request_goes_on_is_asked_for_again() {
    let mut worker = Worker::new(OPTIONS);
    worker.flow.forget_topics();
    let number = worker.begin(1, plain(&[0, 1]));
    let (id, _) = asking(&mut worker).remove(0);
    worker.flow.put_partition(partition("a", 1, 0, Layout::Batch));
    // What the other partition is asked for shows that the topic has changed.
    worker.flow.forget_topic("a");
    worker.flow.put_partition(partition("a", 1, 1, Layout::Batch));
    worker.decide(id, vec![Decision::Go, Decision::Go]);
    let (id, question) = asking(&mut worker).remove(0);
    assert!(matches!(question, Question::Topic { index: 0, is_stale: false, .. }), "{question:?}");
    worker.flow.put_partition(partition("a", 1, 0, Layout::Batch));
    worker.decide(id, vec![Decision::Go]);
    let sending = worker.sent(2);
    worker.replied(&sending, 0, &verdicts(&[(0, 3)]));
    worker.replied(&sending, 1, &verdicts(&[(0, 4)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 3), (1, 0, 4)], 0)]);
}

#[test]
fn the_next_request_may_begin_while_replicas_get_what_is_written() {
    let mut worker = Worker::new(OPTIONS);
    let replicated = |index| Partition { replicas: 1, ..partition("a", 1, index, Layout::Batch) };
    worker.flow.put_partition(replicated(0));
    worker.begin(1, request(-1, &[0], &idempotent(0)));
    assert!(matches!(worker.decided(Decision::Go), Question::InSync { .. }));
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 3)]));
    let (_, question) = asking(&mut worker).remove(0);
    assert!(matches!(question, Question::Confirm { .. }));
    assert!(worker.flow.may_begin(peer(1)));
}

#[test]
fn a_connection_closes_after_the_answers_to_what_came_before() {
    let mut worker = Worker::new(OPTIONS);
    let first = worker.begin(1, plain(&[0]));
    let before = worker.sent(1);
    worker.begin(1, request(0, &[1], &idempotent(0)));
    let after = worker.sent(1);
    worker.prevented(&after, Prevented::Unknown);
    assert!(!worker.flow.may_begin(peer(1)));
    worker.replied(&before, 0, &verdicts(&[(0, 3)]));
    assert_eq!(worker.got(), [Got::Answer(first, vec![(0, 0, 3)], 0), Got::Close { is_unanswered: false }]);
}

#[test]
fn batches_of_the_worker_itself_for_one_partition_go_one_after_the_other() {
    use korvet_proto::produce::Asked;
    use korvet_proto::shared::Shared;
    let mut worker = Worker::new(OPTIONS);
    let of = |sequence| {
        let partition = std::sync::Arc::new(partition("a", 1, 0, Layout::Batch));
        (partition, Asked::Batch(Some(Shared::from(idempotent(sequence)))), None)
    };
    let clock = worker.clock();
    worker.flow.append(vec![of(0), of(1)], &worker.servers, clock);
    let _first = worker.sent(1);
}

#[test]
fn many_clients_that_wait_for_room_do_not_take_a_time_that_grows_with_their_square() {
    let mut worker = Worker::new(Options { held_bytes_max: 0, ..OPTIONS });
    let begun = std::time::Instant::now();
    for number in 10..40_010 {
        worker.flow.put_session(peer(number), Session { may_all: true, ends_at: None });
        assert!(!worker.flow.may_begin(peer(number)));
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn what_is_decompressed_of_a_request_in_one_turn_is_bounded_also_if_nothing_of_it_is_kept() {
    use korvet_proto::compression::Codec;
    let mut worker = Worker::new(Options { plain_bytes_max: 16 << 20, ..OPTIONS });
    let zeros = vec![0; 1 << 20];
    let bomb = batches::batch_of(&[batches::valued(&zeros)], Codec::Gzip, |header| header);
    worker.begin(1, request(1, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], &bomb));
    let count: usize = worker.flush().iter().map(|sending| sending.count).sum();
    assert!(count <= 9, "{count}");
}

#[test]
fn nothing_is_sent_behind_a_batch_without_a_reply_while_what_came_before_it_is_not_answered() {
    let mut worker = Worker::new(OPTIONS);
    worker.begin(1, request(1, &[10], &idempotent(0)));
    let _under_way = worker.sent(1);
    worker.begin(1, request(1, &[0], &idempotent(0)));
    let lost = worker.sent(1);
    worker.servers.histories[0] = String::new();
    worker.begin(1, request(1, &[0], &idempotent(1)));
    assert_eq!(worker.flush().len(), 0);
    worker.prevented(&lost, Prevented::Unknown);
    worker.servers.histories[0] = support::HISTORY.into();
    assert_eq!(worker.flush().len(), 0);
}

#[test]
fn nothing_is_sent_behind_a_batch_without_a_reply_while_replicas_get_what_came_with_it() {
    let mut worker = Worker::new(OPTIONS);
    worker.flow.put_partition(Partition { replicas: 1, ..partition("a", 1, 10, Layout::Batch) });
    worker.begin(1, request(-1, &[0, 10], &idempotent(0)));
    worker.decided(Decision::Go);
    let mut sends = worker.flush();
    sends.sort_by_key(|sending| sending.node);
    worker.replied(&sends[1], 0, &verdicts(&[(0, 3)]));
    worker.prevented(&sends[0], Prevented::Unknown);
    let (_, question) = asking(&mut worker).remove(0);
    assert!(matches!(question, Question::Confirm { .. }));
    assert!(!worker.flow.may_begin(peer(1)));
}

#[test]
fn the_next_request_waits_for_the_questions_of_the_last_and_for_no_answer() {
    let mut worker = doubted();
    worker.begin(2, request(1, &[0], &idempotent(0)));
    let first = worker.sent(1);
    worker.flow.forget_rights();
    worker.begin(2, request(1, &[0], &idempotent(1)));
    let (second, _) = asking(&mut worker).remove(0);
    assert!(!worker.flow.may_begin(peer(2)));
    // An answer to what was before it says nothing about that.
    worker.replied(&first, 0, &verdicts(&[(0, 0)]));
    worker.got();
    assert!(!worker.flow.may_begin(peer(2)));
    worker.decide(second, vec![Decision::Go]);
    assert!(matches!(worker.events()[..], [Event::Room { peer: woken }] if woken == peer(2)));
    assert!(worker.flow.may_begin(peer(2)));
    worker.sent(1);
}
