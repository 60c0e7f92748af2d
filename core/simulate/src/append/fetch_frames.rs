//! Frames of consumers and the responses to them, in all versions of Fetch.

use korvet_proto::batch::{CONTROL_BIT, CRC_FROM, Header, LENGTH_FROM, TRANSACTIONAL_BIT, crc32c};
use korvet_proto::wire::{Reader, put_varint};

use super::topics::{Which, name};

const FETCH: i16 = 1;
const FLEXIBLE_FROM: i16 = 12;
const TOPIC_IDS_FROM: i16 = 13;
/// From here on there are sessions.
pub(super) const SESSIONS_FROM: i16 = 7;
/// From here on a client says which leader epoch it knows.
pub(super) const LEADER_EPOCHS_FROM: i16 = 9;
/// From here on it may say of which epoch the record before its position is.
pub(super) const LAST_EPOCHS_FROM: i16 = 12;

/// What is asked of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asks {
    /// Of the topic, as the client knows it; 0 where topics are named.
    pub incarnation: u8,
    pub offset: i64,
    pub leader_epoch: i32,
    pub last_epoch: i32,
    pub bytes_max: i32,
}

/// A request, without its size.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    pub version: i16,
    pub correlation_id: i32,
    pub wait_ms: i32,
    pub bytes_min: i32,
    pub bytes_max: i32,
    pub is_committed: bool,
    /// Id and epoch.
    pub session: (i32, i32),
    pub asked: Vec<(Which, Asks)>,
    /// Partitions and incarnations that leave the session.
    pub forgotten: Vec<(Which, u8)>,
}

/// Whether a version names topics by their ids.
pub(super) fn has_ids(version: i16) -> bool {
    version >= TOPIC_IDS_FROM
}

struct Out {
    bytes: Vec<u8>,
    version: i16,
}

impl Out {
    fn put(&mut self, number: impl Into<i64>, width: usize) {
        self.bytes.extend(&number.into().to_be_bytes()[8 - width..]);
    }

    fn since(&mut self, version: i16, number: impl Into<i64>, width: usize) {
        if self.version >= version {
            self.put(number, width);
        }
    }

    fn count(&mut self, count: usize) {
        if self.version >= FLEXIBLE_FROM {
            put_varint(&mut self.bytes, count as u32 + 1);
        } else {
            self.put(count as i64, 4);
        }
    }

    fn no_tags(&mut self) {
        if self.version >= FLEXIBLE_FROM {
            self.bytes.push(0);
        }
    }

    fn string(&mut self, text: &str) {
        if self.version >= FLEXIBLE_FROM {
            self.count(text.len());
        } else {
            self.put(text.len() as i64, 2);
        }
        self.bytes.extend(text.as_bytes());
    }

    fn topic(&mut self, topic: usize, incarnation: u8) {
        if has_ids(self.version) {
            self.bytes.extend([topic as u8 + 1, incarnation]);
            self.bytes.extend([0; 14]);
        } else {
            self.string(&name(topic));
        }
    }
}

impl Fetch {
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Out { bytes: Vec::new(), version: self.version };
        out.put(FETCH, 2);
        out.put(self.version, 2);
        out.put(self.correlation_id, 4);
        out.put(-1, 2);
        out.no_tags();
        if self.version < 15 {
            out.put(-1, 4);
        }
        out.put(self.wait_ms, 4);
        out.put(self.bytes_min, 4);
        out.put(self.bytes_max, 4);
        out.put(i64::from(self.is_committed), 1);
        out.since(SESSIONS_FROM, self.session.0, 4);
        out.since(SESSIONS_FROM, self.session.1, 4);
        out.count(self.asked.len());
        for ((topic, index), asks) in &self.asked {
            out.topic(*topic, asks.incarnation);
            out.count(1);
            out.put(*index, 4);
            out.since(LEADER_EPOCHS_FROM, asks.leader_epoch, 4);
            out.put(asks.offset, 8);
            out.since(LAST_EPOCHS_FROM, asks.last_epoch, 4);
            out.since(5, -1, 8);
            out.put(asks.bytes_max, 4);
            out.no_tags();
            out.no_tags();
        }
        if self.version >= SESSIONS_FROM {
            out.count(self.forgotten.len());
            for ((topic, index), incarnation) in &self.forgotten {
                out.topic(*topic, *incarnation);
                out.count(1);
                out.put(*index, 4);
                out.no_tags();
            }
        }
        if self.version >= 11 {
            out.string("");
        }
        out.no_tags();
        out.bytes
    }
}

/// A batch of a response.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub header: Header,
    /// Offsets and values; the offset of a marker, and whether it aborts.
    pub records: Vec<(i64, String)>,
    pub marker: Option<bool>,
}

impl Batch {
    pub fn next_offset(&self) -> i64 {
        self.header.base_offset + i64::from(self.header.last_offset_delta) + 1
    }

    pub fn is_transactional(&self) -> bool {
        self.header.attributes & TRANSACTIONAL_BIT != 0
    }
}

