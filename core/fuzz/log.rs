//! Any bytes as what Redis answers to a read of a log: what is served of it are whole batches, as many bytes and records
//! as it says, and a walk ends where another does.

#![no_main]

mod sealed;
mod topics;

use korvet_proto::batch::{Header, LENGTH_FROM};
use korvet_proto::compression::{Codec, Frames};
use korvet_proto::log::{Collector, Found, Known, Outcome, Page, Read};
use korvet_proto::partition::{Layout, TopicConfig};
use sealed::sealed;
use topics::{config, partition};

const PLAIN_BYTES_MAX: usize = 1 << 20;
const LAYOUTS: [Layout; 3] = [Layout::Batch, Layout::Record { bits: 0 }, Layout::Record { bits: 20 }];
const NAMES: [&str; 9] = [
    "batch",
    "key",
    "value",
    "timestamp",
    "korvet.encoding",
    "korvet.producer",
    "korvet.marker",
    "header.name",
    "nullheader.name",
];
const CONTENTS: [&str; 6] = ["lz4", "zstd", "7:0", "commit", "abort", "1700000000000"];
const HEADER_BYTES: usize = 61;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(([flags, room, count], bytes)) = data.split_first_chunk() else { return };
    for layout in LAYOUTS {
        let read = Read {
            partition: partition(layout, TopicConfig { has_append_time: flags & 1 != 0, ..config() }),
            offset: (flags >> 5).into(),
            entries_max: u32::from(*count) + 1,
            end: None,
            is_committed: flags & 2 != 0,
            aborted_max: 2,
        };
        serve(&read, *room, bytes);
        serve(&read, *room, &[b"*2\r\n", &state(*flags)[..], format!("*{count}\r\n").as_bytes(), bytes].concat());
        let aborted: &[u8] = b"*2\r\n$5\r\n7:0:4\r\n$5\r\n7:5:6\r\n";
        let (head, tail) = if flags & 2 != 0 { ("*3\r\n", aborted) } else { ("*2\r\n", &b""[..]) };
        serve(&read, *room, &[head.as_bytes(), &state(*flags), &entries(layout, bytes), tail].concat());
    }
});

/// Serve a reply, first as one to a read of a log of which nothing is known.
fn serve(read: &Read, room: u8, reply: &[u8]) {
    let mut known = Known::default();
    for _ in 0..2 {
        let (_, sent) = read.put(&known, &mut Vec::new());
        match read.outcome(sent, &reply.to_vec().into(), &mut known) {
            Outcome::Found(mut found) | Outcome::Unsettled(mut found) => {
                collect(&found, room);
                found.limit(found.high_watermark - i64::from(room), found.stable_offset());
                collect(&found, room);
            }
            Outcome::Again(_) | Outcome::Refused(_) => {}
        }
    }
}

fn collect(found: &Found, room: u8) {
    if let Ok((page, _)) = Page::of(found, PLAIN_BYTES_MAX) {
        assert_eq!(page.first_timestamp().is_some(), !page.is_empty());
    }
    let next_offset = walk(found);
    let mut collector = Collector::new(&found.partition, 0, PLAIN_BYTES_MAX);
    let Ok(taken) = collector.take(found, usize::from(room) << 4, true) else { return };
    assert!(collector.is_full() || taken.entries == 0 || Some(collector.next_offset()) == next_offset);
    let (record_count, is_built) = (collector.record_count(), found.partition.layout != Layout::Batch);
    let pieces = collector.finish().unwrap();
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.as_ref()).copied().collect();
    assert_eq!(bytes.len(), taken.bytes);
    let (mut left, mut records, mut batches) = (&bytes[..], 0, 0);
    while let Some(header) = Header::read(left) {
        let (batch, rest) = left.split_at(header.batch_length as usize + LENGTH_FROM);
        if is_built {
            let plain = header.decompressed(batch, usize::MAX).unwrap();
            records += header.records(&plain).map(Result::unwrap).count() as u64;
        }
        (left, batches) = (rest, batches + 1);
    }
    assert!(left.is_empty());
    if is_built {
        assert_eq!((records, taken.entries.into()), (record_count, record_count));
    } else {
        assert_eq!(batches, taken.entries);
    }
}

