//! Batches that were refused for a reason that ends.

use korvet_proto::ErrorCode;
use korvet_proto::client::Prevented;
use korvet_proto::partition::Layout;
use korvet_proto::partition::TopicName;
use korvet_proto::produce::{Decision, Event, Options, Question};

use crate::support::{
    Got, HISTORY, OPTIONS, TIMEOUT, Worker, error, external, idempotent, partition, peer, plain, refusal, request,
    verdicts,
};

const ACKS_ALL: i16 = -1;
const MOVED: &str = "MOVED 1 10.0.0.1:7000";

#[test]
fn a_batch_is_sent_again_in_the_turn_of_its_request() {
    let mut worker = Worker::new(OPTIONS);
    let (first, before) = worker.appending(&[0]);
    let (second, after) = worker.appending(&[0]);
    worker.replied(&after, 0, &error("NOSCRIPT No matching script."));
    assert_eq!(worker.flush().len(), 0);
    assert!(!worker.flow.may_begin(peer(1)));
    worker.replied(&before, 0, &verdicts(&[(0, 0)]));
    assert_eq!(worker.got(), [Got::Answer(first, vec![(0, 0, 0)], 0)]);
    assert!(!worker.flow.may_begin(peer(1)));
    let again = worker.sent(1);
    assert!(again.is_rerun);
    worker.replied(&again, 0, &verdicts(&[(0, 1)]));
    assert_eq!(worker.got(), [Got::Answer(second, vec![(0, 0, 1)], 0)]);
    assert!(worker.flow.may_begin(peer(1)));
}

#[test]
fn what_is_sent_again_goes_in_another_group_than_what_is_new() {
    let mut worker = Worker::new(OPTIONS);
    worker.connect(2);
    let (_, sending) = worker.appending(&[0]);
    worker.begin(2, plain(&[1]));
    worker.replied(&sending, 0, &error("NOSCRIPT No matching script."));
    worker.begin(2, plain(&[2]));
    let sends = worker.flush();
    assert_eq!(
        sends.iter().map(|sending| (sending.count, sending.is_rerun)).collect::<Vec<_>>(),
        [(2, false), (1, true)]
    );
}

#[test]
fn a_script_that_stays_missing_is_given_up() {
    let mut worker = Worker::new(OPTIONS);
    let (number, mut sending) = worker.appending(&[0]);
    for _ in 0..8 {
        worker.replied(&sending, 0, &error("NOSCRIPT No matching script."));
        assert!(!worker.flow.may_begin(peer(1)));
        sending = worker.sent(1);
    }
    worker.replied(&sending, 0, &error("NOSCRIPT No matching script."));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 56, -1)], 0)]);
}

#[test]
fn a_later_epoch_is_learned_and_may_be_met_twice() {
    let mut worker = Worker::new(OPTIONS);
    let (number, mut sending) = worker.appending(&[0]);
    for _ in 0..2 {
        worker.replied(&sending, 0, &error("NOT_LEADER_OR_FOLLOWER the leader epoch is 4"));
        assert!(matches!(worker.decided(Decision::Go), Question::Stale { node: 0, .. }));
        sending = worker.sent(1);
    }
    worker.replied(&sending, 0, &error("NOT_LEADER_OR_FOLLOWER the leader epoch is 4"));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 6, -1)], 0)]);
}

#[test]
fn what_is_learned_for_one_client_changes_the_order_for_all() {
    for reply in ["NOT_LEADER_OR_FOLLOWER the leader epoch is 4", MOVED] {
        let mut worker = Worker::new(Options { is_cluster: true, ..OPTIONS });
        worker.connect(2);
        let (_, sending) = worker.appending(&[0]);
        worker.begin(2, plain(&[0]));
        worker.sent(1);
        worker.replied(&sending, 0, &error(reply));
        assert!(worker.flow.may_begin(peer(2)));
        worker.decided(Decision::Go);
        assert!(!worker.flow.may_begin(peer(2)));
    }
}

