//! Layout `batch`: a batch as an entry, as it came or as its topic asks.

use korvet_proto::ErrorCode;
use korvet_proto::batch::{HEADER_BYTES, Header, LOG_APPEND_TIME_BIT};
use korvet_proto::compression::{Codec, has_linked_blocks};
use korvet_proto::partition::{AtRest, Layout, TopicConfig};
use proptest::prelude::*;

use crate::support::{
    AT_REST_CODECS, Bytes, CODECS, CONFIG, Content, NOW, PLAIN, RECORDS, at, batch, batch_of, code, encoded,
    entries_of, noise, prepared, taken, valued, with_headers,
};

fn producer(header: Header) -> Header {
    Header { producer_id: 1 << 40, producer_epoch: 3, base_sequence: 9, ..header }
}

fn produced() -> Bytes {
    let records = [valued(&[b'x'; 2_000]), valued(b""), with_headers(&[(b"h", None)])];
    batch_of(&records, Codec::None, producer)
}

fn stored(config: &TopicConfig, sent: &[u8]) -> Vec<Bytes> {
    let taken = taken(&prepared(Layout::Batch, config, sent).unwrap());
    let names = if taken.arguments.len() == 2 { "batchkorvet.encoding" } else { "batch" };
    let size = names.len() + taken.arguments.iter().map(Vec::len).sum::<usize>();
    assert_eq!((taken.head.fields, taken.head.stored_bytes as usize), (0, size));
    taken.arguments
}

fn at_rest(codec: Codec, min_bytes: usize) -> TopicConfig {
    TopicConfig { at_rest: AtRest { codec: Some(codec), min_bytes }, ..CONFIG }
}

fn recompressing(codec: Codec) -> TopicConfig {
    TopicConfig { codec: Some(codec), ..CONFIG }
}

/// Several blocks of every codec: those of lz4 have 64 KiB and more, those of snappy-java 32.
fn many() -> Vec<Content> {
    let record = |n: i64| Content {
        time: NOW + n,
        value: Some(n.to_string().repeat(400).into_bytes()),
        ..with_headers(&[(b"n", Some(n.to_string().as_bytes())), (b"null", None)])
    };
    (0..300).map(record).collect()
}

#[test]
fn a_batch_is_stored_as_it_came() {
    let sent = produced();
    assert_eq!(stored(&CONFIG, &sent), [&sent[..]]);
    assert!(prepared(Layout::Batch, &CONFIG, &batch(&[valued(&vec![b'x'; 100_000])])).unwrap().held_bytes < 100);
}

#[test]
fn an_uncompressed_batch_is_compressed_after_its_header() {
    for codec in AT_REST_CODECS {
        let sent = produced();
        let [content, encoding] = stored(&at_rest(codec, 1_024), &sent).try_into().unwrap();
        assert_eq!(encoding, codec.name().as_bytes());
        let (header, frame) = content.split_at(HEADER_BYTES);
        assert_eq!(header, &sent[..HEADER_BYTES]);
        assert!(content.len() < 300);
        assert_eq!(codec.decompress(frame, sent.len()).unwrap(), &sent[HEADER_BYTES..]);
    }
}

#[test]
fn a_frame_at_rest_says_how_much_it_holds() {
    let size = (produced().len() - HEADER_BYTES) as u64;
    let lz4 = stored(&at_rest(Codec::Lz4, 0), &produced()).remove(0);
    assert_eq!(lz4[HEADER_BYTES..HEADER_BYTES + 6], [0x04, 0x22, 0x4D, 0x18, 0x68, 0x40]);
    assert_eq!(lz4[HEADER_BYTES + 6..HEADER_BYTES + 14], size.to_le_bytes());
    let zstd = stored(&at_rest(Codec::Zstd, 0), &produced()).remove(0);
    let content_size = zstd::zstd_safe::get_frame_content_size(&zstd[HEADER_BYTES..]);
    assert_eq!(content_size.unwrap(), Some(size));
}

#[test]
fn a_batch_that_its_producer_compressed_stays_as_it_is() {
    for codec in &CODECS[1..] {
        let sent = batch_of(&[valued(&vec![b'x'; 20_000])], *codec, producer);
        for at_rest_codec in AT_REST_CODECS {
            assert_eq!(stored(&at_rest(at_rest_codec, 1), &sent), [&sent[..]]);
        }
    }
}

#[test]
fn a_batch_that_would_not_be_smaller_stays_as_it_is() {
    let sent = batch(&[valued(&noise(4_000))]);
    for codec in AT_REST_CODECS {
        assert_eq!(stored(&at_rest(codec, 1), &sent), [&sent[..]]);
    }
}

#[test]
fn a_batch_is_compressed_from_the_threshold_on() {
    let size = produced().len() - HEADER_BYTES;
    assert_eq!(stored(&at_rest(Codec::Lz4, size), &produced()).len(), 2);
    assert_eq!(stored(&at_rest(Codec::Lz4, size + 1), &produced()).len(), 1);
}

#[test]
fn a_batch_gets_the_codec_of_its_topic_and_all_else_stays() {
    let (_, plain) = encoded(&many());
    for before in CODECS {
        let sent = batch_of(&many(), before, producer);
        for after in CODECS {
            let changed = stored(&recompressing(after), &sent).remove(0);
            let header = Header::of_produced(&changed, usize::MAX).unwrap();
            assert_eq!(header.codec(), Some(after));
            assert_eq!(header.decompressed(&changed, plain.len()).unwrap(), &plain[..]);
            let was = Header::read(&sent).unwrap();
            let kept = Header { batch_length: was.batch_length, crc: was.crc, attributes: was.attributes, ..header };
            assert_eq!(kept, was);
            assert!(before != after || changed == sent);
        }
    }
}

