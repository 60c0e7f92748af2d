//! The reads of a request: sent in rounds, and taken into its results within its budget.

use std::collections::HashSet;
use std::sync::Arc;

use super::ahead::Start;
use super::flow::Consumers;
use super::pending::{About, Place, Reading, Spent, Stage, Step};
use super::plan::{Planned, plan, plan_ahead};
use super::reads::Whose;
use super::replies::epoch_of;
use super::session::Bounds;
use super::settle::Questions;
use super::{Decision, Event, Question, RequestId};
use crate::ErrorCode;
use crate::client::NodeId;
use crate::failure::{Failure, FailureKind};
use crate::log::{Aborted, Collector, EpochStart, Found, NO_EPOCH, Read};
use crate::partition::Partition;
use crate::pipeline::Time;
use crate::serving::Nodes;
use crate::shared::{Piece, release_rest};

/// How often one after the other a read may bring nothing though there seems to be more. What was read ahead may be older
/// than what there is; and what other clients of Redis write meanwhile waits for the next fetch.
const VAIN_MAX: u32 = 2;
/// Rows of aborted transactions that are read with the entries.
const ABORTED_MAX: u32 = 1000;

impl Consumers {
    // --- sending

    /// Take what was read, and read on. Returns whether the request goes on with its next stage.
    pub(super) fn read_on(&mut self, id: RequestId, nodes: &impl Nodes, now: Time) -> bool {
        let questions = self.reads_wanted(id, nodes);
        if !questions.is_empty() {
            self.ask(id, questions);
            return false;
        }
        self.take_all(id, nodes);
        let Some(pending) = self.requests.get_mut(id) else { return false };
        pending.times.end(Spent::Encode, now);
        let has_any = pending.places.iter().any(|place| place.outcome.bytes > 0);
        let round = plan(&mut pending.places, &pending.due, pending.left, has_any, &mut self.facts);
        if round.is_empty() {
            let questions = self.remote_wanted(id, !has_any);
            if !questions.is_empty() {
                self.ask(id, questions);
                return false;
            }
            self.end_reads(id, nodes, now);
            return true;
        }
        for planned in round {
            self.send_read(id, planned, nodes);
        }
        // Of what was read ahead some may be there already.
        self.requests.get(id).is_some_and(|pending| pending.under_way == 0)
    }

    pub(super) fn send_read(&mut self, id: RequestId, planned: Planned, nodes: &impl Nodes) {
        let Planned { place: index, entries, expected_bytes } = planned;
        let Some(pending) = self.requests.get_mut(id) else { return };
        let Some(place) = pending.places.get_mut(index) else { return };
        let (Some(partition), Some(reading)) = (place.partition.clone(), &mut place.reading) else { return };
        place.seen = self.logs.seen(&partition);
        let Some(node) = nodes.node_of(partition.slot) else {
            let text = format!("no master of the Redis cluster has slot {}", partition.slot);
            place.fail(&Failure::new(ErrorCode::KafkaStorageError, text, FailureKind::NodeAway));
            return self.events.push_back(Event::WantsMap);
        };
        let history: Arc<str> = nodes.history(node).into();
        let before = reading.sent_to.as_ref().filter(|(_, before)| reading.entries > 0 && !before.is_empty());
        if before.is_some_and(|before| *before != (node, Arc::clone(&history))) {
            // No result has records of two histories: the client would not find out where they diverge.
            reading.is_done = true;
            return;
        }
        let start = Start::of(&partition, reading.offset, reading.is_committed);
        let is_ahead = entries > 0 && self.ahead.is_held(&start, &partition, &history);
        let whose = if is_ahead { Whose::Bounds(id, index, start) } else { Whose::Place(id, index) };
        let (entries_max, bytes) = if is_ahead { (0, 0) } else { (entries, expected_bytes) };
        let read = Read {
            partition,
            offset: reading.offset,
            entries_max,
            end: None,
            is_committed: reading.is_committed,
            aborted_max: ABORTED_MAX,
        };
        (reading.step, reading.tries) = (Step::Sent, 0);
        reading.sent_to = Some((node, Arc::clone(&history)));
        pending.under_way += 1;
        self.open.add_read(whose, read, &self.known, bytes, (Some(node), history));
    }