#[test]
fn moved_slots_are_followed_for_the_timeout() {
    let moving = "TRYAGAIN Multiple keys request during rehashing of slot";
    let mut worker = Worker::new(Options { is_cluster: true, ..OPTIONS });
    let (number, mut sending) = worker.appending(&[0, 1]);
    for attempt in 0..20 {
        worker.replied(&sending, 0, &error(MOVED));
        worker.replied(&sending, 1, &error(moving));
        let question = Question::Elsewhere { replies: vec![MOVED.into(), moving.into()], attempt };
        assert_eq!(worker.decided(Decision::Go), question);
        sending = worker.sent(2);
    }
    worker.now += TIMEOUT;
    worker.replied(&sending, 0, &error(MOVED));
    worker.replied(&sending, 1, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 56, -1), (1, 0, 7)], 0)]);
}

#[test]
fn a_batch_follows_its_slot_to_another_node() {
    let mut worker = Worker::new(Options { is_cluster: true, ..OPTIONS });
    let (_, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &error(MOVED));
    worker.servers.slots[0] = Some(1);
    worker.decided(Decision::Go);
    assert_eq!(worker.sent(1).node, 1);
}

#[test]
fn entries_of_others_are_taken_in_and_may_come_again_four_times() {
    let mut worker = Worker::new(OPTIONS);
    let (number, mut sending) = worker.appending(&[0]);
    for _ in 0..5 {
        worker.replied(&sending, 0, &external());
        assert!(matches!(worker.decided(Decision::Go), Question::External { .. }));
        sending = worker.sent(1);
    }
    worker.replied(&sending, 0, &external());
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 56, -1)], 0)]);
}

#[test]
fn what_cannot_be_decided_on_is_refused_and_the_rest_is_sent() {
    let mut worker = Worker::new(OPTIONS);
    let (number, sending) = worker.appending(&[0, 1]);
    worker.replied(&sending, 0, &external());
    worker.replied(&sending, 1, &external());
    let (asked, questions) = worker.asked();
    assert_eq!(questions.len(), 2);
    worker.decide(asked, vec![refusal(ErrorCode::KafkaStorageError)]);
    // One has no decision.
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 56, -1), (1, -1, -1)], 0)]);
}

#[test]
fn a_connection_to_another_history_gets_nothing_and_the_batch_is_sent_again() {
    let mut worker = Worker::new(OPTIONS);
    let (number, sending) = worker.appending(&[0]);
    worker.servers.histories[0] = "later".into();
    worker.prevented(&sending, Prevented::History);
    assert_eq!(worker.flush().len(), 0);
    assert!(matches!(worker.events()[..], [Event::WantsEpoch { node: 0 }]));
    worker.flow.put_epoch(0, "later", 2);
    let again = worker.sent(1);
    assert_eq!(&*again.history, "later");
    worker.replied(&again, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7)], 0)]);
}

#[test]
fn histories_that_change_all_the_time_are_given_up() {
    let mut worker = Worker::new(OPTIONS);
    let (number, mut sending) = worker.appending(&[0]);
    for _ in 0..8 {
        worker.prevented(&sending, Prevented::History);
        sending = worker.sent(1);
    }
    worker.prevented(&sending, Prevented::History);
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 56, -1)], 0)]);
    assert_eq!(&*sending.history, HISTORY);
}

#[test]
fn a_batch_that_came_before_the_one_it_follows_is_sent_once_more() {
    let mut worker = Worker::new(OPTIONS);
    let first = worker.begin(1, request(1, &[0], &idempotent(0)));
    let before = worker.sent(1);
    let second = worker.begin(1, request(1, &[0], &idempotent(1)));
    let after = worker.sent(1);
    worker.replied(&before, 0, &error("NOSCRIPT No matching script."));
    worker.replied(&after, 0, &verdicts(&[(5, 0)]));
    let again = worker.sent(1);
    worker.replied(&again, 0, &verdicts(&[(0, 0)]));
    assert_eq!(worker.got(), [Got::Answer(first, vec![(0, 0, 0)], 0)]);
    let again = worker.sent(1);
    worker.replied(&again, 0, &verdicts(&[(0, 1)]));
    assert_eq!(worker.got(), [Got::Answer(second, vec![(0, 0, 1)], 0)]);
    let third = worker.begin(1, request(1, &[0], &idempotent(9)));
    for _ in 0..2 {
        let sending = worker.sent(1);
        worker.replied(&sending, 0, &verdicts(&[(5, 2)]));
    }
    assert_eq!(worker.got(), [Got::Answer(third, vec![(0, 45, -1)], 0)]);
}

