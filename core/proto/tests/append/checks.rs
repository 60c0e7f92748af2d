//! Which batches are refused, with which codes and sentences.

use korvet_proto::ErrorCode;
use korvet_proto::append::{Number, Rules, prepare};
use korvet_proto::batch::{CONTROL_BIT, HEADERS_MAX, Header, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT};
use korvet_proto::compression::Codec;
use korvet_proto::failure::Failure;
use korvet_proto::partition::{Layout, TopicConfig};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{
    CODECS, CONFIG, Content, LAYOUTS, NOW, RECORDS, RULES, at, batch, batch_of, code, content, encoded, in_frame,
    partition, prepared, valued, with_headers,
};

fn bounded() -> TopicConfig {
    TopicConfig { timestamp_before_max_ms: 100, timestamp_after_max_ms: 10, ..CONFIG }
}

fn after() -> TopicConfig {
    TopicConfig { timestamp_after_max_ms: 10, ..CONFIG }
}

fn compacted(config: &TopicConfig) -> TopicConfig {
    TopicConfig { is_compacted: true, ..config.clone() }
}

/// Why each layout refuses these records: for the same reason.
fn refusal(config: &TopicConfig, records: &[Content]) -> Option<Failure> {
    let sent = batch(records);
    let [one, other] = LAYOUTS.map(|layout| prepared(layout, config, &sent).err());
    assert_eq!(one, other);
    one
}

fn refused_at(config: &TopicConfig, records: &[Content]) -> Option<(ErrorCode, Vec<i32>)> {
    let failure = refusal(config, records)?;
    Some((failure.code, failure.records.iter().map(|(index, _)| *index).collect()))
}

#[test]
fn the_limits_of_times_are_allowed_and_no_time_at_all_is() {
    let taken = [NOW, NOW + 10, NOW - 100, -1];
    let refused = [NOW + 11, NOW - 101, -2, 0, i64::MIN, i64::MAX];
    for time in taken {
        assert_eq!(refusal(&bounded(), &[at(time)]), None, "{time}");
    }
    for time in refused {
        let failure = refusal(&bounded(), &[at(time)]).unwrap();
        let why = format!("the timestamp {time} is not in {}..{}", NOW - 100, NOW + 10);
        assert_eq!(failure.code, ErrorCode::InvalidTimestamp);
        assert_eq!(failure.message, format!("1 of 1 records are wrong; the first of them, at 0: {why}"));
        assert_eq!(failure.records, [(0, why)]);
        let broker_time = TopicConfig { has_append_time: true, ..bounded() };
        assert_eq!(refusal(&broker_time, &[at(time)]), None, "{time}");
        assert_eq!(refusal(&CONFIG, &[at(time)]), None, "{time}");
    }
}

#[test]
fn a_limit_so_large_that_it_ends_past_all_times_refuses_none() {
    let config = TopicConfig { timestamp_before_max_ms: i64::MAX - 1, timestamp_after_max_ms: i64::MAX, ..CONFIG };
    assert_eq!(refusal(&config, &[at(i64::MAX)]), None);
    assert_eq!(refused_at(&config, &[at(i64::MIN)]), Some((ErrorCode::InvalidTimestamp, vec![0])));
}

#[test]
fn a_batch_is_refused_for_all_of_its_wrong_records() {
    use ErrorCode::{InvalidRecord, InvalidTimestamp};
    let [keyed, keyless, tombstone] = [content(Some(b"k"), Some(b"v")), valued(b"v"), content(Some(b"k"), None)];
    let (late, both) = (Content { time: NOW + 11, ..keyed.clone() }, at(NOW + 11));
    let cases = [
        (CONFIG, vec![keyless.clone(), at(-5)], None),
        (after(), vec![keyed.clone(), late.clone(), at(0), late.clone()], Some((InvalidTimestamp, vec![1, 3]))),
        (compacted(&CONFIG), vec![keyed.clone(), tombstone.clone(), content(Some(b""), Some(b"v"))], None),
        (compacted(&CONFIG), vec![tombstone, keyless.clone(), content(None, None)], Some((InvalidRecord, vec![1, 2]))),
        // The time says the error of two kinds of wrong records; of one record its key is looked at first.
        (compacted(&after()), vec![late.clone(), keyless.clone(), keyed], Some((InvalidTimestamp, vec![0, 1]))),
        (compacted(&after()), vec![keyless, late], Some((InvalidTimestamp, vec![0, 1]))),
        (compacted(&after()), vec![both], Some((InvalidRecord, vec![0]))),
    ];
    for (config, records, expected) in cases {
        assert_eq!(refused_at(&config, &records), expected, "{records:?}");
    }
}

#[test]
fn of_very_many_wrong_records_a_thousand_are_named_and_all_are_counted() {
    let failure = refusal(&compacted(&CONFIG), &vec![valued(b"v"); 1_001]).unwrap();
    assert!(failure.records.iter().map(|(index, _)| *index).eq(0..1_000));
    let why = "a record of a compacted topic needs a key";
    assert_eq!(failure.message, format!("1001 of 1001 records are wrong; the first of them, at 0: {why}"));
}

