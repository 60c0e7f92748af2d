//! What a worker reads for consumers: the core's `Consumers`, their channels, and the decisions of their owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::channels::{self, Action, Announced, Channels};
use korvet_proto::client::{Begin, Client, LaneId, LaneOptions, NodeId, Span};
use korvet_proto::failure::Failure;
use korvet_proto::fetch::{Consumers, Decision, Event, GroupId, Options, Question, RequestId, Sending};
use korvet_proto::log::{self, Read, Sent};
use korvet_proto::partition::Partition;
use korvet_proto::pipeline::{Packed, Time};
use korvet_proto::resp::{Element, Elements};
use korvet_proto::serving::Clock;
use korvet_proto::shared::{Piece, Shared};

use super::worker::{Known, Outcome, Said, Token, Worker};

const LINGER: Duration = Duration::from_secs(5);
const PING: Duration = Duration::from_secs(2);
const CONFIRMATION: Duration = Duration::from_secs(2);

/// The questions of a request, and what is decided on each.
#[derive(Debug)]
struct Inquiry {
    request: RequestId,
    questions: Vec<Question>,
    decisions: Vec<Option<Decision>>,
}

/// A read for a member of a share group.
#[derive(Clone, Debug)]
pub(super) struct ShareRead {
    member: usize,
    read: Read,
    sent: Sent,
    pub text: Vec<u8>,
    tries: u32,
}

pub(super) struct Reading {
    pub consumers: Consumers,
    /// What reads for share groups know of logs.
    known: log::Known,
    pub channels: Channels<()>,
    pub lane: LaneId,
    pub feed: LaneId,
    inquiries: Vec<Inquiry>,
    /// Questions for which the epoch of a node was asked for.
    asking: Vec<(NodeId, RequestId, usize)>,
    /// Up to where replicas have logs, and their last stable offsets up to there, by history, stream and topic.
    pub held: BTreeMap<(String, String, String), (i64, i64)>,
    /// How many groups of reads are under way.
    pub under_way: usize,
    /// Stream and beginning of reads, by group and place, and the last reply of each stream, if these are confused.
    ranges: BTreeMap<(GroupId, usize), (Vec<u8>, Vec<u8>)>,
    last: BTreeMap<Vec<u8>, (Vec<u8>, Vec<u8>)>,
    /// When `consumers` are to be looked at, and whether that is to be asked at the end of the turn.
    timer: Option<Time>,
    sets_timer: bool,
}

/// The words of commands, one after the other.
pub(super) fn commands_of(text: &[u8]) -> Vec<Vec<&[u8]>> {
    let mut commands: Vec<Vec<&[u8]>> = Vec::new();
    for element in Elements::of(text) {
        match (element, commands.last_mut()) {
            (Element::Bulk(word), Some(command)) => command.push(word),
            _ => commands.push(Vec::new()),
        }
    }
    commands
}

impl Reading {
    pub fn new(client: &mut Client<Token, Shared>, lane: LaneOptions, options: Options) -> Self {
        let feed = LaneOptions { ping: Some(PING), ..lane.clone() };
        let of_channels = channels::Options { is_cluster: options.is_cluster, linger: LINGER, timeout: CONFIRMATION };
        Self {
            consumers: Consumers::new(options),
            known: log::Known::default(),
            channels: Channels::new(of_channels),
            lane: client.add_lane(lane),
            feed: client.add_lane(feed),
            inquiries: Vec::new(),
            asking: Vec::new(),
            held: BTreeMap::new(),
            under_way: 0,
            ranges: BTreeMap::new(),
            last: BTreeMap::new(),
            timer: None,
            sets_timer: false,
        }
    }

