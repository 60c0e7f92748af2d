//! A worker: the core's `Producers` and client of Redis, the driver between both, and the decisions of their owner. What
//! it reads for consumers is in `reading`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use korvet_proto::access::Session;
use korvet_proto::client::{
    Begin, CallId, Caller, Client, Event as Heard, LaneId, LaneOptions, NodeId, Options, Prevented, Span,
};
use korvet_proto::fetch;
use korvet_proto::log;
use korvet_proto::partition::Partition;
use korvet_proto::peer::PeerId;
use korvet_proto::pipeline::Time;
use korvet_proto::produce::{self, Decision, Event, GroupId, Producers, Question, RequestId};
use korvet_proto::serving::{Clock, Incoming, Nodes};
use korvet_proto::shared::Shared;

use super::commands::{both, own_packed};
use super::model::Script;
use super::order::{Order, values_in};
use super::reading::{Reading, ShareRead};

/// What became of a script of a group.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Reply(Vec<u8>),
    Prevented(Prevented, String),
}

impl Outcome {
    /// Whether batches may have to be sent again.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Reply(reply) => reply.starts_with(b"-") || reply.starts_with(b"$5\r\n\x01"),
            Self::Prevented(kind, _) => *kind == Prevented::History,
        }
    }
}

/// Who waits for a call of the client.
#[derive(Clone, Debug)]
pub(super) enum Token {
    /// A group. Of a script that runs again only the last reply counts.
    Group(GroupId, NodeId, Vec<Option<Outcome>>),
    /// A script of the owner.
    Own(Purpose, Vec<u8>, Vec<Option<Outcome>>),
    /// Reads for consumers.
    Reads(fetch::GroupId, Vec<Option<Outcome>>),
    /// A read for a member of a share group.
    Share(Box<ShareRead>, Vec<Option<Outcome>>),
}

impl Caller for Token {
    fn runs_when_full(&self, _place: usize) -> bool {
        matches!(self, Self::Group(..))
    }

    fn is_same_script(&self, place: usize, other: usize) -> bool {
        place == other
    }
}

/// What a script of the owner is for.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// The leader epoch of a node. A question may know of a later one.
    Epoch { node: NodeId, later: i32 },
    /// Entries of other clients.
    External(Arc<Partition>),
}

/// The questions of a request, and what is decided on each.
#[derive(Debug)]
struct Inquiry {
    request: RequestId,
    questions: Vec<Question>,
    decisions: Vec<Option<Decision>>,
    /// When those are decided on that need no script.
    due: Time,
}

/// The connection of a client, as the worker has it.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Frames that have not begun.
    pub waiting: VecDeque<Incoming>,
    /// Responses by the numbers of their frames, until those before them are there.
    answers: BTreeMap<u64, Vec<u8>>,
    next: u64,
    begun: u64,
}

/// What the world is to do for a worker.
#[derive(Debug)]
pub(super) enum Said {
    Answer {
        peer: u64,
        response: Vec<u8>,
    },
    Close {
        peer: u64,
    },
    /// Markers have their outcomes.
    Done {
        request: RequestId,
    },
    Open {
        connection: CallId,
        port: u16,
    },
    CloseWire {
        connection: CallId,
    },
    /// The owner is to decide.
    Asked {
        request: RequestId,
        place: usize,
        question: Question,
    },
    /// What a member of a share group has read.
    Shared {
        member: usize,
        offset: i64,
        outcome: log::Outcome,
    },
    /// The same about what a consumer reads.
    Wondered {
        request: fetch::RequestId,
        place: usize,
        question: fetch::Question,
    },
}

pub(super) struct Worker {
    pub client: Client<Token, Shared>,
    pub is_cluster: bool,
    pub producers: Producers,
    pub reading: Reading,
    pub peers: BTreeMap<u64, Peer>,
    pub said: Vec<Said>,
    pub lane: LaneId,
    inquiries: Vec<Inquiry>,
    /// Of each node the epoch that is known, and its history.
    pub epochs: BTreeMap<NodeId, (String, i32)>,
    /// Logs that are to take something in once the epoch of their node is known.
    pub unsettled: Vec<(NodeId, Arc<Partition>)>,
    pub due: Option<Time>,
    pub faults: Faults,
    pub order: Order,
}

