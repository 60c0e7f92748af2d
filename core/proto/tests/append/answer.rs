//! What the scripts and Redis answer.

use korvet_proto::ErrorCode;
use korvet_proto::append::{Answer, Batch, Number, Reply, Verdict, prepare};
use korvet_proto::batch::Header;
use korvet_proto::compression::Codec;
use korvet_proto::failure::{CallFailure, Failure, FailureKind, NotRun, call_failure, malformed_answer};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{Bytes, CONFIG, RECORDS, RULES, batch_of, in_frame, partition, valued};

const STREAM: &str = "korvet:orders:3";

fn produced() -> Batch {
    let change = |header| Header { producer_id: 77, producer_epoch: 4, base_sequence: 9, ..header };
    let sent = in_frame(&batch_of(&[valued(b"v")], Codec::None, change));
    prepare(&partition(RECORDS, CONFIG), Some(&sent), Number::NotTransactional, &RULES).unwrap()
}

fn bytes_of(verdicts: &[(u8, u64)]) -> Bytes {
    let mut answer = [&[0][..], &3_u32.to_be_bytes(), &40_u64.to_be_bytes(), &50_u64.to_be_bytes()].concat();
    for (number, value) in verdicts {
        answer.push(*number);
        answer.extend(value.to_be_bytes());
    }
    answer
}

fn answer_of(bytes: &[u8]) -> Answer<'_> {
    match Reply::read(bytes) {
        Some(Reply::Answer(answer)) => answer,
        other => panic!("{other:?} is no answer"),
    }
}

fn verdict(number: u8, value: u64) -> Option<Verdict> {
    answer_of(&bytes_of(&[(number, value)])).verdict(0, &produced())
}

#[test]
fn an_answer_says_what_was_done_and_what_became_of_each_batch() {
    let bytes = bytes_of(&[(0, 1_000), (1, 7), (2, 0), (13, 0)]);
    let (answer, batch) = (answer_of(&bytes), produced());
    assert_eq!((answer.moved, answer.log_start, answer.row_bytes), (3, 40, 50));
    let verdicts = [
        Some(Verdict::Appended { base_offset: 1_000 }),
        Some(Verdict::Duplicate { base_offset: 7 }),
        Some(Verdict::Verify),
        Some(Verdict::MemoryFull),
        None,
    ];
    assert!((0..5).map(|index| answer.verdict(index, &batch)).eq(verdicts));
    assert_eq!(answer.verdict(usize::MAX, &batch), None);
}

#[test]
fn a_verdict_that_refuses_has_a_code_and_a_sentence() {
    use ErrorCode::{InvalidProducerEpoch, InvalidTxnState, KafkaStorageError, OutOfOrderSequenceNumber};
    let cases = [
        (3, InvalidProducerEpoch, "producer 77 has epoch 5, not 4"),
        (4, InvalidProducerEpoch, "producer 77 has its transaction open by epoch 5 itself"),
        (5, OutOfOrderSequenceNumber, "producer 77 sent sequence 9 in epoch 4, the next one is 5"),
        (6, InvalidTxnState, "producer 77 is at transaction 5 here, which is open"),
        (7, InvalidTxnState, "producer 77 is at transaction 5 here, which has ended"),
        (8, InvalidTxnState, "producer 77 has transaction 5 open here"),
        (9, KafkaStorageError, "korvet:orders:3:state: producer 77 is malformed"),
        (10, KafkaStorageError, "korvet:orders:3:open is no sorted set"),
        (11, KafkaStorageError, "korvet:orders:3:aborted is no sorted set"),
        (12, KafkaStorageError, "the offsets of korvet:orders:3 are used up"),
    ];
    for (number, code, message) in cases {
        assert_eq!(verdict(number, 5), Some(Verdict::Refused(Failure::rule(code, message))), "{number}");
    }
    assert_eq!(verdict(14, 5), None);
}

#[test]
fn external_entries_are_to_be_dealt_with_first() {
    let read = Reply::read(&[1, 0, 0, 0, 9]);
    assert!(matches!(read, Some(Reply::External { moved: 9 })), "{read:?}");
}

#[test]
fn what_is_no_answer_is_none() {
    let whole = bytes_of(&[]);
    for size in 0..whole.len() {
        assert!(Reply::read(&whole[..size]).is_none());
    }
    for other in [&[1, 0, 0, 0, 9, 0][..], &[2, 0, 0, 0, 9], &[2; 30]] {
        assert!(Reply::read(other).is_none());
    }
    let failure = malformed_answer(STREAM);
    assert_eq!(failure.code, ErrorCode::KafkaStorageError);
    assert_eq!(failure.message, "korvet:orders:3: the answer of an append script is malformed");
}

