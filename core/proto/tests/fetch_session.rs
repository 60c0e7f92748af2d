//! The sessions that a worker keeps: their number, their owners, evictions, and their state.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::time::Duration;

use korvet_proto::ErrorCode::{self, FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch};
use korvet_proto::fetch::session::{
    Bounds, EVICTION, OF_CONNECTION_MAX, PARTITIONS_MAX, SESSION_PARTITIONS_MAX, Session, Sessions,
};
use korvet_proto::fetch::{ForgottenTopic, PartitionData, Request, TopicData};
use korvet_proto::partition::TopicName;
use korvet_proto::peer::PeerId;
use korvet_proto::pipeline::Time;

const VERSION: i16 = 12;
const SECOND: Duration = Duration::from_secs(1);

fn peer(number: u64) -> PeerId {
    PeerId::from_u64(number)
}

fn topic(name: &str) -> TopicName {
    TopicName::Name(name.into())
}

fn asked(index: i32) -> PartitionData {
    PartitionData {
        index,
        current_leader_epoch: -1,
        fetch_offset: 0,
        last_fetched_epoch: -1,
        partition_max_bytes: 1 << 20,
    }
}

fn data(name: TopicName, indexes: impl IntoIterator<Item = i32>) -> TopicData {
    TopicData { name, partitions: indexes.into_iter().map(asked).collect() }
}

fn request(topics: Vec<TopicData>) -> Request {
    Request {
        version: VERSION,
        correlation_id: 1,
        client_id: None,
        replica_id: -1,
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 1 << 20,
        is_committed: false,
        session_id: 0,
        session_epoch: 0,
        topics,
        forgotten: Vec::new(),
    }
}

/// A request that names so many partitions of a topic.
fn sized(size: usize) -> Request {
    request(vec![data(topic("orders"), 0..size as i32)])
}

/// Sessions with three slots, and a clock.
struct Cache {
    sessions: Sessions,
    now: Time,
}

impl Cache {
    fn new(slots: usize) -> Self {
        Self { sessions: Sessions::new(slots, 7), now: SECOND * 1000 }
    }

    fn create(&mut self, size: usize) -> Option<i32> {
        self.sessions.create(peer(1), &sized(size), self.now)
    }

    fn resume(&mut self, id: i32, epoch: i32, request: Request) -> Result<Option<i32>, ErrorCode> {
        let request = Request { session_id: id, session_epoch: epoch, ..request };
        self.sessions.resume(peer(1), &request, self.now)
    }

    /// Go on with a session without any changes.
    fn use_it(&mut self, id: i32) {
        let epoch = self.session(id).epoch;
        assert_eq!(self.resume(id, epoch, request(Vec::new())), Ok(Some(id)));
    }

    fn session(&mut self, id: i32) -> &mut Session {
        self.sessions.get_mut(id).unwrap()
    }

    fn lives(&self, ids: &[i32]) -> Vec<bool> {
        ids.iter().map(|id| self.sessions.get(*id).is_some()).collect()
    }

    /// A session of these partitions of a topic that were read, and are quiet.
    fn quiet(&mut self, indexes: i32) -> i32 {
        let id = self.create(indexes as usize).unwrap();
        let session = self.session(id);
        for key in session.due() {
            session.get_mut(key).unwrap().log = Some(peer(100 + key));
            session.clear_due(key);
        }
        id
    }
}

fn bounds(end: i64) -> Bounds {
    Bounds { high_watermark: end, last_stable_offset: end, log_start: 0 }
}

fn names(session: &Session) -> Vec<(TopicName, i32)> {
    session.iter().map(|(_, partition)| (partition.name.clone(), partition.index)).collect()
}

#[test]
fn sessions_have_numbers_of_their_own_that_are_positive() {
    let mut cache = Cache::new(1000);
    let ids: BTreeSet<i32> =
        (0..1000).map(|number| cache.sessions.create(peer(number), &sized(1), cache.now).unwrap()).collect();
    assert_eq!(ids.len(), 1000);
    assert!(ids.iter().all(|id| *id > 0));
    let mut other = Sessions::new(1, 9);
    assert!(!ids.contains(&other.create(peer(1), &sized(1), cache.now).unwrap()));
}

