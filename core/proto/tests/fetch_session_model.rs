//! Sessions do as a model of them does that searches through lists, whatever happens.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::time::Duration;

use korvet_proto::ErrorCode::{self, FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch};
use korvet_proto::fetch::session::{Bounds, EVICTION, OF_CONNECTION_MAX, Session, Sessions};
use korvet_proto::fetch::{ForgottenTopic, PartitionData, Request, TopicData};
use korvet_proto::partition::TopicName;
use korvet_proto::peer::PeerId;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

/// A topic by a number, and a partition of it.
type Place = (u8, i32);

#[derive(Clone, Debug)]
enum Step {
    Create { peer: u64, places: Vec<Place>, asks: Asks },
    Resume { pick: usize, peer_off: u64, epoch_off: i32, adds: Vec<Place>, forgets: Vec<Place>, asks: Asks },
    Close { pick: usize, peer_off: u64 },
    End { peer: u64 },
    Wait { seconds: u64 },
    Learn { pick: usize, key: u64, end: i64, is_news: bool },
    ReadLast { pick: usize, key: u64 },
    Due { pick: usize, key: u64, is_due: bool },
    Watch { pick: usize, key: u64 },
    Unresolve { pick: usize, key: u64 },
    TakeReleased { pick: usize },
}

#[derive(Clone, Copy, Debug)]
struct Asks {
    version: i16,
    is_committed: bool,
    offset: i64,
}

#[derive(Clone, Debug, PartialEq)]
struct Part {
    key: u64,
    place: Place,
    offset: i64,
    turn: u64,
    is_due: bool,
    is_watched: bool,
    end: i64,
}

struct Held {
    id: i32,
    peer: u64,
    asks: Asks,
    epoch: i32,
    created: u64,
    used: u64,
    next: u64,
    parts: Vec<Part>,
    released: Vec<u64>,
}

impl Held {
    fn take(&mut self, asks: Asks, adds: &[Place], forgets: &[Place]) {
        if (asks.version, asks.is_committed) != (self.asks.version, self.asks.is_committed) {
            let keys: Vec<u64> = self.parts.iter().map(|part| part.key).collect();
            for key in keys {
                self.unresolve(key);
            }
        }
        self.asks = asks;
        for place in adds {
            if let Some(part) = self.parts.iter_mut().find(|part| part.place == *place) {
                (part.offset, part.is_due) = (asks.offset, true);
                continue;
            }
            let key = self.next;
            self.next += 1;
            let (place, offset) = (*place, asks.offset);
            self.parts.push(Part { key, place, offset, turn: key, is_due: true, is_watched: false, end: -1 });
        }
        for place in forgets {
            if let Some(at) = self.parts.iter().position(|part| part.place == *place) {
                let part = self.parts.remove(at);
                self.released.extend(part.is_watched.then_some(part.key));
            }
        }
    }

    fn unresolve(&mut self, key: u64) {
        if let Some(part) = self.part(key) {
            part.is_due = true;
            let was_watched = std::mem::take(&mut part.is_watched);
            self.released.extend(was_watched.then_some(key));
        }
    }

    fn part(&mut self, key: u64) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.key == key)
    }

    fn due(&self) -> Vec<u64> {
        let mut due: Vec<&Part> = self.parts.iter().filter(|part| part.is_due).collect();
        due.sort_by_key(|part| part.turn);
        due.into_iter().map(|part| part.key).collect()
    }
}

/// The one that was used longest ago comes first.
#[derive(Default)]
struct Model {
    slots: usize,
    now: u64,
    sessions: Vec<Held>,
    removed: Vec<i32>,
    evictions: u64,
}

impl Model {
    /// Whether there is to be a session of that size.
    fn make_room(&mut self, peer: u64, size: usize) -> bool {
        if size == 0 {
            return false;
        }
        if self.sessions.iter().filter(|held| held.peer == peer).count() >= OF_CONNECTION_MAX {
            let at = self.sessions.iter().position(|held| held.peer == peer).unwrap();
            self.remove(at);
        }
        while self.sessions.len() >= self.slots {
            let is_old = |at: u64| at + EVICTION.as_secs() < self.now;
            let unused = self.sessions.first().filter(|held| is_old(held.used)).map(|_| 0);
            let fitting = |(_, held): &(usize, &Held)| is_old(held.created) && held.parts.len() < size;
            let smallest = self.sessions.iter().enumerate().filter(fitting).min_by_key(|(_, held)| held.parts.len());
            let Some(at) = unused.or(smallest.map(|(at, _)| at)) else { return false };
            self.remove(at);
            self.evictions += 1;
        }
        true
    }