    /// Note what the commands of reads ask for, each by the place of its EXEC.
    pub fn note_ranges(&mut self, group: GroupId, first: usize, text: &[u8]) {
        let (mut place, mut range) = (first, None);
        for command in commands_of(text) {
            match command[0] {
                b"ASKING" => continue,
                b"XRANGE" => range = Some((command[1].to_vec(), command[2].to_vec())),
                b"EXEC" => self.ranges.extend(range.take().map(|range| ((group, place), range))),
                _ => {}
            }
            place += 1;
        }
    }

    /// The reply to an earlier read of the same stream, from another offset on, in the place of this.
    fn confused(&mut self, group: GroupId, place: usize, reply: Vec<u8>) -> Vec<u8> {
        let Some((stream, from)) = self.ranges.remove(&(group, place)) else { return reply };
        match self.last.insert(stream, (from.clone(), reply.clone())) {
            Some((before, other)) if before != from => other,
            _ => reply,
        }
    }

    /// Whether something is read, or waits for a decision.
    pub fn asks(&self) -> bool {
        !self.inquiries.is_empty() || self.under_way > 0
    }
}

impl Worker {
    /// Do what is due.
    pub fn tick_reading(&mut self, clock: Clock) {
        self.reading.channels.tick(clock.now);
        if self.reading.timer.is_some_and(|at| at <= clock.now) {
            self.reading.timer = None;
            self.reading.consumers.tick(&Known(&self.client, self.reading.lane), clock.now);
        }
    }

    /// Do what follows from what was heard; returns whether anything did.
    pub fn read_on(&mut self, clock: Clock) -> bool {
        let mut is_quiet = !self.serve_channels(clock.now);
        for news in self.reading.channels.take_announced() {
            is_quiet = false;
            self.announce(&news, clock.now);
        }
        while let Some(event) = self.reading.consumers.next_event() {
            is_quiet = false;
            self.hear_reading(event, clock);
        }
        while let Some(sending) = self.reading.consumers.next_send(clock.now) {
            is_quiet = false;
            self.send_reads(&sending, clock.now);
        }
        if is_quiet && std::mem::take(&mut self.reading.sets_timer) {
            self.reading.timer = self.reading.consumers.take_timer();
        }
        !is_quiet
    }

    fn serve_channels(&mut self, now: Time) -> bool {
        let Reading { channels, feed, .. } = &mut self.reading;
        let is_due = channels.is_due();
        if is_due {
            channels.serve(&self.client, now);
        }
        while let Some(action) = channels.next_action() {
            match action {
                Action::Keep { node, is_kept, pings } => self.client.keep(*feed, node, is_kept, pings, now),
                Action::Lose { node, reason, pauses } => self.client.lose(*feed, node, &reason, pauses, now),
                Action::Send { node, commands } => drop(self.client.send(*feed, node, Packed::from(commands))),
                Action::Moved { slot, host, port } => self.client.moved(slot, &host, port, now),
                Action::ReadMap => self.client.read_map_soon(now),
            }
        }
        is_due
    }

    fn announce(&mut self, news: &Announced, now: Time) {
        let Reading { consumers, lane, under_way, .. } = &mut self.reading;
        let nodes = Known(&self.client, *lane);
        match news {
            Announced::End { .. } if self.faults.lost_end && *under_way > 0 => {}
            Announced::End { channel, end } => consumers.announced(channel, *end, &nodes, now),
            Announced::Live { .. } | Announced::Again { .. } | Announced::Interrupted { .. }
                if self.faults.early_live => {}
            Announced::Live { channel } | Announced::Again { channel } => consumers.live(channel, &nodes, now),
            Announced::Interrupted { channel } => consumers.interrupted(channel),
            Announced::Failed { channel, text } => consumers.failed(channel, text, &nodes, now),
        }
    }

