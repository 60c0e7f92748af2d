//! Batches as a producer makes them, whole and damaged, through the checks of a broker.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::io::Write;

use korvet_proto::batch::{HEADERS_MAX, Header, LOG_APPEND_TIME_BIT};
use korvet_proto::compression::Codec;
use korvet_proto::encode::{Encoder, RecordFields};
use korvet_proto::{ErrorCode, Refusal};
use lz4_flex::frame::{BlockMode, FrameEncoder, FrameInfo};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const PLAIN_BYTES_MAX: usize = 1 << 20;
const BASE_TIMESTAMP: i64 = 1_700_000_000_000;
const CODECS: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

type Bytes = Vec<u8>;

#[derive(Clone, Debug, PartialEq)]
struct Content {
    time: i64,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: Vec<(Bytes, Option<Bytes>)>,
}

fn encoded(records: &[Content]) -> Bytes {
    let mut encoder = Encoder::new(0, usize::MAX, false);
    for (offset, record) in (0..).zip(records) {
        let headers: Vec<_> = record.headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let timestamp = BASE_TIMESTAMP + record.time;
        assert!(encoder.push(&RecordFields { offset, timestamp, key, value, headers: &headers }));
    }
    encoder.payload().to_vec()
}

fn bare(offset: i64, timestamp: i64) -> RecordFields<'static> {
    RecordFields { offset, timestamp, key: None, value: None, headers: &[] }
}

fn batch_of(payload: &[u8], codec: Codec, count: i32, base_timestamp: i64) -> Bytes {
    batch_of_stored(&codec.compress(payload).unwrap(), codec, count, base_timestamp)
}

fn batch_of_stored(stored: &[u8], codec: Codec, count: i32, base_timestamp: i64) -> Bytes {
    let header = Header {
        record_count: count,
        last_offset_delta: count - 1,
        base_timestamp,
        max_timestamp: base_timestamp,
        ..Encoder::new(0, 0, false).header()
    };
    header.with_codec(codec).sealed_with(stored)
}

fn checked(batch: &[u8]) -> Result<usize, Refusal> {
    Ok(Header::of_produced(batch, usize::MAX)?.walk(batch, PLAIN_BYTES_MAX)?.plain_bytes)
}

fn code(batch: &[u8]) -> ErrorCode {
    checked(batch).unwrap_err().code
}

fn contents() -> impl Strategy<Value = Vec<Content>> {
    let bytes = || vec(any::<u8>(), 0..40);
    let headers = vec((bytes(), option::of(bytes())), 0..3);
    let record = (-5_000_i64..5_000, option::of(bytes()), option::of(bytes()), headers)
        .prop_map(|(time, key, value, headers)| Content { time, key, value, headers });
    vec(record, 1..20)
}

