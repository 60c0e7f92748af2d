//! What to read next of the partitions of a request, and how many entries of each.
//!
//! Redis is asked for pieces of `PIECE_BYTES`, because it holds a reply in memory until the worker has read it. XRANGE has
//! no limit in bytes, so a piece is a count of entries: its bytes by the weight of the entries that were read before. A log
//! whose entries become much larger is read once by the old weight.

use std::collections::HashMap;

use super::pending::{Place, Reading};
use crate::log::{Found, Taken};

/// Entries asked of a partition of which nothing was read yet: each may be as large as the topic allows, and a first fetch
/// may ask of hundreds of partitions. The next round knows what they weigh.
const FIRST_COUNT: u32 = 1;
/// Entries asked at the end of a log: most likely there are none, or those that came since the last fetch. If a fetch got
/// more, twice as many are asked for there: a round each, for a log that is written fast.
const END_COUNT: u32 = 32;
/// Entries asked of a partition at once: records of 1 KiB, of which a fetch has 1 MiB, take one round.
pub(super) const COUNT_MAX: u32 = 1100;
/// What the reply about one partition may weigh at the very worst, if every entry had the largest size allowed.
const WORST_REPLY_BYTES_MAX: usize = 1 << 30;
/// What is asked of Redis at once, or read ahead of a partition.
pub(super) const PIECE_BYTES: i64 = 2 << 20;
/// Partitions that are read at once.
const PARTITIONS_AT_ONCE: usize = 1000;
/// What Redis sends of an entry besides what weighs in a batch: its id, the names of fields, lengths.
pub(super) const ENTRY_BYTES: i64 = 96;
/// What is expected of an entry of unknown weight at the end of a log, where most likely there is none.
const END_ENTRY_BYTES_MAX: i64 = 64 << 10;
/// How often one partition is read for a request, which is then answered with what it has.
const ROUNDS_MAX: u32 = 256;
/// Logs of which facts are kept; beyond it all are forgotten, and learned again within a fetch.
const FACTS_MAX: usize = 50_000;

/// What reads of a log have shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    /// Bytes of an entry.
    pub weight: Option<i64>,
    /// Where it ended, for such a reader.
    pub end: Option<i64>,
    /// Entries that the last fetch got which got any.
    pub entries: u32,
    /// Its last stable offset, if transactions are open.
    pub unstable: Option<i64>,
}

/// What is known of all logs, by their streams.
#[derive(Debug, Default)]
pub(super) struct AllFacts(HashMap<Box<str>, Facts>);

impl AllFacts {
    pub fn get(&self, stream: &str) -> Facts {
        self.0.get(stream).copied().unwrap_or_default()
    }

    pub fn change(&mut self, stream: &str, change: impl FnOnce(&mut Facts)) {
        if let Some(facts) = self.0.get_mut(stream) {
            return change(facts);
        }
        if self.0.len() >= FACTS_MAX {
            self.0.clear();
        }
        change(self.0.entry(stream.into()).or_default());
    }

    /// Learn from a read, and from what was taken of it.
    pub fn learn(&mut self, found: &Found, taken: Option<&Taken>) {
        self.change(&found.partition.keys.stream, |facts| {
            facts.end = Some(found.visible_end());
            let stable = found.stable_offset();
            facts.unstable = (stable < found.high_watermark).then_some(stable);
            if let Some(taken) = taken.filter(|taken| taken.entries > 0) {
                facts.weight = Some((taken.bytes as i64 / i64::from(taken.entries)).max(1));
            }
        });
    }
}

/// A read of one place: how many entries, none for the bounds alone, and what the reply may weigh.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub place: usize,
    pub entries: u32,
    pub expected_bytes: i64,
}

/// Choose what to read next, of places that are being read, in this order.
///
/// The replies fit what is `left` of the budget; it does not count as long as nothing was read (`has_any`, KIP-74). Of those
/// that have no place in a round the bounds are asked: most of many partitions are at their ends, and done with that.
pub(super) fn plan(
    places: &mut [Place],
    order: &[usize],
    left: i64,
    mut has_any: bool,
    facts: &mut AllFacts,
) -> Vec<Planned> {
    let (mut planned, mut expected, mut round) = (0, 0, Vec::new());
    for index in order {
        let Some(place) = places.get_mut(*index) else { continue };
        let (Some(reading), Some(partition)) = (&mut place.reading, &place.partition) else { continue };
        if reading.is_done || reading.rounds >= ROUNDS_MAX {
            continue;
        }
        if round.len() >= PARTITIONS_AT_ONCE {
            break;
        }
        let is_full = expected >= PIECE_BYTES;
        if is_full && reading.is_bounded {
            continue;
        }
        let stream = &partition.keys.stream;
        let known = facts.get(stream);
        let room = reading.room.min(left - planned).clamp(0, PIECE_BYTES);
        reading.is_taking = room > 0 || !has_any;
        reading.is_at_end = known.end.is_some_and(|end| reading.offset >= end);
        let is_unstable = reading.is_committed && known.unstable == Some(reading.offset);
        reading.is_probing = reading.is_taking && !reading.is_bounded && (is_unstable || is_full);
        let worst = i64::try_from(partition.topic.config.max_message_bytes.max(1)).unwrap_or(i64::MAX);
        let entries_max = entries_max(worst);
        let entries = if !reading.is_taking || reading.is_probing {
            if !reading.is_taking && reading.is_bounded {
                continue;
            }
            0
        } else if reading.is_at_end {
            let likely = END_COUNT.max((2 * known.entries).min(entries_max));
            // Less each time if it has gone quiet.
            facts.change(stream, |facts| facts.entries /= 2);
            known.weight.map_or(FIRST_COUNT, |weight| count_of(room, weight).min(likely))
        } else if let Some(weight) = known.weight {
            let entries = count_of(room, weight).min(entries_max);
            planned += i64::from(entries) * weight;
            has_any = true;
            entries
        } else {
            planned += room;
            has_any = true;
            FIRST_COUNT
        };
        let unknown = if reading.is_at_end { worst.min(END_ENTRY_BYTES_MAX) } else { worst };
        let expected_bytes = i64::from(entries) * (known.weight.unwrap_or(unknown) + ENTRY_BYTES);
        expected += expected_bytes;
        reading.rounds += 1;
        round.push(Planned { place: *index, entries, expected_bytes });
    }
    round
}

/// How many entries to read ahead for a fetch that goes on at an offset, and what they weigh; `None` if too few may be there.
pub(super) fn plan_ahead(reading: &Reading, bytes_max: i64, worst: i64, facts: Facts) -> Option<(u32, i64)> {
    let weight = facts.weight.filter(|_| !reading.is_at_end)?;
    let entries = count_of(bytes_max.clamp(0, PIECE_BYTES), weight).min(entries_max(worst));
    Some((entries, i64::from(entries) * (weight + ENTRY_BYTES)))
}

fn count_of(room: i64, weight: i64) -> u32 {
    u32::try_from(room / weight.max(1) + 1).unwrap_or(u32::MAX)
}

fn entries_max(worst: i64) -> u32 {
    let worst = usize::try_from(worst).unwrap_or(usize::MAX).max(1);
    COUNT_MAX.min(END_COUNT.max(u32::try_from(WORST_REPLY_BYTES_MAX / worst).unwrap_or(u32::MAX)))
}
