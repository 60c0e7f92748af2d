//! Fetch requests as consumers send them, and as none should.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use korvet_proto::fetch::{ForgottenTopic, NAMED_MAX, PartitionData, Request, TopicData, VERSIONS, read};
use korvet_proto::partition::TopicName;
use korvet_proto::wire::{STRING_BYTES_MAX, put_varint};
use proptest::collection::vec;
use proptest::prelude::*;

const FLEXIBLE_FROM: i16 = 12;
const TOPIC_IDS_FROM: i16 = 13;
const CORRELATION_ID: i32 = -7;
/// Two tagged fields that no version has.
const TAGS: &[u8] = b"\x02\x07\x01x\x09\x00";

/// Topics by a name, with what is asked of partitions: index, leader epoch, offset, last epoch, bytes.
type Asked = Vec<(String, Vec<(i32, i32, i64, i32, i32)>)>;

/// A frame as a client writes it.
struct Frame {
    bytes: Vec<u8>,
    version: i16,
    tags: &'static [u8],
}

impl Frame {
    fn new(version: i16, tags: &'static [u8]) -> Self {
        let header = [&1_i16.to_be_bytes()[..], &version.to_be_bytes(), &CORRELATION_ID.to_be_bytes(), b"\0\x02me"];
        let mut frame = Self { bytes: header.concat(), version, tags };
        frame.end();
        frame
    }

    /// A request up to the number of its topics.
    fn begun(version: i16, topics: i32) -> Self {
        let mut frame = Self::new(version, b"\0");
        frame.begin(topics);
        frame
    }

    fn begin(&mut self, topics: i32) {
        if self.version < 15 {
            self.int32s(&[-1]);
        }
        self.int32s(&[500, 1, 1 << 20]);
        self.put(b"\x01");
        if self.version >= 7 {
            self.int32s(&[3, 4]);
        }
        self.length(topics);
    }

