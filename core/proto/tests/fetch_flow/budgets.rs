//! Limits (KIP-74): how much is read and answered, of which partitions, and in how many rounds.

use std::collections::BTreeSet;

use korvet_proto::fetch::Options;

use crate::support::{OPTIONS, Worker, peer};
use crate::wire::{Asks, Fetch, Response, at, fetch};

/// What a batch of a value of 1000 bytes weighs, about.
const BATCH: usize = 1100;

fn worker(batches: usize, partitions: i32) -> Worker {
    let mut worker = Worker::new(OPTIONS);
    for index in 0..partitions {
        for _ in 0..batches {
            worker.append_silently(&format!("a:{index}"), 1, 1000, |_| {});
        }
    }
    worker
}

fn asked(partitions: i32) -> Vec<Asks> {
    (0..partitions).map(|index| at(index, 0)).collect()
}

fn size(response: &Response) -> usize {
    response.results.iter().map(|result| result.size).sum()
}

/// How many batches each partition got.
fn counts(response: &Response) -> Vec<usize> {
    response.results.iter().map(|result| result.batches.len()).collect()
}

#[test]
fn the_budget_of_a_request_holds_though_nothing_is_known_of_its_partitions() {
    let mut worker = worker(10, 5);
    for _ in 0..2 {
        let response = worker.fetch(&Fetch { bytes_max: 3 * BATCH as i32, ..fetch(&asked(5)) });
        assert!(size(&response) <= 3 * BATCH && size(&response) > BATCH, "{}", size(&response));
        let indexes: Vec<_> = response.results.iter().map(|result| result.index).collect();
        assert_eq!(indexes, [0, 1, 2, 3, 4]);
        assert!(response.results.iter().all(|result| (result.high_watermark, result.start) == (10, 0)));
    }
}

#[test]
fn the_first_batch_comes_whatever_it_weighs_and_is_the_only_one() {
    let mut worker = worker(2, 3);
    for limit in [1, 0, -1] {
        let response = worker.fetch(&Fetch { bytes_max: limit, bytes_min: 1, ..fetch(&asked(3)) });
        assert_eq!(counts(&response), [1, 0, 0]);
        assert!(response.results.iter().all(|result| result.high_watermark == 2));
    }
}

#[test]
fn a_partition_without_records_does_not_use_up_the_one_batch() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_silently("a:2", 1, 1000, |_| {});
    let asked: Vec<_> = (0..4).map(|index| Asks { bytes_max: 10, ..at(index, 0) }).collect();
    let response = worker.fetch(&Fetch { bytes_max: 10, ..fetch(&asked) });
    assert_eq!(counts(&response), [0, 0, 1, 0]);
}

#[test]
fn whatever_the_limits_a_consumer_gets_on_and_they_hold() {
    for of_request in [-1, 0, 1, 1200, 3000, 1 << 20] {
        for of_partition in [-1, 0, 1, 1200, 3000, 1 << 20] {
            let mut worker = worker(7, 1);
            let mut offset = 0;
            while offset < 7 {
                let asks = Fetch {
                    bytes_max: of_request,
                    wait_ms: 0,
                    ..fetch(&[Asks { bytes_max: of_partition, ..at(0, offset) }])
                };
                let response = worker.fetch(&asks);
                let (begin, end) = response.results[0].offsets().unwrap();
                assert_eq!(begin, offset);
                let most = of_request.min(of_partition).max(0) as usize;
                assert!(end == begin + 1 || size(&response) <= most, "{of_request} {of_partition}");
                offset = end;
            }
        }
    }
}

#[test]
fn of_what_gets_no_room_the_bounds_alone_are_read() {
    let mut worker = worker(5, 4);
    worker.fetch(&fetch(&asked(4)));
    worker.ran();
    let response = worker.fetch(&Fetch { bytes_max: 2 * BATCH as i32, ..fetch(&asked(4)) });
    assert!(response.results.iter().all(|result| result.high_watermark == 5));
    let (reads, bounds, _) = worker.ran();
    assert!(reads <= 2 && bounds >= 2, "{reads} {bounds}");
}

