//! Batches of producers, checked and made what an append script takes.

use std::sync::Arc;

use super::checks::{Limits, check_time_type};
use super::entries::{Entries, Extras, Source};
use super::{Batch, Kind};
use crate::batch::{CONTROL_BIT, Header, TRANSACTIONAL_BIT, Walk};
use crate::compression::Codec;
use crate::encode::{Encoder, RecordFields};
use crate::failure::Failure;
use crate::partition::{Layout, Partition, TopicConfig};
use crate::shared::Shared;
use crate::{ErrorCode, Refusal};

/// What holds for a request, beside the configs of its topics.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether its version may have zstd (KIP-110).
    pub zstd_known: bool,
    /// The most bytes of the records of a batch uncompressed.
    pub plain_bytes_max: usize,
    /// The time, in milliseconds: the one that records get, and that theirs are compared with.
    pub now_ms: i64,
}

/// The number of the transaction of a batch, if it is of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// It may not be of one: the request has no transactional id.
    NotTransactional,
    /// It is not known yet.
    Unverified,
    /// The coordinator has said it.
    Verified(i64),
}

/// Check what a producer sent for a partition, and make it what the append script takes.
pub fn prepare(
    partition: &Arc<Partition>,
    sent: Option<&Shared>,
    number: Number,
    rules: &Rules,
) -> Result<Batch, Failure> {
    let config = &partition.topic.config;
    let sent = sent.ok_or(Refusal::invalid("the partition has no record batch"))?;
    let header = Header::of_produced(sent.as_ref(), config.max_message_bytes)?;
    check_time_type(&header, config)?;
    if !rules.zstd_known && header.codec() == Some(Codec::Zstd) {
        return Err(Failure::rule(ErrorCode::UnsupportedCompressionType, "zstd needs version 7 of Produce"));
    }
    let kind = kind_of(&header, number)?;
    let is_batch = matches!(partition.layout, Layout::Batch);
    let too_many = usize::try_from(header.record_count).is_ok_and(|count| count > config.max_message_records);
    if !is_batch && too_many {
        // By the header, before anything is decompressed. Not split: consumers would see a part of the batch.
        let (count, most) = (header.record_count, config.max_message_records);
        let message = format!("a batch of {count} records exceeds max.message.records = {most}");
        return Err(Failure::rule(ErrorCode::MessageTooLarge, message));
    }
    let plain = Source::of(header.decompressed(sent.as_ref(), rules.plain_bytes_max)?, sent);
    let walk = header.walk_plain(plain.bytes.as_ref())?;
    let limits = Limits::of(config, rules.now_ms);
    if limits.may_refuse(&walk) {
        limits.check(&header, plain.bytes.as_ref())?;
    }
    let append_time = config.has_append_time.then_some(rules.now_ms);
    if is_batch {
        let (header, stored) = stored_batch(&header, sent, &plain, &walk, config, append_time)?;
        let entries = Entries::of_batch(&stored, header.codec(), &config.at_rest)?;
        return Ok(Batch::new(partition, &header, kind, append_time, walk.plain_bytes, entries));
    }
    let producer = (kind != Kind::Plain).then(|| producer_text(header.producer_id, header.producer_epoch));
    let extras = Extras { append_time, producer, at_rest: &config.at_rest };
    let entries = Entries::of_records(&header, &plain, &walk, &extras)?;
    let header = Header { max_timestamp: walk.max_timestamp, ..header };
    Ok(Batch::new(partition, &header, kind, append_time, walk.plain_bytes, entries))
}

/// The most bytes that `prepare` has looked at if it has refused what a producer sent.
pub fn looked_at_max(sent: Option<&Shared>, rules: &Rules) -> usize {
    let Some(sent) = sent.map(Shared::as_ref) else { return 0 };
    match Header::read(sent).and_then(|header| header.codec()) {
        Some(Codec::None) | None => sent.len(),
        Some(_) => rules.plain_bytes_max,
    }
}

/// Whether a batch is of a transaction, and of which.
fn kind_of(header: &Header, number: Number) -> Result<Kind, Failure> {
    match number {
        _ if header.attributes & TRANSACTIONAL_BIT == 0 => Ok(Kind::Plain),
        Number::Unverified => Ok(Kind::Transaction(0)),
        Number::Verified(number) => Ok(Kind::Transaction(number)),
        Number::NotTransactional => {
            // As Kafka, which has nobody's right to write to a transactional id then.
            let message = "a batch of a transaction came in a request without a transactional id";
            Err(Failure::rule(ErrorCode::TransactionalIdAuthorizationFailed, message))
        }
    }
}

/// Keep a batch as it came, unless the topic names another codec, or the broker's time for all its records.
fn stored_batch(
    header: &Header,
    sent: &Shared,
    plain: &Source,
    walk: &Walk,
    config: &TopicConfig,
    append_time: Option<i64>,
) -> Result<(Header, Source), Failure> {
    let stored = header.as_stored(walk, config.codec, append_time);
    let batch = match config.codec {
        _ if stored == *header => return Ok((stored, Source::sent(sent))),
        Some(codec) if stored.codec_number() != header.codec_number() => {
            stored.sealed_with(&codec.compress(plain.bytes.as_ref())?)
        }
        _ => stored.sealed(sent.as_ref().to_vec()),
    };
    let (size, most) = (batch.len(), config.max_message_bytes);
    if size > most {
        let message = format!("a batch of {size} bytes in the topic's codec exceeds max.message.bytes = {most}");
        return Err(Failure::rule(ErrorCode::MessageTooLarge, message));
    }
    Ok((stored, Source::made(batch)))
}

/// What the field `korvet.producer` holds.
fn producer_text(producer_id: i64, epoch: i16) -> String {
    format!("{producer_id}:{epoch}")
}

/// The end of a transaction in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    #[allow(missing_docs)]
    pub producer_id: i64,
    /// Of the producer, when the transaction ended.
    pub epoch: i16,
    /// That of the transaction; 0 ends the one that is open, whichever it is, -1 only one of an earlier epoch.
    pub number: i64,
    /// Whether it commits the transaction, else it aborts it.
    pub commits: bool,
}

/// Make the batch of one control record that ends a transaction (KIP-98).
///
/// Source: the Kafka documentation, "Control Batches", and EndTransactionMarker.json of Apache Kafka. The key says
/// whether the transaction was committed or aborted; the value carries the epoch of the coordinator, which Korvet does
/// not have.
pub fn marker(partition: &Arc<Partition>, marker: Marker, now_ms: i64) -> Batch {
    let Marker { producer_id, epoch, number, commits } = marker;
    let (key, value) = ([0, 0, 0, u8::from(commits)], [0; 6]);
    let (key, value) = (Some(&key[..]), Some(&value[..]));
    let record: RecordFields<'_> = RecordFields { offset: 0, timestamp: now_ms, key, value, headers: &[] };
    let mut encoder = Encoder::new(0, usize::MAX, true);
    encoder.push(&record);
    let header =
        Header { attributes: TRANSACTIONAL_BIT | CONTROL_BIT, producer_id, producer_epoch: epoch, ..encoder.header() };
    let kind = if commits { Kind::Commit(number) } else { Kind::Abort(number) };
    let entries = match partition.layout {
        Layout::Batch => Entries::of_plain_batch(&Source::made(header.sealed(encoder.into_batch()))),
        Layout::Record { .. } => Entries::of_marker(commits, &producer_text(producer_id, epoch), now_ms),
    };
    Batch::new(partition, &header, kind, None, 0, entries)
}
