//! Fetch sessions (KIP-227): what consumers of many partitions read, kept from one fetch to the next.
//!
//! Theory of operation. A [`Session`] knows its partitions, so a fetch names only partitions that are new or at another
//! offset, and its answer only partitions with news ([`Session::learn`]). Beyond what Kafka keeps, a partition has the
//! incarnation of its topic and the log that is watched for it. A partition at its end is not due: its owner reads it again
//! after an announcement ([`Session::set_due`]), or after a search for entries that nobody has announced.
//!
//! [`Sessions`] are those of one worker. A session belongs to one connection: no client goes on with one over another
//! connection, which most likely is served by another worker, and nobody else can use or close it. It ends with its
//! connection, or when others take its place (Kafka's rules, `FetchSessionCache`): one that is unused for [`EVICTION`], or
//! else one that is as old and smaller. Then the next fetch is FETCH_SESSION_ID_NOT_FOUND, and its client names all its
//! partitions once more, as it does without sessions. A session that has ended goes to the owner
//! ([`Sessions::take_removed`]): at once, or after the request that is under way in it ([`Sessions::hold`]).
//!
//! Each call takes O(log n) for each partition that a request names. Sets and maps are ordered: the same calls give the
//! same results. Times count from any beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::request::{PartitionData, Request, TOPIC_IDS_FROM};
use super::wait::{LogId, ReaderId, Seen};
use crate::ErrorCode;
use crate::partition::{Partition, TopicName};
use crate::peer::PeerId;
use crate::pipeline::Time;

/// The id of no session.
pub const NO_SESSION: i32 = 0;
/// The epoch of a request for a session that does not exist yet. The session that it names is to be closed.
pub const INITIAL_EPOCH: i32 = 0;
/// The epoch of a request without a session. The session that it names is to be closed.
pub const FINAL_EPOCH: i32 = -1;

/// How long a session must be unused, or old, before others may take its place.
pub const EVICTION: Duration = Duration::from_secs(120);
/// Partitions of one session; with more there is none.
pub const SESSION_PARTITIONS_MAX: usize = 10_000;
/// Partitions in all sessions of a worker, at about 1 KiB each.
pub const PARTITIONS_MAX: usize = 100_000;
/// Sessions of one connection. Clients have one; who opens more and more would have the slots of all others.
pub const OF_CONNECTION_MAX: usize = 10;

/// The number of no use.
const NOT_USED: u64 = 0;

/// Offsets of a log that a client is answered; -1 for one that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bounds {
    pub high_watermark: i64,
    pub last_stable_offset: i64,
    pub log_start: i64,
}

impl Bounds {
    /// Those of a log of which nothing is known.
    pub const UNKNOWN: Self = Self { high_watermark: -1, last_stable_offset: -1, log_start: -1 };
}

/// A partition of a session.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct SessionPartition {
    pub name: TopicName,
    pub index: i32,
    /// What is asked of it.
    pub asked: PartitionData,
    /// What it is, since it was found.
    pub partition: Option<Arc<Partition>>,
    /// The log that is watched for it.
    pub log: Option<LogId>,
    /// What the client knows.
    pub bounds: Bounds,
    /// What the last read of it saw.
    pub seen: Seen,
    turn: u64,
}

impl SessionPartition {
    /// The lower it is, the sooner the partition is read. No two of a session have the same.
    pub fn turn(&self) -> u64 {
        self.turn
    }
}

/// The partitions that one client fetches, by keys that rise in the order of their addition.
#[derive(Debug)]
pub struct Session {
    #[allow(missing_docs)]
    pub id: i32,
    /// Whose it is.
    pub peer: PeerId,
    /// That of the last request.
    pub version: i16,
    /// Whether the last request asked for committed records only.
    pub is_committed: bool,
    /// That of the next request.
    pub epoch: i32,
    /// Who watches its logs.
    pub reader: Option<ReaderId>,
    /// When all of it was read.
    pub read_at: Time,
    /// When what was not due was searched for what nobody has announced, or all was read.
    pub searched_at: Time,
    /// That of the table when its partitions were compared with it.
    pub table_version: u64,
    partitions: BTreeMap<u64, SessionPartition>,
    topics: BTreeMap<TopicName, BTreeMap<i32, u64>>,
    /// Turns and keys.
    due: BTreeSet<(u64, u64)>,
    /// The next key, or turn.
    next: u64,
    released: Vec<u64>,
    created_at: Time,
    used_at: Time,
    /// Its place among the uses of all sessions, and how many of its partitions these have counted.
    use_number: u64,
    counted: usize,
    is_old: bool,
    /// Whether a request is under way in it.
    is_held: bool,
}

