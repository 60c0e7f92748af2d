//! Sentinels: which server is the master, and when another one is.
//!
//! They are asked in turn, and the server that one names has to say itself that it is a master: after a failover a
//! Sentinel names the old one until it has heard of the new one. One that hangs costs its share of the time. The one that
//! answered is asked first the next time.
//!
//! A failover is noticed without asking: one Sentinel is watched for `+switch-master`, and connections to another server
//! than the new master are closed: a connection for reads would not notice by itself that its server became a replica. A
//! message may get lost, so the Sentinel is asked once after each subscription.

use std::collections::VecDeque;
use std::time::Duration;

use super::link::{Attempt, Purpose, Stage, pause_after};
use super::{Address, Caller, Client, ConnectionId, LaneId, NodeId, Time};
use crate::pipeline::Packed;

/// A Sentinel that died without a word is noticed within twice this time.
const PING_AFTER: Duration = Duration::from_secs(10);

/// An attempt to connect to the master.
#[derive(Debug)]
pub(crate) struct Finding {
    left: VecDeque<Address>,
    /// The one that was asked last.
    sentinel: Address,
    problems: Vec<(Address, String)>,
    deadline: Time,
    share: Duration,
}

/// What is heard of a Sentinel.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    connection: Option<ConnectionId>,
    is_up: bool,
    /// Which Sentinel, of those in their order.
    turn: usize,
    failures: u32,
    /// When it is begun again, or a PING is due.
    next_at: Option<Time>,
    /// Another server may be the master: that is to be found out, and by this it is.
    is_news: bool,
    question: Option<ConnectionId>,
    master: Option<Address>,
}

impl Watch {
    pub fn due(&self) -> Option<Time> {
        self.next_at
    }
}

impl<T: Caller, B: AsRef<[u8]>> Client<T, B> {
    // --- the master for an attempt to connect

    pub(super) fn find_master(&mut self, node: NodeId, lane: LaneId, now: Time) {
        let share =
            self.options.connect_timeout / (u32::try_from(self.sentinels.len()).unwrap_or(u32::MAX).saturating_add(1));
        let finding = Finding {
            left: self.sentinels.iter().cloned().collect(),
            sentinel: Address { host: String::new(), port: 0 },
            problems: Vec::new(),
            deadline: now + self.options.connect_timeout,
            share,
        };
        if let Some(link) = self.link_mut(node, lane) {
            link.attempt =
                Some(Attempt { connection: ConnectionId::from_u64(u64::MAX), finding: Some(finding), begun_at: now });
        }
        self.next_sentinel(node, lane, None, now);
    }

    fn finding(&mut self, node: NodeId, lane: LaneId) -> Option<&mut Finding> {
        self.link_mut(node, lane)?.attempt.as_mut()?.finding.as_mut()
    }

    /// Ask the next Sentinel after a `problem` with a server.
    pub(super) fn next_sentinel(&mut self, node: NodeId, lane: LaneId, problem: Option<(Address, String)>, now: Time) {
        let Some(finding) = self.finding(node, lane) else { return };
        finding.problems.extend(problem);
        let next = finding.left.pop_front().filter(|_| now < finding.deadline);
        let Some(sentinel) = next else {
            let problems: Vec<String> = finding.problems.drain(..).map(|(_, text)| text).collect();
            let text = format!("no master for {}: {}", self.options.target, problems.join("; "));
            return self.link_refused(node, lane, &text, now);
        };
        finding.sentinel = sentinel.clone();
        let deadline = finding.deadline.min(now + finding.share);
        self.open_for((node, lane), sentinel, Purpose::Master { node, lane }, deadline, now);
    }

    fn open_for(
        &mut self,
        (node, lane): (NodeId, LaneId),
        address: Address,
        purpose: Purpose,
        deadline: Time,
        now: Time,
    ) {
        let connection = self.open(address, purpose, deadline, now);
        if let Some(attempt) = self.link_mut(node, lane).and_then(|link| link.attempt.as_mut()) {
            attempt.connection = connection;
        }
    }

    /// Connect to the master that a Sentinel has named, unless that has failed before.
    pub(super) fn master_named(&mut self, node: NodeId, lane: LaneId, master: Address, now: Time) {
        let Some(finding) = self.finding(node, lane) else { return };
        if finding.problems.iter().any(|(address, _)| *address == master) {
            return self.next_sentinel(node, lane, None, now);
        }
        let deadline = finding.deadline.min(now + finding.share);
        self.open_for((node, lane), master, Purpose::Link { node, lane }, deadline, now);
    }

    /// Use a connection whose server has said which history it has: with Sentinels only that of a master.
    pub(super) fn link_greeted(&mut self, id: ConnectionId, node: NodeId, lane: LaneId, history: String, now: Time) {
        let Some(connection) = self.connections.get(id) else { return };
        let address = connection.address.clone();
        let Some(finding) = self.finding(node, lane) else { return self.link_up(id, node, lane, history, now) };
        let sentinel = finding.sentinel.clone();
        if history.is_empty() {
            finding
                .problems
                .push((address.clone(), format!("the Sentinel at {sentinel} names {address}, which is no master")));
            self.close_question(id);
            return self.next_sentinel(node, lane, None, now);
        }
        self.sentinels.sort_by_key(|other| *other != sentinel);
        self.link_up(id, node, lane, history, now);
    }