#[test]
fn each_of_many_partitions_is_read_though_none_has_a_weight_yet() {
    let mut worker = Worker::new(OPTIONS);
    worker.owner.partitions = 600;
    worker.create("a", 0);
    for index in 0..600 {
        worker.append_silently(&format!("a:{index}"), 1, 100, |_| {});
    }
    let asked: Vec<_> = (0..600).map(|index| Asks { bytes_max: 10_000, ..at(index, 0) }).collect();
    let response = worker.fetch(&fetch(&asked));
    assert!(counts(&response).iter().all(|count| *count == 1));
}

#[test]
fn many_partitions_of_which_most_have_nothing_take_few_rounds() {
    let mut worker = Worker::new(OPTIONS);
    worker.owner.partitions = 10_000;
    worker.create("a", 0);
    for index in [17, 9999] {
        worker.append_silently(&format!("a:{index}"), 1, 100, |_| {});
    }
    let number = worker.begin(&Fetch { wait_ms: 0, ..fetch(&asked(10_000)) });
    let mut groups = BTreeSet::new();
    while let Some(call) = worker.calls.pop_front() {
        groups.insert(call.group);
        worker.reply(&call);
    }
    assert!(groups.len() <= 12, "{}", groups.len());
    let counts = counts(&worker.answer(number));
    assert_eq!((counts[17], counts[9999], counts.iter().sum()), (1, 1, 2));
}

#[test]
fn less_is_expected_each_time_of_a_log_gone_quiet() {
    let mut worker = worker(1, 1);
    worker.fetch(&fetch(&asked(1)));
    for _ in 0..200 {
        worker.append_silently("a:0", 1, 1000, |_| {});
    }
    assert_eq!(worker.fetch(&fetch(&[at(0, 1)])).results[0].offsets(), Some((1, 201)));
    let expected = (0..6).map(|_| {
        worker.fetch(&Fetch { wait_ms: 0, ..fetch(&[at(0, 201)]) });
        worker.reply_bytes
    });
    let expected: Vec<_> = expected.collect();
    let entry = expected[5] / 32;
    // Twice as many as the last time, but for the 64 that may all be of the largest size, and half of that each time.
    assert_eq!(expected.iter().map(|bytes| bytes / entry).collect::<Vec<_>>(), [64, 64, 64, 50, 32, 32]);
}

#[test]
fn what_comes_at_the_end_of_a_log_is_read_in_one_round() {
    let mut worker = worker(1, 1);
    worker.fetch(&fetch(&[at(0, 0)]));
    let number = worker.parked(&fetch(&[at(0, 1)]));
    worker.ran();
    for _ in 0..20 {
        worker.append_silently("a:0", 1, 1000, |_| {});
    }
    worker.announce("a:0");
    worker.settle();
    assert_eq!(worker.answer(number).results[0].offsets(), Some((1, 21)));
    assert_eq!(worker.ran(), (1, 0, 0));
}

#[test]
fn a_read_says_what_its_reply_may_weigh() {
    let mut worker = worker(10, 1);
    worker.fetch(&fetch(&asked(1)));
    worker.begin(&fetch(&[Asks { bytes_max: 5000, ..at(0, 0) }]));
    assert!((5000..10_000).contains(&worker.reply_bytes), "{}", worker.reply_bytes);
}

#[test]
fn an_offset_within_a_batch_gets_the_whole_batch() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_silently("a:0", 5, 10, |_| {});
    worker.append_silently("a:0", 5, 10, |_| {});
    assert_eq!(worker.fetch(&fetch(&[at(0, 7)])).results[0].offsets(), Some((5, 10)));
}