impl Session {
    fn new(id: i32, peer: PeerId, request: &Request, now: Time) -> Self {
        Self {
            id,
            peer,
            version: request.version,
            is_committed: request.is_committed,
            epoch: INITIAL_EPOCH + 1,
            reader: None,
            read_at: now,
            searched_at: now,
            table_version: 0,
            partitions: BTreeMap::new(),
            topics: BTreeMap::new(),
            due: BTreeSet::new(),
            next: 0,
            released: Vec::new(),
            created_at: now,
            used_at: now,
            use_number: NOT_USED,
            counted: 0,
            is_old: false,
            is_held: false,
        }
    }

    /// How many partitions it has.
    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// A partition by its key.
    pub fn get(&self, key: u64) -> Option<&SessionPartition> {
        self.partitions.get(&key)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut SessionPartition> {
        self.partitions.get_mut(&key)
    }

    /// All partitions with their keys, in the order in which they came in.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &SessionPartition)> {
        self.partitions.iter().map(|(key, partition)| (*key, partition))
    }

    /// The topics of its partitions.
    pub fn topics(&self) -> impl Iterator<Item = &TopicName> {
        self.topics.keys()
    }

    /// The keys of the partitions of a topic.
    pub fn keys_of(&self, name: &TopicName) -> impl Iterator<Item = u64> {
        self.topics.get(name).into_iter().flat_map(BTreeMap::values).copied()
    }

    /// Note that a partition is to be read by the next request, or this one.
    pub fn set_due(&mut self, key: u64) {
        if let Some(partition) = self.partitions.get(&key) {
            self.due.insert((partition.turn, key));
        }
    }

    /// Note that all partitions are to be read.
    pub fn set_all_due(&mut self) {
        self.due.extend(self.partitions.iter().map(|(key, partition)| (partition.turn, *key)));
    }

    /// Note that a partition is not to be read before something is announced.
    pub fn clear_due(&mut self, key: u64) {
        if let Some(partition) = self.partitions.get(&key) {
            self.due.remove(&(partition.turn, key));
        }
    }

    /// Whether a partition is due.
    pub fn is_due(&self, key: u64) -> bool {
        self.partitions.get(&key).is_some_and(|partition| self.due.contains(&(partition.turn, key)))
    }

    /// The keys of the partitions that are due, in their turns.
    pub fn due(&self) -> Vec<u64> {
        self.due.iter().map(|(_, key)| *key).collect()
    }

    /// Forget what a partition is: it may have been deleted, or the client may not read it any more. It is due.
    pub fn unresolve(&mut self, key: u64) {
        if let Some(partition) = self.partitions.get_mut(&key) {
            partition.partition = None;
            partition.seen = Seen::default();
            self.released.extend(partition.log.take().map(|_| key));
            self.due.insert((partition.turn, key));
        }
    }

    /// Note what the client is to be answered. Returns whether it is to be: for the news (an error, records, a diverging
    /// epoch), or for bounds that it does not know.
    pub fn learn(&mut self, key: u64, bounds: Bounds, is_news: bool) -> bool {
        let Some(partition) = self.partitions.get_mut(&key) else { return false };
        let known = std::mem::replace(&mut partition.bounds, bounds);
        is_news || known != bounds
    }

    /// Read all others before a partition from now on: one that always has records would use up the limits (KIP-227).
    pub fn read_last(&mut self, key: u64) {
        let Some(partition) = self.partitions.get_mut(&key) else { return };
        let before = std::mem::replace(&mut partition.turn, self.next);
        self.next += 1;
        if self.due.remove(&(before, key)) {
            self.due.insert((partition.turn, key));
        }
    }

    /// Keys of partitions that were forgotten or are not known any more: their logs are no longer to be watched.
    pub fn take_released(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.released)
    }

    /// Take in what a request asks for. What is to be read may depend on its version, and on its isolation.
    fn take(&mut self, request: &Request) {
        let asks_otherwise = (self.version, self.is_committed) != (request.version, request.is_committed);
        (self.version, self.is_committed) = (request.version, request.is_committed);
        if asks_otherwise {
            let keys: Vec<u64> = self.partitions.keys().copied().collect();
            for key in keys {
                self.unresolve(key);
            }
        }
        self.add_named(request);
        for topic in &request.forgotten {
            self.forget(&topic.name, &topic.partitions);
        }
    }

    fn add_named(&mut self, request: &Request) {
        for topic in &request.topics {
            for asked in &topic.partitions {
                self.add(&topic.name, asked);
            }
        }
    }

    fn add(&mut self, name: &TopicName, asked: &PartitionData) {
        // The name is kept once for all partitions of the topic.
        let name = self.topics.get_key_value(name).map_or(name, |(name, _)| name).clone();
        let of_topic = self.topics.entry(name.clone()).or_default();
        if let Some(key) = of_topic.get(&asked.index).copied() {
            if let Some(partition) = self.partitions.get_mut(&key) {
                partition.asked = *asked;
                self.due.insert((partition.turn, key));
            }
            return;
        }
        let key = self.next;
        self.next += 1;
        of_topic.insert(asked.index, key);
        let partition = SessionPartition {
            name,
            index: asked.index,
            asked: *asked,
            partition: None,
            log: None,
            bounds: Bounds::UNKNOWN,
            seen: Seen::default(),
            turn: key,
        };
        self.partitions.insert(key, partition);
        self.due.insert((key, key));
    }

    fn forget(&mut self, name: &TopicName, indexes: &[i32]) {
        let Some(of_topic) = self.topics.get_mut(name) else { return };
        for index in indexes {
            let key = of_topic.remove(index);
            if let Some((key, partition)) = key.and_then(|key| self.partitions.remove_entry(&key)) {
                self.released.extend(partition.log.map(|_| key));
                self.due.remove(&(partition.turn, key));
            }
        }
        if of_topic.is_empty() {
            self.topics.remove(name);
        }
    }
}