fn refused(error: &str, code: ErrorCode, message: &str, kind: FailureKind) {
    let expected = CallFailure { not_run: None, failure: Failure::new(code, message, kind) };
    assert_eq!(call_failure(error, STREAM), expected);
}

#[test]
fn an_error_reply_that_lies_in_the_state_of_the_server_is_for_a_retry() {
    let reasons = [
        ("LOADING Redis is loading", "it is still loading its data"),
        ("MASTERDOWN Link", "it is a replica that has lost its master"),
        ("READONLY You can't write", "it is a read-only replica"),
        ("CLUSTERDOWN", "the Redis cluster is down"),
        ("BUSY Redis", "a script blocks it"),
        ("UNKILLABLE", "a script blocks it"),
        ("NOREPLICAS Not", "it has too few replicas to accept writes (min-replicas-to-write)"),
        ("MISCONF", "it cannot persist its data and refuses writes"),
        ("NOAUTH", "it wants credentials: redis.url has none"),
        ("NOPERM", "the Redis user may not do this"),
        ("WRONGPASS", "it refuses the credentials of redis.url"),
        ("MOVED somewhere", "another node of the cluster has the keys"),
    ];
    for (error, reason) in reasons {
        let message = format!("Redis refused: {reason} ({error})");
        refused(error, ErrorCode::KafkaStorageError, &message, FailureKind::Unavailable);
    }
    let message = "Redis refused: its memory is full (maxmemory) (OOM command)";
    refused("OOM command", ErrorCode::KafkaStorageError, message, FailureKind::MemoryFull);
}

#[test]
fn an_error_reply_of_a_script_has_its_code_and_any_other_names_the_stream() {
    use ErrorCode::{KafkaStorageError, UnknownTopicOrPartition};
    let rule = FailureKind::Rule;
    refused("UNKNOWN_TOPIC_OR_PARTITION gone", UnknownTopicOrPartition, "gone", rule);
    refused("KAFKA_STORAGE_ERROR s is missing", KafkaStorageError, "s is missing", rule);
    let wrong = "WRONGTYPE Operation against a key";
    refused(wrong, KafkaStorageError, &format!("korvet:orders:3: Redis answered {wrong}"), rule);
    refused("ERR ", KafkaStorageError, "korvet:orders:3: Redis answered ERR", rule);
}

#[test]
fn what_was_not_run_for_a_reason_that_ends_is_to_be_sent_again() {
    let stale = "NOT_LEADER_OR_FOLLOWER s:state has leader epoch 12, not 9";
    let moved = |text: &str| Some(NotRun::Elsewhere { text: text.to_owned() });
    let cases = [
        (stale, Some(NotRun::Stale { later: Some(12) })),
        ("NOT_LEADER_OR_FOLLOWER of some kind", Some(NotRun::Stale { later: None })),
        ("MOVED 3999 127.0.0.1:6381", moved("MOVED 3999 127.0.0.1:6381")),
        ("MOVED 3999 :6381", moved("MOVED 3999 :6381")),
        ("ASK 3999 127.0.0.1:6381", moved("ASK 3999 127.0.0.1:6381")),
        ("TRYAGAIN Multiple keys", moved("TRYAGAIN Multiple keys")),
        ("NOSCRIPT No matching script", Some(NotRun::Missing)),
    ];
    for (error, not_run) in cases {
        assert_eq!(call_failure(error, STREAM).not_run, not_run, "{error}");
    }
    let failure = call_failure(stale, STREAM).failure;
    assert_eq!((failure.code, failure.kind), (ErrorCode::NotLeaderOrFollower, FailureKind::Rule));
    assert_eq!(call_failure("ASK 1 a:1", STREAM).failure.kind, FailureKind::Unavailable);
}

#[test]
fn an_error_code_has_the_number_that_it_is_found_by() {
    for number in -2..200 {
        assert!(ErrorCode::of(number).is_none_or(|code| code as i16 == number));
    }
    assert_eq!(ErrorCode::of(45), Some(ErrorCode::OutOfOrderSequenceNumber));
    assert_eq!(ErrorCode::of(0), None);
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer_or_none(bytes in vec(any::<u8>(), 0..60), index in 0_usize..9) {
        if let Some(Reply::Answer(answer)) = Reply::read(&bytes) {
            let is_there = bytes.len() >= 21 + 9 * (index + 1);
            prop_assert!(is_there || answer.verdict(index, &produced()).is_none());
        }
    }
}
