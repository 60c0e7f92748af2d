//! What an entry in layout `record` is as a record.

use korvet_proto::ErrorCode;
use korvet_proto::compression::{Codec, Frames};
use korvet_proto::log::{Found, Kind};
use korvet_proto::partition::Layout;

use crate::batches::{AT_REST_CODECS, Bytes, RECORDS};
use crate::support::{DENSE, array, bulk, entry, found, log, partition_of, read, record, texts};

const PLENTY: usize = 1 << 20;
const END: u64 = 1 << 40;

type Header = (String, Option<Bytes>);

/// A record: timestamp, key, value, headers, and what it is of.
#[derive(Debug, PartialEq)]
struct Content(i64, Option<Bytes>, Option<Bytes>, Vec<Header>, Kind);

fn in_layout(layout: Layout, entries: &[Bytes]) -> Found {
    found(&read(&partition_of(layout), 0), &log(END), entries)
}

fn contents(found: &Found, plain_bytes_max: usize) -> Vec<Content> {
    let mut records = found.records(plain_bytes_max);
    let mut contents = Vec::new();
    while let Some(record) = records.next() {
        let record = record.unwrap();
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        let headers = record.headers.iter();
        let headers = headers.map(|(name, value)| (String::from_utf8(name.to_vec()).unwrap(), owned(*value)));
        let (key, value) = (owned(record.key), owned(record.value));
        contents.push(Content(record.timestamp, key, value, headers.collect(), record.kind));
    }
    contents
}

fn content(fields: &[(&str, &[u8])]) -> Content {
    contents(&in_layout(DENSE, &[entry("0-1", fields)]), PLENTY).pop().unwrap()
}

fn header(name: &str, value: &[u8]) -> Header {
    (name.to_owned(), Some(value.to_vec()))
}

fn frame(codec: Codec, value: &[u8]) -> Bytes {
    Frames::new(codec).compress(value).unwrap().unwrap()
}

#[test]
fn an_entry_as_korvet_writes_it_is_a_record() {
    let headers: [(&str, &[u8]); 3] = [("header.a", b"1"), ("nullheader.b", b""), ("header.a", b"")];
    let fields = [&[("key", &b"k"[..]), ("value", b"v"), ("timestamp", b"17")][..], &headers].concat();
    let expected = vec![header("a", b"1"), ("b".to_owned(), None), header("a", b"")];
    assert_eq!(content(&fields), Content(17, Some(b"k".to_vec()), Some(b"v".to_vec()), expected, Kind::Plain));
    assert_eq!(content(&[("timestamp", b"-5")]), Content(-5, None, None, Vec::new(), Kind::Plain));
}

#[test]
fn fields_in_any_order_are_the_same_record_and_others_are_headers_of_it() {
    let fields: [(&str, &[u8]); 9] = [
        ("header.h", b"1"),
        ("timestamp", b"7"),
        ("value", b"v"),
        ("value", b"again"),
        ("other", b"2"),
        ("key", b"k"),
        ("nullheader.n", b"not null"),
        ("key", b"again"),
        ("timestamp", b"8"),
    ];
    let headers = [
        ("h", &b"1"[..]),
        ("value", b"again"),
        ("other", b"2"),
        ("nullheader.n", b"not null"),
        ("key", b"again"),
        ("timestamp", b"8"),
    ];
    let headers = headers.map(|(name, value)| header(name, value)).to_vec();
    assert_eq!(content(&fields), Content(7, Some(b"k".to_vec()), Some(b"v".to_vec()), headers, Kind::Plain));
}

#[test]
fn the_name_of_a_header_that_is_no_text_stays_readable() {
    let raw = array(&[bulk(b"header.\xff\xc3\xbc"), bulk(b"1"), bulk(b"\xfe"), bulk(b"2")]);
    let entry = array(&[bulk(b"0-1"), raw]);
    let Content(.., headers, _) = contents(&in_layout(DENSE, &[entry]), PLENTY).pop().unwrap();
    assert_eq!(headers, [header("\\xff\u{fc}", b"1"), header("\\xfe", b"2")]);
}

