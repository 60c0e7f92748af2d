//! Members of a share group (KIP-932), as far as the core serves them: it reads for them, and offers what was acquired.
//!
//! The locks of Korvet are kept by scripts (korvet/share), which are no part of the core: here a plain model of them
//! stands in their place, and survives a loss of data. So this shows the reader's answers for an acquired range,
//! whoever reads it and however often; not that the scripts keep their locks. It reads topics that want no replicas:
//! consumers test the bounds of the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use korvet_proto::log::{Collector, Found, Outcome, Read};
use korvet_proto::pipeline::Time;
use korvet_proto::shared::Piece;

use super::consumer::consumed;
use super::fetch_frames::batches;
use super::topics::{Which, stream};
use super::world::{AppendFault, World};

const LOCK: Duration = Duration::from_secs(2);
const PLAIN_BYTES_MAX: usize = 1 << 20;

/// What a record is to the group; one that is not known is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Released,
    Acquired { member: usize, until: Time },
    Accepted,
}

/// A share group that reads one partition.
#[derive(Debug)]
pub(super) struct Group {
    pub which: Which,
    incarnation: u8,
    cuts: usize,
    is_committed: bool,
    /// From where on the next member reads.
    next: i64,
    records: BTreeMap<i64, State>,
    /// The incarnation and the cuts at which each member's read under way began.
    members: Vec<Option<(u8, usize)>>,
}

impl Group {
    fn release(&mut self, now: Time) {
        for (offset, state) in &mut self.records {
            if matches!(state, State::Acquired { until, .. } if *until <= now) {
                *state = State::Released;
                self.next = self.next.min(*offset);
            }
        }
    }

    /// Acquire what is available among some offsets.
    fn acquire(&mut self, member: usize, offsets: &[i64], until: Time, takes_all: bool) -> Vec<i64> {
        let is_free = |state: Option<&State>| takes_all || matches!(state, None | Some(State::Released));
        let free: Vec<i64> = offsets.iter().copied().filter(|offset| is_free(self.records.get(offset))).collect();
        self.records.extend(free.iter().map(|offset| (*offset, State::Acquired { member, until })));
        free
    }
}

impl World {
    pub fn add_group(&mut self) {
        let all: Vec<Which> = self.all().into_iter().filter(|which| self.topics[which.0].replicas == 0).collect();
        let Some(which) = self.dice.pick(&all).copied().filter(|_| self.dice.is(50)) else { return };
        let (incarnation, cuts, is_committed) = (self.topics[which.0].incarnation, 0, self.dice.is(50));
        let (next, records, members) = (0, BTreeMap::new(), vec![None; self.dice.within(2, 4)]);
        self.group = Some(Group { which, incarnation, cuts, is_committed, next, records, members });
    }

    /// Let members of the group do what they can.
    pub fn share(&mut self) {
        let Some(mut group) = self.group.take_if(|_| self.dice.is(25)) else { return };
        let of = self.topics[group.which.0];
        let cuts = self.written.of(group.which, of.incarnation).cuts;
        if (group.incarnation, group.cuts) != (of.incarnation, cuts) {
            // Another log is in the place of what the group knows.
            (group.incarnation, group.cuts, group.next) = (of.incarnation, cuts, 0);
            group.records.clear();
        }
        group.release(self.now);
        for member in 0..group.members.len() {
            let is_acknowledged = self.dice.is(if self.is_faulty { 30 } else { 95 });
            let now = self.now;
            for state in group.records.values_mut().filter(|_| is_acknowledged) {
                if matches!(state, State::Acquired { member: of, until } if *of == member && *until > now) {
                    *state = State::Accepted;
                }
            }
            if group.members[member].is_none() && self.dice.is(60) && self.has_more(&group) {
                group.members[member] = Some((group.incarnation, group.cuts));
                let worker = self.dice.below(self.workers.len());
                let partition = Arc::new(self.partition(group.which));
                let (offset, entries_max) = (group.next, self.dice.within(1, 20) as u32);
                let is_committed = group.is_committed;
                let read = Read { partition, offset, entries_max, end: None, is_committed, aborted_max: 1_000 };
                self.workers[worker].share_read(member, read, 0, now);
            }
        }
        self.group = Some(group);
    }

    /// Where what the group may read ends.
    fn group_end(&self, group: &Group) -> i64 {
        let log = self.servers.log(&stream(group.which));
        let open = log.and_then(|log| log.state.as_ref()?.open);
        open.filter(|_| group.is_committed).unwrap_or(i64::MAX)
    }

