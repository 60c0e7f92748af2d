//! Readers with read_committed (KIP-98): the records they may see, and the aborted transactions in their responses.

use crate::support::{OPTIONS, Worker};
use crate::wire::{Asks, Fetch, at, fetch};

fn committed(asked: &[Asks]) -> Fetch {
    Fetch { is_committed: true, ..fetch(asked) }
}

#[test]
fn they_get_what_lies_below_the_last_stable_offset() {
    let mut worker = Worker::new(OPTIONS);
    worker.append(0, 10);
    worker.append_transactional(0, 7);
    worker.append(0, 10);
    let result = worker.fetch(&committed(&[at(0, 0)])).results.remove(0);
    assert_eq!((result.offsets(), result.stable, result.high_watermark), (Some((0, 1)), 1, 3));
    assert_eq!(result.aborted, Some(vec![]));
    let result = worker.fetch(&fetch(&[at(0, 0)])).results.remove(0);
    assert_eq!((result.offsets(), result.aborted), (Some((0, 3)), None));
}

#[test]
fn transactions_that_were_aborted_among_what_they_get_are_named_and_no_others() {
    let mut worker = Worker::new(OPTIONS);
    for producer in [7, 8, 9] {
        worker.append_transactional(0, producer);
        worker.append_transactional(0, producer);
        worker.end_transaction(0, producer, false);
    }
    let response = worker.fetch(&committed(&[at(0, 0)]));
    assert_eq!(response.results[0].aborted, Some(vec![(7, 0), (8, 3), (9, 6)]));
    let response = worker.fetch(&committed(&[at(0, 4)]));
    assert_eq!(response.results[0].aborted, Some(vec![(8, 3), (9, 6)]));
    let asks = Asks { bytes_max: 1, ..at(0, 1) };
    let response = worker.fetch(&committed(&[asks]));
    assert_eq!((response.results[0].offsets(), &response.results[0].aborted), (Some((1, 2)), &Some(vec![(7, 0)])));
}

#[test]
fn the_end_of_a_transaction_wakes_them_and_what_comes_into_it_does_not() {
    for commits in [false, true] {
        let mut worker = Worker::new(OPTIONS);
        worker.append_transactional(0, 7);
        let number = worker.parked(&committed(&[at(0, 0)]));
        worker.append_transactional(0, 7);
        worker.settle();
        assert_eq!((worker.answers.len(), worker.flow.parked()), (0, 1));
        worker.end_transaction(0, 7, commits);
        worker.settle();
        let result = worker.answer(number).results.remove(0);
        assert_eq!((result.offsets(), result.aborted.unwrap().len()), (Some((0, 3)), usize::from(!commits)));
    }
}

#[test]
fn what_an_open_transaction_has_written_is_not_read_in_vain() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_transactional(0, 7);
    worker.parked(&committed(&[at(0, 0)]));
    worker.ran();
    worker.append_transactional(0, 7);
    worker.settle();
    assert_eq!(worker.ran(), (0, 1, 0));
}

#[test]
fn of_what_was_deleted_no_transaction_is_open() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_transactional(0, 7);
    worker.append_transactional(0, 7);
    worker.redis.log("a:0").delete_until(1);
    worker.parked(&committed(&[at(0, 1)]));
    worker.pass(std::time::Duration::from_secs(1));
    let (_, response) = worker.answers.pop_front().unwrap();
    assert_eq!((response.results[0].error, response.results[0].stable), (0, 1));
}

#[test]
fn a_row_that_is_no_number_is_an_error_of_that_partition_and_of_them_alone() {
    let mut worker = Worker::new(OPTIONS);
    worker.append_transactional(0, 7);
    worker.end_transaction(0, 7, false);
    worker.append(1, 10);
    worker.redis.log("a:0").rows[0].1 = "7:x:2".into();
    let results = worker.fetch(&committed(&[at(0, 0), at(1, 0)])).results;
    assert_eq!((results[0].error, results[1].offsets()), (56, Some((0, 1))));
    assert_eq!(worker.fetch(&fetch(&[at(0, 0)])).results[0].offsets(), Some((0, 2)));
}
