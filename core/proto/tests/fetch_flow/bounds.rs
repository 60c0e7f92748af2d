//! Offsets and leader epochs that clients come with (KIP-320, KIP-595), high watermarks, and the remote tier (KIP-405).

use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::fetch::{Decision, Options, Question};
use korvet_proto::shared::Shared;

use crate::support::{OPTIONS, Worker, away, refusal};
use crate::wire::{Asks, Fetch, at, fetch};

const OUT_OF_RANGE: i16 = 1;
const FENCED: i16 = 74;
const REPLICATED: Options = Options { replicas: 1, ..OPTIONS };

#[test]
fn an_offset_outside_the_log_is_an_error_and_ends_the_wait() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_silently("a:0", 5, 10, |_| {});
    worker.append_silently("a:0", 5, 10, |_| {});
    worker.redis.log("a:0").delete_until(5);
    for offset in [-1, 0, 4, 11, i64::MAX, i64::MIN] {
        let result = worker.fetch(&fetch(&[at(0, offset), at(1, 0)])).results.remove(0);
        assert_eq!((result.error, result.high_watermark), (OUT_OF_RANGE, -1), "{offset}");
    }
    assert_eq!(worker.fetch(&fetch(&[at(0, 5)])).results[0].offsets(), Some((5, 10)));
}

#[test]
fn a_client_of_another_epoch_gets_what_the_owner_says_of_it() {
    let mut worker = Worker::new(OPTIONS);
    worker.append(0, 10);
    let asks = Asks { epoch: 0, ..at(0, 0) };
    worker.owner.decisions.push_back(refusal(ErrorCode::FencedLeaderEpoch));
    assert_eq!(worker.fetch(&fetch(&[asks])).results[0].error, FENCED);
    assert!(matches!(worker.owner.asked.last(), Some(Question::Epoch { known: 0, .. })));
    let asks = Asks { epoch: 1, ..asks };
    worker.owner.asked.clear();
    assert_eq!(worker.fetch(&fetch(&[asks])).results[0].offsets(), Some((0, 1)));
    assert!(worker.owner.asked.is_empty());
}

#[test]
fn a_client_of_a_log_that_was_cut_finds_out_where() {
    let mut worker = Worker::new(OPTIONS);
    worker.redis.log("a:0").epochs = "1@3 0@0".into();
    for _ in 0..5 {
        worker.append(0, 10);
    }
    let asks = |offset: i64, last_epoch: i32| fetch(&[Asks { last_epoch, ..at(0, offset) }, at(1, 0)]);
    let result = worker.fetch(&asks(5, 0)).results.remove(0);
    assert_eq!((result.error, result.diverging, result.high_watermark), (0, Some((0, 3)), 5));
    assert_eq!(worker.fetch(&asks(3, 0)).results[0].diverging, None);
    assert_eq!(worker.fetch(&asks(4, 1)).results[0].offsets(), Some((4, 5)));
}

#[test]
fn an_offset_that_was_deleted_is_out_of_range_though_its_epoch_diverges() {
    let mut worker = Worker::new(OPTIONS);
    worker.redis.log("a:0").epochs = "5@3 0@0".into();
    for _ in 0..5 {
        worker.append(0, 10);
    }
    worker.redis.log("a:0").delete_until(2);
    let mut answered = |offset: i64| {
        worker.owner.decisions.push_back(Decision::Number(5));
        let result = worker.fetch(&fetch(&[Asks { last_epoch: 4, ..at(0, offset) }])).results.remove(0);
        (result.error, result.diverging, result.high_watermark)
    };
    assert_eq!(answered(1), (OUT_OF_RANGE, None, -1));
    assert_eq!(answered(2), (0, Some((0, 3)), 5));
}

#[test]
fn where_an_epoch_diverges_no_transactions_are_listed() {
    let mut worker = Worker::new(OPTIONS);
    worker.redis.log("a:0").epochs = "1@3 0@0".into();
    for _ in 0..5 {
        worker.append(0, 10);
    }
    let asks = Fetch { is_committed: true, ..fetch(&[Asks { last_epoch: 0, ..at(0, 5) }]) };
    let result = worker.fetch(&asks).results.remove(0);
    assert_eq!((result.diverging, result.aborted), (Some((0, 3)), None));
}