    /// Whether the log goes on where the group reads next.
    fn has_more(&self, group: &Group) -> bool {
        self.written.has_any(group.which, group.incarnation, group.next..self.group_end(group))
    }

    /// A member has what it has read.
    pub fn shared(&mut self, member: usize, offset: i64, outcome: Outcome) {
        let Some(mut group) = self.group.take() else { return };
        let begun = group.members[member].take();
        let of = self.topics[group.which.0];
        let cuts = self.written.of(group.which, of.incarnation).cuts;
        if let Outcome::Found(found) | Outcome::Unsettled(found) = outcome {
            // What was read before the log was another one is of no use.
            if begun == Some((of.incarnation, cuts)) && begun == Some((group.incarnation, group.cuts)) {
                self.offer(&mut group, member, offset, &found);
            }
        }
        self.group = Some(group);
    }

    /// Have a member acquire what it has read from an offset on, and look at what it is offered.
    fn offer(&mut self, group: &mut Group, member: usize, from: i64, found: &Found) {
        let mut collector = Collector::new(&found.partition, from, PLAIN_BYTES_MAX);
        let Ok(_) = collector.take(found, usize::MAX >> 1, true) else { return };
        let next = collector.next_offset();
        let bytes: Vec<u8> = collector.finish().unwrap().iter().flat_map(Piece::as_ref).copied().collect();
        let aborted: Vec<(i64, i64)> = found.aborted.iter().map(|of| (of.producer_id, of.first_offset)).collect();
        let (records, ..) = consumed(&batches(&bytes), &aborted, group.is_committed, from);
        let which = group.which;
        let had = self.written.of(which, group.incarnation);
        let until = self.now + LOCK;
        let offsets: Vec<i64> = records.iter().map(|(offset, _)| *offset).collect();
        let before = group.records.clone();
        let acquired = group.acquire(member, &offsets, until, self.fault == Some(AppendFault::SharedLock));
        let mut offered = records.iter().filter(|(offset, _)| acquired.binary_search(offset).is_ok());
        let wrong = acquired.iter().find_map(|offset| {
            let held = had.records.get(offset).and_then(|held| held.iter().find(|held| !held.is_lost));
            let given = offered.next();
            if matches!(before.get(offset), Some(State::Accepted | State::Acquired { .. })) {
                return Some(format!("{offset}, which was another's or accepted"));
            }
            let is_it = given.is_some_and(|(at, value)| at == offset && held.is_some_and(|of| of.value == *value));
            (!is_it).then(|| format!("{given:?} for {offset}, where {held:?} is"))
        });
        let missing = had.records.range(from..next.max(from)).find(|(offset, held)| {
            let is_missing = held.iter().any(|of| {
                let is_sure = of.transactional.is_none() || !group.is_committed;
                !of.is_lost && !of.value.is_empty() && is_sure
            });
            is_missing && **offset >= had.start && !offsets.contains(offset)
        });
        let missing = missing.map(|(offset, held)| format!("nothing for {offset}, where {held:?} is"));
        if let Some(text) = wrong.or(missing) {
            self.ledger.fail(format!("member {member} of the group gets {text} ({which:?})"));
        }
        // What was released meanwhile, before this, is read first.
        if from <= group.next {
            group.next = group.next.max(next);
        }
    }

    /// Nothing disturbs any more: all that is there was accepted, by one member.
    pub fn check_group(&mut self) {
        let Some(group) = self.group.take() else { return };
        let end = self.group_end(&group);
        let had = self.written.of(group.which, group.incarnation);
        let is_left = |(offset, held): &(&i64, &Vec<super::written::Held>)| {
            let is_due = held.iter().any(|of| !of.is_lost && !of.value.is_empty() && of.transactional.is_none());
            is_due && **offset >= had.start && group.records.get(offset) != Some(&State::Accepted)
        };
        let left = had.records.range(..end).find(is_left).map(|(offset, held)| format!("{held:?} at {offset}"));
        if let Some(text) = left {
            self.ledger.fail(format!("no member of the group has accepted {text} of {:?}: {group:?}", group.which));
        }
    }

    /// Whether members have accepted all that they can.
    pub fn is_shared(&self) -> bool {
        let is_held = |state: &State| *state != State::Accepted;
        self.group.as_ref().is_none_or(|group| !self.has_more(group) && !group.records.values().any(is_held))
    }
}