#[test]
fn who_has_what_its_limits_allow_does_not_wait_for_as_much_as_it_wants() {
    // Another batch fits into none of them.
    let limit = 4 * BATCH as i32 + 500;
    for (of_request, of_partition) in [(1 << 20, limit), (limit, 1 << 20), (limit, limit)] {
        let mut worker = worker(10, 2);
        let asked = [0, 1].map(|index| Asks { bytes_max: of_partition, ..at(index, 0) });
        let asks = Fetch { bytes_max: of_request, bytes_min: limit, ..fetch(&asked) };
        for _ in 0..2 {
            let response = worker.fetch(&asks);
            assert_eq!(counts(&response)[0], 4);
            assert!(response.results[0].size < limit as usize);
        }
    }
}

#[test]
fn a_partition_at_its_limit_counts_as_no_more_than_that() {
    let mut worker = worker(10, 1);
    let limit = 4 * BATCH as i32 + 500;
    let asked = [Asks { bytes_max: limit, ..at(0, 0) }, at(1, 0)];
    let number = worker.parked(&Fetch { bytes_min: limit + 500, ..fetch(&asked) });
    worker.append(1, 600);
    worker.settle();
    assert_eq!(counts(&worker.answer(number)), [4, 1]);
}

#[test]
fn nobody_waits_for_what_there_is_no_memory_for() {
    let mut worker = Worker::new(Options { held_bytes_max: 0, ..OPTIONS });
    for index in 0..2 {
        for _ in 0..100 {
            worker.append_silently(&format!("a:{index}"), 1, 1000, |_| {});
        }
    }
    let asked = [0, 1].map(|index| Asks { bytes_max: 100_000, ..at(index, 0) });
    for _ in 0..2 {
        let response = worker.fetch(&Fetch { bytes_min: 150_000, ..fetch(&asked) });
        assert!(size(&response) > 50_000);
    }
}

#[test]
fn answers_hold_memory_until_they_are_written() {
    let mut worker = worker(10, 1);
    let room = worker.flow.room();
    let response = worker.fetch(&fetch(&asked(1)));
    let held = room - worker.flow.room();
    assert!(held >= size(&response) / 4, "{held}");
    worker.flow.written(peer(1));
    assert_eq!(worker.flow.room(), room);
}

#[test]
fn a_request_that_waits_holds_what_it_has_read_alone() {
    let mut worker = worker(3, 1);
    let room = worker.flow.room();
    worker.parked(&Fetch { bytes_min: 1 << 20, ..fetch(&asked(1)) });
    assert!(room - worker.flow.room() <= 3 * BATCH);
    worker.disconnect(1);
    assert_eq!(worker.flow.room(), room);
}

#[test]
fn though_others_hold_all_a_request_gets_on() {
    let mut worker = Worker::new(Options { held_bytes_max: 0, ..OPTIONS });
    for _ in 0..100 {
        worker.append_silently("a:0", 1, 1000, |_| {});
    }
    let response = worker.fetch(&fetch(&asked(1)));
    assert!(size(&response) > 50_000 && size(&response) <= 64 << 10);
}

#[test]
fn a_quota_limits_what_a_client_gets_at_once_and_charges_it() {
    let mut worker = worker(10, 1);
    worker.flow.set_metered(true);
    (worker.owner.limit, worker.owner.throttle_ms) = (Some(3 * BATCH as i64), 250);
    let response = worker.fetch(&fetch(&asked(1)));
    assert!(size(&response) <= 3 * BATCH);
    assert_eq!(response.throttle_ms, 250);
    assert_eq!(worker.owner.asked.len(), 3, "the partition, the limit, the charge");
}

#[test]
fn a_quota_of_less_than_is_wanted_lets_nobody_wait() {
    let mut worker = worker(1, 1);
    worker.flow.set_metered(true);
    worker.owner.limit = Some(10);
    let response = worker.fetch(&Fetch { bytes_min: 5000, ..fetch(&asked(1)) });
    assert_eq!(counts(&response), [1]);
}

#[test]
fn the_setting_of_the_worker_limits_each_request() {
    let mut worker = worker(10, 1);
    worker.flow.set_bytes_max(2 * BATCH);
    assert!(size(&worker.fetch(&fetch(&asked(1)))) <= 2 * BATCH);
}
