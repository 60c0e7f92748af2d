//! Requests in versions 12 and 13 as a consumer writes them, and what it reads of the responses.

use korvet_proto::shared::Piece;
use korvet_proto::wire::{Reader, put_varint};

pub const BYTES_MAX: i32 = 50 << 20;
pub const PARTITION_BYTES_MAX: i32 = 1 << 20;

/// What is asked of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Asks {
    pub index: i32,
    pub offset: i64,
    pub bytes_max: i32,
    pub epoch: i32,
    pub last_epoch: i32,
}

/// A partition from an offset on.
pub fn at(index: i32, offset: i64) -> Asks {
    Asks { index, offset, bytes_max: PARTITION_BYTES_MAX, epoch: -1, last_epoch: -1 }
}

/// A request, without its size.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// In version 13 topics are named by their ids: 15 times the first letter, and the number of the incarnation, which is
    /// the first one but of the topic `b`.
    pub version: i16,
    pub incarnation: u8,
    pub client_id: &'static str,
    pub replica_id: i32,
    pub wait_ms: i32,
    pub bytes_min: i32,
    pub bytes_max: i32,
    pub is_committed: bool,
    pub session: (i32, i32),
    pub topics: Vec<(&'static str, Vec<Asks>)>,
    pub forgotten: Vec<(&'static str, Vec<i32>)>,
}

/// A request that waits for half a second, for anything of the topic `a`, and wants no session.
pub fn fetch(asked: &[Asks]) -> Fetch {
    Fetch {
        version: 12,
        incarnation: 0,
        client_id: "me",
        replica_id: -1,
        wait_ms: 500,
        bytes_min: 1,
        bytes_max: BYTES_MAX,
        is_committed: false,
        session: (0, -1),
        topics: if asked.is_empty() { Vec::new() } else { vec![("a", asked.to_vec())] },
        forgotten: Vec::new(),
    }
}

impl Fetch {
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = [&1_i16.to_be_bytes()[..], &self.version.to_be_bytes(), b"\0\0\0\x07"].concat();
        out.extend((self.client_id.len() as i16).to_be_bytes());
        out.extend(self.client_id.as_bytes());
        out.push(0);
        for number in [self.replica_id, self.wait_ms, self.bytes_min, self.bytes_max] {
            out.extend(number.to_be_bytes());
        }
        out.push(u8::from(self.is_committed));
        out.extend(self.session.0.to_be_bytes());
        out.extend(self.session.1.to_be_bytes());
        put_varint(&mut out, self.topics.len() as u32 + 1);
        for (name, partitions) in &self.topics {
            self.put_name(&mut out, name);
            put_varint(&mut out, partitions.len() as u32 + 1);
            for asks in partitions {
                out.extend(asks.index.to_be_bytes());
                out.extend(asks.epoch.to_be_bytes());
                out.extend(asks.offset.to_be_bytes());
                out.extend(asks.last_epoch.to_be_bytes());
                out.extend((-1_i64).to_be_bytes());
                out.extend(asks.bytes_max.to_be_bytes());
                out.push(0);
            }
            out.push(0);
        }
        put_varint(&mut out, self.forgotten.len() as u32 + 1);
        for (name, indexes) in &self.forgotten {
            self.put_name(&mut out, name);
            put_varint(&mut out, indexes.len() as u32 + 1);
            out.extend(indexes.iter().flat_map(|index| index.to_be_bytes()));
            out.push(0);
        }
        out.extend(b"\x01\0");
        out
    }

    fn put_name(&self, out: &mut Vec<u8>, name: &str) {
        if self.version >= 13 {
            out.extend([name.as_bytes()[0]; 15]);
            out.push(if name == "b" { self.incarnation } else { 0 });
        } else {
            put_varint(out, name.len() as u32 + 1);
            out.extend(name.as_bytes());
        }
    }
}

/// A batch of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub offset: i64,
    pub next_offset: i64,
    pub epoch: i32,
    pub producer_id: i64,
    pub is_transactional: bool,
    pub is_control: bool,
    /// From the attributes on.
    pub rest: Vec<u8>,
}