/// What a response says of a partition.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub which: Which,
    /// Of the topic, where it is named by its id.
    pub incarnation: Option<u8>,
    pub error: i16,
    pub high_watermark: i64,
    pub stable: i64,
    /// Producer ids and first offsets.
    pub aborted: Vec<(i64, i64)>,
    pub diverging: Option<(i32, i64)>,
    pub batches: Vec<Batch>,
}

#[derive(Clone, Debug)]
pub(super) struct Response {
    pub correlation_id: i32,
    pub error: i16,
    pub session: i32,
    pub parts: Vec<Part>,
}

struct In<'a> {
    frame: &'a [u8],
    reader: Reader,
    version: i16,
}

impl In<'_> {
    fn int(&mut self, width: usize) -> i64 {
        let taken = self.reader.bytes(self.frame, width).unwrap();
        let unused = 64 - 8 * width as u32;
        (taken.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)) << unused) as i64 >> unused
    }

    fn since(&mut self, version: i16, width: usize) -> i64 {
        if self.version >= version { self.int(width) } else { 0 }
    }

    fn count(&mut self) -> usize {
        self.reader.count(self.frame, "array", true).unwrap().unwrap_or(0)
    }

    fn skip_tags(&mut self) {
        if self.version >= FLEXIBLE_FROM {
            self.reader.skip_tags(self.frame).unwrap();
        }
    }

    fn topic(&mut self) -> (usize, Option<u8>) {
        if has_ids(self.version) {
            let id = self.reader.array::<16>(self.frame).unwrap();
            return (usize::from(id[0]) - 1, Some(id[1]));
        }
        let size = self.reader.length(self.frame, "topic", true, false).unwrap().unwrap();
        let name = String::from_utf8_lossy(self.reader.bytes(self.frame, size).unwrap()).into_owned();
        (name.trim_start_matches("topic").parse().unwrap(), None)
    }

    fn part(&mut self, topic: usize, incarnation: Option<u8>) -> Part {
        let (index, error) = (self.int(4) as i32, self.int(2) as i16);
        let (high_watermark, stable) = (self.int(8), self.int(8));
        self.since(5, 8);
        let mut aborted = Vec::new();
        for _ in 0..self.count() {
            aborted.push((self.int(8), self.int(8)));
            self.skip_tags();
        }
        self.since(11, 4);
        let size = self.reader.length(self.frame, "records", false, true).unwrap().unwrap_or(0);
        let batches = batches(self.reader.bytes(self.frame, size).unwrap());
        let mut diverging = None;
        let tags = if self.version >= FLEXIBLE_FROM { self.reader.tag_count(self.frame).unwrap() } else { 0 };
        for _ in 0..tags {
            let (tag, end) = self.reader.tag(self.frame).unwrap();
            assert_eq!(tag, 0, "no other tagged field is sent");
            diverging = Some((self.int(4) as i32, self.int(8)));
            self.reader.skip_to(end);
        }
        let which = (topic, index);
        Part { which, incarnation, error, high_watermark, stable, aborted, diverging, batches }
    }
}

/// Read a response, with its size.
pub(super) fn response(frame: &[u8], version: i16) -> Response {
    let reader = Reader::new(0, version >= FLEXIBLE_FROM);
    let mut of = In { frame, reader, version };
    assert_eq!(of.int(4), frame.len() as i64 - 4, "a response is as long as it says");
    let correlation_id = of.int(4) as i32;
    of.skip_tags();
    of.int(4);
    let (error, session) = (of.since(SESSIONS_FROM, 2) as i16, of.since(SESSIONS_FROM, 4) as i32);
    let mut parts = Vec::new();
    for _ in 0..of.count() {
        let (topic, incarnation) = of.topic();
        for _ in 0..of.count() {
            parts.push(of.part(topic, incarnation));
        }
        of.skip_tags();
    }
    of.skip_tags();
    assert_eq!(of.reader.position(), frame.len(), "a response has no more than it says");
    Response { correlation_id, error, session, parts }
}

/// The batches that follow one another.
pub(super) fn batches(mut bytes: &[u8]) -> Vec<Batch> {
    let mut batches = Vec::new();
    while !bytes.is_empty() {
        let header = Header::read(bytes).unwrap();
        let (batch, left) = bytes.split_at(header.batch_length as usize + LENGTH_FROM);
        assert_eq!(crc32c(0, &batch[CRC_FROM..]), header.crc, "the CRC is right");
        let plain = header.decompressed(batch, usize::MAX).unwrap();
        let is_control = header.attributes & CONTROL_BIT != 0;
        let (mut records, mut marker) = (Vec::new(), None);
        for record in header.records(&plain) {
            let record = record.unwrap();
            if is_control {
                // A version, and 0 to abort or 1 to commit.
                marker = record.key.map(|key| key[3] == 0);
            } else {
                let value = String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned();
                records.push((header.base_offset + i64::from(record.offset_delta), value));
            }
        }
        batches.push(Batch { header, records, marker });
        bytes = left;
    }
    batches
}
