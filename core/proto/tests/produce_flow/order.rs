//! Nothing of a connection overtakes what was sent before it and may have been refused for a reason that has ended.

use korvet_proto::client::Prevented;
use korvet_proto::partition::Layout;
use korvet_proto::produce::{Decision, Options, Question, RequestId, Sending};

use crate::support::{
    Frame, Got, OPTIONS, Worker, batch, error, idempotent, partition, peer, plain, request, verdicts,
};

#[test]
fn a_group_that_the_order_has_left_behind_is_sent_again_in_the_same_turn() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.begin(1, plain(&[0]));
    worker.flow.reordered();
    let sending = worker.sent(1);
    assert!(sending.is_rerun);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7)], 0)]);
}

#[test]
fn a_client_begins_nothing_after_a_change_of_the_order_until_all_is_answered() {
    let mut worker = Worker::new(OPTIONS);
    let (_, sending) = worker.appending(&[0]);
    assert!(worker.flow.may_begin(peer(1)));
    worker.flow.reordered();
    assert!(!worker.flow.may_begin(peer(1)));
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert!(worker.flow.may_begin(peer(1)));
}

#[test]
fn what_begins_after_a_change_of_the_order_does_not_join_what_began_before() {
    let mut worker = Worker::new(OPTIONS);
    worker.connect(2);
    let before = worker.begin(1, plain(&[0]));
    worker.flow.reordered();
    let after = worker.begin(2, plain(&[0]));
    let sends = worker.flush();
    let kinds: Vec<_> = sends.iter().map(|sending| (sending.count, sending.is_rerun)).collect();
    assert_eq!(kinds, [(1, false), (1, true)]);
    worker.replied(&sends[0], 0, &verdicts(&[(0, 7)]));
    worker.replied(&sends[1], 0, &verdicts(&[(0, 8)]));
    assert_eq!(worker.got(), [(after, 7), (before, 8)].map(|(number, at)| Got::Answer(number, vec![(0, 0, at)], 0)));
}

#[test]
fn nothing_begins_once_a_script_is_loaded_that_may_have_been_missing() {
    let missing = error("NOSCRIPT No matching script.");
    let mut worker = Worker::new(OPTIONS);
    worker.connect(2);
    let (_, of_one) = worker.appending(&[0]);
    let number = worker.begin(2, plain(&[1]));
    let of_other = worker.sent(1);
    worker.replied(&of_one, 0, &missing);
    let again = worker.sent(1);
    assert!(worker.flow.may_begin(peer(2)));
    worker.replied(&again, 0, &verdicts(&[(0, 7)]));
    worker.flow.reordered();
    worker.got();
    // The script was missing for it too: the next one would be written before it.
    assert!(worker.flow.may_begin(peer(1)) && !worker.flow.may_begin(peer(2)));
    worker.replied(&of_other, 0, &missing);
    let again = worker.sent(1);
    assert!(!worker.flow.may_begin(peer(2)));
    worker.replied(&again, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(1, 0, 7)], 0)]);
    assert!(worker.flow.may_begin(peer(2)));
}

/// Begin a request that has to ask, either for its topic or for replicas, behind one that waits for its node's epoch.
fn asking_behind_one_unsent(asks_for_topic: bool) -> (Worker, [u64; 2], RequestId) {
    let mut worker = Worker::new(Options { replicas: 1, ..OPTIONS });
    worker.servers.histories[0] = "another".into();
    let first = worker.begin(1, plain(&[0]));
    assert_eq!(worker.flush().len(), 0);
    worker.events();
    let content = batch(|header| header);
    let name = if asks_for_topic { "b" } else { "a" };
    let acks = if asks_for_topic { 1 } else { -1 };
    let frame = Frame { transactional_id: None, acks, topics: vec![(name, vec![(0, Some(content))])] };
    let second = worker.begin(1, frame.bytes());
    let (asked, questions) = worker.asked();
    assert_eq!(matches!(questions[..], [Question::Topic { .. }]), asks_for_topic);
    (worker, [first, second], asked)
}

/// Whether what is sent first is sent again: then it goes alone, else with what has asked behind it.
fn expected(is_reordered: bool) -> Vec<bool> {
    if is_reordered { vec![true] } else { vec![false, false] }
}