    // --- the watch

    fn is_watching(&self) -> bool {
        self.options.is_watching && !self.sentinels.is_empty()
    }

    /// Watch a Sentinel from the first connection on; what it said while this one was being made may be missed.
    pub(super) fn begin_watch(&mut self, id: ConnectionId, now: Time) {
        let Some(address) = self.connections.get(id).map(|connection| connection.address.clone()) else { return };
        if !self.is_watching() {
            return;
        }
        if self.watch.connection.is_none() && self.watch.next_at.is_none() {
            self.watch.turn = 0;
            self.watch_next(now);
        } else if self.watch.is_up && self.watch.master.as_ref() != Some(&address) {
            self.watch_heard(true, now);
        }
    }

    fn watch_next(&mut self, now: Time) {
        self.watch.next_at = None;
        self.watch.is_up = false;
        let count = self.sentinels.len().max(1);
        let Some(sentinel) = self.sentinels.get(self.watch.turn % count).cloned() else { return };
        self.watch.turn += 1;
        let connection = self.open(sentinel, Purpose::Watch, now + self.options.connect_timeout, now);
        self.watch.connection = Some(connection);
    }

    pub(super) fn watch_begun(&mut self, id: ConnectionId, now: Time) {
        if self.watch.connection == Some(id) {
            self.watch.is_up = true;
            self.watch.failures = 0;
            self.watch.next_at = Some(now + PING_AFTER);
            self.wake_at(self.watch.next_at);
            // Before the subscription it may have been said already.
            self.watch_heard(true, now);
        }
    }

    /// Ask which server is the master if there is news of that.
    pub(super) fn watch_heard(&mut self, is_news: bool, now: Time) {
        self.watch.is_news |= is_news;
        if !self.watch.is_news || self.watch.question.is_some() {
            return;
        }
        let Some(connection) = self.watch.connection.and_then(|id| self.connections.get(id)) else { return };
        let address = connection.address.clone();
        self.watch.is_news = false;
        self.watch.question = Some(self.open(address, Purpose::Named, now + self.options.connect_timeout, now));
    }

    /// Close connections to other servers than the master that a Sentinel names, if that is one.
    pub(super) fn watch_named(&mut self, master: Address, now: Time) {
        self.watch.question = None;
        let old = self.links_elsewhere(&master);
        if old.is_empty() {
            self.watch.master = Some(master);
            return self.watch_heard(false, now);
        }
        self.watch.question = Some(self.open(master, Purpose::Verified, now + self.options.connect_timeout, now));
    }

    pub(super) fn watch_verified(&mut self, master: &Address, is_master: bool, now: Time) {
        self.watch.question = None;
        if is_master {
            self.watch.master = Some(master.clone());
            for id in self.links_elsewhere(master) {
                self.lose_connection(id, &format!("Sentinel names {master} as the master"), now);
            }
        } else {
            // It is found out again with the next PING.
            self.watch.is_news = true;
            return;
        }
        self.watch_heard(false, now);
    }

    fn links_elsewhere(&self, master: &Address) -> Vec<ConnectionId> {
        let links = self.connections.iter().filter(|(_, connection)| {
            connection.stage == Stage::Up
                && matches!(connection.purpose, Purpose::Link { .. })
                && connection.address != *master
        });
        links.map(|(id, _)| id).collect()
    }

    /// Note that a question of the watch has no answer, or that the watch itself has ended.
    pub(super) fn watch_failed(&mut self, purpose: &Purpose, now: Time) {
        if *purpose != Purpose::Watch {
            self.watch.question = None;
            self.watch.is_news = true;
            return;
        }
        self.watch.connection = None;
        self.watch.is_up = false;
        let pause = pause_after(self.watch.failures);
        self.watch.failures += 1;
        // The other Sentinels are tried at once.
        let is_round = self.watch.turn % self.sentinels.len().max(1) == 0;
        self.watch.next_at = Some(if is_round { now + pause } else { now });
        self.wake_at(self.watch.next_at);
    }

    pub(super) fn tick_watch(&mut self, now: Time) {
        if self.watch.next_at.is_none_or(|at| at > now) {
            return;
        }
        self.watch.next_at = None;
        let is_needed = self.nodes.iter().flat_map(|node| &node.links).any(|link| link.connection.is_some());
        let Some(id) = self.watch.connection else {
            if is_needed {
                self.watch_next(now);
            }
            return;
        };
        if !self.watch.is_up {
            return;
        }
        if !is_needed {
            // Nobody needs it any more: the next connection begins another one.
            self.watch.connection = None;
            self.watch.is_up = false;
            return self.close_question(id);
        }
        let Some(connection) = self.connections.get_mut(id) else { return };
        if now.saturating_sub(connection.pipeline.heard_at()) >= 2 * PING_AFTER {
            return self.lose_connection(id, "it did not answer a PING", now);
        }
        let text = super::greeting::packed(&["PING"]);
        connection.pipeline.push_unasked(Packed::from(text));
        self.events.push_back(super::Event::Flush { connection: id });
        self.watch.next_at = Some(now + PING_AFTER);
        self.watch_heard(false, now);
    }
}
