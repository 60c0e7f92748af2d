//! Consumers as Kafka's Java client is one: positions, sessions (KIP-227), and what they make of the answers.
//!
//! A consumer has one request under way. A position is used only if its leader epoch is that of the metadata: after a
//! change it is validated (KIP-320), and what the log has lost is read again from where it was cut.

use std::collections::BTreeMap;

use korvet_proto::pipeline::Time;

use super::fetch_frames::{Asks, Batch, Fetch, LAST_EPOCHS_FROM, LEADER_EPOCHS_FROM, Response, SESSIONS_FROM, has_ids};
use super::topics::Which;

/// Where a consumer goes if its position is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Earliest,
    Latest,
}

/// What a consumer has of a partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// The incarnation of its topic by the metadata.
    pub incarnation: u8,
    /// `None`: it is to be found by the policy.
    pub position: Option<i64>,
    /// The leader epoch of the record before the position, -1 if there is none.
    pub last_epoch: i32,
    /// That of the metadata.
    pub leader_epoch: i32,
    pub is_validating: bool,
    pub seen: Seen,
    /// The last answer was cut by a limit.
    pub was_cut: bool,
}

/// What was read of a partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub incarnation: u8,
    /// From where on nothing may be missing.
    pub since: i64,
    pub records: Vec<(i64, String)>,
    /// The log was cut below the position, and the client cannot find out.
    pub is_blind: bool,
}

impl Part {
    pub fn may_be_read(&self) -> bool {
        self.position.is_some() && !self.is_validating
    }

    /// Go on from an offset; `last_epoch` is that of the record before it.
    pub fn seek(&mut self, offset: i64, last_epoch: i32, incarnation: u8) {
        (self.position, self.last_epoch, self.is_validating) = (Some(offset), last_epoch, false);
        self.seen = Seen { incarnation, since: offset, records: Vec::new(), is_blind: false };
    }

    /// The log ends there in the epoch of the position: go back.
    pub fn truncate(&mut self, offset: i64, last_epoch: i32) {
        (self.position, self.last_epoch, self.is_validating) = (Some(offset), last_epoch, false);
        self.seen.records.retain(|(at, _)| *at < offset);
        self.seen.since = self.seen.since.min(offset);
    }
}

/// A request under way.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub correlation_id: i32,
    pub is_full: bool,
    pub wait_ms: i32,
    /// How often each log was cut before.
    pub cuts: BTreeMap<Which, usize>,
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(super) struct Consumer {
    pub number: usize,
    pub version: i16,
    pub has_sessions: bool,
    pub is_committed: bool,
    pub policy: Policy,
    /// Whether it says of which epoch the record before its position is.
    pub says_last_epoch: bool,
    pub bytes_max: i32,
    pub part_bytes_max: i32,
    pub bytes_min: i32,
    pub parts: BTreeMap<Which, Part>,
    pub peer: Option<u64>,
    pub in_flight: Option<InFlight>,
    /// Id and epoch of the session of the next request.
    session: (i32, i32),
    /// What the session has, or the last request asked.
    pub asked: BTreeMap<Which, Asks>,
    pub needs_metadata: bool,
    pub resumes_at: Time,
    next_request: i32,
}

const FINAL: i32 = -1;

impl Consumer {
    pub fn new(number: usize, version: i16, parts: impl Iterator<Item = Which>) -> Self {
        Self {
            number,
            version,
            has_sessions: version >= SESSIONS_FROM,
            is_committed: false,
            policy: Policy::Earliest,
            says_last_epoch: false,
            bytes_max: 50 << 20,
            part_bytes_max: 1 << 20,
            bytes_min: 1,
            parts: parts.map(|which| (which, Part { last_epoch: -1, leader_epoch: -1, ..Part::default() })).collect(),
            peer: None,
            in_flight: None,
            session: (0, 0),
            asked: BTreeMap::new(),
            needs_metadata: true,
            resumes_at: Time::ZERO,
            next_request: 0,
        }
    }

    pub fn knows_epochs(&self) -> bool {
        self.version >= LEADER_EPOCHS_FROM
    }

    /// Its request for the partitions that it may read now, except the excluded ones.
    fn wanted(&self, is_left_out: &mut impl FnMut() -> bool) -> BTreeMap<Which, Asks> {
        let mut wanted = BTreeMap::new();
        for (which, part) in &self.parts {
            let Some(offset) = part.position.filter(|_| !part.is_validating && !is_left_out()) else { continue };
            let says_last = self.says_last_epoch && self.version >= LAST_EPOCHS_FROM;
            let asks = Asks {
                incarnation: if has_ids(self.version) { part.incarnation } else { 0 },
                offset,
                leader_epoch: if self.knows_epochs() { part.leader_epoch } else { -1 },
                last_epoch: if says_last { part.last_epoch } else { -1 },
                bytes_max: self.part_bytes_max,
            };
            wanted.insert(*which, asks);
        }
        wanted
    }