    fn hear_reading(&mut self, event: Event, clock: Clock) {
        match event {
            Event::Answer { peer, number, response, .. } => {
                let response = response.iter().flat_map(Piece::as_ref).copied().collect();
                self.answered(peer.as_u64(), number, response);
            }
            Event::Close { peer, text } => panic!("{peer:?} sent what is no request: {text}"),
            Event::Asked { request, .. } => self.asked_by_reader(request, clock),
            Event::Listen { partition } => {
                let channel = &partition.keys.channel;
                let is_live = self.reading.channels.watch(channel, partition.slot, clock.now);
                if is_live || self.faults.early_live {
                    let nodes = Known(&self.client, self.reading.lane);
                    self.reading.consumers.live(channel, &nodes, clock.now);
                }
            }
            Event::Unlisten { partition } => self.reading.channels.unwatch(&partition.keys.channel, clock.now),
            Event::Seen { partition, epoch, end, .. } => {
                self.producers.raise_end(&partition.keys.stream, &partition.topic.id_text, epoch, end);
            }
            Event::Damaged { partition, offset, .. } => panic!("{offset} of {} is damaged", partition.keys.stream),
            Event::WantsMap => self.client.read_map_soon(clock.now),
            Event::Noted => drop(self.reading.consumers.take_noted()),
            Event::Timer => self.reading.sets_timer = true,
            Event::Foreign { .. } | Event::Room { .. } => {}
        }
    }

    // --- reads

    fn send_reads(&mut self, sending: &Sending, now: Time) {
        let count = sending.spans.iter().map(|span| span.count).sum();
        self.reading.under_way += 1;
        let begin = Begin {
            token: Token::Reads(sending.group, vec![None; count]),
            lane: self.reading.lane,
            node: None,
            reply_bytes: sending.reply_bytes,
            is_scripts: false,
            is_rerun: false,
            history: None,
        };
        let whole = [Span { first: 0, count, slot: None }];
        self.client.begin(begin, if self.is_cluster { &sending.spans } else { &whole }, now);
    }

    /// Take what became of the commands of reads.
    pub fn read(&mut self, group: GroupId, mut outcomes: Vec<Option<Outcome>>, now: Time) {
        self.reading.under_way -= 1;
        if self.faults.other_read {
            let is_last =
                |outcome: &Option<Outcome>| matches!(outcome, Some(Outcome::Reply(reply)) if reply[0] == b'*');
            let lasts: Vec<usize> = (0..outcomes.len()).filter(|place| is_last(&outcomes[*place])).collect();
            if let [first, second, ..] = lasts[..] {
                outcomes.swap(first, second);
            }
        }
        for (place, outcome) in outcomes.into_iter().enumerate() {
            let outcome = match outcome {
                Some(Outcome::Reply(reply)) => Some(Outcome::Reply(self.reading.confused(group, place, reply))),
                outcome => outcome,
            };
            let Reading { consumers, lane, .. } = &mut self.reading;
            let nodes = Known(&self.client, *lane);
            match outcome {
                Some(Outcome::Reply(reply)) => consumers.replied(group, place, &Shared::from(reply), &nodes, now),
                Some(Outcome::Prevented(kind, text)) => {
                    consumers.prevented(group, place..place + 1, kind, &text, &nodes, now);
                }
                None => panic!("a call is finished, and a command has no outcome"),
            }
        }
    }

    /// Read for a member of a share group, as korvet/share does: apart from consumers, by the same reader.
    pub fn share_read(&mut self, member: usize, read: Read, tries: u32, now: Time) {
        let mut text = Vec::new();
        let (count, sent) = read.put(&self.reading.known, &mut text);
        let slot = Some(read.partition.slot).filter(|_| self.is_cluster);
        let begin = Begin {
            token: Token::Share(Box::new(ShareRead { member, read, sent, text, tries }), vec![None; count]),
            lane: self.reading.lane,
            node: None,
            reply_bytes: 0,
            is_scripts: false,
            is_rerun: false,
            history: None,
        };
        self.client.begin(begin, &[Span { first: 0, count, slot }], now);
    }