fn codec() -> impl Strategy<Value = Codec> {
    (0..CODECS.len()).prop_map(|number| CODECS[number])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_a_producer_writes_is_read_as_it_was(records in contents(), codec in codec()) {
        let payload = encoded(&records);
        let batch = batch_of(&payload, codec, i32::try_from(records.len()).unwrap(), BASE_TIMESTAMP + records[0].time);
        let header = Header::of_produced(&batch, batch.len()).unwrap();
        let walk = header.walk(&batch, payload.len()).unwrap();
        prop_assert_eq!(walk.plain_bytes, payload.len());
        prop_assert_eq!(walk.null_keys, records.iter().filter(|record| record.key.is_none()).count());
        let times = || records.iter().map(|record| BASE_TIMESTAMP + record.time);
        prop_assert_eq!(walk.min_timestamp, times().min().unwrap());
        prop_assert_eq!(walk.max_timestamp, times().max().unwrap());
        let plain = header.decompressed(&batch, payload.len()).unwrap();
        let read: Vec<Content> = header
            .records(&plain)
            .map(Result::unwrap)
            .map(|record| Content {
                time: record.timestamp - BASE_TIMESTAMP,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                headers: record.headers().map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect(),
            })
            .collect();
        prop_assert_eq!(read, records);
    }

    #[test]
    fn an_encoder_takes_what_fits_and_no_more(records in contents(), limit in 0_usize..300, at_least_one: bool) {
        let mut encoder = Encoder::new(0, limit, at_least_one);
        let taken = (0..)
            .zip(&records)
            .take_while(|(offset, record)| {
                let (key, value) = (record.key.as_deref(), record.value.as_deref());
                encoder.push(&RecordFields { key, value, ..bare(*offset, record.time) })
            })
            .count();
        prop_assert_eq!(encoder.header().last_offset_delta, i32::try_from(taken).unwrap() - 1);
        prop_assert!(encoder.payload().len() <= limit || at_least_one && taken == 1);
        prop_assert!(taken > 0 || !at_least_one);
    }

    #[test]
    fn a_limit_below_the_size_of_the_records_is_message_too_large(records in contents(), codec in codec()) {
        let payload = encoded(&records);
        let batch = batch_of(&payload, codec, i32::try_from(records.len()).unwrap(), BASE_TIMESTAMP + records[0].time);
        let header = Header::of_produced(&batch, batch.len()).unwrap();
        let refusal = header.walk(&batch, payload.len() - 1).unwrap_err();
        prop_assert_eq!(refusal.code, ErrorCode::MessageTooLarge);
    }

    #[test]
    fn records_that_end_early_are_invalid(records in contents(), codec in codec(), missing in 1_usize..50) {
        let payload = encoded(&records);
        let cut = &payload[..payload.len() - missing.min(payload.len())];
        let batch = batch_of(cut, codec, i32::try_from(records.len()).unwrap(), BASE_TIMESTAMP + records[0].time);
        prop_assert_eq!(code(&batch), ErrorCode::InvalidRecord);
    }

    #[test]
    fn bytes_after_the_last_record_are_invalid(records in contents(), codec in codec(), spare in vec(any::<u8>(), 1..9)) {
        let payload = [encoded(&records), spare].concat();
        let batch = batch_of(&payload, codec, i32::try_from(records.len()).unwrap(), BASE_TIMESTAMP + records[0].time);
        prop_assert_eq!(code(&batch), ErrorCode::InvalidRecord);
    }

    #[test]
    fn offsets_rise_and_are_those_of_the_batch(deltas in vec(0_i64..6, 1..5), last_offset_delta in 0_i32..6) {
        let payload = deltas.iter().flat_map(|delta| {
            let mut record = Encoder::new(0, usize::MAX, false);
            assert!(record.push(&bare(*delta, BASE_TIMESTAMP)));
            record.payload().to_vec()
        });
        let (payload, count) = (payload.collect::<Bytes>(), i32::try_from(deltas.len()).unwrap());
        let header = Header::read(&batch_of(&payload, Codec::None, count, BASE_TIMESTAMP)).unwrap();
        let read = Header { last_offset_delta, ..header }.records(&payload).collect::<Result<Vec<_>, _>>();
        let rise = deltas.windows(2).all(|pair| pair[0] < pair[1]);
        prop_assert_eq!(read.is_ok(), rise && deltas.iter().all(|delta| *delta <= last_offset_delta.into()));
    }

    #[test]
    fn any_bytes_are_taken_or_refused(payload in vec(any::<u8>(), 0..300), codec in codec(), count in 1_i32..9) {
        // This looks for a panic; records that are taken have the size of the payload.
        if let Ok(size) = checked(&batch_of(&payload, codec, count, BASE_TIMESTAMP)) {
            prop_assert_eq!(size, payload.len());
        }
    }

    #[test]
    fn compressed_bytes_that_are_damaged_stay_within_the_limit(
        records in contents(), codec in codec(), index in any::<prop::sample::Index>(), byte: u8, limit in 0_usize..4_000
    ) {
        let mut stored = codec.compress(&encoded(&records)).unwrap();
        let position = index.index(stored.len());
        stored[position] = byte;
        if let Ok(plain) = codec.decompress(&stored, limit) {
            prop_assert!(plain.len() <= limit);
        }
    }

    #[test]
    fn compressed_bytes_that_are_cut_off_are_invalid(records in contents(), codec in codec(), missing in 1_usize..20) {
        prop_assume!(codec != Codec::None);
        let stored = codec.compress(&encoded(&records)).unwrap();
        let cut = &stored[..stored.len().saturating_sub(missing)];
        match codec.decompress(cut, PLAIN_BYTES_MAX) {
            Err(refusal) => prop_assert_eq!(refusal.code, ErrorCode::InvalidRecord),
            // Java's header of snappy alone, if the only block is what is missing.
            Ok(plain) => prop_assert!(codec == Codec::Snappy && plain.is_empty()),
        }
    }
}

#[test]
fn a_record_of_a_bomb_is_refused_before_it_is_whole() {
    let zeros = vec![0; 8 << 20];
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let refusal = codec.decompress(&codec.compress(&zeros).unwrap(), PLAIN_BYTES_MAX).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::MessageTooLarge, "{codec:?}");
    }
}

#[test]
fn members_and_frames_follow_each_other_and_no_more_than_a_client_would_write() {
    for codec in [Codec::Gzip, Codec::Zstd] {
        let piece = codec.compress(b"a").unwrap();
        assert_eq!(&*codec.decompress(&piece.repeat(3), 9).unwrap(), b"aaa", "{codec:?}");
        let refusal = codec.decompress(&piece.repeat(1_001), 9_999).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidRecord, "{codec:?}");
    }
}