#[test]
fn what_had_to_ask_does_not_overtake_what_is_not_sent_yet() {
    for (asks_for_topic, is_reordered) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut worker, [first, second], asked) = asking_behind_one_unsent(asks_for_topic);
        if is_reordered {
            // The group that waits is given up, and its request is sent again.
            worker.flow.reordered();
        }
        worker.flow.put_partition(partition("b", 2, 0, Layout::Batch));
        worker.decide(asked, vec![Decision::Go]);
        worker.flow.put_epoch(0, "another", 2);
        let mut sends = worker.flush();
        assert_eq!(sends.iter().map(|sending| sending.is_rerun).collect::<Vec<_>>(), expected(is_reordered));
        worker.replied(&sends.remove(0), 0, &verdicts(&[(0, 7)]));
        assert_eq!(worker.got(), [Got::Answer(first, vec![(0, 0, 7)], 0)]);
        sends.extend(worker.flush());
        assert_eq!(sends.len(), 1);
        worker.replied(&sends.remove(0), 0, &verdicts(&[(0, 8)]));
        if !asks_for_topic {
            assert!(matches!(worker.decided(Decision::Go), Question::Confirm { .. }));
        }
        assert_eq!(worker.got(), [Got::Answer(second, vec![(0, 0, 8)], 0)]);
    }
}

#[test]
fn nothing_overtakes_what_was_refused_by_an_earlier_incarnation_of_its_topic() {
    let again = || partition("a", 2, 0, Layout::Batch);
    let changes: [fn(&mut Worker); 3] = [
        |worker| worker.flow.forget_topic("a"),
        |worker| worker.flow.forget_topics(),
        |worker| worker.flow.put_partition(partition("a", 2, 0, Layout::Batch)),
    ];
    for change in changes {
        let mut worker = Worker::new(OPTIONS);
        let (first, refused) = worker.appending(&[0]);
        change(&mut worker);
        assert!(!worker.flow.may_begin(peer(1)));
        worker.replied(&refused, 0, &error("UNKNOWN_TOPIC_OR_PARTITION the partition does not exist"));
        worker.flow.put_partition(again());
        assert!(matches!(worker.decided(Decision::Go), Question::Topic { is_stale: true, .. }));
        let sending = worker.sent(1);
        assert!(!worker.flow.may_begin(peer(1)));
        worker.replied(&sending, 0, &verdicts(&[(0, 0)]));
        assert_eq!(worker.got(), [Got::Answer(first, vec![(0, 0, 0)], 0)]);
        assert!(worker.flow.may_begin(peer(1)));
    }
}

#[test]
fn what_had_to_ask_does_not_overtake_what_was_refused_by_an_earlier_incarnation() {
    let mut worker = Worker::new(OPTIONS);
    worker.flow.put_partition(partition("a", 1, 0, Layout::Batch));
    let (first, refused) = worker.appending(&[0]);
    let second = worker.begin(1, plain(&[13]));
    let (asked, _) = worker.asked();
    worker.flow.put_partition(partition("a", 2, 0, Layout::Batch));
    worker.flow.put_partition(partition("a", 2, 13, Layout::Batch));
    worker.servers.slots.push(Some(0));
    worker.decide(asked, vec![Decision::Go]);
    assert_eq!(worker.flush().len(), 0);
    worker.replied(&refused, 0, &error("UNKNOWN_TOPIC_OR_PARTITION the partition does not exist"));
    worker.decided(Decision::Go);
    for (number, index) in [(first, 0), (second, 13)] {
        let sending = worker.sent(1);
        worker.replied(&sending, 0, &verdicts(&[(0, 0)]));
        assert_eq!(worker.got(), [Got::Answer(number, vec![(index, 0, 0)], 0)]);
    }
}

#[test]
fn a_partition_that_is_put_as_it_was_changes_no_order() {
    let mut worker = Worker::new(OPTIONS);
    worker.appending(&[0]);
    worker.flow.put_partition(partition("a", 1, 0, Layout::Batch));
    worker.flow.forget_topic("unknown");
    assert!(worker.flow.may_begin(peer(1)));
}

#[test]
fn ten_thousand_requests_of_a_connection_end_with_the_first() {
    const COUNT: usize = 10_000;
    let mut worker = Worker::new(Options { held_bytes_max: usize::MAX, ..OPTIONS });
    let sent: Vec<Sending> = (0..COUNT)
        .map(|_| {
            worker.begin(1, request(1, &[0], &idempotent(0)));
            worker.sent(1)
        })
        .collect();
    for sending in &sent[1..] {
        worker.prevented(sending, Prevented::History);
    }
    assert_eq!(worker.flow.count(), COUNT);
    worker.prevented(&sent[0], Prevented::Unknown);
    assert_eq!(worker.flow.count(), 0);
    let got = worker.got();
    assert_eq!((&got[0], got.len()), (&Got::Close { is_unanswered: true }, COUNT));
}
