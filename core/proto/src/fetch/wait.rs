//! Logs that are waited for, and who waits: each log is listened to once, however many wait for it.
//!
//! A **reader** is a request, or a session over all of its requests. It watches logs, each under a key of its own. News of a
//! log puts its key among the woken keys of the reader, and says which request is parked there.
//!
//! Whether a reader has missed anything is seen by two numbers of a log. `version` changes when announcements may have been
//! lost: while the log was not listened to, or its connection was away. `announced` is the largest end of the log that an
//! append has announced.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::{Event, RequestId};
use crate::partition::Partition;
use crate::pipeline::Time;
use crate::slab::{Id, Slab};

/// The number of a log that is listened to.
pub(super) type LogId = Id;
/// The number of a reader.
pub(super) type ReaderId = Id;

/// What a reader has seen of a log: the version at its read, and the end: that of the log, or the end announced before the
/// read if it is larger (the log was cut since).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// 0: it was not listened to.
    pub version: u64,
    #[allow(missing_docs)]
    pub end: i64,
}

#[derive(Debug)]
enum Channel {
    /// Its owner was asked to listen.
    Asked,
    Live,
    Failed(String),
}

#[derive(Debug)]
struct Log {
    partition: Arc<Partition>,
    channel: Channel,
    version: u64,
    announced: i64,
    /// When it was last searched in vain for entries that nobody announced, and from which offset on.
    checked: (Time, i64),
    watchers: BTreeSet<(ReaderId, u64)>,
    /// Since when nobody reads it, and whether it is queued to be left for that.
    idle_since: Option<Time>,
    is_queued: bool,
}

#[derive(Debug, Default)]
struct Reader {
    watched: BTreeMap<u64, LogId>,
    woken: BTreeSet<u64>,
    parked: Option<RequestId>,
}

/// The logs that are listened to.
#[derive(Debug)]
pub(super) struct Logs {
    known: Slab<Log>,
    channels: HashMap<Box<str>, LogId>,
    readers: Slab<Reader>,
    /// Logs that nobody reads, and until when they are listened to all the same.
    idle: VecDeque<(Time, LogId)>,
    linger: Duration,
    version: u64,
}

impl Logs {
    /// Logs of which none is listened to; one that nobody reads any more is for `linger`.
    pub fn new(linger: Duration) -> Self {
        let (known, readers) = (Slab::default(), Slab::default());
        Self { known, channels: HashMap::new(), readers, idle: VecDeque::new(), linger, version: 0 }
    }

    pub fn add_reader(&mut self) -> ReaderId {
        self.readers.insert(Reader::default())
    }

    pub fn remove_reader(&mut self, id: ReaderId, now: Time) {
        let Some(reader) = self.readers.remove(id) else { return };
        for (key, log) in reader.watched {
            self.leave(log, (id, key), now);
        }
    }

    /// Have a reader woken by a log from now on.
    pub fn watch(
        &mut self,
        reader: ReaderId,
        key: u64,
        partition: &Arc<Partition>,
        events: &mut VecDeque<Event>,
        now: Time,
    ) -> LogId {
        let id = self.log_of(partition, events);
        if let (Some(log), Some(watching)) = (self.known.get_mut(id), self.readers.get_mut(reader)) {
            match watching.watched.insert(key, id) {
                Some(before) if before == id => {}
                before => {
                    log.watchers.insert((reader, key));
                    if let Some(before) = before {
                        self.leave(before, (reader, key), now);
                    }
                }
            }
        }
        id
    }