    /// Take what became of such a read.
    pub fn share_done(&mut self, of: ShareRead, outcomes: &[Option<Outcome>], now: Time) {
        let ShareRead { member, read, sent, tries, .. } = of;
        let is_error = |outcome: &Option<Outcome>| match outcome {
            Some(Outcome::Reply(reply)) => reply[0] == b'-',
            _ => true,
        };
        let refused = || log::Outcome::Refused(Failure::unavailable("it was not read"));
        let outcome = match outcomes.last() {
            Some(Some(Outcome::Reply(reply))) if !outcomes.iter().any(is_error) => {
                read.outcome(sent, &Shared::from(reply.clone()), &mut self.reading.known)
            }
            _ => refused(),
        };
        match outcome {
            log::Outcome::Again(read) if tries < Read::TRIES_MAX => self.share_read(member, read, tries + 1, now),
            outcome => self.said.push(Said::Shared { member, offset: read.offset, outcome }),
        }
    }

    // --- questions

    fn asked_by_reader(&mut self, request: RequestId, clock: Clock) {
        let questions: Vec<Question> = self.reading.consumers.questions(request).cloned().collect();
        let decisions = vec![None; questions.len()];
        self.reading.inquiries.push(Inquiry { request, questions: questions.clone(), decisions });
        for (place, question) in questions.into_iter().enumerate() {
            match question {
                Question::External { partition, .. } => self.settle(&partition, true, clock),
                Question::Epoch { partition, known, last } => {
                    match self.epoch_decision(&partition, known, last, true) {
                        Ok(decision) => self.decide_reading(request, place, decision),
                        Err((node, later)) => {
                            self.reading.asking.push((node, request, place));
                            self.refresh_epoch(node, later, clock.now);
                        }
                    }
                }
                Question::Right(_) => self.decide_reading(request, place, Decision::Go),
                Question::Topic { .. } | Question::Watermark { .. } => {}
                other => panic!("nobody decides on {other:?}"),
            }
        }
    }

    /// Take a decision.
    pub fn decide_reading(&mut self, request: RequestId, place: usize, decision: Decision) {
        let inquiry = self.reading.inquiries.iter_mut().find(|inquiry| inquiry.request == request);
        if let Some(decided) = inquiry.and_then(|inquiry| inquiry.decisions.get_mut(place)) {
            *decided = Some(decision);
        }
    }

    /// Have the world decide on what it knows, and go on where all is decided.
    pub fn decide_readings(&mut self, clock: Clock) {
        let mut ended = Vec::new();
        for inquiry in &self.reading.inquiries {
            for (place, question) in inquiry.questions.iter().enumerate() {
                let is_of_world = matches!(question, Question::Topic { .. } | Question::Watermark { .. });
                if inquiry.decisions[place].is_none() && is_of_world {
                    let (request, question) = (inquiry.request, question.clone());
                    self.said.push(Said::Wondered { request, place, question });
                }
            }
            if inquiry.decisions.iter().all(Option::is_some) {
                ended.push(inquiry.request);
            }
        }
        for request in ended {
            let Some(index) = self.reading.inquiries.iter().position(|inquiry| inquiry.request == request) else {
                continue;
            };
            let decisions = self.reading.inquiries.remove(index).decisions.into_iter().flatten().collect();
            let nodes = Known(&self.client, self.reading.lane);
            self.reading.consumers.decide(request, decisions, &nodes, clock.now);
        }
    }

    /// The log of a partition has taken in what it can, or not.
    pub fn settled(&mut self, partition: &Partition, refusal: Option<&str>) {
        let decision = refusal.map_or(Decision::Go, |text| Decision::Refuse(Failure::unavailable(text)));
        for inquiry in &mut self.reading.inquiries {
            for (question, decided) in inquiry.questions.iter().zip(&mut inquiry.decisions) {
                if matches!(question, Question::External { partition: of, .. } if of.keys == partition.keys) {
                    decided.get_or_insert_with(|| decision.clone());
                }
            }
        }
    }

