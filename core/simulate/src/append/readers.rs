//! The consumers of a history: their requests to workers, the decisions of the core's owner, and their responses.

use std::collections::VecDeque;
use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::failure::Failure;
use korvet_proto::fetch::{Decision, Question};
use korvet_proto::log::Epochs;
use korvet_proto::partition::TopicName;

use super::consumer::{Consumer, InFlight, Part, Policy, Seen, consumed};
use super::fetch_frames::{self, has_ids, response};
use super::reader_checks::read_log;
use super::topics::{Which, partition, stream};
use super::world::{AppendFault, ClientLink, ClientOf, Line, Wire, World};

const WAITS_MS: [i32; 5] = [0, 50, 500, 5_000, 30_000];
/// How long a wait is in which nothing disturbs: a wake-up that is lost shows.
pub(super) const LONG_WAIT_MS: i32 = 30_000;
/// Errors after which a consumer reads the metadata again: storage, unknown topics, leaders, epochs, ends not known yet.
const RETRIABLE: [i16; 9] = [56, 3, 6, 9, 74, 75, 78, 100, 103];
const OUT_OF_RANGE: i16 = 1;

impl World {
    pub fn add_consumers(&mut self) {
        for number in 0..self.dice.within(1, 4) {
            let all: Vec<Which> = self.all();
            let parts: Vec<Which> = all.iter().copied().filter(|_| self.dice.is(70)).collect();
            let parts = if parts.is_empty() { all } else { parts };
            let mut consumer = Consumer::new(number, self.dice.within(4, 19) as i16, parts.into_iter());
            consumer.has_sessions &= self.dice.is(80);
            consumer.is_committed = self.dice.is(50);
            consumer.says_last_epoch = self.dice.is(40);
            consumer.policy = if self.dice.is(80) { Policy::Earliest } else { Policy::Latest };
            self.consumers.push(consumer);
            self.choose_limits(number);
        }
    }

    pub fn choose_limits(&mut self, consumer: usize) {
        let bytes_max = [1, 300, 2_000, 50 << 20][self.dice.below(4)];
        let part_bytes_max = [1, 150, 1_000, 1 << 20][self.dice.below(4)];
        let bytes_min = [1, 1, 400][self.dice.below(3)];
        let of = &mut self.consumers[consumer];
        (of.bytes_max, of.part_bytes_max, of.bytes_min) = (bytes_max, part_bytes_max, bytes_min);
    }

    /// Let something happen to a consumer, or to what workers know for it.
    pub fn disturb_consumer(&mut self) {
        let consumer = self.dice.below(self.consumers.len());
        match self.dice.below(4) {
            0 => {
                // It leaves, and another one begins.
                if let Some(peer) = self.consumers[consumer].peer {
                    self.cut_link(peer);
                }
                self.consumers[consumer].parts.values_mut().for_each(|part| part.position = None);
            }
            1 => self.choose_limits(consumer),
            2 => {
                let worker = self.dice.below(self.workers.len());
                self.workers[worker].reading.consumers.forget_topics();
                self.workers[worker].reading.consumers.forget_rights();
            }
            _ => {
                // What is announced over a connection is lost with it.
                let is_feed = |wire: &&mut Wire| wire.line == Line::Open && !wire.session.channels.is_empty();
                let skipped = self.dice.below(4);
                if let Some(wire) = self.wires.iter_mut().filter(is_feed).nth(skipped) {
                    wire.down.clear();
                    wire.is_cut = true;
                }
            }
        }
    }

    /// Have all read more at once from now on.
    pub fn end_limits(&mut self) {
        for consumer in &mut self.consumers {
            (consumer.bytes_max, consumer.part_bytes_max) = (consumer.bytes_max.max(2_000), 1_000);
        }
    }

    /// Let a consumer do what it can.
    pub fn consume(&mut self, consumer: usize) {
        if self.now < self.consumers[consumer].resumes_at {
            return;
        }
        let Some(peer) = self.consumers[consumer].peer else {
            let (worker, peer) = (self.dice.below(self.workers.len()), self.next_peer);
            self.next_peer += 1;
            self.workers[worker].accept(peer);
            let (up, down, since) = (VecDeque::new(), VecDeque::new(), self.now);
            self.links.insert(peer, ClientLink { client: ClientOf::Consumer(consumer), worker, up, down, since });
            let of = &mut self.consumers[consumer];
            (of.peer, of.needs_metadata) = (Some(peer), true);
            return;
        };
        let Some(worker) = self.links.get(&peer).map(|link| link.worker) else { return };
        if self.consumers[consumer].in_flight.is_some() || self.is_faulty && self.dice.is(30) {
            return;
        }
        if self.consumers[consumer].needs_metadata {
            self.read_metadata(consumer, worker);
        }
        if self.consumers[consumer].needs_metadata {
            return;
        }
        let parts: Vec<Which> = self.consumers[consumer].parts.keys().copied().collect();
        for which in parts {
            self.find_position(consumer, worker, which);
        }
        self.ask_for_records(consumer, peer);
    }

