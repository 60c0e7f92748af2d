//! Produce requests as producers send them, and as none should.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use korvet_proto::partition::TopicName;
use korvet_proto::produce::{PartitionData, Request, TopicData, VERSIONS, read};
use korvet_proto::wire::{ELEMENTS_MAX, STRING_BYTES_MAX, put_varint};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const FLEXIBLE_FROM: i16 = 9;
const TOPIC_IDS_FROM: i16 = 13;
const CORRELATION_ID: i32 = -7;
/// Two tagged fields, of tags 0 and 5.
const TAGS: &[u8] = b"\x02\x00\x01x\x05\x00";

/// A batch for a partition: the index, and the records.
type Sent = (i32, Option<Vec<u8>>);

/// A frame as a client writes it.
struct Frame {
    bytes: Vec<u8>,
    is_flexible: bool,
    tags: &'static [u8],
}

impl Frame {
    fn new(version: i16, tags: &'static [u8]) -> Self {
        let header = [&0_i16.to_be_bytes()[..], &version.to_be_bytes(), &CORRELATION_ID.to_be_bytes(), b"\0\x02me"];
        let mut frame = Self { bytes: header.concat(), is_flexible: version >= FLEXIBLE_FROM, tags };
        frame.end();
        frame
    }

    /// A request up to the number of its topics.
    fn begun(version: i16, topics: i32) -> Self {
        let mut frame = Self::new(version, b"\0");
        frame.string(None);
        frame.put(&[0, 1, 0, 0, 0, 9]);
        frame.length(topics);
        frame
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn length(&mut self, length: i32) {
        if self.is_flexible {
            put_varint(&mut self.bytes, (length + 1) as u32);
        } else {
            self.put(&length.to_be_bytes());
        }
    }

    fn string(&mut self, content: Option<&[u8]>) {
        let length = content.map_or(-1, |content| content.len() as i32);
        if self.is_flexible {
            self.length(length);
        } else {
            self.put(&(length as i16).to_be_bytes());
        }
        self.put(content.unwrap_or_default());
    }

    /// End a struct.
    fn end(&mut self) {
        if self.is_flexible {
            self.put(self.tags);
        }
    }

    fn error(&self) -> String {
        read(&self.bytes).unwrap_err().to_string()
    }
}

/// The frame of a request, and what is to be read from it.
fn written(
    version: i16,
    transactional_id: Option<String>,
    acks: i16,
    topics: Vec<(String, Vec<Sent>)>,
    tags: &'static [u8],
) -> (Vec<u8>, Request) {
    let mut frame = Frame::new(version, tags);
    frame.string(transactional_id.as_deref().map(str::as_bytes));
    frame.put(&acks.to_be_bytes());
    frame.put(&30_000_i32.to_be_bytes());
    frame.length(topics.len() as i32);
    let mut read = Vec::new();
    for (name, sent) in topics {
        let name = if version < TOPIC_IDS_FROM {
            frame.string(Some(name.as_bytes()));
            TopicName::Name(name.into())
        } else {
            let id = [name.len() as u8; 16];
            frame.put(&id);
            TopicName::Id(id)
        };
        frame.length(sent.len() as i32);
        let mut partitions = Vec::new();
        for (index, records) in sent {
            frame.put(&index.to_be_bytes());
            frame.length(records.as_ref().map_or(-1, |records| records.len() as i32));
            let begin = frame.bytes.len();
            frame.put(records.as_deref().unwrap_or_default());
            partitions.push(PartitionData { index, records: records.map(|_| begin..frame.bytes.len()) });
            frame.end();
        }
        frame.end();
        read.push(TopicData { name, partitions });
    }
    frame.end();
    (frame.bytes, Request { version, correlation_id: CORRELATION_ID, transactional_id, acks, topics: read })
}

fn topics() -> impl Strategy<Value = Vec<(String, Vec<Sent>)>> {
    vec(("[a-z\u{e9}]{0,9}", vec((any::<i32>(), option::of(vec(any::<u8>(), 0..300))), 0..4)), 0..4)
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written_and_what_follows_it_is_ignored(
        version in VERSIONS,
        transactional_id in option::of("[a-z\u{e9}]{0,9}"),
        acks: i16,
        topics in topics(),
        has_tags: bool,
        rest in vec(any::<u8>(), 0..9),
    ) {
        let tags = if has_tags { TAGS } else { b"\0" };
        let (frame, expected) = written(version, transactional_id, acks, topics, tags);
        prop_assert_eq!(read(&[frame, rest].concat()), Ok(expected));
    }

    #[test]
    fn a_request_that_is_cut_off_is_refused(version in VERSIONS, topics in topics(), missing in 1_usize..200) {
        let (frame, _) = written(version, None, 1, topics, TAGS);
        prop_assert!(read(&frame[..frame.len().saturating_sub(missing)]).is_err());
    }

    #[test]
    fn what_is_read_of_any_bytes_lies_in_them(
        version in VERSIONS,
        topics in topics(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (mut frame, _) = written(version, None, 1, topics, TAGS);
        for (place, byte) in changes {
            let place = place.index(frame.len());
            frame[place] = byte;
        }
        if let Ok(request) = read(&frame) {
            for partition in request.topics.iter().flat_map(|topic| &topic.partitions) {
                prop_assert!(partition.records.clone().is_none_or(|records| frame.get(records).is_some()));
            }
        }
    }
}

#[test]
fn other_versions_and_other_apis_are_refused() {
    for version in [i16::MIN, -1, 0, 2, 14, i16::MAX] {
        let expected = format!("version {version} of Produce is not served");
        assert_eq!(Frame::new(version, b"\0").error(), expected);
    }
    let (mut frame, _) = written(9, None, 1, Vec::new(), b"\0");
    frame[1] = 1;
    assert_eq!(read(&frame).unwrap_err().to_string(), "a request of API key 1 is no Produce request");
}

#[test]
fn a_null_is_refused_where_none_may_be() {
    for version in VERSIONS {
        let null = |name: &str| format!("ProduceRequest v{version}: {name} has length -1");
        assert_eq!(Frame::begun(version, -1).error(), null("topic_data"));
        let mut frame = Frame::begun(version, 1);
        if version < TOPIC_IDS_FROM {
            let mut frame = Frame::begun(version, 1);
            frame.string(None);
            frame.put(&[0; 9]);
            assert_eq!(frame.error(), null("name"));
            frame = Frame::begun(version, 1);
        }
        match version {
            TOPIC_IDS_FROM.. => frame.put(&[3; 16]),
            _ => frame.string(Some(b"topic")),
        }
        frame.length(-1);
        assert_eq!(frame.error(), null("partition_data"));
    }
}

#[test]
fn a_count_is_believed_up_to_the_bytes_that_are_left() {
    for version in VERSIONS {
        let mut frame = Frame::begun(version, i32::MAX - 1);
        frame.put(&[0; 100]);
        assert_eq!(frame.error(), format!("ProduceRequest v{version}: topic_data has length {}", i32::MAX - 1));
    }
}

#[test]
fn a_request_has_a_million_topics_and_partitions_together() {
    const TOPICS: usize = 3;
    let mut frame = Frame::begun(9, TOPICS as i32);
    for partitions in [ELEMENTS_MAX - TOPICS, 0, 1] {
        frame.string(Some(b""));
        frame.length(partitions as i32);
        frame.put(&b"\0\0\0\x05\0\0".repeat(partitions));
        frame.put(b"\0");
    }
    frame.put(b"\0");
    assert_eq!(frame.error(), "ProduceRequest v9: partition_data has length 1");
}

#[test]
fn a_name_has_the_bounds_of_strings() {
    let named = |name: &[u8]| {
        let mut frame = Frame::begun(9, 1);
        frame.string(Some(name));
        frame.put(b"\x01\0\0");
        read(&frame.bytes).map(|request| request.topics[0].name.clone()).map_err(|why| why.to_string())
    };
    assert_eq!(named(b"caf\xff"), Ok(TopicName::Name("caf\u{fffd}".into())));
    let longest = "a".repeat(STRING_BYTES_MAX);
    assert_eq!(named(longest.as_bytes()), Ok(TopicName::Name(longest.as_str().into())));
    assert_eq!(named(&[longest.as_bytes(), b"a"].concat()), Err("ProduceRequest v9: a string has length 32768".into()));
    assert_eq!(named(&b"\xFF".repeat(20_000)), Err("ProduceRequest v9: a string of 20000 bytes is not UTF-8".into()));
}
