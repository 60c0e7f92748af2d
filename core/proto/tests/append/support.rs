//! Partitions, batches as producers make them, and calls as a script takes them.

use std::sync::Arc;

use korvet_proto::ErrorCode;
use korvet_proto::append::{Batch, Number, Rules, prepare, put_call};
use korvet_proto::batch::Header;
use korvet_proto::compression::Codec;
use korvet_proto::encode::{Encoder, RecordFields};
use korvet_proto::failure::Failure;
use korvet_proto::partition::{AtRest, Keys, Layout, Partition, Topic, TopicConfig};
use korvet_proto::pipeline::Packed;
use korvet_proto::resp::{Element, Elements};
use korvet_proto::shared::Shared;

pub type Bytes = Vec<u8>;

pub const NOW: i64 = 1_700_000_000_000;
pub const CODECS: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
pub const AT_REST_CODECS: [Codec; 2] = [Codec::Lz4, Codec::Zstd];
pub const RECORDS: Layout = Layout::Record { bits: 20 };
pub const LAYOUTS: [Layout; 2] = [RECORDS, Layout::Batch];
pub const PLAIN: AtRest = AtRest { codec: None, min_bytes: 0 };
pub const RULES: Rules = Rules { zstd_known: true, plain_bytes_max: 1 << 24, now_ms: NOW };
pub const CONFIG: TopicConfig = TopicConfig {
    codec: None,
    at_rest: PLAIN,
    consumer_codec: Codec::None,
    max_message_bytes: 1 << 24,
    max_message_records: 100_000,
    is_compacted: false,
    has_append_time: false,
    timestamp_before_max_ms: i64::MAX,
    timestamp_after_max_ms: i64::MAX,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    pub time: i64,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

pub fn content(key: Option<&[u8]>, value: Option<&[u8]>) -> Content {
    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    Content { time: NOW, key: owned(key), value: owned(value), headers: Vec::new() }
}

pub fn valued(value: &[u8]) -> Content {
    content(None, Some(value))
}

pub fn at(time: i64) -> Content {
    Content { time, ..valued(b"v") }
}

pub fn with_headers(headers: &[(&[u8], Option<&[u8]>)]) -> Content {
    let headers = headers.iter().map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec)));
    Content { headers: headers.collect(), ..content(Some(b"k"), Some(b"v")) }
}

pub fn partition(layout: Layout, config: TopicConfig) -> Arc<Partition> {
    let topic = Topic { name: "orders".into(), id: [7; 16], id_text: "BwcHBw".into(), config };
    let key = |suffix: &str| format!("korvet:orders:3{suffix}").into();
    let keys = Keys {
        stream: key(""),
        state: key(":state"),
        index: key(":index"),
        open: key(":open"),
        aborted: key(":aborted"),
        compacted: [key(":clean:0"), key(":clean:1")],
        channel: key(":append"),
    };
    Arc::new(Partition { topic: Arc::new(topic), index: 3, layout, keys, slot: 0, replicas: 0 })
}

/// The header and the payload of a batch of these records.
pub fn encoded(records: &[Content]) -> (Header, Bytes) {
    let mut encoder = Encoder::new(0, usize::MAX, false);
    for (offset, record) in (0..).zip(records) {
        let headers: Vec<_> = record.headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        assert!(encoder.push(&RecordFields { offset, timestamp: record.time, key, value, headers: &headers }));
    }
    (encoder.header(), encoder.payload().to_vec())
}

pub fn batch_of(records: &[Content], codec: Codec, change: impl FnOnce(Header) -> Header) -> Bytes {
    let (header, payload) = encoded(records);
    change(header.with_codec(codec)).sealed_with(&codec.compress(&payload).unwrap())
}

pub fn batch(records: &[Content]) -> Bytes {
    batch_of(records, Codec::None, |header| header)
}

/// A batch as it lies in a frame: not at its beginning, and not to its end.
pub fn in_frame(batch: &[u8]) -> Shared {
    let frame = Shared::from([b"before", batch, b"after"].concat());
    frame.part(6..6 + batch.len())
}

pub fn prepared(layout: Layout, config: &TopicConfig, batch: &[u8]) -> Result<Batch, Failure> {
    prepare(&partition(layout, config.clone()), Some(&in_frame(batch)), Number::Unverified, &RULES)
}

pub fn code(layout: Layout, config: &TopicConfig, batch: &[u8]) -> ErrorCode {
    prepared(layout, config, batch).unwrap_err().code
}

/// A batch as a script takes it, `>i2I4I4I4i8Bi8BI4` of the heads first.
#[derive(Debug, PartialEq)]
pub struct Head {
    pub epoch: i16,
    pub sequence: u32,
    pub count: u32,
    pub stored_bytes: u32,
    pub timestamp: i64,
    pub kind: u8,
    pub number: i64,
    pub fields: u8,
    pub arguments: u32,
}