#[test]
fn there_are_no_more_than_slots() {
    let mut cache = Cache::new(3);
    let first = [(); 3].map(|()| cache.create(5).unwrap());
    assert_eq!(cache.create(100), None);
    assert_eq!(cache.lives(&first), [true; 3]);
    assert_eq!(Cache::new(0).create(1), None);
}

#[test]
fn a_connection_that_opens_more_and_more_ends_its_own() {
    let mut cache = Cache::new(100);
    let closed = cache.create(5).unwrap();
    cache.sessions.close(closed, peer(1));
    let first: Vec<i32> = (0..OF_CONNECTION_MAX).map(|_| cache.create(5).unwrap()).collect();
    cache.use_it(first[0]);
    let last = cache.create(5).unwrap();
    assert_eq!(cache.lives(&[first[0], first[1], first[2], last]), [true, false, true, true]);
    assert_eq!(cache.resume(first[1], 1, request(Vec::new())), Err(FetchSessionIdNotFound));
    assert!(cache.sessions.create(peer(2), &sized(5), cache.now).is_some());
    assert_eq!(cache.lives(&[first[0], first[2], last]), [true; 3]);
    assert_eq!(cache.sessions.counts().evictions, 0);
}

#[test]
fn one_that_is_unused_for_long_makes_room_for_a_smaller_one() {
    let mut cache = Cache::new(3);
    let ids = [(); 3].map(|()| cache.create(5).unwrap());
    cache.now += EVICTION;
    cache.use_it(ids[0]);
    assert_eq!(cache.create(1), None);
    cache.now += SECOND;
    assert!(cache.create(1).is_some());
    assert_eq!(cache.lives(&ids), [true, false, true]);
    assert_eq!(cache.sessions.counts().evictions, 1);
}

#[test]
fn of_those_in_use_an_old_one_makes_room_for_a_larger_one() {
    let mut cache = Cache::new(3);
    let ids = [9, 3, 5].map(|size| cache.create(size).unwrap());
    cache.now += EVICTION + SECOND;
    for id in ids {
        cache.use_it(id);
    }
    assert_eq!(cache.create(3), None);
    assert!(cache.create(4).is_some());
    assert_eq!(cache.lives(&ids), [true, false, true]);
    // The new one is young.
    assert_eq!(cache.create(5), None);
}

#[test]
fn what_is_too_large_gets_no_session() {
    let mut cache = Cache::new(3);
    let create = |cache: &mut Cache, topics| cache.sessions.create(peer(1), &request(topics), cache.now);
    assert_eq!(create(&mut cache, Vec::new()), None);
    assert_eq!(create(&mut cache, vec![data(topic("orders"), [])]), None);
    assert_eq!(create(&mut cache, vec![data(topic(&"x".repeat(250)), [0])]), None);
    assert_eq!(cache.create(SESSION_PARTITIONS_MAX + 1), None);
    // What has no partitions is not kept.
    let kept = vec![data(topic(&"x".repeat(250)), []), data(topic(&"x".repeat(249)), [0])];
    assert!(create(&mut cache, kept).is_some());
    assert!(cache.create(SESSION_PARTITIONS_MAX).is_some());
}

#[test]
fn a_session_that_becomes_too_large_ends() {
    let mut cache = Cache::new(10);
    let many = data(topic("more"), 0..SESSION_PARTITIONS_MAX as i32);
    for more in [data(topic(&"x".repeat(250)), [0]), data(topic("more"), 0..=SESSION_PARTITIONS_MAX as i32), many] {
        let (other, id) = (cache.create(10).unwrap(), cache.create(5).unwrap());
        assert_eq!(cache.resume(id, 1, request(vec![more])), Err(FetchSessionIdNotFound));
        assert_eq!(cache.lives(&[id, other]), [false, true]);
        cache.sessions.close(other, peer(1));
        assert_eq!(cache.sessions.counts().partitions, 0);
    }
}

