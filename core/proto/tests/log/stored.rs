//! What an entry in layout `batch` is as a batch.

use korvet_proto::ErrorCode;
use korvet_proto::batch::HEADER_BYTES;
use korvet_proto::compression::{Codec, Frames};
use korvet_proto::log::{Found, StoredBatch};
use korvet_proto::partition::Layout;

use crate::batches::{AT_REST_CODECS, Bytes, batch, valued};
use crate::support::{entry, foreign, found, log, partition_of, read, stored};

const END: u64 = 1000;
const LENGTH_AT: usize = 8;
const MAGIC_AT: usize = 16;
const LAST_DELTA_AT: usize = 23;

pub fn in_layout(entries: &[Bytes]) -> Found {
    found(&read(&partition_of(Layout::Batch), 0), &log(END), entries)
}

/// The entry of a batch that ends at an offset, compressed at rest.
pub fn at_rest(end: i64, batch: &[u8], codec: Codec) -> Bytes {
    let (header, records) = batch.split_at(HEADER_BYTES);
    let frame = Frames::new(codec).compress(records).unwrap().unwrap();
    let fields = [("batch", &[header, &frame].concat()[..]), ("korvet.encoding", codec.name().as_bytes())];
    entry(&format!("0-{end}"), &fields)
}

/// A batch that is worth compressing.
pub fn large() -> Bytes {
    batch(&[valued(&b"a value that is worth it, ".repeat(300)), valued(b"v")])
}

fn entry_of(batch: &[u8]) -> Bytes {
    entry("0-9", &[("batch", batch)])
}

/// The batch with other bytes at a place.
fn with(batch: &[u8], place: usize, bytes: &[u8]) -> Bytes {
    let mut changed = batch.to_vec();
    changed[place..place + bytes.len()].copy_from_slice(bytes);
    changed
}

#[test]
fn an_entry_is_a_batch_that_ends_at_its_id() {
    let bytes = large();
    let found = in_layout(&[entry("0-7", &[("batch", &bytes)])]);
    let batches: Vec<_> = found.batches().map(Result::unwrap).collect();
    let size_bytes = bytes.len();
    let (base_offset, next_offset) = (5, 7);
    let expected = StoredBatch { base_offset, next_offset, size_bytes, record_count: 2, stored: &bytes, plain: None };
    assert_eq!(batches, [expected]);
}

#[test]
fn a_batch_that_is_compressed_at_rest_is_as_long_as_its_header_says() {
    let bytes = large();
    for codec in AT_REST_CODECS {
        let found = in_layout(&[at_rest(7, &bytes, codec)]);
        let batches: Vec<_> = found.batches().map(Result::unwrap).collect();
        assert_eq!((batches[0].size_bytes, batches[0].base_offset), (bytes.len(), 5));
        assert_eq!(batches[0].stored[..HEADER_BYTES], bytes[..HEADER_BYTES]);
        assert_eq!(batches[0].plain.as_deref(), Some(&bytes[HEADER_BYTES..]));
    }
}

#[test]
fn entries_that_are_no_batches_are_passed_over_and_counted() {
    let found = in_layout(&[foreign(1), stored(3, &[b"a", b"b"]), foreign(4), foreign(5), stored(7, &[b"c"])]);
    let mut batches = found.batches();
    let offsets: Vec<_> = batches.by_ref().map(|batch| batch.unwrap().base_offset).collect();
    assert_eq!((offsets, batches.foreign), (vec![1, 6], 3));
}

#[test]
fn a_batch_that_is_damaged_ends_the_walk_and_is_refused_if_it_is_the_first() {
    let whole = batch(&[valued(b"a"), valued(b"b")]);
    let (size, large) = (whole.len() as i32, large());
    let (header, records) = large.split_at(HEADER_BYTES);
    let at_rest = |header: &[u8], codec: &str, frame: &[u8]| {
        entry("0-9", &[("batch", &[header, frame].concat()), ("korvet.encoding", codec.as_bytes())])
    };
    let mut wrong = vec![
        entry_of(&whole[..HEADER_BYTES - 1]),
        entry_of(&whole[..whole.len() - 1]),
        entry_of(&[&whole[..], b"x"].concat()),
        entry_of(&with(&whole, MAGIC_AT, &[1])),
        entry_of(&with(&whole, LAST_DELTA_AT, &(-1_i32).to_be_bytes())),
        entry_of(&with(&whole, LAST_DELTA_AT, &9_i32.to_be_bytes())),
        entry_of(&with(&whole, LAST_DELTA_AT, &i32::MAX.to_be_bytes())),
        entry("0-9", &[("batch", &whole), ("other", b"x")]),
        entry("0-9", &[("batch", &whole), ("korvet.encoding", b"gzip")]),
    ];
    for length in [0, -1, size - 13, size, i32::MAX, i32::MIN] {
        wrong.push(entry_of(&with(&whole, LENGTH_AT, &length.to_be_bytes())));
    }
    for codec in AT_REST_CODECS {
        let frame = Frames::new(codec).compress(records).unwrap().unwrap();
        let name = codec.name();
        wrong.push(at_rest(header, name, &frame[..frame.len() - 1]));
        wrong.push(at_rest(header, name, &[&frame[..], b"x"].concat()));
        wrong.push(at_rest(header, name, b""));
        for length in [0, -1, large.len() as i32 - 13, large.len() as i32 - 11, i32::MAX, i32::MIN] {
            wrong.push(at_rest(&with(header, LENGTH_AT, &length.to_be_bytes()), name, &frame));
        }
        let more = [("batch", &[header, &frame].concat()[..]), ("korvet.encoding", name.as_bytes()), ("other", b"x")];
        wrong.push(entry("0-9", &more));
    }
    for wrong in wrong {
        let found = in_layout(&[foreign(1), wrong.clone(), stored(10, &[b"c"])]);
        let mut batches = found.batches();
        let failure = batches.next().unwrap().unwrap_err();
        assert_eq!(failure.code, ErrorCode::CorruptMessage);
        assert!(failure.message.starts_with("korvet:orders:3: an entry (0-9: "), "{}", failure.message);
        assert_eq!((batches.next(), batches.has_more()), (None, false));
        let found = in_layout(&[stored(2, &[b"a", b"b"]), wrong, stored(10, &[b"c"])]);
        let mut batches = found.batches();
        assert_eq!(batches.next().unwrap().unwrap().next_offset, 2);
        assert_eq!((batches.next(), batches.has_more()), (None, true));
    }
}