#[derive(Debug)]
pub struct Taken {
    pub head: Head,
    pub producer: Bytes,
    pub arguments: Vec<Bytes>,
}

#[derive(Debug)]
pub struct Call {
    pub keys: Vec<Bytes>,
    pub topic_id: Bytes,
    pub epoch: Bytes,
    pub sent_ms: i64,
    pub bits: u8,
    pub batches: Vec<Taken>,
}

pub const SHA: &[u8] = b"0123456789abcdef0123456789abcdef01234567";

/// The words of a command.
pub fn words(packed: &Packed<Shared>) -> Vec<Bytes> {
    let text = packed.joined();
    assert_eq!(text.len(), packed.size());
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

/// The call of batches, read as lua/shared/append_begin.lua and append_decide.lua read it.
pub fn call_of(batches: &[&Batch], epoch: i32, sent_ms: i64) -> Call {
    let mut packed = Packed::default();
    put_call(&mut packed, SHA, epoch, sent_ms, batches);
    assert_eq!(words(&packed)[1], SHA);
    call_in(&packed)
}

pub fn call_in(packed: &Packed<Shared>) -> Call {
    let mut words = words(packed).into_iter();
    let mut next = || words.next().unwrap();
    assert_eq!(next(), b"EVALSHA");
    next();
    let key_count: usize = String::from_utf8(next()).unwrap().parse().unwrap();
    let keys = (0..key_count).map(|_| next()).collect();
    let (topic_id, epoch, heads) = (next(), next(), next());
    let (clock, rest) = heads.split_at(6);
    let heads: Vec<Head> = rest[1..].chunks(36).map(head).collect();
    let producers: Vec<Bytes> = heads.iter().map(|_| next()).collect();
    let batches = heads.into_iter().zip(producers);
    let batches = batches.map(|(head, producer)| {
        let arguments = (0..head.arguments).map(|_| next()).collect();
        Taken { head, producer, arguments }
    });
    let batches = batches.collect();
    let sent_ms = clock.iter().fold(0, |number, byte| number << 8 | i64::from(*byte));
    let call = Call { keys, topic_id, epoch, sent_ms, bits: rest[0], batches };
    assert_eq!(words.next(), None);
    call
}

fn head(bytes: &[u8]) -> Head {
    Head {
        epoch: i16::from_be_bytes(bytes[..2].try_into().unwrap()),
        sequence: u32::from_be_bytes(bytes[2..6].try_into().unwrap()),
        count: u32::from_be_bytes(bytes[6..10].try_into().unwrap()),
        stored_bytes: u32::from_be_bytes(bytes[10..14].try_into().unwrap()),
        timestamp: i64::from_be_bytes(bytes[14..22].try_into().unwrap()),
        kind: bytes[22],
        number: i64::from_be_bytes(bytes[23..31].try_into().unwrap()),
        fields: bytes[31],
        arguments: u32::from_be_bytes(bytes[32..].try_into().unwrap()),
    }
}

/// What the script takes of one batch.
pub fn taken(batch: &Batch) -> Taken {
    call_of(&[batch], 0, NOW).batches.pop().unwrap()
}

/// The arguments of XADD for each entry, names and values in turn, as log/append_record understands what it takes.
pub fn entries_of(taken: &Taken) -> Vec<Vec<Bytes>> {
    let Taken { head, arguments, .. } = taken;
    let (names, values) = arguments.split_at(head.fields.into());
    let entries: Vec<Vec<Bytes>> = if names.is_empty() {
        let mut left = values.iter();
        let mut entries = Vec::new();
        while let Some(size) = left.next() {
            let size = String::from_utf8(size.clone()).unwrap().parse().unwrap();
            entries.push(left.by_ref().take(size).cloned().collect());
        }
        entries
    } else {
        let rows = values.chunks(names.len());
        rows.map(|row| names.iter().zip(row).flat_map(|(name, value)| [name.clone(), value.clone()]).collect())
            .collect()
    };
    assert_eq!(entries.len(), head.count as usize);
    assert_eq!(entries.iter().flatten().map(Vec::len).sum::<usize>(), head.stored_bytes as usize);
    entries
}

pub fn entries(layout: Layout, config: &TopicConfig, records: &[Content]) -> Vec<Vec<Bytes>> {
    entries_of(&taken(&prepared(layout, config, &batch(records)).unwrap()))
}

/// A list of texts as arguments.
pub fn arguments(texts: &[&str]) -> Vec<Bytes> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Bytes that no codec makes smaller.
pub fn noise(size: usize) -> Bytes {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}