#[test]
fn all_sessions_together_have_so_many_partitions() {
    let mut cache = Cache::new(1000);
    let ids: Vec<i32> = (0..PARTITIONS_MAX / SESSION_PARTITIONS_MAX)
        .map(|_| cache.create(SESSION_PARTITIONS_MAX - 1).unwrap())
        .collect();
    let other = |cache: &mut Cache, size| cache.sessions.create(peer(2), &sized(size), cache.now);
    assert_eq!(other(&mut cache, 11), None);
    let last = other(&mut cache, 10).unwrap();
    assert_eq!(cache.sessions.counts().partitions, PARTITIONS_MAX);
    let more = request(vec![data(topic("more"), [0])]);
    assert_eq!(cache.resume(ids[0], 1, more), Err(FetchSessionIdNotFound));
    assert_eq!(cache.lives(&[ids[0], ids[1], last]), [false, true, true]);
    // As many go as have to.
    cache.now += EVICTION + SECOND;
    assert!(cache.create(SESSION_PARTITIONS_MAX).is_some());
    assert_eq!(cache.lives(&[ids[1], ids[2], last]), [false, true, true]);
}

#[test]
fn partitions_are_counted_as_they_come_and_go() {
    let mut cache = Cache::new(3);
    let id = cache.create(5).unwrap();
    assert_eq!(cache.resume(id, 1, request(vec![data(topic("orders"), 4..7)])), Ok(Some(id)));
    assert_eq!((cache.session(id).len(), cache.sessions.counts().partitions), (7, 7));
    let forgotten = |name: &str, partitions: Vec<i32>| ForgottenTopic { name: topic(name), partitions };
    let without = |forgotten| Request { forgotten, ..request(Vec::new()) };
    let some = without(vec![forgotten("orders", vec![0, 0, 99]), forgotten("x", vec![1])]);
    assert_eq!(cache.resume(id, 2, some), Ok(Some(id)));
    assert_eq!((cache.session(id).len(), cache.sessions.counts().partitions), (6, 6));
    assert_eq!(cache.resume(id, 3, without(vec![forgotten("orders", (0..9).collect())])), Ok(None));
    let counts = cache.sessions.counts();
    assert_eq!((counts.sessions, counts.partitions, counts.evictions), (0, 0, 0));
    assert_eq!(cache.resume(id, 4, request(Vec::new())), Err(FetchSessionIdNotFound));
}

#[test]
fn what_a_request_adds_and_forgets_is_forgotten() {
    let mut cache = Cache::new(3);
    let id = cache.create(1).unwrap();
    let forgotten = vec![ForgottenTopic { name: topic("more"), partitions: vec![1] }];
    let both = Request { forgotten, ..request(vec![data(topic("more"), 0..3)]) };
    assert_eq!(cache.resume(id, 1, both), Ok(Some(id)));
    assert_eq!(names(cache.session(id)), [(topic("orders"), 0), (topic("more"), 0), (topic("more"), 2)]);
}

#[test]
fn each_request_is_of_the_epoch_after_the_last_one() {
    let mut cache = Cache::new(3);
    let id = cache.create(1).unwrap();
    for epoch in [-7, -1, 0, 2] {
        assert_eq!(cache.resume(id, epoch, request(Vec::new())), Err(InvalidFetchSessionEpoch));
    }
    assert_eq!(cache.resume(id, 1, request(Vec::new())), Ok(Some(id)));
    assert_eq!(cache.resume(id, 1, request(Vec::new())), Err(InvalidFetchSessionEpoch));
    cache.session(id).epoch = i32::MAX;
    assert_eq!(cache.resume(id, i32::MAX, request(Vec::new())), Ok(Some(id)));
    assert_eq!(cache.resume(id, 1, request(Vec::new())), Ok(Some(id)));
}

