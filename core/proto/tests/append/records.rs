//! Layout `record`: each record as an entry.

use korvet_proto::batch::text_of;
use korvet_proto::compression::Codec;
use korvet_proto::partition::{AtRest, Layout, TopicConfig};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::support::{
    AT_REST_CODECS, Bytes, CODECS, CONFIG, Content, NOW, RECORDS, arguments, batch, batch_of, content, entries,
    entries_of, noise, prepared, taken, valued, with_headers,
};

fn at_rest(codec: Codec, min_bytes: usize) -> TopicConfig {
    TopicConfig { at_rest: AtRest { codec: Some(codec), min_bytes }, ..CONFIG }
}

/// The fields and values of a record that is not compressed.
fn entry_of(record: &Content, append_time: Option<i64>) -> Vec<Bytes> {
    let mut entry = Vec::new();
    let mut put = |name: &[u8], content: &[u8]| entry.extend([name.to_vec(), content.to_vec()]);
    record.key.iter().for_each(|key| put(b"key", key));
    record.value.iter().for_each(|value| put(b"value", value));
    put(b"timestamp", append_time.unwrap_or(record.time).to_string().as_bytes());
    for (name, content) in &record.headers {
        let prefix = if content.is_some() { "header." } else { "nullheader." };
        put(format!("{prefix}{}", text_of(name)).as_bytes(), content.as_deref().unwrap_or_default());
    }
    entry
}

/// The entry with its value decompressed, and the name of the codec; what is compressed has to be smaller.
fn undone(entry: &[Bytes]) -> (Vec<Bytes>, Option<Bytes>) {
    let mut plain = entry.to_vec();
    // A header has another name.
    let Some(marker) = entry.chunks(2).position(|field| field[0] == b"korvet.encoding") else { return (plain, None) };
    let encoding: Vec<Bytes> = plain.drain(2 * marker..2 * marker + 2).collect();
    let codec = AT_REST_CODECS.into_iter().find(|codec| codec.name().as_bytes() == encoding[1]).unwrap();
    let value = 2 * marker - 3;
    let content = codec.decompress(&entry[value], usize::MAX).unwrap().into_owned();
    assert!(entry[value].len() < content.len());
    plain[value] = content;
    (plain, Some(encoding[1].clone()))
}

fn bytes() -> impl Strategy<Value = Bytes> {
    // Values on both sides of 2 KiB, where they stop being copied, and of what is tried by a sample.
    prop_oneof![
        4 => vec(any::<u8>(), 0..50),
        1 => (vec(any::<u8>(), 1..4), prop::sample::select(vec![600_usize, 700, 2_500]))
            .prop_map(|(part, count)| part.repeat(count)),
        1 => vec(any::<u8>(), 2_040..2_056),
        1 => vec(any::<u8>(), 4_090..5_000),
    ]
}

fn records() -> impl Strategy<Value = Vec<Content>> {
    let names = ["", "key", "value", "timestamp", "header.x", "nullheader.x", "korvet.encoding", "\0", "\n", "ä"];
    let name =
        prop_oneof![prop::sample::select(names.map(|name| name.as_bytes().to_vec()).to_vec()), vec(any::<u8>(), 0..9)];
    let record = (any::<i64>(), option::of(bytes()), option::of(bytes()), vec((name, option::of(bytes())), 0..4))
        .prop_map(|(time, key, value, headers)| Content { time, key, value, headers });
    let alike = (any::<bool>(), vec((any::<i64>(), bytes(), bytes()), 1..9)).prop_map(|(is_keyed, records)| {
        let record = |(time, key, value)| Content {
            time,
            key: Some(key).filter(|_| is_keyed),
            value: Some(value),
            headers: Vec::new(),
        };
        records.into_iter().map(record).collect()
    });
    prop_oneof![vec(record, 1..6), alike]
}

proptest! {
    #[test]
    fn each_record_is_an_entry_whatever_its_shape_and_codec(
        records in records(), codec in 0..CODECS.len(), time in option::of(Just(NOW)),
    ) {
        let config = TopicConfig { has_append_time: time.is_some(), ..CONFIG };
        let sent = batch_of(&records, CODECS[codec], |header| header);
        let batch = prepared(RECORDS, &config, &sent).unwrap();
        let expected: Vec<_> = records.iter().map(|record| entry_of(record, time)).collect();
        prop_assert_eq!(entries_of(&taken(&batch)), expected);
        let largest = records.iter().map(|record| record.time).max().unwrap();
        prop_assert_eq!(taken(&batch).head.timestamp, time.unwrap_or(largest).min(1 << 53));
        prop_assert_eq!((batch.append_time, batch.record_count as usize), (time, records.len()));
    }

    #[test]
    fn values_that_are_compressed_at_rest_decompress_to_what_they_were(
        records in records(), codec in 0..AT_REST_CODECS.len(), min_bytes in 0_usize..3_000,
    ) {
        let codec = AT_REST_CODECS[codec];
        for (record, entry) in records.iter().zip(entries(RECORDS, &at_rest(codec, min_bytes), &records)) {
            let (plain, encoding) = undone(&entry);
            prop_assert_eq!(plain, entry_of(record, None));
            prop_assert!(encoding.is_none_or(|name| name == codec.name().as_bytes()));
            let size = record.value.as_ref().map_or(0, Vec::len);
            prop_assert!(size >= min_bytes || entry == entry_of(record, None));
        }
    }
}