    // --- what is asked about what was read

    fn reads_wanted(&self, id: RequestId, nodes: &impl Nodes) -> Questions {
        let mut questions = Questions::new();
        let Some(pending) = self.requests.get(id) else { return questions };
        for index in &pending.due {
            let Some(place) = pending.places.get(*index) else { continue };
            if let Some(question) = self.read_wanted(place, nodes) {
                questions.push((question, About::Place(*index)));
            }
        }
        questions
    }

    fn read_wanted(&self, place: &Place, nodes: &impl Nodes) -> Option<Question> {
        let (partition, reading) = (place.partition.as_ref()?, place.reading.as_ref()?);
        let (found, is_unsettled, is_limited) = match &reading.step {
            Step::Stale => {
                return Some(Question::Topic { name: place.name.clone(), index: place.asked.index, is_stale: true });
            }
            Step::Found { found, is_unsettled, is_limited } => (found, *is_unsettled, *is_limited),
            _ => return None,
        };
        let partition = Arc::clone(partition);
        if is_unsettled {
            return Some(Question::External { partition, offset: reading.offset });
        }
        let (node, history) = history_read(reading, nodes);
        if self.options.replicas.max(partition.replicas) > 0 && !is_limited {
            let shown = found.next_offset().filter(|_| found.holds_any());
            let least = if found.is_committed { found.stable_offset() } else { 0 };
            return Some(Question::Watermark {
                partition,
                node,
                history: history.into(),
                end: found.high_watermark,
                stable: found.stable_offset(),
                shown: shown.unwrap_or(least),
                is_committed: found.is_committed,
            });
        }
        let (known, last) = (place.known_epoch(), found.epochs.last());
        let current = node.map_or(NO_EPOCH, |node| epoch_of(&self.epochs, node, history));
        let is_right = current != NO_EPOCH && last <= current && (known == NO_EPOCH || known == current);
        (reading.epoch.is_none() && !is_right).then_some(Question::Epoch { partition, known, last })
    }