    fn ask_for_records(&mut self, consumer: usize, peer: u64) {
        let wait_ms = if self.is_faulty { WAITS_MS[self.dice.below(WAITS_MS.len())] } else { LONG_WAIT_MS };
        let is_whole = self.consumers[consumer].parts.values().all(Part::may_be_read);
        // The others are not to wait for the end of a long one.
        let wait_ms = if is_whole { wait_ms } else { wait_ms.min(500) };
        let mut dice = self.dice.clone();
        // Some have records that are not read yet (max.poll.records).
        let leaves_out = self.is_faulty && wait_ms <= 500;
        let of = &mut self.consumers[consumer];
        let Some(mut fetch) = of.next_request(wait_ms, || leaves_out && dice.is(10)) else { return };
        for (which, asks) in &mut fetch.asked {
            // The position stays what it is.
            let is_late = self.fault == Some(AppendFault::LateStart) && of.parts[which].was_cut;
            asks.offset += i64::from(is_late);
        }
        let cuts = of.parts.iter().map(|(which, part)| (*which, self.written.of(*which, part.seen.incarnation).cuts));
        let cuts = cuts.collect();
        if let Some(in_flight) = &mut of.in_flight {
            in_flight.cuts = cuts;
        }
        self.dice = dice;
        self.trace(|| format!("consumer {consumer} asks {fetch:?}"));
        let now = self.now;
        if let Some(link) = self.links.get_mut(&peer) {
            link.since = now;
            link.up.push_back(fetch.bytes());
        }
    }

    // --- metadata and positions

    /// Learn incarnations and leader epochs of the worker.
    fn read_metadata(&mut self, consumer: usize, worker: usize) {
        let now = self.now;
        let parts: Vec<Which> = self.consumers[consumer].parts.keys().copied().collect();
        for which in parts {
            let partition = self.partition(which);
            let incarnation = self.topics[which.0].incarnation;
            let Some(epoch) = self.workers[worker].leader_epoch(&partition, now) else {
                return self.pause(consumer, "no epoch is known");
            };
            let of = &mut self.consumers[consumer];
            let (has_ids, knows_epochs) = (has_ids(of.version), of.knows_epochs());
            let Some(part) = of.parts.get_mut(&which) else { continue };
            let is_other = part.incarnation != incarnation;
            part.incarnation = incarnation;
            if is_other && has_ids {
                // Another topic, which is read from its beginning.
                (part.position, part.leader_epoch) = (None, -1);
            }
            if epoch > part.leader_epoch {
                part.is_validating |= part.leader_epoch >= 0 && part.last_epoch >= 0 && knows_epochs;
                part.leader_epoch = epoch;
            }
        }
        self.consumers[consumer].needs_metadata = false;
    }

    fn pause(&mut self, consumer: usize, why: &str) {
        self.trace(|| format!("consumer {consumer} pauses: {why}"));
        self.consumers[consumer].resumes_at = self.now + Duration::from_millis(self.dice.within(10, 200) as u64);
    }

    /// Find the position of a partition that has none, or validate the one that it has.
    fn find_position(&mut self, consumer: usize, worker: usize, which: Which) {
        let (of, now) = (self.topics[which.0], self.now);
        let (is_committed, policy) = (self.consumers[consumer].is_committed, self.consumers[consumer].policy);
        let Part { position, is_validating, leader_epoch, last_epoch, .. } = self.consumers[consumer].parts[&which];
        if position.is_some() && !is_validating {
            return;
        }
        let host = self.servers.home(&stream(which));
        let history = self.servers.hosts[host].model.history.clone();
        let is_away = !self.servers.hosts[host].is_up || self.servers.hosts[host].loads_until > now;
        let partition = partition(which, of);
        let current = self.workers[worker].epoch_in(&partition, &history, leader_epoch, now);
        let (Some(log), false) = (read_log(&self.servers, which), is_away) else {
            return self.pause(consumer, "the log is away");
        };
        let Some(state) = &log.state else { return };
        let replica = self.servers.hosts[host].replica.logs.get(stream(which).as_bytes());
        let replicated = replica.and_then(|log| log.state.as_ref()).map_or(0, |state| state.log.next);
        let epochs = state.named().into_iter().find(|(name, _)| *name == "epochs").and_then(|(_, text)| text);
        let epochs = Epochs::parse(&epochs.unwrap_or_default()).unwrap();
        let (start, next, open) = (state.log.start, state.log.next, state.open);
        let Some(position) = position else {
            let end = if of.replicas > 0 { next.min(replicated) } else { next };
            let end = if is_committed { open.unwrap_or(end).clamp(start.min(end), end) } else { end };
            let offset = if policy == Policy::Earliest { start } else { end };
            let last = epochs.iter().filter(|begun| begun.start < offset).map(|begun| begun.epoch).max().unwrap_or(-1);
            self.trace(|| format!("consumer {consumer} begins at {offset} of {which:?}, after the epoch {last}"));
            if let Some(part) = self.consumers[consumer].parts.get_mut(&which) {
                part.seek(offset, last, of.incarnation);
            }
            return;
        };
        let Some(current) = current.filter(|current| *current == leader_epoch) else {
            self.consumers[consumer].needs_metadata = true;
            // The slot may be elsewhere, as a question to its node would show.
            self.workers[worker].client.read_map_soon(now);
            return self.pause(consumer, "its epoch is not the present one");
        };
        let last = epochs.end_of(last_epoch, current, start, next);
        self.trace(|| format!("consumer {consumer} validates {position} of {which:?}: {last:?}"));
        let Some(part) = self.consumers[consumer].parts.get_mut(&which) else { return };
        if last.epoch < 0 || last.start < 0 {
            part.position = None;
        } else if last.start < position {
            part.truncate(last.start, last.epoch);
        }
        part.is_validating = false;
    }

