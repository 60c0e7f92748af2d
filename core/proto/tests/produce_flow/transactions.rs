//! Batches of transactions, which the coordinator verifies (KIP-890).

use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::partition::Layout;
use korvet_proto::partition::TopicName;
use korvet_proto::produce::{Decision, Event, Question, Sending};

use crate::batches::call_in;
use crate::support::{Frame, Got, ID, OPTIONS, Worker, error, partition, peer, read, refusal, transactional, verdicts};

/// A request of a transaction with a batch for each of these partitions.
fn of_transaction(sequence: i32, indexes: &[i32]) -> Vec<u8> {
    in_epoch(0, sequence, indexes)
}

fn in_epoch(epoch: i16, sequence: i32, indexes: &[i32]) -> Vec<u8> {
    let batches = indexes.iter().map(|index| (*index, Some(transactional(epoch, sequence)))).collect();
    Frame { transactional_id: Some("t"), acks: 1, topics: vec![("a", batches)] }.bytes()
}

/// What stands for the number of a transaction that is to be verified.
const UNVERIFIED: i64 = 0;

impl Worker {
    /// The number of the transaction in what is sent, which is one batch.
    fn number(&self, sending: &Sending) -> i64 {
        call_in(&self.packed(sending).unwrap()).batches[0].head.number
    }

    /// Send a request of one batch that opens a transaction.
    fn opening(&mut self, frame: Vec<u8>) -> u64 {
        let number = self.begin(1, frame);
        let sending = self.sent(1);
        self.replied(&sending, 0, &verdicts(&[(2, 0)]));
        number
    }

    /// Which partitions are to be verified: nothing else is asked.
    fn verified(&mut self, decision: Decision) -> Vec<(u8, i32)> {
        let question = self.decided(decision);
        let Question::Verify { partitions, .. } = question else { panic!("{question:?}") };
        partitions.iter().map(|partition| (partition.topic.id[0], partition.index)).collect()
    }
}

#[test]
fn a_transaction_is_verified_once_for_all_partitions_that_it_opens() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.begin(1, of_transaction(0, &[0, 1]));
    let sending = worker.sent(2);
    worker.replied(&sending, 0, &verdicts(&[(2, 0)]));
    worker.replied(&sending, 1, &verdicts(&[(2, 0)]));
    let question = worker.decided(Decision::Number(12));
    let Question::Verify { transactional_id, version: 9, producer_id: ID, epoch: 0, partitions } = question else {
        panic!("{question:?}");
    };
    assert_eq!((&transactional_id[..], partitions.len()), ("t", 2));
    let sending = worker.sent(2);
    worker.replied(&sending, 0, &verdicts(&[(0, 3)]));
    worker.replied(&sending, 1, &verdicts(&[(0, 4)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 3), (1, 0, 4)], 0)]);
}

#[test]
fn what_follows_a_refused_batch_of_a_transaction_is_refused_until_that_comes_again() {
    let mut worker = Worker::new(OPTIONS);
    let first = worker.begin(1, of_transaction(5, &[0]));
    let before = worker.sent(1);
    let second = worker.begin(1, of_transaction(6, &[0]));
    let after = worker.sent(1);
    worker.replied(&before, 0, &verdicts(&[(2, 0)]));
    worker.decided(refusal(ErrorCode::InvalidTxnState));
    assert_eq!(worker.got(), [Got::Answer(first, vec![(0, 48, -1)], 0)]);
    worker.replied(&after, 0, &verdicts(&[(2, 0)]));
    assert_eq!(worker.got(), [Got::Answer(second, vec![(0, 48, -1)], 0)]);
    worker.begin(1, of_transaction(5, &[0]));
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(2, 0)]));
    assert!(matches!(worker.decided(Decision::Number(1)), Question::Verify { .. }));
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 3)]));
    worker.got();
    worker.begin(1, of_transaction(6, &[0]));
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(2, 0)]));
    assert!(matches!(worker.asked().1[..], [Question::Verify { .. }]));
}

#[test]
fn a_refusal_holds_for_its_partition_and_epoch_alone() {
    let mut worker = Worker::new(OPTIONS);
    worker.opening(of_transaction(0, &[0]));
    worker.verified(refusal(ErrorCode::InvalidTxnState));
    worker.got();
    let number = worker.begin(1, of_transaction(1, &[0, 1]));
    let sending = worker.sent(2);
    worker.replied(&sending, 0, &verdicts(&[(2, 0)]));
    worker.replied(&sending, 1, &verdicts(&[(2, 0)]));
    assert_eq!(worker.verified(Decision::Number(12)), [(1, 1)]);
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 48, -1), (1, 0, 7)], 0)]);
    worker.opening(in_epoch(1, 1, &[0]));
    assert_eq!(worker.verified(Decision::Number(13)), [(1, 0)]);
}