#[test]
fn without_a_usable_timestamp_a_record_has_the_time_of_its_id() {
    for (text, time) in [
        (&b"9223372036854775807"[..], i64::MAX),
        (b"-9223372036854775808", i64::MIN),
        (b"0000000000000000005", 5),
        (b"-0", 0),
    ] {
        let found = in_layout(RECORDS, &[entry("1000-5", &[("timestamp", text)])]);
        assert_eq!(contents(&found, PLENTY), [Content(time, None, None, Vec::new(), Kind::Plain)]);
    }
    for text in
        [&b""[..], b"-", b"+5", b" 5", b"5x", b"9223372036854775808", b"-9223372036854775809", b"00000000000000000005"]
    {
        let fields = [("timestamp", text), ("timestamp", b"x")];
        let headers = || vec![header("timestamp", text), header("timestamp", b"x")];
        let [own, dense] = [RECORDS, DENSE].map(|layout| {
            let id = if layout == DENSE { "0-5" } else { "1000-5" };
            contents(&in_layout(layout, &[entry(id, &fields)]), PLENTY)
        });
        assert_eq!(own, [Content(1000, None, None, headers(), Kind::Plain)]);
        assert_eq!(dense, [Content(-1, None, None, headers(), Kind::Plain)]);
        let later = [("timestamp", text), ("timestamp", b"6")];
        assert_eq!(content(&later), Content(6, None, None, vec![header("timestamp", text)], Kind::Plain));
    }
}

#[test]
fn the_last_field_says_whose_transaction_a_record_is_of() {
    let with = |text: &'static [u8]| [("value", &b"v"[..]), ("timestamp", b"5"), ("korvet.producer", text)];
    for (text, producer) in [(&b"7:0"[..], (7, 0)), (b"9223372036854775807:32767", (i64::MAX, i16::MAX))] {
        assert_eq!(
            content(&with(text)),
            Content(5, None, Some(b"v".to_vec()), Vec::new(), Kind::Transactional(producer))
        );
    }
    for text in [&b""[..], b"7", b"7:", b":7", b"7:1:1", b"-1:0", b"9223372036854775808:0", b"7:32768", b"7:000001"] {
        let headers = vec![header("korvet.producer", text)];
        assert_eq!(content(&with(text)), Content(5, None, Some(b"v".to_vec()), headers, Kind::Plain));
    }
    let first = [("korvet.producer", &b"7:0"[..]), ("value", b"v"), ("timestamp", b"5")];
    let headers = || vec![header("korvet.producer", b"7:0")];
    assert_eq!(content(&first), Content(5, None, Some(b"v".to_vec()), headers(), Kind::Plain));
    assert_eq!(content(&first[..1]), Content(-1, None, None, headers(), Kind::Plain));
}

#[test]
fn a_marker_is_a_control_record_if_it_has_the_fields_of_one() {
    let fields =
        |marker, producer| [("korvet.marker", marker), ("korvet.producer", producer), ("timestamp", &b"9"[..])];
    for (marker, commits) in [(&b"commit"[..], true), (b"abort", false)] {
        let kind = Kind::Marker { producer: (7, 2), commits };
        let key = Some(vec![0, 0, 0, u8::from(commits)]);
        assert_eq!(content(&fields(marker, b"7:2")), Content(9, key.clone(), Some(vec![0; 6]), Vec::new(), kind));
        let [marker, producer, _] = fields(marker, b"7:2");
        let untimed = [marker, producer, ("timestamp", b"x")];
        assert_eq!(content(&untimed), Content(-1, key, Some(vec![0; 6]), Vec::new(), kind));
        let longer = [marker, ("timestamp", b"9"), producer];
        let headers = vec![header("korvet.marker", marker.1)];
        assert_eq!(content(&longer), Content(9, None, None, headers, Kind::Transactional((7, 2))));
    }
    for (marker, producer) in [(&b"Commit"[..], &b"7:2"[..]), (b"commit", b"7")] {
        let headers = vec![header("korvet.marker", marker), header("korvet.producer", producer)];
        assert_eq!(content(&fields(marker, producer)), Content(9, None, None, headers, Kind::Plain));
    }
}

#[test]
fn a_value_that_is_compressed_at_rest_is_undone() {
    let value = b"a value that is worth it, ".repeat(300);
    for codec in AT_REST_CODECS {
        let frame = frame(codec, &value);
        let fields = [("value", &frame[..]), ("timestamp", b"5"), ("korvet.encoding", codec.name().as_bytes())];
        let expected = Content(5, None, Some(value.clone()), Vec::new(), Kind::Plain);
        assert_eq!(content(&fields), expected);
        let [value, timestamp, encoding] = fields;
        assert_eq!(content(&[encoding, timestamp, value]), expected);
    }
}