/// The offset after the last entry that is shown, up to one that is wrong.
fn walk(found: &Found) -> Option<i64> {
    let mut next_offset = None;
    if found.partition.layout == Layout::Batch {
        for batch in found.batches().map_while(Result::ok) {
            assert!(batch.base_offset < batch.next_offset && Some(batch.next_offset) > next_offset.or(Some(i64::MIN)));
            assert!(batch.plain.is_none_or(|plain| plain.len() + HEADER_BYTES == batch.size_bytes));
            next_offset = Some(batch.next_offset);
        }
        return next_offset;
    }
    let mut records = found.records(PLAIN_BYTES_MAX);
    while let Some(Ok(record)) = records.next() {
        assert!(record.headers.iter().all(|(name, _)| std::str::from_utf8(name).is_ok()));
        next_offset = Some(record.offset + 1);
    }
    next_offset
}

/// The state of a log.
fn state(flags: u8) -> Vec<u8> {
    let mut counters = Vec::new();
    for number in [200, 0, 0, -1, 0, 0, 0, -1, -1_i64] {
        counters.extend(number.to_be_bytes());
    }
    counters.extend([0xFF, 0xFF, 0xFF, 0xFF, 0]);
    let optional = |bit: u8, text: &str| if flags & bit != 0 { bulk(text.as_bytes()) } else { b"$-1\r\n".to_vec() };
    let compacted = [optional(4, "0"), optional(4, "100")].concat();
    let rest = [optional(0, ""), optional(8, "9@3 7@0"), optional(16, "5"), optional(2, "9")].concat();
    [b"*8\r\n", &bulk(b"id")[..], &bulk(&counters), &compacted, &rest].concat()
}

/// Entries of the log, in which each byte decides something.
fn entries(layout: Layout, mut bytes: &[u8]) -> Vec<u8> {
    let (mut entries, mut count, mut end) = (Vec::new(), 0, 0);
    while let Some(([step, pairs], rest)) = bytes.split_first_chunk() {
        (bytes, count, end) = (rest, count + 1, end + 1 + u64::from(step & 15));
        let id = if layout == LAYOUTS[2] { format!("{}-{end}", step >> 6) } else { format!("{}-{end}", step >> 7) };
        let pairs = 1 + usize::from(pairs & 3);
        entries.extend([b"*2\r\n", &bulk(id.as_bytes())[..], format!("*{}\r\n", 2 * pairs).as_bytes()].concat());
        for _ in 0..pairs {
            let [name, kind, size] = bytes.split_first_chunk().map_or([0; 3], |(head, rest)| {
                bytes = rest;
                *head
            });
            let (content, rest) = bytes.split_at(bytes.len().min(size.into()));
            bytes = rest;
            entries.extend(bulk(NAMES[usize::from(name) % NAMES.len()].as_bytes()));
            entries.extend(bulk(&made(kind, content)));
        }
    }
    [format!("*{count}\r\n").as_bytes(), &entries].concat()
}

/// What a field holds: bytes as they are, a text that means something, a frame, or a batch.
fn made(kind: u8, content: &[u8]) -> Vec<u8> {
    let frame = |codec: Codec| Frames::new(codec).compress(content).unwrap().unwrap_or_default();
    let mut batch = [content, &[0; HEADER_BYTES]].concat();
    match kind {
        0..=5 => CONTENTS[usize::from(kind)].as_bytes().to_vec(),
        6 => frame(Codec::Lz4),
        7 => frame(Codec::Zstd),
        8..=15 => {
            sealed(&mut batch);
            let (header, records) = batch.split_at(HEADER_BYTES);
            let codec = if kind & 1 == 0 { Codec::Lz4 } else { Codec::Zstd };
            let frame = Frames::new(codec).compress(records).unwrap().filter(|_| kind < 12);
            frame.map_or(batch.clone(), |frame| [header, &frame].concat())
        }
        _ => content.to_vec(),
    }
}

fn bulk(text: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}