/// The result of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Result {
    pub topic: String,
    pub index: i32,
    pub error: i16,
    pub high_watermark: i64,
    pub stable: i64,
    pub start: i64,
    /// Producer ids and first offsets.
    pub aborted: Option<Vec<(i64, i64)>>,
    pub diverging: Option<(i32, i64)>,
    pub batches: Vec<Batch>,
    /// How many bytes these are.
    pub size: usize,
}

/// What a consumer reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub throttle_ms: i32,
    pub error: i16,
    pub session: i32,
    pub results: Vec<Result>,
}

impl Result {
    /// The offsets of its records: from the first batch to past the last.
    pub fn offsets(&self) -> Option<(i64, i64)> {
        Some((self.batches.first()?.offset, self.batches.last()?.next_offset))
    }
}

pub fn joined(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(AsRef::as_ref).copied().collect()
}

pub fn read(frame: &[u8], version: i16) -> Response {
    assert_eq!(u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize, frame.len() - 4);
    let mut reader = Reader::new(4, true);
    let int32 = |reader: &mut Reader| i32::from_be_bytes(reader.array(frame).unwrap());
    let int64 = |reader: &mut Reader| i64::from_be_bytes(reader.array(frame).unwrap());
    assert_eq!(int32(&mut reader), 7);
    reader.skip_tags(frame).unwrap();
    let throttle_ms = int32(&mut reader);
    let error = i16::from_be_bytes(reader.array(frame).unwrap());
    let (session, mut results) = (int32(&mut reader), Vec::new());
    for _ in 0..reader.count(frame, "topics", false).unwrap().unwrap() {
        let name = if version >= 13 {
            reader.array::<16>(frame).unwrap()[..1].to_vec()
        } else {
            let size = reader.length(frame, "name", true, false).unwrap().unwrap();
            reader.bytes(frame, size).unwrap().to_vec()
        };
        for _ in 0..reader.count(frame, "partitions", false).unwrap().unwrap() {
            let index = int32(&mut reader);
            let error = i16::from_be_bytes(reader.array(frame).unwrap());
            let (high_watermark, stable, start) = (int64(&mut reader), int64(&mut reader), int64(&mut reader));
            let aborted = reader.count(frame, "aborted", true).unwrap().map(|count| {
                let rows = (0..count).map(|_| {
                    let row = (int64(&mut reader), int64(&mut reader));
                    reader.skip_tags(frame).unwrap();
                    row
                });
                rows.collect()
            });
            assert_eq!(int32(&mut reader), -1);
            let size = reader.length(frame, "records", false, true).unwrap().unwrap_or(0);
            let records = reader.bytes(frame, size).unwrap();
            let mut diverging = None;
            for _ in 0..reader.tag_count(frame).unwrap() {
                let (tag, end) = reader.tag(frame).unwrap();
                assert_eq!(tag, 0);
                diverging = Some((int32(&mut reader), int64(&mut reader)));
                reader.skip_to(end);
            }
            let topic = String::from_utf8(name.clone()).unwrap();
            let batches = batches_of(records);
            let of = (high_watermark, stable, start);
            let (high_watermark, stable, start) = of;
            results.push(Result {
                topic,
                index,
                error,
                high_watermark,
                stable,
                start,
                aborted,
                diverging,
                batches,
                size,
            });
        }
        reader.skip_tags(frame).unwrap();
    }
    Response { throttle_ms, error, session, results }
}

fn batches_of(mut records: &[u8]) -> Vec<Batch> {
    let mut batches = Vec::new();
    while !records.is_empty() {
        let int32 = |at: usize| i32::from_be_bytes(records[at..at + 4].try_into().unwrap());
        let int64 = |at: usize| i64::from_be_bytes(records[at..at + 8].try_into().unwrap());
        let (offset, size) = (int64(0), 12 + int32(8) as usize);
        let attributes = i16::from_be_bytes(records[21..23].try_into().unwrap());
        batches.push(Batch {
            offset,
            next_offset: offset + i64::from(int32(23)) + 1,
            epoch: int32(12),
            producer_id: int64(43),
            is_transactional: attributes & 0x10 > 0,
            is_control: attributes & 0x20 > 0,
            rest: records[16..size].to_vec(),
        });
        records = &records[size..];
    }
    batches
}