#[test]
fn a_refusal_is_forgotten_when_nobody_waits_any_more() {
    let mut worker = Worker::new(OPTIONS);
    worker.opening(of_transaction(0, &[0]));
    worker.verified(refusal(ErrorCode::InvalidTxnState));
    worker.got();
    worker.now += Duration::from_millis(59_999);
    let number = worker.opening(of_transaction(1, &[0]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 48, -1)], 0)]);
    worker.now += Duration::from_millis(1);
    worker.opening(of_transaction(1, &[0]));
    assert_eq!(worker.verified(Decision::Number(12)), [(1, 0)]);
}

#[test]
fn what_follows_a_batch_that_failed_after_it_was_verified_waits_too() {
    let mut worker = Worker::new(OPTIONS);
    let sent = [0, 1].map(|sequence| (worker.begin(1, of_transaction(sequence, &[0])), worker.sent(1)));
    for (_, sending) in &sent {
        worker.replied(sending, 0, &verdicts(&[(2, 0)]));
    }
    worker.verified(Decision::Number(12));
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(13, 0)]));
    let mut events = worker.events();
    assert!(matches!(events.remove(0), Event::MemoryFull { node: 0 }));
    let answered = events.iter().map(|event| match event {
        Event::Answer { number, response, .. } => (*number, read(response)),
        other => panic!("{other:?}"),
    });
    assert_eq!(answered.collect::<Vec<_>>(), sent.map(|(number, _)| (number, vec![(0, 56, -1)])));
    for sequence in [0, 1] {
        let number = worker.opening(of_transaction(sequence, &[0]));
        worker.verified(Decision::Number(12));
        let sending = worker.sent(1);
        worker.replied(&sending, 0, &verdicts(&[(0, sequence as u64)]));
        assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, sequence.into())], 0)]);
    }
}

#[test]
fn what_was_sent_before_the_first_was_verified_comes_after_it() {
    let mut worker = Worker::new(OPTIONS);
    let sent: Vec<_> =
        (0..5).map(|sequence| (worker.begin(1, of_transaction(sequence, &[0])), worker.sent(1))).collect();
    for (_, sending) in &sent {
        worker.replied(sending, 0, &verdicts(&[(2, 0)]));
        assert!(!worker.flow.may_begin(peer(1)));
    }
    for (offset, (number, _)) in (0..).zip(&sent) {
        assert_eq!(worker.verified(Decision::Number(12)), [(1, 0)]);
        let sending = worker.sent(1);
        assert!(!worker.flow.may_begin(peer(1)));
        worker.replied(&sending, 0, &verdicts(&[(0, offset)]));
        let events: Vec<_> = std::iter::from_fn(|| worker.flow.next_event()).take(2).collect();
        let [Event::Appended { end, .. }, Event::Answer { number: answered, response, .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!((*end, *answered), (offset as i64 + 1, *number));
        assert_eq!(read(response), [(0, 0, offset as i64)]);
    }
    assert!(worker.flow.may_begin(peer(1)));
}

#[test]
fn a_topic_that_is_created_again_after_it_was_verified_is_verified_again() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.opening(of_transaction(0, &[0]));
    assert_eq!(worker.verified(Decision::Number(12)), [(1, 0)]);
    let sending = worker.sent(1);
    assert_eq!(worker.number(&sending), 12);
    worker.replied(&sending, 0, &error("UNKNOWN_TOPIC_OR_PARTITION the partition does not exist"));
    let (asked, questions) = worker.asked();
    assert_eq!(questions, [Question::Topic { name: TopicName::Name("a".into()), index: 0, is_stale: true }]);
    worker.flow.put_partition(partition("a", 2, 0, Layout::Batch));
    worker.decide(asked, vec![Decision::Go]);
    let sending = worker.sent(1);
    assert_eq!(worker.number(&sending), UNVERIFIED);
    worker.replied(&sending, 0, &verdicts(&[(2, 0)]));
    assert_eq!(worker.verified(Decision::Number(13)), [(2, 0)]);
    let sending = worker.sent(1);
    assert_eq!(worker.number(&sending), 13);
    worker.replied(&sending, 0, &verdicts(&[(0, 3)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 3)], 0)]);
}
