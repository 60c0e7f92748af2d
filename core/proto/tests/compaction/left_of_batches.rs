//! What a batch is when it has lost some of its records.

use korvet_proto::batch::{CONTROL_BIT, HEADER_BYTES, Header, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, crc32c};
use korvet_proto::compaction::{AbortedTransaction, Rules};
use korvet_proto::compression::{Codec, FrameReader};
use korvet_proto::partition::{AtRest, Layout};

use crate::batches::{AT_REST_CODECS, Bytes, CODECS, Content, NOW, batch_of, content};
use crate::support::entry;
use crate::{Left, cleaner, compacted, rules};

const CRC_FROM: usize = 21;
const BASE: i64 = 50;

/// Five records, of which the keys `b` and `d` are those of the last two.
fn records() -> Vec<Content> {
    let timed = |time: i64, key: &[u8], value: Option<&[u8]>| Content { time, ..content(Some(key), value) };
    let headers = vec![(b"name".to_vec(), Some(b"x".to_vec())), (b"\xff".to_vec(), None)];
    let second = Content { headers, ..timed(NOW + 500, b"c", Some(b"two")) };
    vec![
        timed(NOW + 900, b"b", Some(b"one")),
        second,
        timed(NOW - 7, b"", None),
        timed(NOW + 20, b"d", Some(b"four")),
        timed(NOW, b"b", Some(b"five")),
        timed(NOW, b"d", Some(b"six")),
    ]
}

fn stored(batch: &[u8]) -> Bytes {
    let end = BASE + i64::from(Header::read(batch).unwrap().last_offset_delta) + 1;
    entry(&format!("0-{end}"), &[("batch", batch)])
}

fn left_of(batch: &[u8]) -> Left {
    let (left, damage) = compacted(&mut cleaner(Layout::Batch, rules()), &[stored(batch)]).remove(0);
    assert_eq!(damage, None);
    left
}

/// The offsets, times and contents of the records of a batch.
fn read(batch: &[u8]) -> Vec<(i32, Content)> {
    let header = Header::read(batch).unwrap();
    let plain = header.decompressed(batch, 1 << 20).unwrap();
    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    let read = header.records(&plain).map(|record| {
        let record = record.unwrap();
        let headers = record.headers().map(|(name, value)| (name.to_vec(), owned(value))).collect();
        let (key, value) = (owned(record.key), owned(record.value));
        (record.offset_delta, Content { time: record.timestamp, key, value, headers })
    });
    read.collect()
}

#[test]
fn a_batch_without_some_of_its_records_keeps_everything_else() {
    for codec in CODECS {
        let whole = batch_of(&records(), codec, |header| Header {
            producer_id: 7,
            producer_epoch: 2,
            base_sequence: 90,
            ..header
        });
        let (id, words, counts) = left_of(&whole);
        assert_eq!((&id[..], words.len(), &words[0][..], counts), ("0-56", 2, &b"batch"[..], (56, 4, NOW + 500)));
        let left = &words[1];
        let expected: Vec<_> = (0..).zip(records()).filter(|(place, _)| ![0, 3].contains(place)).collect();
        assert_eq!(read(left), expected);
        let (before, after) = (Header::read(&whole).unwrap(), Header::read(left).unwrap());
        assert_eq!(after.crc, crc32c(0, &left[CRC_FROM..]));
        let (batch_length, crc) = (left.len() as i32 - 12, after.crc);
        let (base_timestamp, max_timestamp) = (NOW + 500, NOW + 500);
        let expected = Header { batch_length, crc, record_count: 4, base_timestamp, max_timestamp, ..before };
        assert_eq!(after, expected);
        // Once more, nothing goes: it stays byte for byte.
        assert_eq!(left_of(left).1[1], *left);
    }
}

#[test]
fn a_record_without_a_timestamp_may_be_the_first_that_is_left() {
    let timed = |time: i64, key: &[u8]| Content { time, ..content(Some(key), Some(b"v")) };
    let whole =
        batch_of(&[timed(NOW, b"a"), timed(-1, b"b"), timed(NOW + 5, b"c"), timed(0, b"a")], Codec::None, |header| {
            header
        });
    let left = &left_of(&whole).1[1];
    let each: Vec<_> = read(left).iter().map(|(_, record)| record.time).collect();
    assert_eq!((each, Header::read(left).unwrap().max_timestamp), (vec![-1, NOW + 5, 0], NOW + 5));
}

#[test]
fn timestamps_may_be_as_far_apart_as_int64_allows() {
    let timed = |time: i64, key: &[u8]| Content { time, ..content(Some(key), Some(b"v")) };
    let records = [timed(5, b"c"), timed(i64::MIN, b"a"), timed(i64::MAX, b"b"), timed(0, b"c")];
    let whole = batch_of(&records, Codec::None, |header| header);
    let left = read(&left_of(&whole).1[1]);
    assert_eq!(left, (0..).zip(records).skip(1).collect::<Vec<_>>());
}