#[test]
fn a_value_that_does_not_decompress_is_served_as_it_is_stored() {
    let value = b"a value that is worth it, ".repeat(300);
    for codec in AT_REST_CODECS {
        let whole = frame(codec, &value);
        let mut changed = whole.clone();
        changed[17] ^= 0x55; // in the size of the first block
        let longer = [&whole[..], b"x"].concat();
        let twice = [&whole[..], &whole].concat();
        let sizeless = codec.compress(&value).unwrap();
        let cut_off = whole[..whole.len() - 1].to_vec();
        let mut wrong = vec![(longer, PLENTY), (twice, PLENTY), (cut_off, PLENTY), (whole, value.len() - 1)];
        wrong.push((Bytes::new(), PLENTY));
        if codec == Codec::Lz4 {
            wrong.extend([(sizeless, PLENTY), (changed, PLENTY)]);
        }
        for (stored, plain_bytes_max) in wrong {
            let encoding = codec.name();
            let fields = [("value", &stored[..]), ("timestamp", b"5"), ("korvet.encoding", encoding.as_bytes())];
            let found = in_layout(DENSE, &[record(1, b"v"), entry("0-2", &fields), entry("0-3", &fields)]);
            let read = contents(&found, plain_bytes_max);
            let headers = vec![header("korvet.encoding", encoding.as_bytes())];
            assert_eq!(read[1], Content(5, None, Some(stored.clone()), headers, Kind::Plain));
            let mut records = found.records(plain_bytes_max);
            while records.next().is_some() {}
            assert_eq!(records.damaged(), Some(&(1, encoding.to_owned())));
        }
    }
    let without = content(&[("korvet.encoding", b"lz4")]);
    assert_eq!(without, Content(-1, None, None, vec![header("korvet.encoding", b"lz4")], Kind::Plain));
}

#[test]
fn a_walk_ends_before_what_is_no_entry() {
    for wrong in [
        bulk(b"0-2"),
        array(&[bulk(b"0-2")]),
        array(&[bulk(b"0-2"), array(&[])]),
        array(&[bulk(b"0-2"), texts(&["key"])]),
        array(&[bulk(b"0-2"), array(&[bulk(b"key"), b":5\r\n".to_vec()])]),
        array(&[bulk(b"0-"), texts(&["key", "k"])]),
        array(&[bulk(b"2"), texts(&["key", "k"])]),
        array(&[bulk(b"0-2x"), texts(&["key", "k"])]),
    ] {
        let found = in_layout(DENSE, &[record(1, b"v"), wrong, record(3, b"v")]);
        let mut records = found.records(PLENTY);
        assert_eq!(records.next().unwrap().unwrap().offset, 0);
        let failure = records.next().unwrap().unwrap_err();
        assert_eq!(
            (failure.code, &*failure.message),
            (ErrorCode::KafkaStorageError, "korvet:orders:3: an entry is malformed")
        );
        assert!(records.next().is_none());
    }
}

#[test]
fn entries_are_read_whether_they_begin_as_the_one_before_or_not() {
    let ids = ["9-9", "9-10", "9-11", "10-0", "10-1", "100-0", "100-000", "100-1"];
    let entries = ids.iter().zip(1_u8..).map(|(id, place)| {
        let others = [("header.h", &b"1"[..]), ("key", b"k")];
        entry(id, &[&[("value", &[place][..])][..], &others[..usize::from(place % 3)]].concat())
    });
    let found = in_layout(Layout::Record { bits: 10 }, &entries.collect::<Vec<_>>());
    let mut records = found.records(PLENTY);
    let mut read = Vec::new();
    while let Some(record) = records.next() {
        let record = record.unwrap();
        read.push((record.offset, record.value.unwrap()[0], record.headers.len() + record.key.map_or(0, <[u8]>::len)));
    }
    let offset = |ms: i64, sequence: i64| (ms << 10) + sequence;
    let expected = [
        (offset(9, 9), 1, 1),
        (offset(9, 10), 2, 2),
        (offset(9, 11), 3, 0),
        (offset(10, 0), 4, 1),
        (offset(10, 1), 5, 2),
        (offset(100, 0), 6, 0),
        (offset(100, 0), 7, 1),
        (offset(100, 1), 8, 2),
    ];
    assert_eq!(read, expected);
}

#[test]
fn an_id_of_any_size_that_is_no_offset_ends_a_walk() {
    for (layout, first, id) in [
        (DENSE, "0-1", "1-2"),
        (DENSE, "0-1", "0-9007199254740992"),
        (DENSE, "0-1", "18446744073709551615-18446744073709551615"),
        (RECORDS, "0-1", "0-1048576"),
        (RECORDS, "0-1", "0-18446744073709551615"),
        (RECORDS, "0-1", "8589934592-0"),
        (RECORDS, "0-1", "9223372036854775807-1"),
        (RECORDS, "0-1", "18446744073709551615-1"),
        (Layout::Record { bits: 53 }, "0-1", "1-1"),
        (Layout::Record { bits: 53 }, "0-1", "9223372036854775807-9223372036854775807"),
    ] {
        let value = [("value", &b"v"[..])];
        let found = in_layout(layout, &[entry(first, &value), entry(id, &value)]);
        let mut records = found.records(PLENTY);
        assert!(records.next().unwrap().is_ok());
        assert!(records.next().is_none(), "{id}");
        assert!(records.has_more());
    }
}
