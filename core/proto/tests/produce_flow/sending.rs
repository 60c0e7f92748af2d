//! What is sent together, and when a client's next request may begin.

use korvet_proto::append::Marker;
use korvet_proto::client::Prevented;
use korvet_proto::partition::Layout;
use korvet_proto::produce::{Asked, Event, Options, Pressure};

use crate::batches;
use crate::support::{Got, HISTORY, OPTIONS, Worker, error, partition, peer, plain, request, verdicts};

const STORED_BYTES: usize = 300_000;

fn large(indexes: &[i32]) -> Vec<u8> {
    let value = vec![b'x'; STORED_BYTES];
    request(1, indexes, &batches::batch(&[batches::valued(&value)]))
}

#[test]
fn what_comes_in_one_turn_goes_to_its_node_together_and_to_a_partition_in_one_call() {
    let mut worker = Worker::new(OPTIONS);
    worker.connect(2);
    let first = worker.begin(1, plain(&[0, 1, 10]));
    let second = worker.begin(2, plain(&[1]));
    let mut sends = worker.flush();
    sends.sort_by_key(|sending| sending.node);
    assert_eq!(sends.iter().map(|sending| (sending.node, sending.count)).collect::<Vec<_>>(), [(0, 2), (1, 1)]);
    assert!(sends.iter().all(|sending| &*sending.history == HISTORY && !sending.is_rerun));
    worker.replied(&sends[0], 1, &verdicts(&[(0, 7), (0, 8)]));
    assert_eq!(worker.got(), [Got::Answer(second, vec![(1, 0, 8)], 0)]);
    worker.replied(&sends[0], 0, &verdicts(&[(0, 3)]));
    worker.replied(&sends[1], 0, &verdicts(&[(0, 4)]));
    assert_eq!(worker.got(), [Got::Answer(first, vec![(0, 0, 3), (1, 0, 7), (10, 0, 4)], 0)]);
    assert_eq!(worker.flow.count(), 0);
}

#[test]
fn requests_of_a_client_are_under_way_together_and_may_be_done_in_any_order() {
    let mut worker = Worker::new(OPTIONS);
    let (first, before) = worker.appending(&[0]);
    let (second, after) = worker.appending(&[0]);
    assert_eq!(worker.flow.begun_by(peer(1)), 2);
    worker.replied(&after, 0, &verdicts(&[(0, 1)]));
    worker.replied(&before, 0, &verdicts(&[(0, 0)]));
    let answers = [Got::Answer(second, vec![(0, 0, 1)], 0), Got::Answer(first, vec![(0, 0, 0)], 0)];
    assert_eq!(worker.got(), answers);
}

#[test]
fn a_large_group_is_closed_and_more_goes_in_another_one() {
    let mut worker = Worker::new(Options { held_bytes_max: usize::MAX, ..OPTIONS });
    worker.begin(1, large(&[0]));
    worker.begin(1, plain(&[0, 1]));
    let counts: Vec<_> = worker.flush().iter().map(|sending| sending.count).collect();
    assert_eq!(counts, [1, 2]);
}

#[test]
fn a_partition_that_a_request_names_again_gets_one_batch_after_the_other() {
    let mut worker = Worker::new(OPTIONS);
    let number = worker.begin(1, plain(&[0, 1, 0]));
    let first = worker.sent(2);
    assert!(!worker.flow.may_begin(peer(1)));
    worker.replied(&first, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.flush().len(), 0);
    worker.replied(&first, 1, &verdicts(&[(0, 3)]));
    let second = worker.sent(1);
    worker.replied(&second, 0, &verdicts(&[(0, 8)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7), (1, 0, 3), (0, 0, 8)], 0)]);
    assert!(worker.flow.may_begin(peer(1)));
}

#[test]
fn a_request_is_prepared_in_waves() {
    let mut worker = Worker::new(Options { plain_bytes_max: 1000, held_bytes_max: usize::MAX, ..OPTIONS });
    for index in 0..3 {
        worker.flow.put_partition(partition("a", 1, index, Layout::Record { bits: 20 }));
    }
    let copied = batches::batch(&[batches::valued(&[b'x'; 600])]);
    let number = worker.begin(1, request(1, &[0, 1, 2], &copied));
    let first = worker.sent(2);
    assert!(!worker.flow.may_begin(peer(1)));
    worker.replied(&first, 0, &verdicts(&[(0, 7)]));
    worker.replied(&first, 1, &verdicts(&[(0, 8)]));
    let second = worker.sent(1);
    worker.replied(&second, 0, &verdicts(&[(0, 9)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7), (1, 0, 8), (2, 0, 9)], 0)]);
}

#[test]
fn no_request_begins_while_what_was_made_of_others_takes_too_much() {
    let mut worker = Worker::new(Options { held_bytes_max: 1, ..OPTIONS });
    worker.connect(2);
    worker.flow.put_partition(partition("a", 1, 0, Layout::Record { bits: 20 }));
    let (_, sending) = worker.appending(&[0]);
    assert!(!worker.flow.may_begin(peer(1)) && !worker.flow.may_begin(peer(2)));
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    let events = worker.events();
    assert!(events.iter().any(|event| matches!(event, Event::Room { peer: woken } if *woken == peer(2))));
    assert!(worker.flow.may_begin(peer(1)) && worker.flow.may_begin(peer(2)));
}

