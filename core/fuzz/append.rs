//! Batches of any bytes for a partition of any layout: a call of its script has as many arguments as its heads say, and
//! all records with their bytes, or the batch is refused.

#![no_main]

mod sealed;
mod topics;

use korvet_proto::partition::{AtRest, Layout, TopicConfig};
use korvet_proto::failure::call_failure;
use korvet_proto::append::{Batch, Number, Reply, Rules, prepare, put_call};
use korvet_proto::compression::Codec;
use korvet_proto::pipeline::Packed;
use korvet_proto::resp::{Element, Elements};
use korvet_proto::shared::Shared;
use sealed::sealed;
use topics::{config, partition};

const PLAIN_BYTES_MAX: usize = 1 << 20;
const NOW: i64 = 1_700_000_000_000;
const HEADS_AT: usize = 2;
const CALL_HEAD_BYTES: usize = 7;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(([flags, codecs, min_bytes], bytes)) = data.split_first_chunk() else { return };
    if let Some(Reply::Answer(answer)) = Reply::read(bytes) {
        assert!(answer.verdict(usize::MAX, &plain_batch()).is_none());
        answer.verdict((*flags).into(), &plain_batch());
    }
    call_failure(&String::from_utf8_lossy(bytes), "stream");
    let mut sent = bytes.to_vec();
    sealed(&mut sent);
    let config = TopicConfig {
        codec: Codec::of(i16::from(codecs & 7)),
        at_rest: AtRest {
            codec: [None, Some(Codec::Lz4), Some(Codec::Zstd), None][usize::from(codecs >> 6)],
            min_bytes: (*min_bytes).into(),
        },
        is_compacted: flags & 1 != 0,
        has_append_time: flags & 2 != 0,
        timestamp_before_max_ms: if flags & 4 != 0 { 1_000 } else { i64::MAX },
        ..config()
    };
    let layout = if flags & 8 != 0 { Layout::Batch } else { Layout::Record { bits: 20 } };
    let number = [Number::Unverified, Number::Verified(7), Number::NotTransactional][usize::from(flags >> 4) % 3];
    let rules = Rules { zstd_known: flags & 128 == 0, plain_bytes_max: PLAIN_BYTES_MAX, now_ms: NOW };
    let partition = partition(layout, config);
    let Ok(batch) = prepare(&partition, Some(&Shared::from(sent)), number, &rules) else { return };
    let words = words(&[&batch, &batch]);
    let keys = if batch.kind == korvet_proto::append::Kind::Plain { 3 } else { 5 };
    let heads = &words[3 + keys + HEADS_AT];
    let entries = &words[3 + keys + HEADS_AT + 3..];
    let (one, again) = heads[CALL_HEAD_BYTES..].split_at(36);
    assert_eq!(one, again);
    let number = |place: usize| u32::from_be_bytes(one[place..place + 4].try_into().unwrap()) as usize;
    let (count, stored_bytes, arguments) = (number(6), number(10), number(32));
    assert_eq!((count, stored_bytes), (batch.record_count as usize, batch.stored_bytes));
    assert_eq!(entries.len(), 2 * arguments);
    let entries = &entries[..arguments];
    let (names, values) = entries.split_at(one[31].into());
    let bytes_of = |words: &[Vec<u8>]| words.iter().map(Vec::len).sum::<usize>();
    match layout {
        Layout::Batch => {
            let names = if arguments == 2 { "batchkorvet.encoding" } else { "batch" };
            assert_eq!(stored_bytes, names.len() + bytes_of(entries));
        }
        Layout::Record { .. } if names.is_empty() => {
            let (mut left, mut records, mut bytes) = (values, 0, 0);
            while let Some((size, rest)) = left.split_first() {
                let (entry, rest) = rest.split_at(std::str::from_utf8(size).unwrap().parse().unwrap());
                (left, records, bytes) = (rest, records + 1, bytes + bytes_of(entry));
            }
            assert_eq!((records, bytes), (count, stored_bytes));
        }
        Layout::Record { .. } => {
            assert_eq!(values.len(), names.len() * count);
            assert_eq!(stored_bytes, bytes_of(names) * count + bytes_of(values));
        }
    }
});

/// The smallest batch.
fn plain_batch() -> Batch {
    let mut sent = [&[0; 57][..], &1_i32.to_be_bytes(), &[12, 0, 0, 0, 1, 1, 0]].concat();
    sealed(&mut sent);
    let rules = Rules { zstd_known: true, plain_bytes_max: PLAIN_BYTES_MAX, now_ms: NOW };
    prepare(&partition(Layout::Batch, config()), Some(&Shared::from(sent)), Number::Unverified, &rules).unwrap()
}

/// The words of the call.
fn words(batches: &[&Batch]) -> Vec<Vec<u8>> {
    let mut packed = Packed::default();
    put_call(&mut packed, b"sha", 3, NOW, batches);
    let text = packed.joined();
    let mut elements = Elements::of(&text);
    let Some(Element::Array(count)) = elements.next() else { panic!("no command") };
    let words = elements.map(|element| match element {
        Element::Bulk(word) => word.to_vec(),
        other => panic!("{other:?} is no argument"),
    });
    let words: Vec<_> = words.collect();
    assert_eq!(words.len(), count);
    words
}
