//! Replies of Redis to the reads of a log, made by hand.

use std::sync::Arc;

use korvet_proto::failure::Failure;
use korvet_proto::log::{Found, Known, Outcome, Page, Read, Sent};
use korvet_proto::partition::{Layout, Partition};
use korvet_proto::shared::Shared;

use crate::batches::{Bytes, CONFIG, batch, partition, valued};

/// Offsets that count records, `0-<end>` in ids.
pub const DENSE: Layout = Layout::Record { bits: 0 };
pub const TOPIC_ID: &str = "BwcHBw";

/// The counters of a log, as the field `log` has them.
#[derive(Clone, Copy)]
pub struct Counters {
    pub end: u64,
    pub start: u64,
    pub first: i64,
    pub remote_start: i64,
    pub bytes: u64,
    pub records: u64,
    pub entries: u64,
    pub largest: i64,
    pub interval: i64,
    pub epoch: i32,
    pub moving: u8,
}

impl Counters {
    pub fn packed(&self) -> Bytes {
        let mut packed = Vec::new();
        packed.extend(self.end.to_be_bytes());
        packed.extend(self.start.to_be_bytes());
        packed.extend(self.first.to_be_bytes());
        packed.extend(self.remote_start.to_be_bytes());
        packed.extend(self.bytes.to_be_bytes());
        packed.extend(self.records.to_be_bytes());
        packed.extend(self.entries.to_be_bytes());
        packed.extend(self.largest.to_be_bytes());
        packed.extend(self.interval.to_be_bytes());
        packed.extend(self.epoch.to_be_bytes());
        packed.push(self.moving);
        packed
    }
}

/// The state of a log from offset 0 to `end`, and other fields; an empty one is none.
#[derive(Clone, Copy)]
pub struct Log<'a> {
    pub counters: Counters,
    pub topic: &'a str,
    pub clean: &'a str,
    pub clean_end: &'a str,
    pub archived: &'a str,
    pub epochs: &'a str,
    pub open: &'a str,
    pub aborted: &'a str,
}

pub fn log(end: u64) -> Log<'static> {
    let counters = Counters {
        end,
        start: 0,
        first: if end > 0 { 0 } else { -1 },
        remote_start: -1,
        bytes: 10 * end,
        records: end,
        entries: end,
        largest: 5,
        interval: -1,
        epoch: -1,
        moving: 0,
    };
    let none = "";
    Log {
        counters,
        topic: TOPIC_ID,
        clean: none,
        clean_end: none,
        archived: none,
        epochs: none,
        open: none,
        aborted: none,
    }
}

impl Log<'_> {
    /// The reply to HMGET.
    pub fn reply(&self) -> Bytes {
        let texts = [self.clean, self.clean_end, self.archived, self.epochs, self.open, self.aborted];
        let field = |text: &[u8]| if text.is_empty() { b"$-1\r\n".to_vec() } else { bulk(text) };
        let mut fields = vec![field(self.topic.as_bytes()), field(&self.counters.packed())];
        fields.extend(texts.iter().map(|text| field(text.as_bytes())));
        array(&fields)
    }
}

pub fn bulk(text: &[u8]) -> Bytes {
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

pub fn array(elements: &[Bytes]) -> Bytes {
    [format!("*{}\r\n", elements.len()).into_bytes(), elements.concat()].concat()
}

pub fn texts(texts: &[&str]) -> Bytes {
    array(&texts.iter().map(|text| bulk(text.as_bytes())).collect::<Vec<_>>())
}

/// An entry as XRANGE answers it.
pub fn entry(id: &str, fields: &[(&str, &[u8])]) -> Bytes {
    let fields = fields.iter().flat_map(|(name, content)| [bulk(name.as_bytes()), bulk(content)]);
    array(&[bulk(id.as_bytes()), array(&fields.collect::<Vec<_>>())])
}

/// The entry of a record that ends at an offset, in layout `DENSE`.
pub fn record(end: i64, value: &[u8]) -> Bytes {
    entry(&format!("0-{end}"), &[("value", value), ("timestamp", b"5")])
}

/// The entry of a batch of records, which ends at an offset.
pub fn stored(end: i64, values: &[&[u8]]) -> Bytes {
    let records: Vec<_> = values.iter().map(|value| valued(value)).collect();
    entry(&format!("0-{end}"), &[("batch", &batch(&records))])
}

/// An entry of another client of Redis.
pub fn foreign(end: i64) -> Bytes {
    entry(&format!("0-{end}"), &[("other", b"field")])
}

pub fn partition_of(layout: Layout) -> Arc<Partition> {
    partition(layout, CONFIG)
}

/// A read of at most ten entries from an offset on.
pub fn read(partition: &Arc<Partition>, offset: i64) -> Read {
    let partition = Arc::clone(partition);
    Read { partition, offset, entries_max: 10, end: None, is_committed: false, aborted_max: 1000 }
}

pub fn committed(partition: &Arc<Partition>, offset: i64) -> Read {
    Read { is_committed: true, ..read(partition, offset) }
}

/// Send a read, and take what Redis answers to its commands but for MULTI and EXEC.
pub fn outcome(read: &Read, known: &mut Known, replies: &[Bytes]) -> Outcome {
    let (count, sent) = sent(read, known);
    if let [reply] = replies {
        assert_eq!(count, 1);
        return read.outcome(sent, &reply.clone().into(), known);
    }
    assert_eq!(count, replies.len() + 2, "MULTI and EXEC are no commands of the block");
    read.outcome(sent, &array(replies).into(), known)
}

pub fn sent(read: &Read, known: &Known) -> (usize, Sent) {
    read.put(known, &mut Vec::new())
}

/// What a read finds in a log, of which nothing is known.
pub fn found(read: &Read, log: &Log<'_>, entries: &[Bytes]) -> Found {
    match outcome(read, &mut Known::default(), &[log.reply(), array(entries)]) {
        Outcome::Found(found) => found,
        other => panic!("{other:?}"),
    }
}

pub fn again(outcome: Outcome) -> Read {
    match outcome {
        Outcome::Again(read) => read,
        other => panic!("{other:?}"),
    }
}

pub fn refused(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Refused(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// The offsets that a walk over records or batches meets, and whether there is more after it.
pub fn walk(found: &Found) -> (Vec<i64>, bool) {
    let mut offsets = Vec::new();
    match found.partition.layout {
        Layout::Batch => {
            let mut batches = found.batches();
            offsets.extend(batches.by_ref().map(|batch| batch.unwrap().base_offset));
            (offsets, batches.has_more())
        }
        Layout::Record { .. } => {
            let mut records = found.records(1 << 20);
            while let Some(record) = records.next() {
                offsets.push(record.unwrap().offset);
            }
            (offsets, records.has_more())
        }
    }
}

/// All that a reply holds, to its last byte.
pub fn exhaust(reply: &[u8], read: &Read, sent: Sent) {
    let reply = Shared::from(reply.to_vec());
    if let Outcome::Found(found) | Outcome::Unsettled(found) = read.outcome(sent, &reply, &mut Known::default()) {
        found.next_offset();
        if let Ok((page, _)) = Page::of(&found, 1 << 20) {
            assert_eq!(page.first_timestamp().is_some(), !page.is_empty());
        }
        let mut records = found.records(1 << 20);
        while let Some(Ok(record)) = records.next() {
            assert!(record.offset >= 0);
        }
        found.batches().take_while(Result::is_ok).for_each(drop);
    }
}