#[test]
fn batches_have_the_framing_that_javas_client_reads() {
    let payload = |codec| stored(&recompressing(codec), &batch(&many())).remove(0).split_off(HEADER_BYTES);
    assert_eq!(payload(Codec::Gzip)[..3], *b"\x1f\x8b\x08");
    assert_eq!(payload(Codec::Zstd)[..4], *b"\x28\xb5\x2f\xfd");
    let lz4 = payload(Codec::Lz4);
    // Version 1, independent blocks, and no bit that is reserved or wants a dictionary.
    assert_eq!((&lz4[..4], lz4[4] & 0b1110_0011), (&b"\x04\x22\x4d\x18"[..], 0b0110_0000));
    assert!(!has_linked_blocks(&lz4));
    let snappy = payload(Codec::Snappy);
    assert_eq!(snappy[..16], *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01");
    let mut left = &snappy[16..];
    while let Some((size, rest)) = left.split_first_chunk() {
        left = &rest[u32::from_be_bytes(*size) as usize..];
    }
    assert!(left.is_empty());
}

#[test]
fn a_batch_that_is_too_large_in_its_topics_codec_is_refused() {
    let sent = batch_of(&many(), Codec::Zstd, producer);
    let plain = batch(&many()).len();
    let limited = |max_message_bytes| TopicConfig { max_message_bytes, ..recompressing(Codec::None) };
    let failure = prepared(Layout::Batch, &limited(plain - 1), &sent).unwrap_err();
    let message = format!("a batch of {plain} bytes in the topic's codec exceeds max.message.bytes = {}", plain - 1);
    assert_eq!((failure.code, failure.message), (ErrorCode::MessageTooLarge, message));
    assert!(prepared(Layout::Batch, &limited(plain), &sent).is_ok());
    assert!(prepared(RECORDS, &limited(plain - 1), &sent).is_ok());
}

#[test]
fn a_batch_that_does_not_decompress_is_invalid() {
    let (header, _) = encoded(&[valued(b"v")]);
    for codec in &CODECS[1..] {
        let sent = header.with_codec(*codec).sealed_with(b"garbage");
        assert_eq!(code(Layout::Batch, &recompressing(Codec::None), &sent), ErrorCode::InvalidRecord);
    }
}

#[test]
fn a_batch_gets_the_time_of_its_append_and_the_largest_timestamp_that_it_has() {
    let records = [at(NOW - 9), at(NOW - 5), at(NOW - 7)];
    let broker_time = TopicConfig { has_append_time: true, ..CONFIG };
    for codec in CODECS {
        let wrong = batch_of(&records, codec, |header| Header { max_timestamp: 1 << 60, ..header });
        for (config, bit, time) in [(&CONFIG, 0, NOW - 5), (&broker_time, LOG_APPEND_TIME_BIT, NOW)] {
            let batch = prepared(Layout::Batch, config, &wrong).unwrap();
            assert_eq!(batch.append_time, (bit != 0).then_some(NOW));
            let taken = taken(&batch);
            let header = Header::read(&taken.arguments[0]).unwrap();
            assert_eq!((header.max_timestamp, header.attributes & LOG_APPEND_TIME_BIT), (time, bit));
            assert_eq!(taken.head.timestamp, time);
            let checked = Header { attributes: header.attributes & !LOG_APPEND_TIME_BIT, ..header };
            assert_eq!(checked.codec(), Some(codec));
            assert!(Header::of_produced(&taken.arguments[0], usize::MAX).is_ok());
        }
    }
}

/// `batches.json` has what the console producer of Kafka 4.2 sent for 40 lines, with each codec, in Base64.
const JAVAS: &str = include_str!("../../../../tests/data/java-4.2/batches.json");

fn from_base64(text: &str) -> Bytes {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for digit in text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte)) {
        bits = bits << 6 | digit as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}

#[test]
fn batches_of_javas_producer_are_taken_in_every_layout() {
    let words: Vec<_> = JAVAS.split('"').collect();
    for codec in CODECS {
        let name = words.iter().position(|word| *word == codec.name()).unwrap();
        let sent = from_base64(words[name + 2]);
        assert_eq!(stored(&CONFIG, &sent), [&sent[..]]);
        let entries = entries_of(&taken(&prepared(RECORDS, &CONFIG, &sent).unwrap()));
        assert_eq!(entries.len(), 40);
        for (number, entry) in (1..).zip(entries) {
            let texts: Vec<_> = entry.into_iter().map(|argument| String::from_utf8(argument).unwrap()).collect();
            assert_eq!(texts[..2], ["key".to_owned(), format!("key-{}", number % 7)]);
            assert_eq!(texts[3], format!("value {number} of a record that repeats, repeats, repeats"));
            assert_eq!(
                texts[6..],
                ["header.h".to_owned(), number.to_string(), "header.empty".to_owned(), String::new()]
            );
        }
    }
}

proptest! {
    #[test]
    fn a_batch_that_no_config_concerns_is_stored_byte_for_byte(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 1..5), codec in 0..CODECS.len(),
    ) {
        let records: Vec<_> = values.iter().map(|value| valued(value)).collect();
        let sent = batch_of(&records, CODECS[codec], producer);
        for config in [CONFIG, recompressing(CODECS[codec]), TopicConfig { at_rest: PLAIN, ..CONFIG }] {
            prop_assert_eq!(stored(&config, &sent), [sent.clone()]);
        }
    }
}