    fn resume(&mut self, peer: u64, request: &Request, adds: &[Place], asks: Asks) -> Result<Option<i32>, ErrorCode> {
        let named = |held: &Held| (held.id, held.peer) == (request.session_id, peer);
        let at = self.sessions.iter().position(named).ok_or(FetchSessionIdNotFound)?;
        if self.sessions[at].epoch != request.session_epoch {
            return Err(InvalidFetchSessionEpoch);
        }
        if (self.sessions[at].asks.version > 12) != (request.version > 12) {
            return Err(FetchSessionTopicIdError);
        }
        let mut held = self.sessions.remove(at);
        held.epoch += 1;
        held.used = self.now;
        held.take(asks, adds, &places(&request.forgotten));
        let (id, is_empty) = (held.id, held.parts.is_empty());
        self.sessions.push(held);
        if is_empty {
            self.remove(self.sessions.len() - 1);
        }
        Ok((!is_empty).then_some(id))
    }

    fn remove(&mut self, at: usize) {
        self.removed.push(self.sessions.remove(at).id);
    }
}

fn name(topic: u8, version: i16) -> TopicName {
    if version > 12 { TopicName::Id([topic; 16]) } else { TopicName::Name(topic.to_string().into()) }
}

fn number(name: &TopicName) -> u8 {
    match name {
        TopicName::Name(name) => name.parse().unwrap(),
        TopicName::Id(id) => id[0],
    }
}

fn places(forgotten: &[ForgottenTopic]) -> Vec<Place> {
    let places = |topic: &ForgottenTopic| {
        let number = number(&topic.name);
        topic.partitions.clone().into_iter().map(move |index| (number, index))
    };
    forgotten.iter().flat_map(places).collect()
}

fn request(session_id: i32, session_epoch: i32, adds: &[Place], forgets: &[Place], asks: Asks) -> Request {
    let data = |index| PartitionData {
        index,
        current_leader_epoch: -1,
        fetch_offset: asks.offset,
        last_fetched_epoch: -1,
        partition_max_bytes: 1,
    };
    let topic = |(topic, index): &Place| TopicData { name: name(*topic, asks.version), partitions: vec![data(*index)] };
    let forgotten =
        |(topic, index): &Place| ForgottenTopic { name: name(*topic, asks.version), partitions: vec![*index] };
    Request {
        version: asks.version,
        correlation_id: 1,
        client_id: None,
        replica_id: -1,
        max_wait_ms: 0,
        min_bytes: 0,
        max_bytes: 0,
        is_committed: asks.is_committed,
        session_id,
        session_epoch,
        topics: adds.iter().map(topic).collect(),
        forgotten: forgets.iter().map(forgotten).collect(),
    }
}

/// Do a step in both.
fn run(sessions: &mut Sessions, model: &mut Model, step: Step) {
    let now = Duration::from_secs(model.now);
    let held = |model: &Model, pick: usize| {
        let held = model.sessions.get(pick % model.sessions.len().max(1));
        held.map_or((0, 0, 1), |held| (held.id, held.peer, held.epoch))
    };
    match step {
        Step::Create { peer, places, asks } => {
            let created = sessions.create(PeerId::from_u64(peer), &request(0, 0, &places, &[], asks), now);
            assert_eq!(created.is_some(), model.make_room(peer, places.len()));
            let Some(id) = created else { return };
            let (created, parts, released) = (model.now, Vec::new(), Vec::new());
            let mut held = Held { id, peer, asks, epoch: 1, created, used: created, next: 0, parts, released };
            held.take(asks, &places, &[]);
            model.sessions.push(held);
        }
        Step::Resume { pick, peer_off, epoch_off, adds, forgets, asks } => {
            let (id, peer, epoch) = held(model, pick);
            let request = request(id, epoch + epoch_off, &adds, &forgets, asks);
            let resumed = sessions.resume(PeerId::from_u64(peer + peer_off), &request, now);
            assert_eq!(resumed, model.resume(peer + peer_off, &request, &adds, asks));
        }
        Step::Close { pick, peer_off } => {
            let (id, peer, _) = held(model, pick);
            sessions.close(id, PeerId::from_u64(peer + peer_off));
            if let Some(at) = model.sessions.iter().position(|held| held.id == id && peer_off == 0) {
                model.remove(at);
            }
        }
        Step::End { peer } => {
            sessions.end(PeerId::from_u64(peer));
            while let Some(at) = model.sessions.iter().position(|held| held.peer == peer) {
                model.remove(at);
            }
        }
        Step::Wait { seconds } => model.now += seconds,
        Step::Learn { pick, .. }
        | Step::ReadLast { pick, .. }
        | Step::Due { pick, .. }
        | Step::Watch { pick, .. }
        | Step::Unresolve { pick, .. }
        | Step::TakeReleased { pick } => {
            let Some(session) = sessions.get_mut(held(model, pick).0) else { return };
            let at = pick % model.sessions.len();
            within(session, &mut model.sessions[at], &step);
        }
    }
}