#[test]
fn log_append_time_is_the_brokers_to_set() {
    let timed = |header: Header| Header { attributes: LOG_APPEND_TIME_BIT, ..header };
    let broker_time = TopicConfig { has_append_time: true, ..CONFIG };
    let sent = batch_of(&[at(NOW)], Codec::None, timed);
    let timeless = batch_of(&[at(-1)], Codec::None, timed);
    for layout in LAYOUTS {
        assert!(prepared(layout, &CONFIG, &sent).is_ok());
        assert_eq!(code(layout, &broker_time, &sent), ErrorCode::InvalidTimestamp);
        assert_eq!(code(layout, &CONFIG, &timeless), ErrorCode::InvalidTimestamp);
    }
}

#[test]
fn zstd_is_refused_in_a_request_whose_version_does_not_know_it() {
    for codec in CODECS {
        let sent = in_frame(&batch_of(&[valued(b"v")], codec, |header| header));
        let rules = Rules { zstd_known: false, ..RULES };
        let code =
            prepare(&partition(RECORDS, CONFIG), Some(&sent), Number::Unverified, &rules).map_err(|f| f.code).err();
        assert_eq!(code, (codec == Codec::Zstd).then_some(ErrorCode::UnsupportedCompressionType));
    }
}

#[test]
fn a_batch_of_a_transaction_needs_a_transactional_id() {
    let change = |header| Header {
        attributes: TRANSACTIONAL_BIT,
        producer_id: 5,
        producer_epoch: 0,
        base_sequence: 0,
        ..header
    };
    let sent = in_frame(&batch_of(&[valued(b"v")], Codec::None, change));
    let failure = prepare(&partition(RECORDS, CONFIG), Some(&sent), Number::NotTransactional, &RULES).unwrap_err();
    assert_eq!(failure.code, ErrorCode::TransactionalIdAuthorizationFailed);
    let plain = in_frame(&batch(&[valued(b"v")]));
    assert!(prepare(&partition(RECORDS, CONFIG), Some(&plain), Number::NotTransactional, &RULES).is_ok());
}

#[test]
fn what_is_missing_is_no_batch() {
    let failure = prepare(&partition(RECORDS, CONFIG), None, Number::Unverified, &RULES).unwrap_err();
    assert_eq!((failure.code, &failure.message[..]), (ErrorCode::InvalidRecord, "the partition has no record batch"));
}

#[test]
fn a_batch_that_its_header_refutes_is_refused_in_every_layout() {
    use ErrorCode::{CorruptMessage, InvalidProducerEpoch, InvalidRecord, UnsupportedCompressionType};
    let records = [valued(b"one"), valued(b"two")];
    let good = batch(&records);
    let forged = |change: fn(Header) -> Header| batch_of(&records, Codec::None, change);
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let of_length = |length: i32| {
        let mut sent = good.clone();
        sent[8..12].copy_from_slice(&length.to_be_bytes());
        sent
    };
    let cases = [
        ("magic 0", forged(|header| Header { magic: 0, ..header }), InvalidRecord),
        ("magic 1", forged(|header| Header { magic: 1, ..header }), InvalidRecord),
        ("magic 3", forged(|header| Header { magic: 3, ..header }), CorruptMessage),
        ("magic -1", forged(|header| Header { magic: -1, ..header }), CorruptMessage),
        ("no bytes", Vec::new(), InvalidRecord),
        ("a header that is cut off", good[..40].to_vec(), InvalidRecord),
        ("records that are cut off", good[..good.len() - 1].to_vec(), InvalidRecord),
        ("a flipped bit", flipped, CorruptMessage),
        ("a length below the header's", of_length(48), CorruptMessage),
        ("a negative length", of_length(-1), CorruptMessage),
        ("a length beyond the bytes", of_length(1_000_000), InvalidRecord),
        ("two batches", [&good[..], &good].concat(), InvalidRecord),
        ("bytes after the batch", [&good[..], b"\0"].concat(), InvalidRecord),
        ("a base offset", forged(|header| Header { base_offset: 1, ..header }), InvalidRecord),
        (
            "a negative count",
            forged(|header| Header { record_count: -1, last_offset_delta: -2, ..header }),
            InvalidRecord,
        ),
        ("fewer records than it says", forged(|header| Header { record_count: 1, ..header }), InvalidRecord),
        ("another last delta", forged(|header| Header { last_offset_delta: 5, ..header }), InvalidRecord),
        (
            "the largest count",
            forged(|header| Header { record_count: i32::MAX, last_offset_delta: i32::MAX - 1, ..header }),
            InvalidRecord,
        ),
        ("control records", forged(|header| Header { attributes: CONTROL_BIT, ..header }), InvalidRecord),
        ("no producer", forged(|header| Header { attributes: TRANSACTIONAL_BIT, ..header }), InvalidRecord),
        ("an unknown codec", forged(|header| Header { attributes: 5, ..header }), UnsupportedCompressionType),
        ("no sequence", forged(|header| Header { producer_id: 1, producer_epoch: 0, ..header }), InvalidRecord),
        ("no epoch", forged(|header| Header { producer_id: 1, base_sequence: 0, ..header }), InvalidProducerEpoch),
        ("a negative producer", forged(|header| Header { producer_id: -2, ..header }), InvalidRecord),
        (
            "more records than it says",
            forged(|header| Header { record_count: 1, last_offset_delta: 0, ..header }),
            InvalidRecord,
        ),
    ];
    for layout in LAYOUTS {
        for (name, sent, expected) in &cases {
            assert_eq!(code(layout, &CONFIG, sent), *expected, "{name}");
        }
    }
}