#[test]
fn a_gap_in_the_sequences_after_an_outage_is_not_the_producers_fault() {
    let mut worker = Worker::new(OPTIONS);
    let clock = worker.clock();
    worker.flow.reconnected(clock.now);
    let refused = |worker: &mut Worker| {
        worker.begin(1, request(1, &[0], &idempotent(9)));
        for _ in 0..2 {
            let sending = worker.sent(1);
            worker.replied(&sending, 0, &verdicts(&[(5, 2)]));
        }
        let Some(Got::Answer(_, results, _)) = worker.got().pop() else { panic!("no answer") };
        results[0].1
    };
    assert_eq!(refused(&mut worker), 56);
    worker.now += TIMEOUT;
    assert_eq!(refused(&mut worker), 45);
}

#[test]
fn a_gap_after_a_refusal_for_want_of_replicas_is_not_the_producers_fault() {
    let mut worker = Worker::new(Options { replicas: 1, ..OPTIONS });
    let first = worker.begin(1, request(ACKS_ALL, &[0], &idempotent(1)));
    worker.decided(refusal(ErrorCode::NotEnoughReplicas));
    assert_eq!(worker.got(), [Got::Answer(first, vec![(0, 19, -1)], 0)]);
    let second = worker.begin(1, request(ACKS_ALL, &[0], &idempotent(2)));
    worker.decided(Decision::Go);
    for _ in 0..2 {
        let sending = worker.sent(1);
        worker.replied(&sending, 0, &verdicts(&[(5, 1)]));
    }
    assert_eq!(worker.got(), [Got::Answer(second, vec![(0, 56, -1)], 0)]);
    let first = worker.begin(1, request(ACKS_ALL, &[0], &idempotent(1)));
    worker.decided(Decision::Go);
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert!(matches!(worker.decided(Decision::Go), Question::Confirm { replicas: 1, .. }));
    assert_eq!(worker.got(), [Got::Answer(first, vec![(0, 0, 7)], 0)]);
}

#[test]
fn a_gap_is_the_producers_fault_beside_a_log_that_cannot_be_read() {
    let mut worker = Worker::new(OPTIONS);
    let (_, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &error("KAFKA_STORAGE_ERROR the state is malformed"));
    worker.got();
    let number = worker.begin(1, request(1, &[1], &idempotent(2)));
    for _ in 0..2 {
        let sending = worker.sent(1);
        worker.replied(&sending, 0, &verdicts(&[(5, 1)]));
    }
    assert_eq!(worker.got(), [Got::Answer(number, vec![(1, 45, -1)], 0)]);
}

#[test]
fn a_topic_that_redis_does_not_know_is_asked_for_once() {
    let unknown = error("UNKNOWN_TOPIC_OR_PARTITION the partition does not exist");
    let mut worker = Worker::new(OPTIONS);
    let (number, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &unknown);
    let (asked, questions) = worker.asked();
    assert_eq!(questions, [Question::Topic { name: TopicName::Name("a".into()), index: 0, is_stale: true }]);
    worker.flow.put_partition(partition("a", 2, 0, Layout::Batch));
    worker.decide(asked, vec![Decision::Go]);
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &unknown);
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 3, -1)], 0)]);
}

#[test]
fn a_topic_that_is_gone_has_the_answer_of_redis() {
    let mut worker = Worker::new(OPTIONS);
    let (number, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &error("UNKNOWN_TOPIC_OR_PARTITION the partition does not exist"));
    worker.decided(refusal(ErrorCode::KafkaStorageError));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 3, -1)], 0)]);
}