#[test]
fn a_session_names_its_topics_in_one_way() {
    let mut cache = Cache::new(3);
    let by_name = cache.create(1).unwrap();
    let of = |version| Request { version, ..request(Vec::new()) };
    assert_eq!(cache.resume(by_name, 1, of(13)), Err(FetchSessionTopicIdError));
    assert_eq!(cache.resume(by_name, 1, of(7)), Ok(Some(by_name)));
    let ids = Request { version: 18, ..request(vec![data(TopicName::Id([1; 16]), [0])]) };
    let by_id = cache.sessions.create(peer(1), &ids, cache.now).unwrap();
    assert_eq!(cache.resume(by_id, 1, of(12)), Err(FetchSessionTopicIdError));
    assert_eq!(cache.resume(by_id, 1, of(13)), Ok(Some(by_id)));
}

#[test]
fn another_connection_has_no_part_in_a_session_nor_in_its_end() {
    let mut cache = Cache::new(3);
    let id = cache.create(1).unwrap();
    let theirs = cache.sessions.create(peer(2), &sized(1), cache.now).unwrap();
    let named = Request { session_id: id, session_epoch: 1, ..request(Vec::new()) };
    assert_eq!(cache.sessions.resume(peer(2), &named, cache.now), Err(FetchSessionIdNotFound));
    cache.sessions.close(id, peer(2));
    cache.sessions.end(peer(2));
    assert_eq!(cache.lives(&[id, theirs]), [true, false]);
    cache.use_it(id);
    cache.sessions.end(peer(1));
    assert_eq!(cache.sessions.counts().sessions, 0);
}

#[test]
fn a_session_that_has_ended_goes_to_its_owner_with_all_that_it_watches() {
    let mut cache = Cache::new(1);
    let id = cache.quiet(2);
    cache.session(id).reader = Some(peer(5));
    cache.session(id).set_due(1);
    cache.now += EVICTION + SECOND;
    assert!(cache.create(1).is_some());
    let removed = cache.sessions.take_removed();
    let [session] = &removed[..] else { unreachable!("{} sessions", removed.len()) };
    assert_eq!((session.id, session.reader, session.due()), (id, Some(peer(5)), vec![1]));
    let logs: Vec<_> = session.iter().map(|(_, partition)| partition.log).collect();
    assert_eq!(logs, [Some(peer(100)), Some(peer(101))]);
    assert!(cache.sessions.take_removed().is_empty());
}

#[test]
fn what_a_request_names_is_due_and_nothing_else() {
    let mut cache = Cache::new(3);
    let id = cache.quiet(3);
    assert_eq!(cache.session(id).due(), []);
    let mut moved = data(topic("orders"), [1]);
    moved.partitions[0].fetch_offset = 77;
    cache.resume(id, 1, request(vec![moved, data(topic("more"), [0])])).unwrap();
    let session = cache.session(id);
    assert_eq!(session.due(), [1, 3]);
    assert_eq!(session.get(1).unwrap().asked.fetch_offset, 77);
    assert_eq!(session.get(1).unwrap().log, Some(peer(101)));
    session.set_due(0);
    session.set_due(9);
    assert_eq!(session.due(), [0, 1, 3]);
}

#[test]
fn another_version_or_isolation_lets_all_be_found_and_read_again() {
    let mut cache = Cache::new(3);
    let changed: [fn(&mut Request); 2] = [|request| request.version = 11, |request| request.is_committed = true];
    for change in changed {
        let id = cache.quiet(3);
        cache.session(id).get_mut(1).unwrap().seen.end = 5;
        let mut request = request(Vec::new());
        change(&mut request);
        cache.resume(id, 1, request.clone()).unwrap();
        let session = cache.session(id);
        assert_eq!(session.due(), [0, 1, 2]);
        assert_eq!(session.take_released(), [0, 1, 2]);
        assert!(session.iter().all(|(_, partition)| (partition.log, partition.seen.end) == (None, 0)));
        assert_eq!((session.version, session.is_committed), (request.version, request.is_committed));
        session.clear_due(1);
        cache.resume(id, 2, request).unwrap();
        assert_eq!(cache.session(id).due(), [0, 2]);
        cache.sessions.close(id, peer(1));
    }
}

