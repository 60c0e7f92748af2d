//! Requests that are small for their client, and not for the worker.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

#[path = "append/support.rs"]
#[allow(dead_code)] // the tests of appends have more
mod batches;
#[path = "produce_flow/support.rs"]
#[allow(dead_code)] // the tests of the flow have more
mod support;

use std::alloc::{GlobalAlloc, Layout as Room, System};
use std::cell::Cell;

use korvet_proto::ErrorCode::UnknownTopicOrPartition;
use korvet_proto::access::Session;
use korvet_proto::batch::Header;
use korvet_proto::compression::Codec;
use korvet_proto::produce::{Decision, Options, Question};
use support::{Frame, Got, OPTIONS, Worker, peer, request, verdicts};

/// Counts what each thread has allocated and not freed: tests run side by side.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn note(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

// SAFETY: the system's allocator does all.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, room: Room) -> *mut u8 {
        note(room.size() as isize);
        unsafe { System.alloc(room) }
    }

    unsafe fn dealloc(&self, bytes: *mut u8, room: Room) {
        note(-(room.size() as isize));
        unsafe { System.dealloc(bytes, room) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most that was held meanwhile.
fn held_for(act: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    act();
    (MOST.get() - before).unsigned_abs()
}

fn nulls(name: &'static str, count: i32, first: i32) -> Vec<u8> {
    let batches = (0..count).map(|index| (first + index, None)).collect();
    Frame { transactional_id: None, acks: 1, topics: vec![(name, batches)] }.bytes()
}

#[test]
fn a_name_that_no_topic_has_is_neither_looked_up_nor_asked_for() {
    let name: &'static str = "x".repeat(250).leak();
    let mut worker = Worker::new(OPTIONS);
    worker.flow.put_session(peer(2), Session::default());
    for client in [1, 2] {
        worker.begin(client, nulls(name, 2, 0));
        let code = UnknownTopicOrPartition as i16;
        let results = vec![(0, code, -1), (1, code, -1)];
        assert_eq!(worker.got(), [Got::Answer(client, results, 0)]);
    }
}

#[test]
fn questions_about_many_partitions_hold_the_name_of_their_topic_once() {
    const COUNT: usize = 20_000;
    let name: &'static str = "x".repeat(249).leak();
    let frame = nulls(name, COUNT as i32, 0);
    let mut worker = Worker::new(OPTIONS);
    let held = held_for(|| {
        worker.begin(1, frame);
    });
    assert_eq!(worker.asked().1.len(), COUNT);
    assert!(held < COUNT * 900, "{held}");
}

#[test]
fn what_many_topics_and_places_of_few_bytes_hold_lets_others_wait() {
    // Of the topics all but one are named for nothing.
    let mut topics = vec![("x", Vec::new()); 30_000];
    topics.push(("b", vec![(0, None)]));
    let topics = Frame { transactional_id: None, acks: 1, topics }.bytes();
    for frame in [nulls("b", 20_000, 0), topics] {
        let mut worker = Worker::new(OPTIONS);
        worker.begin(1, frame);
        worker.connect(2);
        assert!(!worker.flow.may_begin(peer(2)));
        let (request, questions) = worker.asked();
        worker.decide(request, questions.iter().map(|_| support::refusal(UnknownTopicOrPartition)).collect());
        assert!(worker.flow.may_begin(peer(2)));
    }
}

/// A batch that is small and has much in it; if it `is_damaged` that shows at its end.
fn bomb(is_damaged: bool) -> Vec<u8> {
    let records: Vec<_> = (0..1000).map(|_| batches::valued(&[0; 900])).collect();
    let more = i32::from(is_damaged);
    batches::batch_of(&records, Codec::Zstd, |header| Header {
        record_count: header.record_count + more,
        last_offset_delta: header.last_offset_delta + more,
        ..header
    })
}

#[test]
fn others_have_their_turn_while_batches_are_decompressed_and_refused() {
    const COUNT: usize = 10;
    let mut worker = Worker::new(Options { plain_bytes_max: 1 << 20, ..OPTIONS });
    worker.begin(1, request(1, &[0; COUNT], &bomb(true)));
    for _ in 1..COUNT {
        assert_eq!(worker.decided(Decision::Go), Question::Rest);
    }
    assert!(matches!(&worker.got()[..], [Got::Answer(1, results, 0)] if results.len() == COUNT));
}

#[test]
fn what_is_decompressed_of_one_request_before_it_is_sent_is_bounded() {
    let mut worker = Worker::new(Options { plain_bytes_max: 1 << 20, ..OPTIONS });
    worker.begin(1, request(1, &[0, 1, 2, 3], &bomb(false)));
    for left in [4, 2] {
        // 900 KB are less than enough, and twice as much is more.
        let sending = worker.sent(2.min(left));
        for call in 0..2 {
            worker.replied(&sending, call, &verdicts(&[(0, 7)]));
        }
    }
    assert!(matches!(&worker.got()[..], [Got::Answer(1, results, 0)] if results.len() == 4));
}

#[test]
fn an_offset_at_the_end_of_numbers_is_no_overflow() {
    let mut worker = Worker::new(OPTIONS);
    let (_, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &verdicts(&[(0, i64::MAX as u64)]));
    assert_eq!(worker.got(), [Got::Answer(1, vec![(0, 0, i64::MAX)], 0)]);
}

#[test]
fn a_throttle_beyond_an_int32_is_the_largest_one() {
    let mut worker = Worker::new(OPTIONS);
    worker.flow.set_metered(true);
    let (_, sending) = worker.appending(&[0]);
    worker.replied(&sending, 0, &verdicts(&[(0, 1)]));
    worker.decided(Decision::Throttle(u32::MAX, 0));
    let events = worker.events();
    let [korvet_proto::produce::Event::Answer { response, .. }] = &events[..] else { panic!("{events:?}") };
    let end = response.len() - 1;
    assert_eq!(response[end - 4..end], i32::MAX.to_be_bytes());
}
