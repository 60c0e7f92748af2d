//! The call of an append script.

use super::{Batch, Kind};
use crate::pipeline::Packed;
use crate::resp::{put_argument, put_count, put_end, put_integer, put_length};
use crate::shared::Shared;

/// The bytes before the heads of the batches, and of each.
const CALL_HEAD_BYTES: usize = 7;
const HEAD_BYTES: usize = 36;
/// EVALSHA, the digest and the number of keys; topic id, leader epoch and heads.
const FIRST_ARGUMENTS: usize = 6;

/// Write the call that appends batches of one partition, at least one, in a leader epoch. `sha` is the digest of the
/// script of its layout in hexadecimal digits; `sent_ms` is this worker's clock.
pub fn put_call(packed: &mut Packed<Shared>, sha: &[u8], epoch: i32, sent_ms: i64, batches: &[&Batch]) {
    let Some(first) = batches.first() else { return };
    let (keys, topic) = (&first.partition.keys, &first.partition.topic);
    let all_keys = [&keys.stream, &keys.state, &keys.index, &keys.open, &keys.aborted];
    let is_transactional = batches.iter().any(|batch| batch.kind != Kind::Plain);
    let key_count = if is_transactional { all_keys.len() } else { all_keys.len() - 2 };
    let entries: usize = batches.iter().map(|batch| batch.entries.arguments).sum();
    let text = &mut packed.text;
    put_count(text, FIRST_ARGUMENTS + key_count + batches.len() + entries);
    put_argument(text, b"EVALSHA");
    put_argument(text, sha);
    put_integer(text, key_count as i64);
    for key in all_keys.into_iter().take(key_count) {
        put_argument(text, key.as_bytes());
    }
    put_argument(text, topic.id_text.as_bytes());
    put_integer(text, epoch.into());
    put_length(text, CALL_HEAD_BYTES + batches.len() * HEAD_BYTES);
    let [_, _, clock @ ..] = sent_ms.to_be_bytes();
    text.extend_from_slice(&clock);
    text.push(first.bits());
    for batch in batches {
        batch.put_head(text);
    }
    put_end(text);
    for batch in batches {
        if batch.is_idempotent() { put_integer(text, batch.producer_id) } else { put_argument(text, b"") }
    }
    for batch in batches {
        packed.put_all(&batch.entries.packed);
    }
}