#[test]
fn the_log_of_what_is_forgotten_or_was_another_topic_is_not_watched_any_more() {
    let mut cache = Cache::new(3);
    let id = cache.quiet(3);
    let forgotten = vec![ForgottenTopic { name: topic("orders"), partitions: vec![0] }];
    cache.resume(id, 1, Request { forgotten, ..request(Vec::new()) }).unwrap();
    let session = cache.session(id);
    session.unresolve(2);
    assert_eq!(session.take_released(), [0, 2]);
    assert_eq!(session.take_released(), []);
    assert_eq!(session.due(), [2]);
    assert_eq!(session.keys_of(&topic("orders")).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn topics_are_those_of_its_partitions() {
    let mut cache = Cache::new(3);
    let topics = vec![data(topic("b"), [1]), data(topic("a"), [0]), data(topic("b"), [0]), data(topic("c"), [])];
    let id = cache.sessions.create(peer(1), &request(topics), cache.now).unwrap();
    let session = cache.session(id);
    assert_eq!(session.topics().collect::<Vec<_>>(), [&topic("a"), &topic("b")]);
    assert_eq!(session.keys_of(&topic("b")).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(session.keys_of(&topic("c")).count(), 0);
    let forgotten = vec![ForgottenTopic { name: topic("a"), partitions: vec![0] }];
    cache.resume(id, 1, Request { forgotten, ..request(Vec::new()) }).unwrap();
    assert_eq!(cache.session(id).topics().collect::<Vec<_>>(), [&topic("b")]);
}

#[test]
fn a_client_is_answered_news_and_bounds_that_it_does_not_know() {
    let mut cache = Cache::new(3);
    let id = cache.create(1).unwrap();
    let session = cache.session(id);
    assert!(session.learn(0, bounds(5), false));
    assert!(!session.learn(0, bounds(5), false));
    assert!(session.learn(0, bounds(5), true));
    assert!(session.learn(0, Bounds { log_start: 1, ..bounds(5) }, false));
    assert!(session.learn(0, Bounds { log_start: 1, last_stable_offset: 4, ..bounds(5) }, false));
    // An error is news again and again, and what is known after it are the bounds.
    assert!(session.learn(0, Bounds::UNKNOWN, true));
    assert!(session.learn(0, Bounds::UNKNOWN, true));
    assert!(session.learn(0, bounds(5), false));
    assert!(!session.learn(0, bounds(5), false));
    assert!(!session.learn(9, bounds(5), true));
}

#[test]
fn one_that_always_has_records_does_not_use_up_the_limits() {
    let mut cache = Cache::new(3);
    let id = cache.create(3).unwrap();
    let session = cache.session(id);
    let served: Vec<u64> = (0..7)
        .map(|_| {
            let first = session.due()[0];
            session.read_last(first);
            first
        })
        .collect();
    assert_eq!(served, [0, 1, 2, 0, 1, 2, 0]);
    // One that was not due takes its turn as soon as it is.
    session.clear_due(1);
    session.read_last(1);
    session.set_due(1);
    assert_eq!(session.due(), [2, 0, 1]);
    // One that comes in is after those.
    cache.resume(id, 1, request(vec![data(topic("more"), [0])])).unwrap();
    let session = cache.session(id);
    let last = session.due()[3];
    assert_eq!(session.get(last).unwrap().name, topic("more"));
}

#[test]
fn a_session_that_is_held_outlasts_its_end_but_nobody_goes_on_with_it() {
    let mut cache = Cache::new(3);
    let id = cache.quiet(2);
    cache.sessions.hold(id);
    cache.sessions.close(id, peer(1));
    assert_eq!(cache.sessions.counts().sessions, 0);
    assert_eq!(cache.resume(id, 1, request(Vec::new())), Err(FetchSessionIdNotFound));
    assert_eq!((cache.session(id).len(), cache.sessions.take_removed().len()), (2, 0));
    cache.sessions.release(id);
    assert_eq!((cache.sessions.get(id).is_none(), cache.sessions.take_removed().len()), (true, 1));
}

#[test]
fn a_session_that_is_released_ends_at_once_when_it_is_closed() {
    let mut cache = Cache::new(3);
    let id = cache.quiet(2);
    cache.sessions.hold(id);
    cache.sessions.release(id);
    cache.sessions.close(id, peer(1));
    assert_eq!(cache.sessions.take_removed().len(), 1);
}
