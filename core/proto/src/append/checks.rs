//! What a topic asks of the records of a batch, as Kafka's `LogValidator` does: their keys and their times.

use crate::ErrorCode;
use crate::batch::{Header, Record, Walk};
use crate::failure::Failure;
use crate::partition::TopicConfig;

/// Wrong records that an answer names at most: a batch may hold millions of them.
const WRONG_RECORDS_MAX: usize = 1_000;
/// The timestamp of a record without one, and the largest one of a batch of these.
const NO_TIMESTAMP: i64 = -1;

/// Check that a batch has no timestamp type LogAppendTime, which only a broker may set.
///
/// As in Kafka it is ignored in a batch with a largest timestamp, if the broker's time does not replace those of the
/// records.
pub(super) fn check_time_type(header: &Header, config: &TopicConfig) -> Result<(), Failure> {
    if header.append_time().is_some() && (config.has_append_time || header.max_timestamp == NO_TIMESTAMP) {
        let message = "Producer should not set timestamp type to LogAppendTime.";
        return Err(Failure::rule(ErrorCode::InvalidTimestamp, message));
    }
    Ok(())
}

/// What records may have. Times in milliseconds, which may lie beyond an int64: a config may be the largest of these.
pub(super) struct Limits {
    needs_keys: bool,
    has_any_time: bool,
    has_earliest: bool,
    earliest: i128,
    latest: i128,
}

impl Limits {
    pub fn of(config: &TopicConfig, now_ms: i64) -> Self {
        Self {
            needs_keys: config.is_compacted,
            has_any_time: config.has_append_time,
            has_earliest: config.timestamp_before_max_ms < i64::MAX,
            earliest: i128::from(now_ms) - i128::from(config.timestamp_before_max_ms),
            latest: i128::from(now_ms) + i128::from(config.timestamp_after_max_ms),
        }
    }

    /// Whether `check` may refuse a batch: by what the walk saw, which clears nearly all of them.
    pub fn may_refuse(&self, walk: &Walk) -> bool {
        if self.needs_keys && walk.null_keys > 0 {
            return true;
        }
        // A record without a time (-1) looks too old.
        let is_early = self.has_earliest && i128::from(walk.min_timestamp) < self.earliest;
        !self.has_any_time && (is_early || i128::from(walk.max_timestamp) > self.latest)
    }

    /// Check the records: one that is wrong refuses the whole batch.
    ///
    /// The code is INVALID_RECORD for those without keys on a compacted topic, INVALID_TIMESTAMP for those whose times
    /// are out of range, and the latter if both occur. It names those that are wrong (KIP-467).
    pub fn check(&self, header: &Header, plain: &[u8]) -> Result<(), Failure> {
        let mut failure = Failure::rule(ErrorCode::InvalidRecord, "");
        let mut wrong = 0;
        for (index, record) in (0..).zip(header.records(plain)) {
            let Some((code, message)) = self.fault(&record?) else { continue };
            if code == ErrorCode::InvalidTimestamp {
                failure.code = code;
            }
            wrong += 1;
            if failure.records.len() < WRONG_RECORDS_MAX {
                failure.records.push((index, message));
            }
        }
        let Some((first, message)) = failure.records.first() else { return Ok(()) };
        let count = header.record_count;
        failure.message = format!("{wrong} of {count} records are wrong; the first of them, at {first}: {message}");
        Err(failure)
    }

    fn fault(&self, record: &Record<'_>) -> Option<(ErrorCode, String)> {
        if self.needs_keys && record.key.is_none() {
            return Some((ErrorCode::InvalidRecord, "a record of a compacted topic needs a key".to_owned()));
        }
        let (at, Self { earliest, latest, .. }) = (record.timestamp, self);
        if self.has_any_time || at == NO_TIMESTAMP || (*earliest..=*latest).contains(&at.into()) {
            return None;
        }
        Some((ErrorCode::InvalidTimestamp, format!("the timestamp {at} is not in {earliest}..{latest}")))
    }
}