/// Do a step in a session.
fn within(session: &mut Session, held: &mut Held, step: &Step) {
    match *step {
        Step::Learn { key, end, is_news, .. } => {
            let bounds = Bounds { high_watermark: end, last_stable_offset: end, log_start: end };
            let part = held.part(key);
            let expected = part.as_ref().is_some_and(|part| is_news || part.end != end);
            if let Some(part) = part {
                part.end = end;
            }
            assert_eq!(session.learn(key, bounds, is_news), expected);
        }
        Step::ReadLast { key, .. } => {
            session.read_last(key);
            let turn = held.next;
            if let Some(part) = held.part(key) {
                part.turn = turn;
                held.next += 1;
            }
        }
        Step::Due { key, is_due, .. } => {
            if is_due {
                session.set_due(key);
            } else {
                session.clear_due(key);
            }
            if let Some(part) = held.part(key) {
                part.is_due = is_due;
            }
        }
        Step::Watch { key, .. } => {
            if let (Some(partition), Some(part)) = (session.get_mut(key), held.part(key)) {
                partition.log = Some(PeerId::from_u64(key));
                part.is_watched = true;
            }
        }
        Step::Unresolve { key, .. } => {
            session.unresolve(key);
            held.unresolve(key);
        }
        _ => {
            assert_eq!(session.take_released(), std::mem::take(&mut held.released));
        }
    }
}

fn compare(sessions: &mut Sessions, model: &mut Model) {
    let counts = sessions.counts();
    let partitions: usize = model.sessions.iter().map(|held| held.parts.len()).sum();
    let expected = (model.sessions.len(), partitions, model.evictions);
    assert_eq!((counts.sessions, counts.partitions, counts.evictions), expected);
    let mut removed: Vec<i32> = sessions.take_removed().into_iter().map(|session| session.id).collect();
    removed.sort_unstable();
    model.removed.sort_unstable();
    assert_eq!(removed, std::mem::take(&mut model.removed));
    for held in &model.sessions {
        let session = sessions.get(held.id).unwrap();
        assert_eq!((session.peer.as_u64(), session.epoch, session.len()), (held.peer, held.epoch, held.parts.len()));
        let due = session.due();
        assert_eq!(due, held.due());
        let part = |(key, partition): (u64, &korvet_proto::fetch::session::SessionPartition)| Part {
            key,
            place: (number(&partition.name), partition.index),
            offset: partition.asked.fetch_offset,
            turn: partition.turn(),
            is_due: due.contains(&key),
            is_watched: partition.log.is_some(),
            end: partition.bounds.log_start,
        };
        assert_eq!(session.iter().map(part).collect::<Vec<_>>(), held.parts);
        let mut of_topics: Vec<u64> = session.topics().flat_map(|name| session.keys_of(name)).collect();
        of_topics.sort_unstable();
        assert!(of_topics.into_iter().eq(session.iter().map(|(key, _)| key)));
    }
}

fn steps() -> impl Strategy<Value = Step> {
    let place = || (0_u8..3, 0_i32..4);
    let asks = || {
        let version = prop_oneof![20 => Just(12_i16), 1 => Just(11), 1 => Just(13)];
        (version, prop::bool::weighted(0.1), 0_i64..9).prop_map(|(version, is_committed, offset)| Asks {
            version,
            is_committed,
            offset,
        })
    };
    let off = || prop_oneof![9 => Just(0_i32), 1 => Just(1)];
    let of_part = || (any::<usize>(), 0_u64..8);
    let create = (0_u64..3, btree_set(place(), 0..7), asks()).prop_map(|(peer, places, asks)| Step::Create {
        peer,
        places: places.into_iter().collect(),
        asks,
    });
    let resume = (any::<usize>(), off(), off(), vec(place(), 0..4), vec(place(), 0..4), asks()).prop_map(
        |(pick, peer_off, epoch_off, adds, forgets, asks)| Step::Resume {
            pick,
            peer_off: peer_off as u64,
            epoch_off,
            adds,
            forgets,
            asks,
        },
    );
    let close = (any::<usize>(), off()).prop_map(|(pick, off)| Step::Close { pick, peer_off: off as u64 });
    prop_oneof![
        8 => create,
        8 => resume,
        1 => close,
        1 => (0_u64..3).prop_map(|peer| Step::End { peer }),
        3 => prop_oneof![Just(1_u64), Just(60), Just(121)].prop_map(|seconds| Step::Wait { seconds }),
        3 => (of_part(), 0_i64..2, any::<bool>())
            .prop_map(|((pick, key), end, is_news)| Step::Learn { pick, key, end, is_news }),
        3 => of_part().prop_map(|(pick, key)| Step::ReadLast { pick, key }),
        6 => (of_part(), any::<bool>()).prop_map(|((pick, key), is_due)| Step::Due { pick, key, is_due }),
        3 => of_part().prop_map(|(pick, key)| Step::Watch { pick, key }),
        1 => of_part().prop_map(|(pick, key)| Step::Unresolve { pick, key }),
        1 => any::<usize>().prop_map(|pick| Step::TakeReleased { pick }),
    ]
}

proptest! {
    #[test]
    fn sessions_do_as_the_model_does(slots in 0_usize..14, seed: u64, steps in vec(steps(), 0..120)) {
        let mut sessions = Sessions::new(slots, seed);
        let mut model = Model { slots, ..Model::default() };
        for step in steps {
            run(&mut sessions, &mut model, step);
            compare(&mut sessions, &mut model);
        }
    }
}