#[test]
fn the_limits_are_on_the_batch_as_sent_and_on_its_records_uncompressed() {
    let record = [valued(&[b'x'; 5_000])];
    let plain_bytes = batch(&record).len() - 61;
    for codec in CODECS {
        let sent = batch_of(&record, codec, |header| header);
        for layout in LAYOUTS {
            let limited = |max_message_bytes| TopicConfig { max_message_bytes, ..CONFIG };
            assert_eq!(code(layout, &limited(sent.len() - 1), &sent), ErrorCode::MessageTooLarge);
            assert!(prepared(layout, &limited(sent.len()), &sent).is_ok());
            let (partition, sent) = (partition(layout, CONFIG), in_frame(&sent));
            let within = |plain_bytes_max| {
                prepare(&partition, Some(&sent), Number::Unverified, &Rules { plain_bytes_max, ..RULES })
            };
            assert_eq!(within(plain_bytes - 1).unwrap_err().code, ErrorCode::MessageTooLarge);
            assert!(within(plain_bytes).is_ok());
        }
    }
}

#[test]
fn too_many_records_for_one_script_are_refused_by_the_header() {
    let config = TopicConfig { max_message_records: 3, ..CONFIG };
    let records = vec![valued(b"v"); 4];
    let four = batch(&records);
    // What cannot be decompressed shows that the count is read first.
    let claims = |header| Header {
        attributes: Codec::Zstd as i16,
        record_count: i32::MAX,
        last_offset_delta: i32::MAX - 1,
        ..header
    };
    for sent in [&four, &batch_of(&records, Codec::None, claims)] {
        let failure = prepared(RECORDS, &config, sent).unwrap_err();
        assert_eq!(failure.code, ErrorCode::MessageTooLarge);
        assert!(failure.message.ends_with("exceeds max.message.records = 3"));
    }
    assert!(prepared(RECORDS, &config, &batch(&records[1..])).is_ok());
    assert!(prepared(Layout::Batch, &config, &four).is_ok());
}

#[test]
fn a_record_with_more_headers_than_a_script_can_pass_on_is_refused_in_layout_record() {
    let sent = |count| batch(&[with_headers(&vec![(&b"h"[..], Some(&b""[..])); count])]);
    let fitting = (7_900 - 6) / 2;
    assert!(prepared(RECORDS, &CONFIG, &sent(fitting)).is_ok());
    let failure = prepared(RECORDS, &CONFIG, &sent(fitting + 1)).unwrap_err();
    let message = format!("a record of {} headers, 3945 can be stored", fitting + 1);
    assert_eq!((failure.code, failure.message), (ErrorCode::InvalidRecord, message));
    assert!(prepared(Layout::Batch, &CONFIG, &sent(fitting + 1)).is_ok());
}

#[test]
fn more_headers_than_can_be_decoded_are_message_too_large_in_every_layout() {
    let sent = batch(&[with_headers(&vec![(&b""[..], None); HEADERS_MAX + 1])]);
    for layout in LAYOUTS {
        assert_eq!(code(layout, &CONFIG, &sent), ErrorCode::MessageTooLarge);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_with_a_code(bytes in vec(any::<u8>(), 0..150)) {
        for layout in LAYOUTS {
            prop_assert!(prepared(layout, &CONFIG, &bytes).is_err());
        }
    }

    #[test]
    fn records_that_lie_are_invalid_or_as_many_as_they_say(
        payload in vec(any::<u8>(), 0..60), count in 1_i32..5,
    ) {
        let (header, _) = encoded(&[valued(b"")]);
        let header = Header { record_count: count, last_offset_delta: count - 1, ..header };
        let sent = header.sealed_with(&payload);
        for layout in LAYOUTS {
            match prepared(layout, &CONFIG, &sent) {
                Ok(batch) => prop_assert_eq!(batch.record_count, count as u32),
                Err(failure) => prop_assert_eq!(failure.code, ErrorCode::InvalidRecord),
            }
        }
    }
}
