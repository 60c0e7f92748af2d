//! Frames of producers and the responses to them, in version 8 of Produce, and batches.

use korvet_proto::batch::{Header, TRANSACTIONAL_BIT};
use korvet_proto::encode::{Encoder, RecordFields};

use super::topics::{Which, name};

const PRODUCE: i16 = 0;
const VERSION: i16 = 8;
/// The words of the topic whose number they end with.
const TOPIC: &str = "topic";

/// Who sends a batch, and which of the producer's it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    /// -1: the producer is not idempotent.
    pub producer_id: i64,
    pub epoch: i16,
    pub sequence: i32,
    pub is_transactional: bool,
}

/// A batch of records with these values.
pub(super) fn batch(values: &[String], sender: Sender, timestamp: i64) -> Vec<u8> {
    let mut encoder = Encoder::new(0, usize::MAX, true);
    for (offset, value) in (0..).zip(values) {
        let value = Some(value.as_bytes());
        let record: RecordFields<'_> = RecordFields { offset, timestamp, key: None, value, headers: &[] };
        encoder.push(&record);
    }
    let attributes = if sender.is_transactional { TRANSACTIONAL_BIT } else { 0 };
    let Sender { producer_id, epoch: producer_epoch, sequence: base_sequence, .. } = sender;
    let header = Header { attributes, producer_id, producer_epoch, base_sequence, ..encoder.header() };
    header.sealed(encoder.into_batch())
}

fn put_string(frame: &mut Vec<u8>, text: Option<&str>) {
    frame.extend(text.map_or(-1, |text| text.len() as i16).to_be_bytes());
    frame.extend(text.unwrap_or_default().as_bytes());
}

/// A request with a batch for each of some partitions, without its size.
pub(super) fn request(
    correlation_id: i32,
    transactional_id: Option<&str>,
    acks: i16,
    batches: &[(Which, Vec<u8>)],
) -> Vec<u8> {
    let mut frame = [PRODUCE.to_be_bytes(), VERSION.to_be_bytes()].concat();
    frame.extend(correlation_id.to_be_bytes());
    put_string(&mut frame, Some("client"));
    put_string(&mut frame, transactional_id);
    frame.extend(acks.to_be_bytes());
    frame.extend(30_000_i32.to_be_bytes());
    frame.extend((batches.len() as i32).to_be_bytes());
    for ((topic, index), batch) in batches {
        put_string(&mut frame, Some(&name(*topic)));
        frame.extend(1_i32.to_be_bytes());
        frame.extend(index.to_be_bytes());
        frame.extend((batch.len() as i32).to_be_bytes());
        frame.extend(batch);
    }
    frame
}

/// What a response says of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Result {
    pub which: Which,
    pub code: i16,
    pub base_offset: i64,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self, width: usize) -> i64 {
        let (taken, left) = self.0.split_at(width);
        self.0 = left;
        let unused = 64 - 8 * width as u32;
        (taken.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)) << unused) as i64 >> unused
    }

    fn string(&mut self) -> String {
        let length = self.number(2).max(0) as usize;
        let (taken, left) = self.0.split_at(length);
        self.0 = left;
        String::from_utf8_lossy(taken).into_owned()
    }
}

/// Read a response, with its size: the correlation id, and what it says of each partition.
pub(super) fn response(frame: &[u8]) -> (i32, Vec<Result>) {
    let mut reader = Reader(frame);
    assert_eq!(reader.number(4), frame.len() as i64 - 4, "a response is as long as it says");
    let correlation_id = reader.number(4) as i32;
    let mut results = Vec::new();
    for _ in 0..reader.number(4) {
        let topic: usize = reader.string().trim_start_matches(TOPIC).parse().unwrap();
        for _ in 0..reader.number(4) {
            let (index, code) = (reader.number(4) as i32, reader.number(2) as i16);
            let (base_offset, _, _) = (reader.number(8), reader.number(8), reader.number(8));
            for _ in 0..reader.number(4) {
                reader.number(4);
                reader.string();
            }
            reader.string();
            results.push(Result { which: (topic, index), code, base_offset });
        }
    }
    reader.number(4);
    assert!(reader.0.is_empty(), "a response has no more than it says");
    (correlation_id, results)
}