    /// The next request (FetchSessionHandler's).
    pub fn next_request(&mut self, wait_ms: i32, mut is_left_out: impl FnMut() -> bool) -> Option<Fetch> {
        let wanted = self.wanted(&mut is_left_out);
        if wanted.is_empty() {
            return None;
        }
        let (mut asked, mut forgotten) = (Vec::new(), Vec::new());
        let is_full = !self.has_sessions || self.session.1 <= 0;
        if is_full {
            asked.extend(wanted.iter().map(|(which, asks)| (*which, *asks)));
        } else {
            for (which, known) in &self.asked {
                let is_replaced = wanted.get(which).is_none_or(|asks| asks.incarnation != known.incarnation);
                forgotten.extend(is_replaced.then_some((*which, known.incarnation)));
            }
            let news = wanted.iter().filter(|(which, asks)| self.asked.get(which) != Some(asks));
            asked.extend(news.map(|(which, asks)| (*which, *asks)));
        }
        self.asked = wanted;
        self.next_request += 1;
        let correlation_id = self.next_request;
        self.in_flight = Some(InFlight { correlation_id, is_full, wait_ms, cuts: BTreeMap::new() });
        Some(Fetch {
            version: self.version,
            correlation_id,
            wait_ms,
            // What does not suffice is waited for until the end.
            bytes_min: if wait_ms > 500 { 1 } else { self.bytes_min },
            bytes_max: self.bytes_max,
            is_committed: self.is_committed,
            session: if self.has_sessions { self.session } else { (0, FINAL) },
            asked,
            forgotten,
        })
    }

    /// The connection is gone: the session is to be closed, and another made.
    pub fn lose(&mut self) {
        (self.peer, self.in_flight, self.session.1) = (None, None, 0);
    }

    /// Take what a response says of the session. Returns whether its partitions are to be read, or why it is wrong.
    pub fn take_session(&mut self, in_flight: &InFlight, response: &Response) -> Result<bool, String> {
        let Response { error, session, parts, .. } = response;
        match error {
            0 => {}
            70 => {
                self.session = (0, 0);
                return Ok(false);
            }
            _ => {
                self.session.1 = 0;
                return Ok(false);
            }
        }
        let stranger = parts.iter().find(|part| !self.asked.contains_key(&part.which));
        if let Some(part) = stranger {
            return Err(format!("an answer has {:?}, which was not asked for", part.which));
        }
        if in_flight.is_full {
            if let Some(which) = self.asked.keys().find(|which| !parts.iter().any(|part| part.which == **which)) {
                return Err(format!("a full answer lacks {which:?}"));
            }
        }
        self.session = match (in_flight.is_full, session) {
            (_, 0) => (0, 0),
            (true, id) => (*id, 1),
            (false, id) if *id != self.session.0 => return Err(format!("a session {id} for {}", self.session.0)),
            (false, id) => (*id, self.session.1 + 1),
        };
        Ok(true)
    }
}

/// What is left of batches for a consumer at a position: the records, and the position and last epoch after them
/// (CompletedFetch's).
pub(super) fn consumed(
    batches: &[Batch],
    aborted: &[(i64, i64)],
    is_committed: bool,
    position: i64,
) -> (Vec<(i64, String)>, i64, Option<i32>) {
    let mut waiting: Vec<(i64, i64)> = aborted.to_vec();
    waiting.sort_by_key(|(_, first)| *first);
    let (mut waiting, mut open) = (waiting.into_iter().peekable(), Vec::new());
    let (mut records, mut next, mut epoch) = (Vec::new(), position, None);
    for batch in batches {
        let last = batch.next_offset() - 1;
        if is_committed && batch.header.producer_id >= 0 {
            while let Some((producer, _)) = waiting.next_if(|(_, first)| *first <= last) {
                open.push(producer);
            }
            let producer = batch.header.producer_id;
            if batch.marker == Some(true) {
                open.retain(|other| *other != producer);
            } else if batch.is_transactional() && open.contains(&producer) {
                (next, epoch) = (batch.next_offset(), Some(batch.header.partition_leader_epoch));
                continue;
            }
        }
        records.extend(batch.records.iter().filter(|(offset, _)| *offset >= next).cloned());
        (next, epoch) = (batch.next_offset(), Some(batch.header.partition_leader_epoch));
    }
    (records, next, epoch)
}