    fn log_of(&mut self, partition: &Arc<Partition>, events: &mut VecDeque<Event>) -> LogId {
        let known = self.channels.get(&partition.keys.channel).copied();
        let id = known.unwrap_or_else(|| {
            self.known.insert(Log {
                partition: Arc::clone(partition),
                channel: Channel::Failed(String::new()),
                version: 0,
                announced: 0,
                checked: (Time::ZERO, 0),
                watchers: BTreeSet::new(),
                idle_since: None,
                is_queued: false,
            })
        });
        if known.is_none() {
            self.channels.insert(partition.keys.channel.clone(), id);
        }
        if let Some(log) = self.known.get_mut(id) {
            if log.partition.topic.id != partition.topic.id {
                // Another incarnation of the topic has the same channel, and its log begins again.
                (log.announced, log.checked) = (0, (Time::ZERO, 0));
            }
            log.partition = Arc::clone(partition);
            log.idle_since = None;
            if matches!(log.channel, Channel::Failed(_)) {
                log.channel = Channel::Asked;
                events.push_back(Event::Listen { partition: Arc::clone(partition) });
            }
        }
        id
    }

    pub fn unwatch(&mut self, reader: ReaderId, key: u64, now: Time) {
        let log = self.readers.get_mut(reader).and_then(|reader| {
            reader.woken.remove(&key);
            reader.watched.remove(&key)
        });
        if let Some(log) = log {
            self.leave(log, (reader, key), now);
        }
    }

    fn leave(&mut self, id: LogId, watcher: (ReaderId, u64), now: Time) {
        let Some(log) = self.known.get_mut(id) else { return };
        log.watchers.remove(&watcher);
        if log.watchers.is_empty() {
            log.idle_since = Some(now);
            if !mem::replace(&mut log.is_queued, true) {
                self.idle.push_back((now + self.linger, id));
            }
        }
    }

    /// What a reader sees at least that reads a log now.
    pub fn seen(&self, partition: &Partition) -> Seen {
        let log = self.channels.get(&partition.keys.channel).and_then(|id| self.known.get(*id));
        let is_of = |log: &&Log| log.partition.topic.id == partition.topic.id;
        let live = log.filter(|log| matches!(log.channel, Channel::Live)).filter(is_of);
        live.map_or_else(Seen::default, |log| Seen { version: log.version, end: log.announced })
    }

    /// Note where a log ends, by a read of one who had seen so much; returns up to where that one has seen it now. If it was
    /// cut since an end was announced, smaller ones are news from now on.
    pub fn note_end(&mut self, partition: &Partition, seen: Seen, end: i64) -> i64 {
        let log = self.channels.get(&partition.keys.channel).and_then(|id| self.known.get_mut(*id));
        let is_cut = |log: &&mut Log| end < seen.end && (log.version, log.announced) == (seen.version, seen.end);
        let Some(log) = log.filter(is_cut) else { return end.max(seen.end) };
        log.announced = end;
        end
    }

    /// Whether a log may have more than a reader has seen, by what was announced.
    pub fn has_news(&self, id: LogId, seen: Seen) -> bool {
        self.known.get(id).is_none_or(|log| log.version != seen.version || log.announced > seen.end)
    }

    /// Whether every announcement from now on wakes who watches a log.
    pub fn is_live(&self, id: LogId) -> bool {
        self.known.get(id).is_some_and(|log| matches!(log.channel, Channel::Live))
    }

    /// Why a log is not listened to, if it cannot be.
    pub fn failure(&self, id: LogId) -> Option<&str> {
        match self.known.get(id).map(|log| &log.channel) {
            Some(Channel::Failed(text)) => Some(text),
            _ => None,
        }
    }

    /// Whether it was found after that time that nothing had come unannounced to an offset, or past it. One who had read
    /// more than another has found nothing for that one.
    pub fn is_checked(&self, id: LogId, since: Time, offset: i64) -> bool {
        self.known.get(id).is_some_and(|log| log.checked.0 > since && log.checked.1 <= offset)
    }

    pub fn note_checked(&mut self, id: LogId, offset: i64, now: Time) {
        if let Some(log) = self.known.get_mut(id) {
            log.checked = (now, offset);
        }
    }

    pub fn park(&mut self, reader: ReaderId, request: RequestId) {
        if let Some(reader) = self.readers.get_mut(reader) {
            reader.parked = Some(request);
        }
    }

