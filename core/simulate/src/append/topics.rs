//! Topics: incarnations of their partitions, the keys of each, and what is read of the log there.

use std::collections::BTreeMap;
use std::sync::Arc;

use korvet_proto::batch::{CONTROL_BIT, HEADER_BYTES, Header, TRANSACTIONAL_BIT};
use korvet_proto::client::slot_of;
use korvet_proto::compression::Codec;
use korvet_proto::partition::{AtRest, Keys, Layout, Partition, Topic, TopicConfig};

use super::model::stream::Ids;
use super::model::{Log, Script};
use super::redis::Servers;

/// A partition by its topic and index.
pub(super) type Which = (usize, i32);

#[derive(Clone, Copy, Debug)]
pub(super) struct TopicOf {
    pub layout: Layout,
    pub partitions: i32,
    /// Changes when it is deleted and created again.
    pub incarnation: u8,
    /// How many replicas have to have what is acknowledged.
    pub replicas: u32,
}

pub(super) fn name(topic: usize) -> String {
    format!("topic{topic}")
}

pub(super) fn stream(which: Which) -> String {
    format!("korvet:{}:{}", name(which.0), which.1)
}

pub(super) fn bits(layout: Layout) -> i64 {
    match layout {
        Layout::Batch => -1,
        Layout::Record { bits } => bits.into(),
    }
}

/// The text of an incarnation's id.
fn id_text(topic: usize, incarnation: u8) -> String {
    format!("id{topic}.{incarnation}")
}

fn side(which: Which, name: &str) -> String {
    format!("{{{}}}:{name}", stream(which))
}

/// A partition as workers know it.
pub(super) fn partition(which: Which, of: TopicOf) -> Partition {
    let config = TopicConfig {
        codec: None,
        at_rest: AtRest { codec: None, min_bytes: 0 },
        consumer_codec: Codec::None,
        max_message_bytes: 1 << 20,
        max_message_records: 1_000,
        is_compacted: false,
        has_append_time: false,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: i64::MAX,
    };
    let mut id = [0; 16];
    (id[0], id[1]) = (which.0 as u8 + 1, of.incarnation);
    let topic = Topic { name: name(which.0).into(), id, id_text: id_text(which.0, of.incarnation).into(), config };
    let keys = Keys {
        stream: stream(which).into(),
        state: side(which, "state").into(),
        index: side(which, "index").into(),
        open: side(which, "open").into(),
        aborted: side(which, "aborted").into(),
        compacted: [side(which, "clean:0").into(), side(which, "clean:1").into()],
        channel: stream(which).into(),
    };
    let slot = slot_of(stream(which).as_bytes());
    Partition { topic: Arc::new(topic), index: which.1, layout: of.layout, keys, slot, replicas: of.replicas }
}

/// Delete the partition of the incarnation before, and create one.
pub(super) fn create(servers: &mut Servers, which: Which, of: TopicOf) {
    let home = servers.home(&stream(which));
    let names = ["state", "index", "moving", "clean:0", "clean:1", "open", "aborted", "share"];
    let sides: Vec<Vec<u8>> = names.map(|name| side(which, name).into_bytes()).to_vec();
    let stream = stream(which).into_bytes();
    let model = &mut servers.hosts[home].model;
    if of.incarnation > 0 {
        let keys = [vec![sides[0].clone(), stream.clone()], sides[1..].to_vec()].concat();
        let texts = [id_text(which.0, of.incarnation - 1), "100000".to_owned(), "100000000".to_owned()];
        let arguments = [texts.map(String::into_bytes).to_vec(), vec![stream.clone()]].concat();
        model.run(Script::Clear, &keys, &arguments, false);
    }
    let keys = [sides, vec![stream]].concat();
    let texts = [id_text(which.0, of.incarnation), (of.incarnation + 1).to_string(), i64::MAX.to_string()];
    let arguments = [texts.map(String::into_bytes).to_vec(), vec![b"adopt".to_vec()]].concat();
    model.run(Script::Create, &keys, &arguments, false);
    // The registry would know that it is missing.
    servers.replicate(home);
}

/// A record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub offset: i64,
    /// "": a marker, or an entry of another client.
    pub value: String,
    /// The producer, if it is of a transaction.
    pub transactional: Option<i64>,
}

/// The records of a log from an offset on, in their order, up to its end.
pub(super) fn stored(log: &Log, layout: Layout, from: i64) -> Vec<Stored> {
    let (Some(state), Some(stream)) = (&log.state, &log.stream) else { return Vec::new() };
    let ids = Ids { bits: bits(layout) };
    let mut records = Vec::new();
    for (id, fields) in stream.after(ids.of_end(from)) {
        let Some(end) = ids.end_of(id).filter(|end| *end <= state.log.next) else { break };
        if layout == Layout::Batch {
            batch_records(fields, end, &mut records);
        } else {
            let field = |name: &[u8]| fields.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_slice());
            let producer = field(b"korvet.producer").map(|text| String::from_utf8_lossy(text).into_owned());
            let transactional = producer.and_then(|text| text.split(':').next()?.parse().ok());
            let is_marker = field(b"korvet.marker").is_some();
            let value = field(b"value").filter(|_| !is_marker).unwrap_or_default();
            let value = String::from_utf8_lossy(value).into_owned();
            records.push(Stored { offset: end - 1, value, transactional });
        }
    }
    records.retain(|record| record.offset >= from);
    records
}

fn batch_records(fields: &[Vec<u8>], end: i64, records: &mut Vec<Stored>) {
    let batch = &fields[1];
    let Some(header) = Header::read(batch).filter(|_| fields[0] == b"batch") else { return };
    let base = end - i64::from(header.last_offset_delta) - 1;
    let transactional = (header.attributes & TRANSACTIONAL_BIT != 0).then_some(header.producer_id);
    for record in header.records(&batch[HEADER_BYTES..]) {
        let record = record.unwrap();
        let is_marker = header.attributes & CONTROL_BIT != 0;
        let value = record.value.filter(|_| !is_marker).unwrap_or_default();
        let value = String::from_utf8_lossy(value).into_owned();
        records.push(Stored { offset: base + i64::from(record.offset_delta), value, transactional });
    }
}

/// The records that a read_committed reader of a whole log sees: below the first open transaction, and of no aborted one.
pub(super) fn committed(log: &Log, layout: Layout) -> Vec<Stored> {
    let Some(state) = &log.state else { return Vec::new() };
    let end = state.open.unwrap_or(state.log.next);
    let aborted: Vec<(i64, i64, i64)> = log
        .aborted
        .sorted()
        .into_iter()
        .map(|(marker, row)| {
            let mut numbers = row.split(':').map(|text| text.parse().unwrap());
            (numbers.next().unwrap(), numbers.next().unwrap(), marker)
        })
        .collect();
    let is_seen = |record: &Stored| {
        let of = |(producer, from, marker): &(i64, i64, i64)| {
            record.transactional == Some(*producer) && (*from..=*marker).contains(&record.offset)
        };
        record.offset < end && !aborted.iter().any(of)
    };
    stored(log, layout, 0).into_iter().filter(is_seen).collect()
}

/// The part of a log in each leader epoch, the oldest first.
pub(super) fn epochs(log: &Log) -> BTreeMap<i64, i64> {
    let epochs = log.state.iter().flat_map(|state| &state.epochs);
    epochs.map(|each| (each.epoch, each.from)).collect()
}