    // --- what the owner of the core decides

    /// Decide on a question about what is read.
    pub fn wonder(&mut self, worker: usize, question: &Question) -> Option<Decision> {
        let refuse = |code, text: &str| Some(Decision::Refuse(Failure::rule(code, text)));
        if self.is_faulty && self.dice.is(20) {
            // Later.
            return None;
        }
        match question {
            Question::Topic { name, index, .. } => {
                let topic: usize = match name {
                    TopicName::Name(name) => name.trim_start_matches("topic").parse().unwrap(),
                    TopicName::Id(id) => usize::from(id[0]) - 1,
                };
                let mut of = self.topics[topic];
                if matches!(name, TopicName::Id(id) if id[1] != of.incarnation) {
                    return refuse(ErrorCode::UnknownTopicId, "it was deleted");
                }
                if self.fault == Some(AppendFault::OldTopic) {
                    of.incarnation = of.incarnation.saturating_sub(1);
                }
                self.workers[worker].put_read_partition(partition((topic, *index), of));
                Some(Decision::Go)
            }
            Question::Watermark { partition, node, history, end, stable, .. } => {
                if self.fault == Some(AppendFault::Unreplicated) {
                    return Some(Decision::Bounds { high_watermark: *end, stable: *stable });
                }
                let lane = self.workers[worker].reading.lane;
                let current = node.map(|node| self.workers[worker].client.history(lane, node).to_owned());
                if current.as_deref() != Some(&**history) {
                    return Some(Decision::Go);
                }
                if self.workers[worker].client.node_at(partition.slot) != *node {
                    // It has moved since.
                    return Some(Decision::Bounds { high_watermark: -1, stable: -1 });
                }
                let address = node.and_then(|node| self.workers[worker].client.address(node).cloned());
                let host = self.servers.hosts.iter().position(|host| Some(&host.address) == address.as_ref());
                let host = host.filter(|host| self.servers.hosts[*host].model.history == **history);
                let host = host.filter(|host| self.servers.hosts[*host].is_up);
                let held = &mut self.workers[worker].reading.held;
                let key = (history.to_string(), partition.keys.stream.to_string(), partition.topic.id_text.to_string());
                let held = held.entry(key).or_insert((-1, -1));
                if let Some(host) = host.filter(|_| !(self.is_faulty && self.dice.is(20))) {
                    *held = (*held).max((*end, *stable));
                    self.servers.replicate(host);
                }
                Some(Decision::Bounds { high_watermark: held.0, stable: held.1 })
            }
            other => panic!("nobody decides on {other:?}"),
        }
    }

    // --- answers

    /// A consumer has an answer.
    pub fn fetched(&mut self, consumer: usize, frame: &[u8]) {
        let of = &mut self.consumers[consumer];
        let Some(in_flight) = of.in_flight.take() else {
            return self.ledger.fail(format!("consumer {consumer} gets an answer that it has not asked for"));
        };
        let answer = response(frame, of.version);
        if answer.correlation_id != in_flight.correlation_id {
            return self.ledger.fail(format!("consumer {consumer} gets the answer to another request"));
        }
        self.trace(|| format!("consumer {consumer} gets {answer:?}"));
        match self.consumers[consumer].take_session(&in_flight, &answer) {
            Err(text) => return self.ledger.fail(format!("consumer {consumer}: {text}")),
            Ok(false) => return self.pause(consumer, "its session is over"),
            Ok(true) => {}
        }
        for part in &answer.parts {
            self.take_part(consumer, &in_flight, part);
        }
    }