    pub fn unpark(&mut self, reader: ReaderId) {
        if let Some(reader) = self.readers.get_mut(reader) {
            reader.parked = None;
        }
    }

    /// The keys of the logs that have woken a reader since this was last asked.
    pub fn take_woken(&mut self, reader: ReaderId) -> BTreeSet<u64> {
        self.readers.get_mut(reader).map(|reader| mem::take(&mut reader.woken)).unwrap_or_default()
    }

    // --- what the owner hears

    /// Note that a log has got an end; returns the requests to be looked at.
    pub fn announced(&mut self, channel: &str, end: i64) -> Vec<RequestId> {
        let Some(id) = self.channels.get(channel).copied() else { return Vec::new() };
        match self.known.get_mut(id) {
            Some(log) if end > log.announced => log.announced = end,
            _ => return Vec::new(),
        }
        self.wake(id)
    }

    /// Note that a partition has got an end by an append of this process, whose reply may come late: not if another
    /// incarnation of its topic is listened to. Returns as `announced` does.
    pub fn appended(&mut self, partition: &Partition, end: i64) -> Vec<RequestId> {
        let channel = &partition.keys.channel;
        let log = self.channels.get(channel).and_then(|id| self.known.get(*id));
        if log.is_none_or(|log| log.partition.topic.id != partition.topic.id) {
            return Vec::new();
        }
        self.announced(channel, end)
    }

    /// Note that what was announced of a log may be lost, but nothing from now on; returns as `announced` does.
    pub fn live(&mut self, channel: &str) -> Vec<RequestId> {
        let Some(id) = self.channels.get(channel).copied() else { return Vec::new() };
        self.version += 1;
        if let Some(log) = self.known.get_mut(id) {
            // After a failover the log may end before what was announced of it.
            (log.channel, log.version, log.announced) = (Channel::Live, self.version, 0);
        }
        self.wake(id)
    }

    /// Note that announcements may be lost from now on, until the log is live again.
    pub fn interrupted(&mut self, channel: &str) {
        let log = self.channels.get(channel).and_then(|id| self.known.get_mut(*id));
        if let Some(log) = log {
            log.channel = Channel::Asked;
        }
    }

    /// Note that a log cannot be listened to; returns as `announced` does.
    pub fn failed(&mut self, channel: &str, text: &str) -> Vec<RequestId> {
        let Some(id) = self.channels.get(channel).copied() else { return Vec::new() };
        if let Some(log) = self.known.get_mut(id) {
            log.channel = Channel::Failed(text.to_owned());
        }
        self.wake(id)
    }

    fn wake(&mut self, id: LogId) -> Vec<RequestId> {
        let mut requests = Vec::new();
        let Some(log) = self.known.get(id) else { return requests };
        for (reader, key) in &log.watchers {
            if let Some(reader) = self.readers.get_mut(*reader) {
                reader.woken.insert(*key);
                requests.extend(reader.parked);
            }
        }
        requests
    }

    // --- the end of listening

    /// When `tick` is to be called.
    pub fn due(&self) -> Option<Time> {
        self.idle.front().map(|(at, _)| *at)
    }

    /// Listen no more to what nobody has read for long enough.
    pub fn tick(&mut self, now: Time, events: &mut VecDeque<Event>) {
        while let Some((_, id)) = self.idle.front().copied().filter(|(at, _)| *at <= now) {
            self.idle.pop_front();
            let Some(log) = self.known.get_mut(id) else { continue };
            log.is_queued = false;
            let Some(since) = log.idle_since else { continue };
            if now < since + self.linger {
                log.is_queued = true;
                self.idle.push_back((since + self.linger, id));
            } else if let Some(log) = self.known.remove(id) {
                self.channels.remove(&log.partition.keys.channel);
                events.push_back(Event::Unlisten { partition: log.partition });
            }
        }
    }
}