    /// Take a decision about what was read of a place.
    pub(super) fn take_decision(
        &mut self,
        id: RequestId,
        index: usize,
        question: &Question,
        decision: Decision,
        now: Time,
    ) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        pending.times.end(Spent::Wait, now);
        let Some(place) = pending.places.get_mut(index) else { return };
        let Some(reading) = &mut place.reading else { return };
        match (question, decision) {
            (Question::External { .. }, Decision::Go) => (reading.step, reading.is_settled) = (Step::Idle, true),
            (Question::External { .. }, Decision::Number(_)) => {
                reading.is_settled = true;
                if let Step::Found { is_unsettled, .. } = &mut reading.step {
                    *is_unsettled = false;
                }
            }
            (Question::Watermark { .. }, Decision::Go) if !reading.is_again => {
                (reading.step, reading.is_again) = (Step::Idle, true);
            }
            (Question::Watermark { .. }, Decision::Go) => {
                if let Step::Found { found, is_limited, .. } = &mut reading.step {
                    found.limit(-1, -1);
                    *is_limited = true;
                }
            }
            (Question::Watermark { .. }, Decision::Bounds { high_watermark, stable }) => {
                if let Step::Found { found, is_limited, .. } = &mut reading.step {
                    found.limit(high_watermark, stable);
                    *is_limited = true;
                }
            }
            (Question::Epoch { .. }, Decision::Number(epoch)) => {
                reading.epoch = Some(Ok(i32::try_from(epoch).unwrap_or(NO_EPOCH)));
            }
            (Question::Epoch { known, last, .. }, Decision::Refuse(failure)) if failure.kind != FailureKind::Rule => {
                if (NO_EPOCH + 1..*last).contains(known) {
                    // The log has records of a later one: what the client has read may be lost.
                    let text = format!("leader epoch {known} is over");
                    place.fail(&Failure::rule(ErrorCode::FencedLeaderEpoch, text));
                } else {
                    // Redis answers reads and takes no writes: its history may have no epoch yet.
                    reading.epoch = Some(Err(failure));
                }
            }
            (Question::Remote { .. }, decision) => self.take_remote(id, index, decision),
            (_, Decision::Refuse(failure)) => place.fail(&failure),
            _ => place.fail(&Failure::rule(ErrorCode::UnknownServerError, "it was decided on otherwise")),
        }
    }

    // --- taking

    fn take_all(&mut self, id: RequestId, nodes: &impl Nodes) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let mut has_any = pending.places.iter().any(|place| place.outcome.bytes > 0);
        let due = std::mem::take(&mut pending.due);
        for index in &due {
            let Some(pending) = self.requests.get_mut(id) else { return };
            let Some(place) = pending.places.get_mut(*index) else { continue };
            let Some(reading) = &mut place.reading else { continue };
            if !matches!(reading.step, Step::Found { .. }) {
                continue;
            }
            let Step::Found { found, .. } = std::mem::take(&mut reading.step) else { continue };
            let (node, history) = history_read(reading, nodes);
            let known = node.map_or(NO_EPOCH, |node| epoch_of(&self.epochs, node, history));
            let epoch = reading.epoch.take().unwrap_or(Ok(known));
            let taken = self.take(id, *index, &found, &epoch, !has_any);
            let place = self.requests.get_mut(id).and_then(|pending| pending.places.get_mut(*index));
            let Some(place) = place else { return };
            match taken {
                Ok(taken) => has_any |= taken > 0,
                Err(failure) => place.fail(&failure),
            }
            // To compress it takes time, which is not to come at the end for all.
            if place.reading.as_ref().is_some_and(|reading| reading.is_done) {
                place.finish();
            }
        }
        if let Some(pending) = self.requests.get_mut(id) {
            pending.due = due;
        }
    }

    /// Put what was read of a partition into its result; returns how many bytes that is.
    fn take(
        &mut self,
        id: RequestId,
        index: usize,
        found: &Found,
        epoch: &Result<i32, Failure>,
        is_first: bool,
    ) -> Result<usize, Failure> {
        let Some(pending) = self.requests.get_mut(id) else { return Ok(0) };
        let left = pending.left;
        let Some(place) = pending.places.get_mut(index) else { return Ok(0) };
        let Some(reading) = &mut place.reading else { return Ok(0) };
        place.seen.end = self.logs.note_end(&found.partition, place.seen, found.end_offset());
        let outcome = &mut place.outcome;
        outcome.bounds = Bounds {
            high_watermark: found.high_watermark,
            last_stable_offset: found.stable_offset(),
            log_start: found.first_offset,
        };
        outcome.is_withheld = found.end_offset() > found.high_watermark;
        reading.is_bounded = true;
        let asked = &place.asked;
        outcome.diverging = diverging(asked.fetch_offset, asked.last_fetched_epoch, epoch, found)?;
        if outcome.diverging.is_some() {
            // Without records no transactions are listed.
            (reading.is_done, outcome.aborted) = (true, outcome.aborted.take().filter(|_| reading.entries > 0));
            return Ok(0);
        }
        if let Some(remote) = found.remote.filter(|remote| reading.offset < remote.end && !found.holds_any()) {
            // What was read before its log was cut is served alone: with what the remote tier has a part could be missing.
            let is_wanted = reading.is_taking && outcome.bytes == 0;
            (reading.remote, reading.is_done) = (is_wanted.then(|| (remote, found.epochs.clone())), true);
            return Ok(0);
        }
        if !reading.is_taking || reading.is_probing {
            reading.is_done = reading.offset >= found.visible_end();
            self.facts.learn(found, None);
            return Ok(0);
        }
        let room = reading.room.min(left);
        let plain_bytes_max = self.options.plain_bytes_max;
        let collector = reading
            .collector
            .get_or_insert_with(|| Collector::new(&found.partition, asked.fetch_offset, plain_bytes_max));
        let taken = collector.take(found, usize::try_from(room).unwrap_or(0), is_first)?;
        if let Some(aborted) = &mut outcome.aborted {
            // A transaction that goes on past a page has a row in the next one, too.
            let known: HashSet<Aborted> = aborted.iter().copied().collect();
            aborted.extend(found.aborted.iter().filter(|row| !known.contains(row)));
        }
        reading.offset = collector.next_offset().max(reading.offset);
        // If less is left than an entry weighs, another round trip would most likely bring nothing that fits.
        let weight = if taken.entries == 0 { 0 } else { taken.bytes as i64 / i64::from(taken.entries) };
        let (is_full, bytes) = (collector.is_full(), taken.bytes as i64);
        reading.has_more = taken.has_more || is_full;
        reading.vain = if taken.entries == 0 { reading.vain + 1 } else { 0 };
        let is_vain = reading.vain >= VAIN_MAX;
        reading.is_done = !taken.has_more || is_full || is_vain || reading.room - bytes <= weight;
        // What did not fit into the rest of the request's budget ends it: the others get their bounds only.
        let is_used_up = is_full && left <= reading.room;
        reading.room -= bytes;
        reading.entries += taken.entries;
        outcome.bytes += taken.bytes;
        pending.left = if is_used_up { 0 } else { left - bytes };
        self.facts.learn(found, Some(&taken));
        let partition = || Arc::clone(&found.partition);
        if taken.foreign > 0 {
            self.events.push_back(Event::Foreign { partition: partition(), count: taken.foreign });
        }
        if let Some((offset, encoding)) = taken.damaged {
            self.events.push_back(Event::Damaged { partition: partition(), offset, encoding });
        }
        Ok(taken.bytes)
    }

    // --- the remote tier

    fn remote_wanted(&self, id: RequestId, waits: bool) -> Questions {
        let mut questions = Questions::new();
        let Some(pending) = self.requests.get(id) else { return questions };
        let mut planned = 0;
        for index in &pending.due {
            let Some(place) = pending.places.get(*index) else { continue };
            let (Some(partition), Some(reading)) = (&place.partition, &place.reading) else { continue };
            let Some((remote, epochs)) = &reading.remote else { continue };
            let room = reading.room.min(pending.left - planned);
            let is_first = waits && questions.is_empty();
            if room > 0 || is_first {
                let question = Question::Remote {
                    partition: Arc::clone(partition),
                    remote: *remote,
                    epochs: epochs.clone(),
                    offset: reading.offset,
                    bytes_max: room.max(0),
                    is_first,
                    waits,
                    readable_end: place.readable_end(reading.is_committed),
                };
                questions.push((question, About::Place(*index)));
                planned += room.max(0);
            }
        }
        questions
    }

    fn take_remote(&mut self, id: RequestId, index: usize, decision: Decision) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let Some(place) = pending.places.get_mut(index) else { return };
        let Some(reading) = &mut place.reading else { return };
        let Some((remote, _)) = reading.remote.take() else { return };
        match decision {
            Decision::Batches { bytes, records, has_more } => {
                let size = bytes.as_ref().len();
                if records > 0 {
                    place.outcome.pieces = vec![Piece::Part(bytes)];
                    (place.outcome.bytes, place.outcome.records, place.outcome.is_remote) = (size, records, true);
                    pending.left -= size as i64;
                } else if has_more {
                    // The next record was too large for what is left, and is for another fetch.
                    place.outcome.is_remote = true;
                } else {
                    // The remote tier has nothing more: what comes next is where Redis begins.
                    (reading.offset, reading.is_done, reading.step) = (remote.end, false, Step::Idle);
                }
            }
            Decision::Refuse(failure) => place.fail(&failure),
            _ => place.outcome.is_remote = true,
        }
    }

    // --- the end

    /// Put the batches into the results, and read ahead for the next request.
    fn end_reads(&mut self, id: RequestId, nodes: &impl Nodes, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        pending.stage = Stage::Wait;
        let mut aheads = Vec::new();
        for index in &pending.due {
            let Some(place) = pending.places.get_mut(*index) else { continue };
            place.finish();
            let (Some(reading), Some(partition)) = (place.reading.take(), &place.partition) else { continue };
            if place.outcome.error.is_some() {
                continue;
            }
            let end = place.readable_end(reading.is_committed);
            place.outcome.is_at_limit = place.outcome.bytes > 0 && reading.offset < end;
            if reading.has_more && place.outcome.bytes > 0 {
                aheads.push((Arc::clone(partition), place.asked.partition_max_bytes, reading));
            } else if reading.entries > 0 {
                let entries = reading.entries;
                self.facts.change(&partition.keys.stream, |facts| facts.entries = entries);
            }
        }
        release_rest(pending.places.iter_mut().flat_map(|place| &mut place.outcome.pieces).collect());
        let (bytes, reserved) = (pending.bytes(), pending.reserved);
        pending.reserved = bytes;
        self.hold(bytes, reserved);
        for (partition, bytes_max, reading) in aheads {
            self.read_ahead(&partition, bytes_max.into(), &reading, nodes, now);
        }
    }

    fn read_ahead(
        &mut self,
        partition: &Arc<Partition>,
        bytes_max: i64,
        reading: &Reading,
        nodes: &impl Nodes,
        now: Time,
    ) {
        let facts = self.facts.get(&partition.keys.stream);
        let worst = i64::try_from(partition.topic.config.max_message_bytes).unwrap_or(i64::MAX);
        let Some((entries, bytes)) = plan_ahead(reading, bytes_max, worst, facts) else { return };
        let Some(node) = nodes.node_of(partition.slot) else { return };
        let history = nodes.history(node);
        let start = Start::of(partition, reading.offset, reading.is_committed);
        if history.is_empty() || !self.ahead.begin(&start, partition, bytes, history, now) {
            return;
        }
        let read = Read {
            partition: Arc::clone(partition),
            offset: reading.offset,
            entries_max: entries,
            end: None,
            is_committed: reading.is_committed,
            aborted_max: ABORTED_MAX,
        };
        self.open.add_read(Whose::Ahead(start), read, &self.known, bytes, (Some(node), Arc::from(history)));
    }
}