#[test]
fn an_offset_that_has_no_delta_begins_the_next_batch() {
    let mut encoder = Encoder::new(5, PLAIN_BYTES_MAX, true);
    assert!(!encoder.push(&bare(4, 0)));
    assert!(encoder.push(&bare(5, i64::MIN)));
    assert!(!encoder.push(&bare(5, 0)));
    assert!(encoder.push(&bare(5 + i64::from(i32::MAX), i64::MAX)));
    assert!(!encoder.push(&bare(6 + i64::from(i32::MAX), 0)));
    let header = encoder.header();
    assert_eq!((header.last_offset_delta, header.max_timestamp), (i32::MAX, i64::MAX));
}

#[test]
fn snappy_is_read_raw_too() {
    let raw = snap::raw::Encoder::new().compress_vec(b"aaaaaaaaaa").unwrap();
    assert_eq!(&*Codec::Snappy.decompress(&raw, 10).unwrap(), b"aaaaaaaaaa");
}

#[test]
fn an_lz4_block_of_no_bytes_or_of_more_than_the_frame_allows_is_invalid() {
    let frame = Codec::Lz4.compress(b"").unwrap();
    let head = &frame[..frame.len() - 4];
    assert_eq!(head[5], 0x40, "blocks of 64 KiB");
    let framed = |size: u32, block: &[u8]| [head, &size.to_le_bytes(), block, &[0; 4]].concat();
    // A literal of 65,555 bytes takes more than it is.
    let literal = [vec![0xF0], vec![0xFF; 256], vec![4], vec![0; 65_299]].concat();
    for wrong in [framed(1 << 31, &[]), framed(u32::try_from(literal.len()).unwrap(), &literal)] {
        assert_eq!(Codec::Lz4.decompress(&wrong, 1 << 20).unwrap_err().code, ErrorCode::InvalidRecord);
    }
}

#[test]
fn a_producer_may_not_link_the_blocks_of_lz4() {
    let payload = encoded(&[Content { time: 0, key: None, value: None, headers: Vec::new() }]);
    let mut linked = FrameEncoder::with_frame_info(FrameInfo::new().block_mode(BlockMode::Linked), Bytes::new());
    linked.write_all(&payload).unwrap();
    let linked = linked.finish().unwrap();
    // It is read if it is in the log already.
    assert_eq!(&*Codec::Lz4.decompress(&linked, 9).unwrap(), payload);
    let stored = batch_of_stored(&linked, Codec::Lz4, 1, BASE_TIMESTAMP);
    assert_eq!(code(&stored), ErrorCode::InvalidRecord);
}

#[test]
fn the_largest_limit_is_none() {
    for codec in CODECS {
        let stored = codec.compress(b"a").unwrap();
        assert_eq!(&*codec.decompress(&stored, usize::MAX).unwrap(), b"a", "{codec:?}");
    }
}

#[test]
fn a_batch_of_more_headers_than_can_be_decoded_is_message_too_large() {
    let header = || (Bytes::new(), None);
    let record = |count| Content { time: 0, key: None, value: None, headers: vec![header(); count] };
    for (counts, is_taken) in [([HEADERS_MAX, 0], true), ([HEADERS_MAX, 1], false)] {
        let payload = encoded(&counts.map(record));
        let batch = batch_of(&payload, Codec::Zstd, 2, BASE_TIMESTAMP);
        let walk = Header::of_produced(&batch, usize::MAX).unwrap().walk(&batch, payload.len());
        assert_eq!(walk.map_err(|refusal| refusal.code).err(), (!is_taken).then_some(ErrorCode::MessageTooLarge));
    }
}

#[test]
fn what_is_stored_of_a_batch_has_the_topics_codec_the_brokers_time_and_its_largest_timestamp() {
    let payload = encoded(&[7, 9].map(|time| Content { time, key: None, value: None, headers: Vec::new() }));
    let mut header = Header::read(&batch_of(&payload, Codec::None, 2, BASE_TIMESTAMP + 7)).unwrap();
    let walk = header.walk_plain(&payload).unwrap();
    (header.attributes, header.max_timestamp) = (LOG_APPEND_TIME_BIT, 5);
    let own = header.as_stored(&walk, None, None);
    assert_eq!((own.attributes, own.max_timestamp), (0, BASE_TIMESTAMP + 9));
    let appended = header.as_stored(&walk, Some(Codec::Zstd), Some(3));
    assert_eq!((appended.attributes, appended.max_timestamp), (LOG_APPEND_TIME_BIT | 4, 3));
    assert_eq!(own.as_stored(&walk, Some(Codec::None), None), own);
}