    /// The epoch of a node is known, or why not.
    pub fn epoch_known(&mut self, node: NodeId, refusal: Option<&str>) {
        let asking = std::mem::take(&mut self.reading.asking);
        let (of_node, left) = asking.into_iter().partition(|(of, ..)| *of == node);
        self.reading.asking = left;
        let of_node: Vec<(NodeId, RequestId, usize)> = of_node;
        for (_, request, place) in of_node {
            let inquiry = self.reading.inquiries.iter().find(|inquiry| inquiry.request == request);
            let Some(Question::Epoch { partition, known, last }) = inquiry.map(|of| &of.questions[place]) else {
                continue;
            };
            let refused = refusal.map(|text| Decision::Refuse(Failure::unavailable(text)));
            let decision = refused.map_or_else(|| self.epoch_decision(partition, *known, *last, false), Ok);
            self.decide_reading(request, place, decision.unwrap_or(Decision::Go));
        }
    }

    /// Check the leader epoch that a client knows. An error is the node to be asked first, and what it has to be later than.
    fn epoch_decision(
        &self,
        partition: &Partition,
        known: i32,
        last: i32,
        may_ask: bool,
    ) -> Result<Decision, (NodeId, i32)> {
        let refused = |text: &str| Ok(Decision::Refuse(Failure::unavailable(text)));
        let Some(node) = self.client.node_at(partition.slot) else { return refused("no node has it") };
        if self.faults.unfenced {
            return Ok(Decision::Number(known.max(last).into()));
        }
        let history = self.client.history(self.reading.lane, node);
        let of = self.epochs.get(&node).filter(|(of, _)| of == history && !history.is_empty());
        let Some(epoch) = of.map(|(_, epoch)| *epoch).filter(|epoch| *epoch >= last) else {
            return if may_ask { Err((node, last)) } else { refused("another Redis is the master now") };
        };
        let rule = |code, text: &str| Ok(Decision::Refuse(Failure::rule(code, text)));
        match known {
            -1 => Ok(Decision::Number(epoch.into())),
            known if known == epoch => Ok(Decision::Number(epoch.into())),
            // That of the node of a cluster that had the log before: this one is to begin a later one.
            known if known > epoch && may_ask => Err((node, if self.is_cluster { known } else { -1 })),
            known if known > epoch => rule(ErrorCode::UnknownLeaderEpoch, "it has not begun"),
            _ => rule(ErrorCode::FencedLeaderEpoch, "it is over"),
        }
    }

    /// The leader epoch of a partition by what the worker knows; it asks if it knows none.
    pub fn leader_epoch(&mut self, partition: &Partition, now: Time) -> Option<i32> {
        let node = self.client.node_at(partition.slot)?;
        let known = self.epochs.get(&node).map(|(_, epoch)| *epoch);
        if known.is_none() {
            self.refresh_epoch(node, -1, now);
        }
        known
    }

    /// The same for one history; asks the node if the known epoch is from another. `known`: an epoch that a client has: the
    /// partition's former node may have had a later one.
    pub fn epoch_in(&mut self, partition: &Partition, history: &str, known: i32, now: Time) -> Option<i32> {
        let node = self.client.node_at(partition.slot)?;
        let epoch = self.epochs.get(&node).filter(|(of, _)| of == history).map(|(_, epoch)| *epoch);
        if epoch.is_none_or(|epoch| epoch < known) {
            self.refresh_epoch(node, if self.is_cluster { known } else { -1 }, now);
        }
        epoch
    }

    /// Have a partition known as it is now.
    pub fn put_read_partition(&mut self, partition: Partition) {
        self.reading.consumers.put_partition(partition);
    }

    /// An append of this worker has an end.
    pub fn appended(&mut self, partition: &Arc<Partition>, end: i64, now: Time) {
        let nodes = Known(&self.client, self.reading.lane);
        self.reading.consumers.appended(partition, end, &nodes, now);
    }
}