#[test]
fn though_the_epoch_is_not_known_yet_what_is_there_is_read() {
    let mut worker = Worker::new(OPTIONS);
    worker.append(0, 10);
    worker.servers.histories[0] = "another".into();
    worker.owner.decisions.push_back(away());
    assert_eq!(worker.fetch(&fetch(&[at(0, 0)])).results[0].offsets(), Some((0, 1)));
    worker.owner.decisions.push_back(away());
    assert_eq!(worker.fetch(&fetch(&[at(0, 9)])).results[0].error, 56);
}

#[test]
fn an_epoch_before_the_last_of_the_log_is_over_though_the_present_one_is_not_known() {
    let mut worker = Worker::new(OPTIONS);
    worker.redis.log("a:0").epochs = "2@1 1@0".into();
    worker.append(0, 10);
    worker.append(0, 10);
    worker.servers.histories[0] = "another".into();
    for (epoch, error) in [(1, FENCED), (2, 0), (-1, 0)] {
        worker.owner.decisions.push_back(away());
        assert_eq!(worker.fetch(&fetch(&[Asks { epoch, ..at(0, 1) }])).results[0].error, error, "{epoch}");
    }
}

#[test]
fn the_epoch_of_a_client_is_compared_with_that_of_the_history_that_answers() {
    let mut worker = Worker::new(OPTIONS);
    worker.append(0, 10);
    worker.append(0, 10);
    worker.redis.log("a:0").cut(1);
    let number = worker.begin(&fetch(&[Asks { epoch: 1, ..at(0, 2) }]));
    worker.servers.histories[0] = "another".into();
    worker.owner.decisions.push_back(refusal(ErrorCode::FencedLeaderEpoch));
    worker.settle();
    assert_eq!(worker.answer(number).results[0].error, FENCED);
}

#[test]
fn no_more_is_shown_than_replicas_have_and_the_rest_is_looked_for_each_second() {
    let mut worker = Worker::new(REPLICATED);
    worker.append(0, 10);
    worker.append(0, 10);
    worker.owner.decisions.push_back(Decision::Bounds { high_watermark: 1, stable: 1 });
    let result = worker.fetch(&fetch(&[at(0, 0)])).results.remove(0);
    assert_eq!((result.offsets(), result.high_watermark), (Some((0, 1)), 1));
    worker.owner.decisions.push_back(Decision::Bounds { high_watermark: 1, stable: 1 });
    let number = worker.parked(&Fetch { wait_ms: 5000, ..fetch(&[at(0, 1)]) });
    worker.owner.decisions.push_back(Decision::Bounds { high_watermark: 1, stable: 1 });
    worker.pass(Duration::from_millis(1500));
    assert!(worker.answers.is_empty());
    worker.owner.decisions.push_back(Decision::Bounds { high_watermark: 2, stable: 2 });
    worker.pass(Duration::from_secs(1));
    assert_eq!(worker.answer(number).results[0].offsets(), Some((1, 2)));
}

#[test]
fn a_log_that_was_read_in_another_history_is_read_once_more() {
    let mut worker = Worker::new(REPLICATED);
    worker.append(0, 10);
    worker.fetch(&Fetch { wait_ms: 0, ..fetch(&[at(0, 0)]) });
    worker.ran();
    worker.owner.decisions.extend([Decision::Go, Decision::Bounds { high_watermark: 1, stable: 1 }]);
    assert_eq!(worker.fetch(&fetch(&[at(0, 0)])).results[0].offsets(), Some((0, 1)));
    assert_eq!(worker.ran().0, 2);
    worker.owner.decisions.extend([Decision::Go, Decision::Go]);
    let result = worker.fetch(&Fetch { wait_ms: 0, ..fetch(&[at(0, 0)]) }).results.remove(0);
    assert_eq!((result.error, result.high_watermark, result.batches.len()), (0, 0, 0));
}

#[test]
fn what_replicas_have_is_asked_of_the_history_that_was_read() {
    let mut worker = Worker::new(REPLICATED);
    worker.append(0, 10);
    worker.append(1, 10);
    worker.fetch(&Fetch { wait_ms: 0, ..fetch(&[at(0, 0), at(1, 0)]) });
    worker.begin(&fetch(&[at(0, 0), at(1, 0)]));
    let (first, second) = (worker.calls.pop_front().unwrap(), worker.calls.pop_front().unwrap());
    worker.reply(&first);
    worker.servers.histories[0] = "another".into();
    worker.is_prompt = false;
    worker.reply(&second);
    worker.settle();
    let request = worker.asking.pop().unwrap();
    let histories = worker.flow.questions(request).map(|question| match question {
        Question::Watermark { history, .. } => history.to_string(),
        other => panic!("{other:?}"),
    });
    assert_eq!(histories.collect::<Vec<_>>(), ["history 0", "another"]);
}