/// The node and the history that a read was sent to. Without a connection it made one, to the history of now.
fn history_read<'a>(reading: &'a Reading, nodes: &'a impl Nodes) -> (Option<NodeId>, &'a str) {
    match &reading.sent_to {
        Some((node, history)) if history.is_empty() => (Some(*node), nodes.history(*node)),
        Some((node, history)) => (Some(*node), history),
        None => (None, ""),
    }
}

/// Check that a position is one of a log; returns where it diverges from what the client has read.
///
/// The epochs come first: a client of a log that was cut is to find out where, unless it has missed what was deleted. They
/// are of the same read as the entries.
fn diverging(
    offset: i64,
    last_epoch: i32,
    epoch: &Result<i32, Failure>,
    found: &Found,
) -> Result<Option<EpochStart>, Failure> {
    if let (Ok(current), true) = (epoch, last_epoch > NO_EPOCH) {
        let last = found.epochs.end_of(last_epoch, *current, found.log_start, found.end_offset());
        if last.epoch == NO_EPOCH {
            return Err(Failure::rule(ErrorCode::OffsetOutOfRange, "its last epoch has not begun"));
        }
        if offset >= found.log_start && (last.epoch < last_epoch || last.start < offset) {
            return Ok(Some(last));
        }
    }
    if !(found.log_start..=found.end_offset()).contains(&offset) {
        let text = format!("{offset} is not in {}..{}", found.log_start, found.end_offset());
        return Err(epoch.clone().err().unwrap_or(Failure::rule(ErrorCode::OffsetOutOfRange, text)));
    }
    Ok(None)
}