#[test]
fn the_time_of_the_append_is_every_records_time_whichever_are_left() {
    let whole = batch_of(&records(), Codec::None, |header| Header {
        attributes: LOG_APPEND_TIME_BIT,
        max_timestamp: 5_000,
        ..header
    });
    let (_, words, counts) = left_of(&whole);
    let header = Header::read(&words[1]).unwrap();
    assert_eq!((header.max_timestamp, header.attributes, counts.2), (5_000, LOG_APPEND_TIME_BIT, 5_000));
}

#[test]
fn what_is_left_is_compressed_at_rest_if_that_gains_anything() {
    let value = b"a value that is worth it, ".repeat(300);
    let keyed = |key: &[u8]| content(Some(key), Some(&value[..]));
    for codec in AT_REST_CODECS {
        let at_rest = AtRest { codec: Some(codec), min_bytes: 1000 };
        let compact = |batch: &[u8]| {
            let mut cleaner = cleaner(Layout::Batch, Rules { at_rest, ..rules() });
            compacted(&mut cleaner, &[stored(batch)]).remove(0).0.1
        };
        let whole = batch_of(&[keyed(b"a"), keyed(b"b"), keyed(b"a")], Codec::None, |header| header);
        let [name, left, marker, encoding] = compact(&whole).try_into().unwrap();
        assert_eq!(
            (&name[..], &marker[..], &encoding[..]),
            (&b"batch"[..], &b"korvet.encoding"[..], codec.name().as_bytes())
        );
        let (header, frame) = left.split_at(HEADER_BYTES);
        let mut plain = header.to_vec();
        FrameReader::default().append_content(frame, &encoding, 1 << 20, &mut plain).unwrap();
        assert_eq!(read(&plain).iter().map(|(delta, _)| *delta).collect::<Vec<_>>(), [1, 2]);
        // What is small, or was compressed by its producer, is not.
        assert_eq!(compact(&batch_of(&records(), Codec::None, |header| header)).len(), 2);
        let gzipped = batch_of(&[keyed(b"a"), keyed(b"b"), keyed(b"a")], Codec::Gzip, |header| header);
        assert_eq!(compact(&gzipped).len(), 2);
    }
}

#[test]
fn a_batch_that_cannot_be_read_stays_as_it_is_and_counts_what_its_header_says() {
    let whole = batch_of(&records(), Codec::None, |header| header);
    let mut unread = whole.clone();
    unread[HEADER_BYTES] = 0x7F; // the length of the first record
    let bomb = batch_of(&[content(Some(b"a"), Some(&vec![0; 2 << 20]))], Codec::Zstd, |header| header);
    let cut = whole[..whole.len() - 1].to_vec();
    for (batch, counts) in [(&unread, (56, 6, NOW + 900)), (&bomb, (51, 1, NOW)), (&cut, (56, 0, -1))] {
        let mut cleaner = cleaner(Layout::Batch, rules());
        let ((_, words, counted), damage) = compacted(&mut cleaner, &[stored(batch)]).remove(0);
        assert_eq!((words, counted), (vec![b"batch".to_vec(), batch.clone()], counts), "{damage:?}");
        assert!(damage.is_some());
        assert_eq!((cleaner.seen, cleaner.keys()), (counts.1 as u64, 0));
    }
}

#[test]
fn one_of_an_aborted_transaction_goes_though_it_cannot_be_read() {
    let change = |bits: i16| move |header: Header| Header { attributes: bits, producer_id: 7, ..header };
    let mut unread = batch_of(&records(), Codec::None, change(TRANSACTIONAL_BIT));
    unread[HEADER_BYTES] = 0x7F;
    let aborted = vec![AbortedTransaction { producer_id: 7, first_offset: BASE, marker: 60 }];
    let mut with = cleaner(Layout::Batch, Rules { aborted, ..rules() });
    assert_eq!((compacted(&mut with, &[stored(&unread)]).len(), with.seen), (0, 6));
    assert_eq!(compacted(&mut cleaner(Layout::Batch, rules()), &[stored(&unread)]).len(), 1);
}

#[test]
fn a_marker_is_no_record_with_a_key() {
    let commit = content(Some(&[0, 0, 0, 1]), Some(&[0; 6]));
    let marker = batch_of(&[commit], Codec::None, |header| Header {
        attributes: TRANSACTIONAL_BIT | CONTROL_BIT,
        producer_id: 7,
        ..header
    });
    let mut cleaner = cleaner(Layout::Batch, rules());
    let entries = [entry("0-8", &[("batch", &marker)]), entry("0-9", &[("batch", &marker)])];
    assert_eq!((compacted(&mut cleaner, &entries).len(), cleaner.keys(), cleaner.has_new_tombstones), (2, 0, true));
}