    fn is_flexible(&self) -> bool {
        self.version >= FLEXIBLE_FROM
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn int32s(&mut self, numbers: &[i32]) {
        for number in numbers {
            self.put(&number.to_be_bytes());
        }
    }

    fn length(&mut self, length: i32) {
        if self.is_flexible() {
            put_varint(&mut self.bytes, (length + 1) as u32);
        } else {
            self.put(&length.to_be_bytes());
        }
    }

    fn string(&mut self, content: Option<&[u8]>) {
        let length = content.map_or(-1, |content| content.len() as i32);
        if self.is_flexible() {
            self.length(length);
        } else {
            self.put(&(length as i16).to_be_bytes());
        }
        self.put(content.unwrap_or_default());
    }

    fn name(&mut self, name: &str) -> TopicName {
        if self.version < TOPIC_IDS_FROM {
            self.string(Some(name.as_bytes()));
            return TopicName::Name(name.into());
        }
        let id = [name.len() as u8; 16];
        self.put(&id);
        TopicName::Id(id)
    }

    /// What is asked of a partition; returns what is to be read.
    fn partition(&mut self, (index, epoch, offset, last_epoch, bytes): (i32, i32, i64, i32, i32)) -> PartitionData {
        self.int32s(&[index]);
        if self.version >= 9 {
            self.int32s(&[epoch]);
        }
        self.put(&offset.to_be_bytes());
        if self.version >= 12 {
            self.int32s(&[last_epoch]);
        }
        if self.version >= 5 {
            self.put(&[1; 8]);
        }
        self.int32s(&[bytes]);
        PartitionData {
            index,
            current_leader_epoch: if self.version >= 9 { epoch } else { -1 },
            fetch_offset: offset,
            last_fetched_epoch: if self.version >= 12 { last_epoch } else { -1 },
            partition_max_bytes: bytes,
        }
    }

    /// What stands between the topics and the tagged fields: forgotten topics, and a rack.
    fn rest(&mut self, forgotten: &[(String, Vec<i32>)]) -> Vec<ForgottenTopic> {
        let mut read = Vec::new();
        if self.version >= 7 {
            self.length(forgotten.len() as i32);
            for (name, partitions) in forgotten {
                let name = self.name(name);
                self.length(partitions.len() as i32);
                self.int32s(partitions);
                self.end();
                read.push(ForgottenTopic { name, partitions: partitions.clone() });
            }
        }
        if self.version >= 11 {
            self.string(Some(b"rack"));
        }
        read
    }

    /// End a struct.
    fn end(&mut self) {
        if self.is_flexible() {
            self.put(self.tags);
        }
    }

    fn error(&self) -> String {
        read(&self.bytes).unwrap_err().to_string()
    }
}

/// The frame of a request, and what is to be read from it.
fn written(version: i16, topics: Asked, forgotten: &[(String, Vec<i32>)], tags: &'static [u8]) -> (Vec<u8>, Request) {
    let mut frame = Frame::new(version, tags);
    frame.begin(topics.len() as i32);
    let mut read = Vec::new();
    for (name, asked) in topics {
        let name = frame.name(&name);
        frame.length(asked.len() as i32);
        let mut partitions = Vec::new();
        for each in asked {
            partitions.push(frame.partition(each));
            frame.end();
        }
        frame.end();
        read.push(TopicData { name, partitions });
    }
    let forgotten = frame.rest(forgotten);
    frame.end();
    let request = Request {
        version,
        correlation_id: CORRELATION_ID,
        client_id: Some("me".into()),
        replica_id: -1,
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 1 << 20,
        is_committed: true,
        session_id: if version >= 7 { 3 } else { 0 },
        session_epoch: if version >= 7 { 4 } else { -1 },
        topics: read,
        forgotten,
    };
    (frame.bytes, request)
}

fn topics() -> impl Strategy<Value = Asked> {
    vec(("[a-z\u{e9}]{0,9}", vec(any::<(i32, i32, i64, i32, i32)>(), 0..4)), 0..4)
}

fn forgotten() -> impl Strategy<Value = Vec<(String, Vec<i32>)>> {
    vec(("[a-z\u{e9}]{0,9}", vec(any::<i32>(), 0..4)), 0..3)
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written_and_what_follows_it_is_ignored(
        version in VERSIONS,
        topics in topics(),
        forgotten in forgotten(),
        has_tags: bool,
        rest in vec(any::<u8>(), 0..9),
    ) {
        let tags = if has_tags { TAGS } else { b"\0" };
        let (frame, expected) = written(version, topics, &forgotten, tags);
        prop_assert_eq!(read(&[frame, rest].concat()), Ok(expected));
    }

    #[test]
    fn a_request_that_is_cut_off_is_refused(
        version in VERSIONS,
        topics in topics(),
        forgotten in forgotten(),
        missing in 1_usize..200,
    ) {
        let (frame, _) = written(version, topics, &forgotten, TAGS);
        prop_assert!(read(&frame[..frame.len().saturating_sub(missing)]).is_err());
    }

    #[test]
    fn what_is_read_of_any_bytes_is_no_more_than_they_have_room_for(
        version in VERSIONS,
        topics in topics(),
        forgotten in forgotten(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (mut frame, _) = written(version, topics, &forgotten, TAGS);
        for (place, byte) in changes {
            let place = place.index(frame.len());
            frame[place] = byte;
        }
        if let Ok(request) = read(&frame) {
            let forgotten: usize = request.forgotten.iter().map(|topic| topic.partitions.len()).sum();
            let partitions = request.partition_count() + forgotten;
            let topics = request.topics.len() + request.forgotten.len();
            prop_assert!(partitions * size_of::<i32>() + topics <= frame.len());
        }
    }
}

#[test]
fn other_versions_and_other_apis_are_refused() {
    for version in [i16::MIN, -1, 0, 3, 19, i16::MAX] {
        let expected = format!("version {version} of Fetch is not served");
        assert_eq!(Frame::new(version, b"\0").error(), expected);
    }
    let (mut frame, _) = written(9, Vec::new(), &[], b"\0");
    frame[1] = 0;
    assert_eq!(read(&frame).unwrap_err().to_string(), "a request of API key 0 is no Fetch request");
}

#[test]
fn committed_records_are_asked_for_by_one_level_alone() {
    // After the header, the id of the follower and three numbers.
    const PLACE: usize = 12 + 4 * 4;
    let (mut frame, _) = written(4, Vec::new(), &[], b"\0");
    assert_eq!(frame[PLACE], 1);
    for level in 0..=255 {
        frame[PLACE] = level;
        assert_eq!(read(&frame).unwrap().is_committed, level == 1);
    }
}

#[test]
fn a_null_is_refused_where_none_may_be() {
    for version in VERSIONS {
        let null = |name: &str| format!("FetchRequest v{version}: {name} has length -1");
        assert_eq!(Frame::begun(version, -1).error(), null("topics"));
        let mut frame = Frame::begun(version, 1);
        frame.name("topic");
        frame.length(-1);
        assert_eq!(frame.error(), null("partitions"));
        if version < TOPIC_IDS_FROM {
            let mut frame = Frame::begun(version, 1);
            frame.string(None);
            assert_eq!(frame.error(), null("topic"));
        }
        if version >= 7 {
            let mut frame = Frame::begun(version, 0);
            frame.length(-1);
            assert_eq!(frame.error(), null("forgotten_topics_data"));
        }
        if version >= 11 {
            let mut frame = Frame::begun(version, 0);
            frame.length(0);
            frame.string(None);
            assert_eq!(frame.error(), null("rack_id"));
        }
    }
}

#[test]
fn a_count_is_believed_up_to_the_bytes_that_are_left() {
    for version in VERSIONS {
        let mut frame = Frame::begun(version, i32::MAX - 1);
        frame.put(&[0; 100]);
        assert_eq!(frame.error(), format!("FetchRequest v{version}: topics has length {}", i32::MAX - 1));
    }
}

#[test]
fn a_request_names_a_hundred_thousand_topics_and_partitions_together() {
    const FORGOTTEN: usize = NAMED_MAX / 2;
    let with = |partitions: usize| {
        let mut frame = Frame::begun(12, 1);
        frame.name("topic");
        frame.length(partitions as i32);
        frame.put(&[0; 33].repeat(partitions));
        frame.put(b"\0");
        frame.rest(&[("topic".into(), vec![1; FORGOTTEN])]);
        frame.put(b"\0");
        read(&frame.bytes).map(|request| request.partition_count()).map_err(|why| why.to_string())
    };
    let fitting = NAMED_MAX - FORGOTTEN - 2;
    assert_eq!(with(fitting), Ok(fitting));
    assert_eq!(with(fitting + 1), Err(format!("FetchRequest v12: partitions has length {FORGOTTEN}")));
}

#[test]
fn a_name_has_the_bounds_of_strings() {
    let named = |name: &[u8]| {
        let mut frame = Frame::begun(12, 1);
        frame.string(Some(name));
        frame.length(0);
        frame.end();
        frame.rest(&[]);
        frame.end();
        read(&frame.bytes).map(|request| request.topics[0].name.clone()).map_err(|why| why.to_string())
    };
    let in_rack = |rack: &[u8]| {
        let mut frame = Frame::begun(11, 0);
        frame.length(0);
        frame.string(Some(rack));
        read(&frame.bytes).map(|request| request.topics.len()).map_err(|why| why.to_string())
    };
    assert_eq!(named(b"caf\xff"), Ok(TopicName::Name("caf\u{fffd}".into())));
    let longest = "a".repeat(STRING_BYTES_MAX);
    assert_eq!(named(longest.as_bytes()), Ok(TopicName::Name(longest.as_str().into())));
    let too_long = [longest.as_bytes(), b"a"].concat();
    assert_eq!(named(&too_long), Err("FetchRequest v12: a string has length 32768".into()));
    let malformed = b"\xFF".repeat(20_000);
    assert_eq!(named(&malformed), Err("FetchRequest v12: a string of 20000 bytes is not UTF-8".into()));
    assert_eq!(in_rack(&malformed), Err("FetchRequest v11: a string of 20000 bytes is not UTF-8".into()));
    assert_eq!(in_rack(longest.as_bytes()), Ok(0));
}

/// What is read of a request without topics, which ends with these tagged fields.
fn with_tags(version: i16, tags: &[u8]) -> Result<i32, String> {
    let mut frame = Frame::begun(version, 0);
    frame.rest(&[]);
    frame.put(tags);
    read(&frame.bytes).map(|request| request.replica_id).map_err(|why| why.to_string())
}

#[test]
fn a_follower_says_who_it_is_in_a_tagged_field_since_version_15() {
    let state = b"\x01\x0D\0\0\0\x05\0\0\0\0\0\0\0\0\0";
    let twice = [&b"\x02"[..], state, b"\x01\x0D\0\0\0\x06\0\0\0\0\0\0\0\0\0"].concat();
    for version in 15..=18 {
        assert_eq!(with_tags(version, &[b"\x01", &state[..]].concat()), Ok(5));
        assert_eq!(with_tags(version, &twice), Ok(6));
        assert_eq!(with_tags(version, b"\0"), Ok(-1));
    }
    // Before that it is a tag that is not known.
    assert_eq!(with_tags(14, &[b"\x01", &state[..]].concat()), Ok(-1));
    let mut frame = Frame::new(14, b"\0");
    frame.int32s(&[7, 500, 1, 1]);
    frame.put(b"\0");
    frame.int32s(&[0, -1]);
    frame.length(0);
    frame.rest(&[]);
    frame.end();
    assert_eq!(read(&frame.bytes).unwrap().replica_id, 7);
}

#[test]
fn a_tagged_field_that_is_known_takes_as_many_bytes_as_it_says() {
    let error = |field: &str, size: u8, takes: u8| {
        Err(format!("FetchRequest v18: tagged field {field} has size {size} but takes {takes} bytes"))
    };
    assert_eq!(with_tags(18, b"\x01\x00\x03\x02ab"), error("cluster_id", 3, 2));
    assert_eq!(with_tags(18, b"\x01\x01\x0E\0\0\0\x05\0\0\0\0\0\0\0\0\0\0"), error("replica_state", 14, 13));
    assert_eq!(with_tags(18, b"\x01\x05\x03abc"), Ok(-1));
    let in_partition = |version: i16, tags: &[u8]| {
        let mut frame = Frame::begun(version, 1);
        frame.name("topic");
        frame.length(1);
        frame.partition((0, 0, 0, 0, 0));
        frame.put(tags);
        frame.end();
        frame.rest(&[]);
        frame.end();
        read(&frame.bytes).map(|request| request.replica_id).map_err(|why| why.to_string())
    };
    assert_eq!(in_partition(18, &[&b"\x02\x00\x10"[..], &[1; 16], b"\x01\x08", &[1; 8]].concat()), Ok(-1));
    assert_eq!(in_partition(18, &[&b"\x01\x00\x11"[..], &[1; 17]].concat()), error("replica_directory_id", 17, 16));
    assert_eq!(in_partition(18, &[&b"\x01\x01\x09"[..], &[1; 9]].concat()), error("high_watermark", 9, 8));
    // The versions before do not know them.
    assert_eq!(in_partition(17, &[&b"\x01\x01\x09"[..], &[1; 9]].concat()), Ok(-1));
    assert_eq!(in_partition(16, &[&b"\x01\x00\x11"[..], &[1; 17]].concat()), Ok(-1));
}