#[test]
fn what_goes_to_a_node_waits_for_its_epoch_in_its_history() {
    let mut worker = Worker::new(OPTIONS);
    worker.servers.histories[0] = "another".into();
    let number = worker.begin(1, plain(&[0]));
    for _ in 0..2 {
        assert_eq!(worker.flush().len(), 0);
    }
    assert!(matches!(worker.events()[..], [Event::WantsEpoch { node: 0 }]));
    worker.flow.put_epoch(0, "another", 2);
    let sending = worker.sent(1);
    assert_eq!(&*sending.history, "another");
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 7)], 0)]);
}

#[test]
fn what_waits_for_an_epoch_that_cannot_be_learned_is_refused() {
    for (is_cluster, code) in [(false, 56), (true, 6)] {
        let mut worker = Worker::new(Options { is_cluster, ..OPTIONS });
        worker.servers.histories[0] = "another".into();
        let number = worker.begin(1, plain(&[0]));
        worker.flush();
        worker.events();
        let clock = worker.clock();
        worker.flow.no_epoch(0, "Redis is away", &worker.servers, clock);
        assert_eq!(worker.got(), [Got::Answer(number, vec![(0, code, -1)], 0)]);
    }
}

#[test]
fn a_slot_without_a_master_is_refused_and_the_map_is_wanted() {
    let mut worker = Worker::new(Options { is_cluster: true, ..OPTIONS });
    worker.servers.slots[1] = None;
    worker.begin(1, plain(&[0, 1]));
    assert!(matches!(worker.events()[..], [Event::WantsMap]));
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert_eq!(worker.got(), [Got::Answer(1, vec![(0, 0, 7), (1, 6, -1)], 0)]);
}

#[test]
fn a_full_node_refuses_batches_and_takes_markers() {
    let mut worker = Worker::new(OPTIONS);
    let until = worker.now + OPTIONS.timeout;
    let pressure = Pressure { throttle_ms: 40, refusal: Some("full".into()), due: until, until };
    worker.flow.put_pressure(0, pressure);
    let number = worker.begin(1, plain(&[0]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 56, -1)], 40)]);
    let ended = Marker { producer_id: 1, epoch: 0, number: 1, commits: true };
    let asked = vec![(partition("a", 1, 0, Layout::Batch).into(), Asked::Marker(ended), None)];
    let clock = worker.clock();
    let request = worker.flow.append(asked, &worker.servers, clock);
    let sending = worker.sent(1);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert!(matches!(worker.events()[..], [Event::Done { request: done }] if done == request));
    assert_eq!(worker.flow.take_outcomes(request)[0].as_ref().unwrap().base_offset, 7);
    worker.now = until;
    let (number, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &verdicts(&[(0, 8)]));
    assert_eq!(worker.got(), [Got::Answer(number, vec![(0, 0, 8)], 0)]);
}

#[test]
fn a_node_is_looked_at_once_when_that_is_due_and_only_if_something_is_written_to_it() {
    let mut worker = Worker::new(OPTIONS);
    let looked_at = |worker: &mut Worker, indexes: &[i32]| -> Vec<usize> {
        worker.begin(1, plain(indexes));
        let events = std::iter::from_fn(|| worker.flow.next_event());
        events.filter_map(|event| if let Event::WantsPressure { node } = event { Some(node) } else { None }).collect()
    };
    assert_eq!(looked_at(&mut worker, &[0, 1, 10]), [0, 1]);
    assert!(looked_at(&mut worker, &[0, 10]).is_empty());
    let due = worker.now + OPTIONS.timeout;
    for node in [0, 1] {
        worker.flow.put_pressure(node, Pressure { due, ..Pressure::default() });
    }
    assert!(looked_at(&mut worker, &[0, 10]).is_empty());
    worker.now = due;
    assert_eq!(looked_at(&mut worker, &[10]), [1]);
}

#[test]
fn a_marker_that_a_full_memory_refused_is_sent_again_as_the_text_for_that() {
    let mut worker = Worker::new(OPTIONS);
    let ended = Marker { producer_id: 1, epoch: 0, number: 1, commits: false };
    let asked = vec![(partition("a", 1, 0, Layout::Batch).into(), Asked::Marker(ended), None)];
    let clock = worker.clock();
    let request = worker.flow.append(asked, &worker.servers, clock);
    let sending = worker.sent(1);
    assert!(!sending.is_rerun);
    worker.replied(&sending, 0, &error("OOM command not allowed when used memory > 'maxmemory'."));
    assert!(matches!(worker.events()[..], [Event::MemoryFull { node: 0 }]));
    let again = worker.sent(1);
    assert!(again.is_rerun);
    worker.prevented(&again, Prevented::Away);
    assert!(matches!(worker.events()[..], [Event::Done { .. }]));
    assert!(worker.flow.take_outcomes(request)[0].is_err());
}

#[test]
fn a_group_is_gone_with_its_last_outcome() {
    let mut worker = Worker::new(OPTIONS);
    let (_, sending) = worker.appending(&[0, 1]);
    worker.replied(&sending, 0, &verdicts(&[(0, 7)]));
    assert!(worker.packed(&sending).is_some());
    worker.replied(&sending, 1, &verdicts(&[(0, 7)]));
    assert!(worker.packed(&sending).is_none());
}