#[test]
fn the_layout_is_the_documented_one() {
    let record = with_headers(&[(b"b", Some(b"1")), (b"a", None), (b"b", Some(b"")), (b"", Some(b"2"))]);
    let fields = ["key", "k", "value", "v", "timestamp", "1700000000000"];
    let headers = ["header.b", "1", "nullheader.a", "", "header.b", "", "header.", "2"];
    assert_eq!(entries(RECORDS, &CONFIG, &[record]), [arguments(&[&fields[..], &headers].concat())]);
    assert_eq!(entries(RECORDS, &CONFIG, &[content(None, None)]), [arguments(&fields[4..])]);
    let empty = ["key", "", "value", "", "timestamp", "1700000000000"];
    assert_eq!(entries(RECORDS, &CONFIG, &[content(Some(b""), Some(b""))]), [arguments(&empty)]);
}

#[test]
fn the_name_of_a_header_that_is_no_utf_8_stays_readable() {
    let record = with_headers(&[(b"\xffa\xe2\x82", Some(b"x"))]);
    assert_eq!(entries(RECORDS, &CONFIG, &[record])[0][6..], arguments(&["header.\\xffa\\xe2\\x82", "x"]));
}

#[test]
fn records_of_one_shape_say_their_fields_once() {
    let (keyed, bare, x) = (content(Some(b"k"), Some(b"v")), valued(b"v"), [b'x'; 1_024]);
    let cases = [
        ("keyed", vec![keyed.clone(), content(Some(b""), Some(b""))], 3),
        ("without a key", vec![bare.clone(), valued(b"")], 2),
        ("some with a key", vec![keyed.clone(), bare.clone()], 0),
        ("a null value", vec![keyed, content(Some(b"k"), None)], 0),
        ("only null values", vec![content(None, None)], 0),
        ("a header", vec![bare.clone(), Content { key: None, ..with_headers(&[(b"h", None)]) }], 0),
        ("a value worth compressing", vec![bare.clone(), valued(&x)], 0),
        ("a value not quite worth it", vec![bare, valued(&x[1..])], 2),
    ];
    for has_append_time in [false, true] {
        let config = TopicConfig { has_append_time, ..at_rest(Codec::Lz4, 1_024) };
        for (name, records, fields) in &cases {
            let taken = taken(&prepared(RECORDS, &config, &batch(records)).unwrap());
            assert_eq!(taken.head.fields, *fields, "{name}");
            let names: usize = if *fields == 0 { records.len() } else { usize::from(*fields) };
            let arguments: usize = entries_of(&taken).iter().map(Vec::len).sum();
            assert_eq!(taken.arguments.len(), names + if *fields == 0 { arguments } else { arguments / 2 }, "{name}");
        }
    }
}

#[test]
fn values_are_compressed_from_the_threshold_on_and_only_where_that_helps() {
    for codec in AT_REST_CODECS {
        let config = at_rest(codec, 1_024);
        let entry = |value: &[u8]| entries(RECORDS, &config, &[valued(value)]).remove(0);
        assert_eq!(entry(&[b'x'; 1_023]).len(), 4);
        let compressed = entry(&[b'x'; 1_024]);
        assert_eq!(compressed[4..], arguments(&["korvet.encoding", codec.name()]));
        assert!(compressed[1].len() < 100);
        let noise = noise(3_000);
        assert!(entry(&noise)[..2] == [b"value".to_vec(), noise.clone()]);
        // What is not compressible in its middle is not tried as a whole.
        let mixed = [&[b'x'; 4_000][..], &noise, &[b'x'; 4_000]].concat();
        assert!(entry(&mixed)[1] == mixed);
    }
}

#[test]
fn a_large_value_stays_where_it_lies_and_what_is_made_for_the_call_is_counted() {
    let (large, small) = (vec![b'v'; 100_000], vec![b'v'; 2_047]);
    let held = |codec, value: &[u8]| {
        let sent = batch_of(&[valued(value)], codec, |header| header);
        prepared(RECORDS, &CONFIG, &sent).unwrap().held_bytes
    };
    assert!(held(Codec::None, &large) < 200);
    assert!((100_000..101_000).contains(&held(Codec::Zstd, &large)));
    assert!((2_047..3_000).contains(&held(Codec::None, &small)));
    let stored = prepared(RECORDS, &at_rest(Codec::Zstd, 0), &batch(&[valued(&large)])).unwrap();
    assert!(stored.held_bytes < 1_000);
    // Of what was decompressed one value is a part, and beside it there is a frame of the other.
    let both = [valued(&[noise(5_000), vec![b'v'; 5_000]].concat()), valued(&noise(90_000))];
    let sent = batch_of(&both, Codec::Zstd, |header| header);
    let stored = prepared(RECORDS, &at_rest(Codec::Zstd, 0), &sent).unwrap();
    assert!((105_000..107_000).contains(&stored.held_bytes));
}

#[test]
fn the_bits_of_a_partition_are_those_of_its_ids() {
    for (layout, bits) in [(Layout::Record { bits: 0 }, 0), (RECORDS, 20), (Layout::Batch, 0)] {
        let batch = prepared(layout, &CONFIG, &batch(&[valued(b"v")])).unwrap();
        assert_eq!(crate::support::call_of(&[&batch], 0, NOW).bits, bits);
    }
}