/// A log whose first ten offsets the remote tier has alone.
fn tiered() -> Worker {
    let mut worker = Worker::new(OPTIONS);
    for _ in 0..12 {
        worker.append_silently("a:0", 1, 10, |_| {});
    }
    let log = worker.redis.log("a:0");
    log.delete_until(10);
    log.remote_start = 0;
    worker
}

#[test]
fn what_the_remote_tier_alone_has_is_asked_for_there_and_ends_the_wait() {
    let mut worker = tiered();
    let batch = crate::batches::batch(&[crate::batches::valued(b"remote")]);
    let bytes = Shared::from(batch);
    worker.owner.decisions.push_back(Decision::Batches { bytes, records: 1, has_more: true });
    let results = worker.fetch(&Fetch { bytes_min: 1000, ..fetch(&[at(0, 0), at(1, 0)]) }).results;
    assert_eq!((results[0].offsets(), results[0].start, results[0].high_watermark), (Some((0, 1)), 0, 12));
    assert!(matches!(worker.owner.asked.last(), Some(Question::Remote { offset: 0, is_first: true, waits: true, .. })));
}

#[test]
fn what_was_read_before_redis_had_to_leave_the_rest_to_the_remote_tier_is_served_alone() {
    let mut worker = Worker::new(OPTIONS);
    for _ in 0..12 {
        worker.append_silently("a:0", 1, 10, |_| {});
    }
    let number = worker.begin(&fetch(&[at(0, 0)]));
    let first = worker.calls.pop_front().unwrap();
    let log = worker.redis.log("a:0");
    log.delete_until(10);
    log.remote_start = 0;
    let bytes = Shared::from(crate::batches::batch(&[crate::batches::valued(b"remote")]));
    worker.owner.decisions.push_back(Decision::Batches { bytes, records: 1, has_more: true });
    worker.reply(&first);
    worker.settle();
    let result = worker.answer(number).results.remove(0);
    assert_eq!((result.offsets(), result.start), (Some((0, 1)), 0));
    assert!(result.batches[0].rest.windows(5).any(|bytes| bytes == b"a:0 1"));
    assert!(!worker.owner.asked.iter().any(|question| matches!(question, Question::Remote { .. })));
}

#[test]
fn the_remote_tier_is_asked_for_no_more_than_the_request_has_left_whatever_a_partition_may_take() {
    let mut worker = tiered();
    let log = worker.redis.log("a:0").clone();
    *worker.redis.log("a:1") = log;
    worker.owner.decisions.extend([Decision::Later, Decision::Later]);
    let first = Asks { bytes_max: i32::MIN, ..at(0, 0) };
    worker.fetch(&Fetch { bytes_max: 1000, ..fetch(&[first, at(1, 0)]) });
    let bytes_max = worker.owner.asked.iter().filter_map(|question| match question {
        Question::Remote { bytes_max, .. } => Some(*bytes_max),
        _ => None,
    });
    assert_eq!(bytes_max.collect::<Vec<_>>(), [0, 1000]);
}

#[test]
fn a_remote_tier_that_has_not_answered_yet_is_asked_again_by_the_next_request() {
    let mut worker = tiered();
    worker.owner.decisions.push_back(Decision::Later);
    let result = worker.fetch(&fetch(&[at(0, 0)])).results.remove(0);
    assert_eq!((result.error, result.batches.len(), result.high_watermark), (0, 0, 12));
    worker.owner.decisions.push_back(refusal(ErrorCode::OffsetOutOfRange));
    assert_eq!(worker.fetch(&fetch(&[at(0, 0)])).results[0].error, OUT_OF_RANGE);
}

#[test]
fn after_the_end_of_the_remote_tier_redis_goes_on_in_the_same_request() {
    let mut worker = tiered();
    let bytes = Shared::default();
    worker.owner.decisions.push_back(Decision::Batches { bytes, records: 0, has_more: false });
    assert_eq!(worker.fetch(&fetch(&[at(0, 7)])).results[0].offsets(), Some((10, 12)));
}