/// How many sessions there are, how many partitions they have, and how many sessions had to make room for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub sessions: usize,
    pub partitions: usize,
    pub evictions: u64,
}

/// The sessions of one worker.
#[derive(Debug)]
pub struct Sessions {
    slots: usize,
    random: u64,
    live: BTreeMap<i32, Session>,
    owned: BTreeMap<PeerId, Vec<i32>>,
    /// Their ids in the order of their last uses.
    by_use: BTreeMap<u64, i32>,
    /// Those that are not old yet, the oldest first.
    young: BTreeSet<(Time, i32)>,
    /// The others, by their size and their last use.
    old: BTreeSet<(usize, u64, i32)>,
    uses: u64,
    partitions: usize,
    evictions: u64,
    /// Sessions that ended during a request that still uses them, and unused sessions.
    ended: BTreeMap<i32, Session>,
    removed: Vec<Session>,
}

impl Sessions {
    /// `slots` is how many there may be; `seed` is that of their ids.
    pub fn new(slots: usize, seed: u64) -> Self {
        Self {
            slots,
            random: seed | 1,
            live: BTreeMap::new(),
            owned: BTreeMap::new(),
            by_use: BTreeMap::new(),
            young: BTreeSet::new(),
            old: BTreeSet::new(),
            uses: NOT_USED + 1,
            partitions: 0,
            evictions: 0,
            ended: BTreeMap::new(),
            removed: Vec::new(),
        }
    }

    /// Keep the partitions of a request, each once, for the following requests; `None` without room for another session.
    ///
    /// Their keys rise in the order of the request, and all are due.
    pub fn create(&mut self, peer: PeerId, request: &Request, now: Time) -> Option<i32> {
        let size = request.partition_count();
        if size == 0 || !may_be_kept(request) {
            return None;
        }
        let owned = self.owned.get(&peer).map_or(&[][..], Vec::as_slice);
        if owned.len() >= OF_CONNECTION_MAX {
            let last_use = |id: &i32| self.live.get(id).map(|session| session.use_number);
            if let Some(id) = owned.iter().copied().min_by_key(last_use) {
                self.remove(id);
            }
        }
        if !self.make_room(size, now) {
            return None;
        }
        let id = self.new_id();
        let mut session = Session::new(id, peer, request, now);
        // There is nothing yet to forget, whatever it says.
        session.add_named(request);
        self.owned.entry(peer).or_default().push(id);
        self.young.insert((now, id));
        self.live.insert(id, session);
        self.note_use(id, now);
        Some(id)
    }

