//! Responses to producers, byte for byte.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use korvet_proto::ErrorCode;
use korvet_proto::failure::{Failure, FailureKind};
use korvet_proto::partition::TopicName;
use korvet_proto::produce::{PartitionData, Request, TopicData, VERSIONS, Written, write};

const WRITTEN: Written = Written { base_offset: 0x0102, append_time_ms: -1, log_start: 3 };
const NOT_WRITTEN: &[u8] = &[0xFF; 8];

fn request(version: i16, partitions: usize) -> Request {
    let name = if version < 13 { TopicName::Name("abc".into()) } else { TopicName::Id([7; 16]) };
    let partitions = (5..).take(partitions).map(|index| PartitionData { index, records: None }).collect();
    let topics = vec![TopicData { name, partitions }];
    Request { version, correlation_id: 9, transactional_id: None, acks: 1, topics }
}

fn frame(pieces: &[&[u8]]) -> Vec<u8> {
    let rest = pieces.concat();
    [&(rest.len() as u32).to_be_bytes()[..], &rest].concat()
}

fn refused(version: i16, failure: &Failure) -> Vec<u8> {
    write(&request(version, 1), [Err(failure)].into_iter(), 0)
}

/// What stands for a failure, from its code to its message, in version 9.
fn flexible_result(failure: &Failure) -> Vec<u8> {
    let response = refused(9, failure);
    let begin = b"size\0\0\0\x09\0\x02\x04abc\x02\0\0\0\x05".len();
    response[begin..response.len() - b"\0\0\0\0\0\0\0".len()].to_vec()
}

#[test]
fn a_version_has_the_fields_that_it_knows() {
    let plain: [&[u8]; 2] = [b"\0\0\0\x09\0\0\0\x01\0\x03abc\0\0\0\x01\0\0\0\x05\0\0", b"\0\0\0\0\0\0\x01\x02"];
    let (no_time, log_start, throttle) = ([0xFF; 8], [0, 0, 0, 0, 0, 0, 0, 3], [0, 0, 0, 4]);
    let no_messages = b"\0\0\0\0\xFF\xFF";
    for version in VERSIONS {
        let expected = match version {
            ..5 => frame(&[plain[0], plain[1], &no_time, &throttle]),
            5..8 => frame(&[plain[0], plain[1], &no_time, &log_start, &throttle]),
            8 => frame(&[plain[0], plain[1], &no_time, &log_start, no_messages, &throttle]),
            _ => {
                let topic: &[u8] = if version < 13 { b"\x04abc" } else { &[7; 16] };
                let begin = [b"\0\0\0\x09\0\x02", topic, b"\x02\0\0\0\x05\0\0"].concat();
                frame(&[&begin, plain[1], &no_time, &log_start, b"\x01\0\0\0", &throttle, b"\0"])
            }
        };
        assert_eq!(write(&request(version, 1), [Ok(WRITTEN)].into_iter(), 4), expected, "version {version}");
    }
}

#[test]
fn a_failure_has_its_code_and_what_was_wrong_with_records() {
    let records = vec![(2, "no key".to_owned()), (300, String::new())];
    let failure = Failure { records, ..Failure::rule(ErrorCode::InvalidRecord, "bad") };
    let errors = b"\x03\0\0\0\x02\x07no key\0\0\0\x01\x2C\x01\0";
    let expected = [&[0, 87][..], NOT_WRITTEN, NOT_WRITTEN, NOT_WRITTEN, errors, b"\x04bad"].concat();
    assert_eq!(flexible_result(&failure), expected);
    let before_messages = [&[0, 87][..], NOT_WRITTEN, NOT_WRITTEN, NOT_WRITTEN, &[0; 4]].concat();
    assert!(refused(7, &failure).ends_with(&before_messages));
}

#[test]
fn a_node_that_is_away_makes_the_client_look_for_the_leader() {
    let failure = Failure::new(ErrorCode::KafkaStorageError, "", FailureKind::NodeAway);
    let expected = [&[0, 6][..], NOT_WRITTEN, NOT_WRITTEN, NOT_WRITTEN, b"\x01\0"].concat();
    assert_eq!(flexible_result(&failure), expected);
}

#[test]
fn a_long_message_is_cut_to_a_thousand_characters() {
    let message_of = |message: String| {
        let result = flexible_result(&Failure::rule(ErrorCode::InvalidRecord, message));
        String::from_utf8(result[29..].to_vec()).unwrap()
    };
    for character in ["a", "\u{1f600}"] {
        let whole = character.repeat(1000);
        assert_eq!(message_of(whole.clone()), whole);
        assert_eq!(message_of(whole + "b"), character.repeat(997) + "...");
    }
}

#[test]
fn a_batch_without_a_result_has_an_error() {
    let response = write(&request(3, 2), [Ok(WRITTEN)].into_iter(), 0);
    let expected = [&b"\0\0\0\x06\xFF\xFF"[..], NOT_WRITTEN, NOT_WRITTEN, &[0; 4]].concat();
    assert!(response.ends_with(&expected));
}

#[test]
fn a_response_with_many_messages_goes_on_without_them() {
    const PARTITIONS: usize = 100_000;
    let failure = Failure::rule(ErrorCode::UnknownTopicOrPartition, "a".repeat(1000));
    for version in [8, 9] {
        let response = write(&request(version, PARTITIONS), std::iter::repeat(Err(&failure)), 0);
        assert!((16 << 20..20 << 20).contains(&response.len()));
        let size = u32::from_be_bytes(response[..4].try_into().unwrap());
        assert_eq!(size as usize, response.len() - 4);
        let result = [&[0, 3][..], NOT_WRITTEN, NOT_WRITTEN, NOT_WRITTEN].concat();
        assert_eq!(response.windows(result.len()).filter(|window| *window == result).count(), PARTITIONS);
    }
}