    fn take_part(&mut self, consumer: usize, in_flight: &InFlight, result: &fetch_frames::Part) {
        let which = result.which;
        let of = &self.consumers[consumer];
        let Some(asks) = of.asked.get(&which).copied() else { return };
        let Some(part) = of.parts.get(&which) else { return };
        if part.position != Some(asks.offset) || part.is_validating {
            return;
        }
        let which_shown = format!("consumer {consumer} at {} of {which:?}", asks.offset);
        if result.incarnation.is_some_and(|incarnation| incarnation != asks.incarnation) {
            return self.ledger.fail(format!("{which_shown} gets another topic"));
        }
        match result.error {
            0 => {}
            OUT_OF_RANGE => return self.out_of_range(consumer, which, &which_shown),
            code if RETRIABLE.contains(&code) => {
                self.consumers[consumer].needs_metadata = true;
                return self.pause(consumer, "an error");
            }
            code => return self.ledger.fail(format!("{which_shown} gets the error {code}")),
        }
        if let Some((epoch, end)) = result.diverging {
            let Some(part) = self.consumers[consumer].parts.get_mut(&which) else { return };
            return part.truncate(end.min(asks.offset), epoch);
        }
        self.take_records(consumer, in_flight, result, asks.offset, &which_shown);
    }

    fn out_of_range(&mut self, consumer: usize, which: Which, shown: &str) {
        let of = self.topics[which.0];
        let knows_epochs = self.consumers[consumer].knows_epochs();
        let Some(part) = self.consumers[consumer].parts.get(&which) else { return };
        let (position, seen) = (part.position.unwrap_or_default(), part.seen.incarnation);
        let had = self.written.of(which, seen);
        // A client that names an epoch must hear that the epoch is over.
        let is_cut = had.cuts > 0 && (part.seen.is_blind || part.last_epoch < 0 || !knows_epochs);
        let is_trimmed = position < had.start;
        if !is_cut && !is_trimmed && seen == of.incarnation {
            return self.ledger.fail(format!("{shown} is out of range, and is not"));
        }
        if let Some(part) = self.consumers[consumer].parts.get_mut(&which) {
            part.position = None;
        }
    }

    fn take_records(
        &mut self,
        consumer: usize,
        in_flight: &InFlight,
        result: &fetch_frames::Part,
        position: i64,
        shown: &str,
    ) {
        let (which, is_committed) = (result.which, self.consumers[consumer].is_committed);
        let aborted = if self.fault == Some(AppendFault::NoAborted) { &[][..] } else { &result.aborted };
        let (records, next, epoch) = consumed(&result.batches, aborted, is_committed, position);
        let mut before = i64::MIN;
        for batch in &result.batches {
            if batch.header.base_offset < before || batch.next_offset() <= position {
                return self.ledger.fail(format!("{shown} gets batches out of order, or below it: {result:?}"));
            }
            before = batch.next_offset();
        }
        let fetch_frames::Part { high_watermark, stable, .. } = *result;
        let visible = if is_committed { stable } else { high_watermark };
        if stable > high_watermark || !result.batches.is_empty() && before > visible {
            return self.ledger.fail(format!("{shown} gets what lies past its bounds: {result:?}"));
        }
        let (now, knows_epochs) = (self.topics[which.0].incarnation, self.consumers[consumer].knows_epochs());
        let Some(part) = self.consumers[consumer].parts.get_mut(&which) else { return };
        let mut seen = std::mem::take(&mut part.seen);
        // The topic of a name may be another one by now.
        let last = result.incarnation.unwrap_or(if result.batches.is_empty() { seen.incarnation } else { now });
        let mut wrong = None;
        for incarnation in seen.incarnation..=last {
            if incarnation != seen.incarnation {
                // It has not seen what happened to this one before.
                let is_blind = !knows_epochs && self.written.of(which, incarnation).cuts > 0;
                seen = Seen { incarnation, since: position, is_blind, records: Vec::new() };
            }
            let of_this = self.wrong_records(consumer, in_flight, (which, &seen), (position, next), &records);
            if of_this.is_none() {
                wrong = None;
                break;
            }
            wrong = of_this;
        }
        if let Some(text) = wrong {
            return self.ledger.fail(format!("{shown} {text}"));
        }
        self.reads += records.len();
        seen.records.extend(records);
        let Some(part) = self.consumers[consumer].parts.get_mut(&which) else { return };
        part.was_cut = next > position && next < visible;
        (part.position, part.seen) = (Some(next), seen);
        part.last_epoch = epoch.unwrap_or(part.last_epoch);
    }
}