    /// Go on with the session of a request, which adds and removes partitions.
    /// `None` if none is left: the session has ended then.
    ///
    /// Errors: `FetchSessionIdNotFound`, for one that has become too large as well, and has ended;
    /// `InvalidFetchSessionEpoch`; `FetchSessionTopicIdError`.
    pub fn resume(&mut self, peer: PeerId, request: &Request, now: Time) -> Result<Option<i32>, ErrorCode> {
        let id = request.session_id;
        let session = self.live.get_mut(&id).filter(|session| session.peer == peer);
        let session = session.ok_or(ErrorCode::FetchSessionIdNotFound)?;
        if session.epoch != request.session_epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if (session.version < TOPIC_IDS_FROM) != (request.version < TOPIC_IDS_FROM) {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        session.epoch = session.epoch.checked_add(1).unwrap_or(INITIAL_EPOCH + 1);
        let mut fits = may_be_kept(request);
        if fits {
            session.take(request);
            fits = session.len() <= SESSION_PARTITIONS_MAX;
            let is_empty = session.is_empty();
            self.note_use(id, now);
            if is_empty {
                self.remove(id);
                return Ok(None);
            }
        }
        if !fits || self.partitions > PARTITIONS_MAX {
            self.remove(id);
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        Ok(Some(id))
    }

    /// Close a session, if there is one of that connection.
    pub fn close(&mut self, id: i32, peer: PeerId) {
        if self.live.get(&id).is_some_and(|session| session.peer == peer) {
            self.remove(id);
        }
    }

    /// Close all sessions of a connection, which has ended.
    pub fn end(&mut self, peer: PeerId) {
        for id in self.owned.remove(&peer).unwrap_or_default() {
            self.remove(id);
        }
    }

    /// Have a session outlast its end until it is released: a request is under way in it.
    pub fn hold(&mut self, id: i32) {
        if let Some(session) = self.live.get_mut(&id) {
            session.is_held = true;
        }
    }

    /// Note that no request is under way in a session any more.
    pub fn release(&mut self, id: i32) {
        match self.live.get_mut(&id) {
            Some(session) => session.is_held = false,
            None => self.removed.extend(self.ended.remove(&id)),
        }
    }

    /// A session by its id, also one that has ended and is held.
    pub fn get(&self, id: i32) -> Option<&Session> {
        self.live.get(&id).or_else(|| self.ended.get(&id))
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, id: i32) -> Option<&mut Session> {
        self.live.get_mut(&id).or_else(|| self.ended.get_mut(&id))
    }

    /// The sessions that have ended: the logs of their partitions are no longer to be watched for them.
    pub fn take_removed(&mut self) -> Vec<Session> {
        std::mem::take(&mut self.removed)
    }

    #[allow(missing_docs)]
    pub fn counts(&self) -> Counts {
        Counts { sessions: self.live.len(), partitions: self.partitions, evictions: self.evictions }
    }

    /// Count the partitions of a session, and let it be the one that was used last.
    fn note_use(&mut self, id: i32, now: Time) {
        let Some(session) = self.live.get_mut(&id) else { return };
        self.by_use.remove(&session.use_number);
        self.old.remove(&(session.counted, session.use_number, id));
        self.partitions = self.partitions - session.counted + session.len();
        (session.counted, session.use_number, session.used_at) = (session.len(), self.uses, now);
        self.by_use.insert(self.uses, id);
        if session.is_old {
            self.old.insert((session.counted, self.uses, id));
        }
        self.uses += 1;
    }

    /// Evict sessions until there is room for one of that size; returns whether there is.
    fn make_room(&mut self, size: usize, now: Time) -> bool {
        while self.live.len() >= self.slots || self.partitions + size > PARTITIONS_MAX {
            let Some(id) = self.evictable(size, now) else { return false };
            self.remove(id);
            self.evictions += 1;
        }
        true
    }

    /// A session in whose place one of that size may come: one that is unused, or old and smaller.
    fn evictable(&mut self, size: usize, now: Time) -> Option<i32> {
        let is_long_ago = |at: Time| at < now.saturating_sub(EVICTION);
        let (_, first) = self.by_use.first_key_value()?;
        if self.live.get(first).is_some_and(|session| is_long_ago(session.used_at)) {
            return Some(*first);
        }
        while let Some((created_at, id)) = self.young.first().copied().filter(|(at, _)| is_long_ago(*at)) {
            self.young.remove(&(created_at, id));
            if let Some(session) = self.live.get_mut(&id) {
                session.is_old = true;
                self.old.insert((session.counted, session.use_number, id));
            }
        }
        self.old.first().filter(|(counted, _, _)| *counted < size).map(|(_, _, id)| *id)
    }

    fn remove(&mut self, id: i32) {
        let Some(session) = self.live.remove(&id) else { return };
        self.by_use.remove(&session.use_number);
        self.young.remove(&(session.created_at, id));
        self.old.remove(&(session.counted, session.use_number, id));
        self.partitions -= session.counted;
        if let Some(owned) = self.owned.get_mut(&session.peer) {
            owned.retain(|other| *other != id);
            if owned.is_empty() {
                self.owned.remove(&session.peer);
            }
        }
        if session.is_held {
            self.ended.insert(id, session);
        } else {
            self.removed.push(session);
        }
    }

    /// An id that no session has.
    fn new_id(&mut self) -> i32 {
        loop {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let id = (self.random % i32::MAX as u64) as i32 + 1;
            if self.get(id).is_none() {
                return id;
            }
        }
    }
}

/// Whether a session can have all that a request names: topics cannot have longer names.
fn may_be_kept(request: &Request) -> bool {
    let mut topics = request.topics.iter().filter(|topic| !topic.partitions.is_empty());
    request.partition_count() <= SESSION_PARTITIONS_MAX && !topics.any(|topic| topic.name.is_too_long())
}