/// What goes wrong in the driver.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(super) struct Faults {
    pub other_reply: bool,
    pub old_epoch: bool,
    pub any_history: bool,
    pub sent_again: bool,
    pub other_answer: bool,
    pub begins_held: bool,
    pub swapped_frames: bool,
    pub swallowed_epoch: bool,
    pub lost_end: bool,
    pub early_live: bool,
    pub unfenced: bool,
    pub other_offset: bool,
    pub other_read: bool,
}

/// The nodes of a client, as a lane leads to them.
pub(super) struct Known<'a>(pub &'a Client<Token, Shared>, pub LaneId);

impl Nodes for Known<'_> {
    fn node_of(&self, slot: u16) -> Option<NodeId> {
        self.0.node_at(slot)
    }

    fn history(&self, node: NodeId) -> &str {
        self.0.history(self.1, node)
    }
}

/// The key of Fetch, with which its frames begin.
const FETCH: [u8; 2] = [0, 1];
const PAUSE: Duration = Duration::from_millis(20);

impl Worker {
    pub fn new(
        options: Options,
        lanes: (LaneOptions, LaneOptions),
        of: (produce::Options, fetch::Options),
        faults: Faults,
    ) -> Self {
        let mut client = Client::new(options);
        let lane = client.add_lane(lanes.0);
        let (of, of_reads) = of;
        Self {
            is_cluster: of.is_cluster,
            reading: Reading::new(&mut client, lanes.1, of_reads),
            client,
            producers: Producers::new(of, [both(Script::AppendBatch), both(Script::AppendRecord)]),
            peers: BTreeMap::new(),
            said: Vec::new(),
            lane,
            inquiries: Vec::new(),
            epochs: BTreeMap::new(),
            unsettled: Vec::new(),
            due: None,
            faults,
            order: Order::default(),
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.producers.count() == 0 && self.inquiries.is_empty()
    }

    /// What it waits for, in words.
    pub fn shown(&self) -> String {
        format!("{:?}", self.inquiries)
    }

    // --- clients

    /// A client has connected.
    pub fn accept(&mut self, peer: u64) {
        self.peers.insert(peer, Peer::default());
        let session = Session { may_all: peer % 3 > 0, ..Session::default() };
        self.producers.put_session(PeerId::from_u64(peer), session);
        self.reading.consumers.put_session(PeerId::from_u64(peer), session);
    }

    /// The connection of a client is over.
    pub fn forget(&mut self, peer: u64, now: Time) {
        if self.peers.remove(&peer).is_some() {
            self.producers.forget_session(PeerId::from_u64(peer));
            self.reading.consumers.forget_session(PeerId::from_u64(peer), now);
        }
    }

    /// Begin the frames that may begin.
    pub fn begin(&mut self, clock: Clock) {
        for number in self.peers.keys().copied().collect::<Vec<_>>() {
            let id = PeerId::from_u64(number);
            while let Some(peer) = self.peers.get_mut(&number).filter(|peer| !peer.waiting.is_empty()) {
                let is_fetch = peer.waiting[0].frame.as_ref().starts_with(&FETCH);
                let may_begin = self.producers.may_begin(id) || self.faults.begins_held;
                if !(if is_fetch { self.reading.consumers.begun_by(id) == 0 } else { may_begin }) {
                    break;
                }
                if self.faults.swapped_frames && peer.waiting.len() > 1 {
                    peer.waiting.swap(0, 1);
                }
                let Some(mut incoming) = peer.waiting.pop_front() else { break };
                incoming.number = peer.begun;
                peer.begun += 1;
                if is_fetch {
                    let nodes = Known(&self.client, self.reading.lane);
                    self.reading.consumers.begin(id, &incoming, &nodes, clock.now);
                    self.read_on(clock);
                    continue;
                }
                let tick = self.order.tick();
                self.order.begun.extend(values_in(incoming.frame.as_ref()).into_iter().map(|value| (value, tick)));
                self.producers.begin(id, &incoming, &Known(&self.client, self.lane), clock);
                self.hear(clock);
            }
        }
    }

    /// Append for the owner itself.
    pub fn append(&mut self, asked: Vec<(Arc<Partition>, produce::Asked, Option<i64>)>, clock: Clock) -> RequestId {
        let request = self.producers.append(asked, &Known(&self.client, self.lane), clock);
        self.hear(clock);
        request
    }

    // --- turns

    /// The end of a turn: send what was gathered.
    pub fn flush(&mut self, clock: Clock) {
        self.decide(clock);
        self.decide_readings(clock);
        self.producers.flush(&Known(&self.client, self.lane), clock);
        self.hear(clock);
        while let Some(sending) = self.producers.next_send() {
            let produce::Sending { group, node, history, count, is_rerun } = sending;
            let history = Some(history.to_string()).filter(|_| !self.faults.any_history);
            self.send(group, node, count, is_rerun, history, clock);
        }
        self.pump(None, clock);
    }

    fn send(
        &mut self,
        group: GroupId,
        node: NodeId,
        count: usize,
        is_rerun: bool,
        history: Option<String>,
        clock: Clock,
    ) {
        let token = Token::Group(group, node, vec![None; count]);
        let (lane, node) = (self.lane, Some(node));
        let begin = Begin { token, lane, node, reply_bytes: 0, is_scripts: true, is_rerun, history };
        self.client.begin(begin, &[Span { first: 0, count, slot: None }], clock.now);
    }

    /// Do what the client says until it says nothing more; `received` are bytes that have come over a connection.
    pub fn pump(&mut self, mut received: Option<(CallId, Vec<u8>)>, clock: Clock) {
        loop {
            if let Some(event) = self.client.next_event() {
                self.heard(event, received.as_ref(), clock);
                continue;
            }
            if let Some((connection, bytes)) = received.take() {
                self.client.give_back(connection, bytes);
                continue;
            }
            let Some(ready) = self.client.next_ready() else {
                if self.read_on(clock) {
                    continue;
                }
                break;
            };
            let packed = match self.client.token(ready.piece.call) {
                Some(Token::Group(group, ..)) => self.producers.pack(*group, &ready.piece, clock),
                Some(Token::Reads(group, _)) => {
                    let packed = self.reading.consumers.pack(*group, &ready.piece);
                    if let Some(packed) = packed.as_ref().filter(|_| self.faults.other_offset) {
                        self.reading.note_ranges(*group, ready.piece.first, &packed.text);
                    }
                    packed
                }
                Some(Token::Own(_, packed, _)) => Some(own_packed(&ready.piece, packed.clone())),
                Some(Token::Share(read, _)) => Some(own_packed(&ready.piece, read.text.clone())),
                None => None,
            };
            if let (Some(packed), Some(Token::Group(group, ..))) = (&packed, self.client.token(ready.piece.call)) {
                self.order.groups.entry(*group).or_default().extend(values_in(&packed.joined()));
            }
            match packed {
                Some(packed) => drop(self.client.push(&ready, packed, clock.now)),
                None => panic!("a piece is ready of nothing that is under way"),
            }
        }
        self.hear(clock);
    }

    fn heard(&mut self, event: Heard, received: Option<&(CallId, Vec<u8>)>, clock: Clock) {
        let Reading { channels, feed, .. } = &mut self.reading;
        match &event {
            Heard::Connected { lane, node, .. } if lane == feed => channels.connected(*node),
            Heard::Refused { lane, node, text } if lane == feed => channels.refused(*node, text),
            Heard::Lost { lane, node, text } if lane == feed => channels.lost(*node, text, clock.now),
            Heard::Map => channels.map_changed(),
            Heard::FeedReply { node, range, .. } => {
                let reply = received.and_then(|(_, bytes)| bytes.get(range.clone())).unwrap_or_default();
                channels.received(*node, reply, clock.now);
            }
            _ => {}
        }
        match event {
            Heard::Reply { call, place, range } => {
                let reply = received.and_then(|(_, bytes)| bytes.get(range)).unwrap_or_default().to_vec();
                self.outcome(call, place..place + 1, &Outcome::Reply(reply));
            }
            Heard::Prevented { call, first, count, kind, text } => {
                self.outcome(call, first..first + count, &Outcome::Prevented(kind, text));
            }
            Heard::Finished { call, .. } => self.finished(call, clock),
            Heard::Open { connection, address, .. } => {
                self.said.push(Said::Open { connection, port: address.port });
            }
            Heard::Close { connection } => self.said.push(Said::CloseWire { connection }),
            Heard::Connected { is_again, .. } if is_again => {
                self.producers.reconnected(clock.now);
            }
            Heard::Reordered => self.producers.reordered(),
            Heard::Timer => self.due = self.client.due(),
            _ => {}
        }
        self.hear(clock);
    }

    fn outcome(&mut self, call: CallId, places: Range<usize>, outcome: &Outcome) {
        let token = self.client.token(call);
        if let Some(
            Token::Group(_, _, outcomes)
            | Token::Own(_, _, outcomes)
            | Token::Reads(_, outcomes)
            | Token::Share(_, outcomes),
        ) = token
        {
            outcomes[places].fill(Some(outcome.clone()));
        }
    }

    fn finished(&mut self, call: CallId, clock: Clock) {
        match self.client.finish(call) {
            Some(Token::Group(group, node, mut outcomes)) => {
                let is_lost = |outcome: &Outcome| matches!(outcome, Outcome::Prevented(Prevented::Unknown, _));
                let is_unknown = outcomes.iter().flatten().any(is_lost);
                if self.faults.sent_again && is_unknown {
                    return self.send(group, node, outcomes.len(), true, None, clock);
                }
                let values = self.order.groups.remove(&group).unwrap_or_default();
                let mut outcome = outcomes.iter().flatten();
                if is_unknown {
                    // It may run yet, whenever the bytes arrive.
                    self.order.refused.extend(values.into_iter().map(|value| (value, usize::MAX)));
                } else if outcome.any(Outcome::is_refusal) {
                    let tick = self.order.tick();
                    self.order.refused.extend(values.into_iter().map(|value| (value, tick)));
                }
                if self.faults.other_reply {
                    outcomes.rotate_left(1);
                }
                for (place, outcome) in outcomes.into_iter().enumerate() {
                    let nodes = Known(&self.client, self.lane);
                    match outcome {
                        Some(Outcome::Reply(reply)) => self.producers.replied(group, place, &reply, &nodes, clock),
                        Some(Outcome::Prevented(kind, text)) => {
                            self.producers.prevented(group, place..place + 1, kind, &text, &nodes, clock);
                        }
                        None => panic!("a call is finished, and a script has no outcome"),
                    }
                    self.hear(clock);
                }
            }
            Some(Token::Own(purpose, _, mut outcomes)) => match outcomes.pop().flatten() {
                Some(Outcome::Reply(reply)) => self.own_replied(purpose, &reply, clock),
                Some(Outcome::Prevented(_, text)) => self.own_failed(&purpose, &text, clock),
                None => panic!("a call is finished without its outcome"),
            },
            Some(Token::Reads(group, outcomes)) => self.read(group, outcomes, clock.now),
            Some(Token::Share(read, outcomes)) => self.share_done(*read, &outcomes, clock.now),
            None => panic!("a call is finished twice"),
        }
    }

    // --- what the core says

    fn hear(&mut self, clock: Clock) {
        while let Some(event) = self.producers.next_event() {
            match event {
                Event::Answer { peer, number, response, .. } => self.answered(peer.as_u64(), number, response),
                Event::Close { peer, .. } => {
                    self.forget(peer.as_u64(), clock.now);
                    self.said.push(Said::Close { peer: peer.as_u64() });
                }
                Event::Asked { request, .. } => self.asked(request, clock),
                Event::Done { request } => self.said.push(Said::Done { request }),
                Event::WantsEpoch { node } if !self.faults.swallowed_epoch => self.ask_epoch(node, -1, clock.now),
                Event::Appended { partition, end } => self.appended(&partition, end, clock.now),
                Event::WantsMap => self.client.read_map_soon(clock.now),
                _ => {}
            }
        }
    }

    /// Note a response: a client gets all in the order of its frames.
    pub fn answered(&mut self, peer: u64, number: u64, response: Vec<u8>) {
        let is_other = self.faults.other_answer;
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.answers.insert(number, response);
        if is_other && known.answers.len() == 1 && known.begun > number + 1 {
            return;
        }
        if is_other && known.answers.len() == 2 {
            let numbers: Vec<u64> = known.answers.keys().copied().collect();
            let first = known.answers.remove(&numbers[0]).unwrap_or_default();
            if let Some(last) = known.answers.insert(numbers[1], first) {
                known.answers.insert(numbers[0], last);
            }
        }
        while let Some(response) = known.answers.remove(&known.next) {
            known.next += 1;
            self.said.push(Said::Answer { peer, response });
        }
    }

    fn asked(&mut self, request: RequestId, clock: Clock) {
        let questions: Vec<Question> = self.producers.questions(request).cloned().collect();
        let decisions = vec![None; questions.len()];
        for question in &questions {
            match question {
                Question::External { partition } => self.settle(partition, true, clock),
                Question::Stale { node, later } => self.ask_epoch(*node, later.unwrap_or(-1), clock.now),
                Question::Elsewhere { replies, .. } => self.follow(replies, clock.now),
                _ => {}
            }
        }
        let attempt = questions.iter().map(|question| match question {
            Question::Elsewhere { attempt, .. } => *attempt,
            _ => 0,
        });
        let due = clock.now + PAUSE * attempt.max().unwrap_or_default().min(10);
        self.inquiries.push(Inquiry { request, questions, decisions, due });
    }

    /// Note where slots are by what nodes say.
    fn follow(&mut self, replies: &[String], now: Time) {
        for reply in replies {
            let words: Vec<&str> = reply.split(' ').collect();
            if let ["MOVED", slot, address] = words.as_slice() {
                let (host, port) = address.rsplit_once(':').unwrap();
                self.client.moved(slot.parse().unwrap(), host, port.parse().unwrap(), now);
            }
        }
    }

    /// Have the world decide on what it knows, and go on where all is decided.
    fn decide(&mut self, clock: Clock) {
        let mut ended = Vec::new();
        for inquiry in &mut self.inquiries {
            for (place, question) in inquiry.questions.iter().enumerate() {
                let is_own = matches!(question, Question::External { .. } | Question::Stale { .. });
                if inquiry.decisions[place].is_none() && !is_own && clock.now >= inquiry.due {
                    if let Question::Elsewhere { .. } | Question::Late { .. } = question {
                        inquiry.decisions[place] = Some(Decision::Go);
                        continue;
                    }
                    let (request, question) = (inquiry.request, question.clone());
                    self.said.push(Said::Asked { request, place, question });
                }
            }
            if inquiry.decisions.iter().all(Option::is_some) {
                ended.push(inquiry.request);
            }
        }
        for request in ended {
            let Some(index) = self.inquiries.iter().position(|inquiry| inquiry.request == request) else { continue };
            let inquiry = self.inquiries.remove(index);
            let decisions = inquiry.decisions.into_iter().flatten().collect();
            self.producers.decide(request, decisions, &Known(&self.client, self.lane), clock);
            self.hear(clock);
        }
    }

    /// Take a decision of the world.
    pub fn decided(&mut self, request: RequestId, place: usize, decision: Decision) {
        let inquiry = self.inquiries.iter_mut().find(|inquiry| inquiry.request == request);
        if let Some(inquiry) = inquiry {
            inquiry.decisions[place] = Some(decision);
        }
    }

    pub fn decide_own(&mut self, decision: &Decision, is_it: impl Fn(&Question) -> bool) {
        for inquiry in &mut self.inquiries {
            for (place, question) in inquiry.questions.iter().enumerate() {
                if is_it(question) && inquiry.decisions[place].is_none() {
                    inquiry.decisions[place] = Some(decision.clone());
                }
            }
        }
    }
}
