//! Turns of the world: bytes move, clocks go on, workers and producers do what they can.

use std::collections::VecDeque;
use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::failure::Failure;
use korvet_proto::partition::Partition;
use korvet_proto::partition::TopicName;
use korvet_proto::peer::PeerId;
use korvet_proto::pipeline::Time;
use korvet_proto::produce::{Decision, Question, RequestId};
use korvet_proto::serving::Incoming;

use super::frames::response;
use super::ledger::Sent;
use super::producer::{Kind, Link, Stage};
use super::redis::PORT;
use super::sessions::{announcement, left};
use super::topics::{Which, stream};
use super::transactions::State;
use super::worker::Said;
use super::world::{AppendFault, ClientLink, ClientOf, Line, Marking, Wire, World};

/// How long a producer waits for a response.
const PATIENCE: Duration = Duration::from_secs(8);
const SOON: Duration = Duration::from_millis(1);

fn which_of(partition: &Partition) -> Which {
    (usize::from(partition.topic.id[0]) - 1, partition.index)
}

impl World {
    /// Let time pass.
    pub fn pass(&mut self, time: Duration, turns: u32) {
        let end = self.now + time;
        while self.now < end && self.ledger.failure.is_none() {
            self.turn();
            self.now = end.min(self.now + (time / turns.max(1)).max(Duration::from_micros(100)));
        }
        self.turn();
    }

    /// Let everything go on once.
    pub fn turn(&mut self) {
        self.wires.retain(|wire| wire.line != Line::Gone);
        for wire in 0..self.wires.len() {
            let waits = self.wires[wire].hangs || self.is_faulty && self.dice.is(25);
            if self.wires[wire].line != Line::Gone && !waits {
                self.move_wire(wire);
            }
        }
        for worker in 0..self.workers.len() {
            let clock = self.clock(worker);
            let of = &mut self.workers[worker];
            of.tick_reading(clock);
            if of.client.due().is_some_and(|due| due <= clock.now) {
                of.client.tick(clock.now);
                of.pump(None, clock);
            }
            of.begin(clock);
            of.flush(clock);
            self.hear(worker);
        }
        self.move_links();
        for producer in 0..self.producers.len() {
            self.go_on(producer);
        }
        for consumer in 0..self.consumers.len() {
            self.consume(consumer);
        }
        self.share();
        self.mark();
    }

    fn chunk(&mut self, size: usize) -> usize {
        match self.dice.below(6) {
            _ if !self.is_faulty => size,
            0 => size.min(1),
            1 => self.dice.below(size + 1),
            _ => size,
        }
    }

    // --- wires

    fn move_wire(&mut self, wire: usize) {
        let (worker, connection, host) = {
            let Wire { worker, connection, host, .. } = self.wires[wire];
            (worker, connection, host)
        };
        let clock = self.clock(worker);
        if let Line::Opening(at) = self.wires[wire].line {
            if at <= self.now {
                let is_up = self.servers.hosts[host].is_up;
                self.wires[wire].line = if is_up { Line::Open } else { Line::Gone };
                if is_up {
                    self.workers[worker].client.opened(connection, clock.now);
                } else {
                    self.workers[worker].client.failed(connection, "refused", clock.now);
                }
                self.workers[worker].pump(None, clock);
                self.hear(worker);
            }
            return;
        }
        if self.wires[wire].line == Line::Open {
            let client = &mut self.workers[worker].client;
            let bytes = client.unwritten(connection).collect::<Vec<_>>().concat();
            client.wrote(connection, bytes.len());
            self.wires[wire].up.extend(bytes);
        }
        if !self.wires[wire].is_cut {
            let size = self.chunk(self.wires[wire].up.len());
            self.arrive(wire, size);
        }
        if self.wires[wire].line == Line::Left {
            if self.wires[wire].up.is_empty() || self.wires[wire].is_cut {
                self.wires[wire].line = Line::Gone;
            }
            return;
        }
        let size = self.chunk(self.wires[wire].down.len());
        let bytes: Vec<u8> = self.wires[wire].down.drain(..size).collect();
        if !bytes.is_empty() {
            let of = &mut self.workers[worker];
            match of.client.room(connection, bytes.len()) {
                Some(Ok(room)) => room.extend_from_slice(&bytes),
                _ => return self.ledger.fail("bytes come over a connection that is gone"),
            }
            of.client.received(connection, clock.now);
            let lent = of.client.lend(connection);
            of.pump(Some((connection, lent)), clock);
        }
        if self.wires[wire].is_cut && self.wires[wire].line == Line::Open {
            self.wires[wire].line = Line::Gone;
            self.workers[worker].client.failed(connection, "the server closed the connection", clock.now);
            self.workers[worker].pump(None, clock);
        }
        self.hear(worker);
    }

    /// Let bytes of a worker reach the server.
    pub fn arrive(&mut self, wire: usize, size: usize) {
        let Wire { host, .. } = self.wires[wire];
        let bytes: Vec<u8> = self.wires[wire].up.drain(..size).collect();
        if !self.servers.hosts[host].is_up || bytes.is_empty() {
            return;
        }
        let (now, now_ms) = (self.now, self.now_ms());
        let down = self.servers.take(&mut self.wires[wire].session, host, &bytes, now, now_ms);
        self.publish();
        if !self.servers.seen.is_empty() {
            self.note_logs();
        }
        for text in std::mem::take(&mut self.servers.seen) {
            self.trace(|| format!("host {host} by wire {wire}: {text}"));
        }
        self.wires[wire].down.extend(down);
        // The replica follows, a little later.
        if self.dice.is(10) {
            self.servers.replicate(host);
        }
    }

    /// Deliver published messages to subscribers, and end subscriptions at another node.
    pub fn publish(&mut self) {
        for host in 0..self.servers.hosts.len() {
            let published = std::mem::take(&mut self.servers.hosts[host].model.published);
            for wire in self.wires.iter_mut().filter(|wire| wire.host == host && !wire.session.channels.is_empty()) {
                let (of, servers) = (&mut wire.session, &self.servers);
                for (channel, text) in published.iter().filter(|(channel, _)| of.channels.contains(channel)) {
                    wire.down.extend(announcement(channel, text));
                }
                let is_elsewhere = |channel: &[u8]| servers.owner(channel).is_some_and(|owner| owner != host);
                wire.down.extend(left(of, is_elsewhere));
            }
        }
    }

    /// Do what a worker has said.
    fn hear(&mut self, worker: usize) {
        for said in std::mem::take(&mut self.workers[worker].said) {
            match said {
                Said::Open { connection, port } => {
                    let host = usize::from(port - PORT);
                    let at = self.servers.hosts[host].opens_at.max(self.now + SOON * self.dice.below(4) as u32);
                    let (up, down, session) = (Vec::new(), Vec::new(), super::sessions::Session::default());
                    let line = Line::Opening(at);
                    let (hangs, is_cut) = (false, false);
                    self.wires.push(Wire { worker, connection, host, line, up, down, hangs, is_cut, session });
                }
                Said::CloseWire { connection } => {
                    let of_worker = |wire: &&mut Wire| wire.worker == worker && wire.connection == connection;
                    if let Some(wire) = self.wires.iter_mut().find(of_worker) {
                        wire.line = if matches!(wire.line, Line::Opening(_)) { Line::Gone } else { Line::Left };
                    }
                }
                Said::Answer { peer, response } => {
                    if let Some(link) = self.links.get_mut(&peer).filter(|_| !response.is_empty()) {
                        link.down.push_back(Some(response));
                    }
                }
                Said::Close { peer } => {
                    if let Some(link) = self.links.get_mut(&peer) {
                        link.down.push_back(None);
                    }
                }
                Said::Done { request } => self.marked(worker, request),
                Said::Asked { request, place, question } => {
                    let decision = self.decide(worker, &question);
                    self.trace(|| format!("worker {worker} asks {question:?}: {decision:?}"));
                    self.workers[worker].decided(request, place, decision);
                }
                Said::Shared { member, offset, outcome } => self.shared(member, offset, outcome),
                Said::Wondered { request, place, question } => {
                    let decision = self.wonder(worker, &question);
                    self.trace(|| format!("worker {worker} wonders {question:?}: {decision:?}"));
                    if let Some(decision) = decision {
                        self.workers[worker].decide_reading(request, place, decision);
                    }
                }
            }
        }
    }

    fn decide(&mut self, worker: usize, question: &Question) -> Decision {
        let refuse = |code, text: &str| Decision::Refuse(Failure::rule(code, text));
        match question {
            Question::Topic { name: TopicName::Name(name), index, .. } => {
                let topic: usize = name.trim_start_matches("topic").parse().unwrap();
                let partition = self.partition((topic, *index));
                let producers = &mut self.workers[worker].producers;
                // What was refused for the incarnation before is not any more.
                producers.reordered();
                producers.put_partition(partition);
                Decision::Go
            }
            Question::Confirm { node, history, .. } => {
                let address = self.workers[worker].client.address(*node).cloned();
                let host = self.servers.hosts.iter().position(|host| Some(&host.address) == address.as_ref());
                let host = host.filter(|host| self.servers.hosts[*host].model.history == **history);
                match host {
                    _ if self.fault == Some(AppendFault::Unconfirmed) => Decision::Go,
                    Some(host) if !(self.is_faulty && self.dice.is(10)) => {
                        self.servers.replicate(host);
                        Decision::Go
                    }
                    _ => refuse(ErrorCode::NotEnoughReplicasAfterAppend, "too few replicas have it"),
                }
            }
            Question::Verify { .. } if self.fault == Some(AppendFault::Unverified) => Decision::Number(self.now_ms()),
            Question::Verify { producer_id, epoch, partitions, .. } => {
                let incarnation = |partition: &Partition| (which_of(partition), partition.topic.id[1]);
                let added: Vec<(Which, u8)> = partitions.iter().map(|partition| incarnation(partition)).collect();
                match self.coordinator.verify(*producer_id, *epoch, &added) {
                    Ok(number) => Decision::Number(number),
                    Err(code) => refuse(code, "it is not in the transaction"),
                }
            }
            Question::TimeAt { .. } => Decision::Number(-1),
            _ => Decision::Go,
        }
    }

    /// Note what became of markers.
    fn marked(&mut self, worker: usize, request: RequestId) {
        let is_it = |marking: &Marking| marking.worker == worker && marking.request == request;
        let Some(index) = self.markings.iter().position(is_it) else { return };
        let Marking { producer, partitions, .. } = self.markings.remove(index);
        let outcomes = self.workers[worker].producers.take_outcomes(request);
        for (which, outcome) in partitions.into_iter().zip(outcomes) {
            self.trace(|| format!("the marker of producer {producer} in {which:?}: {outcome:?}"));
            if outcome.is_ok() || self.fault == Some(AppendFault::LostMarker) {
                self.coordinator.marked(producer, which);
            }
        }
        if let Some(id) = self.coordinator.ids.get_mut(&producer) {
            id.is_marking = false;
        }
    }

    // --- clients

    fn move_links(&mut self) {
        for peer in self.links.keys().copied().collect::<Vec<_>>() {
            let is_late = |world: &mut Self| world.is_faulty && world.dice.is(30);
            if !is_late(self) {
                let now = self.now;
                let Some(link) = self.links.get_mut(&peer) else { continue };
                if let Some(frame) = link.up.pop_front() {
                    let incoming = Incoming { number: 0, frame: frame.into(), arrived: now, late: None };
                    if let Some(peer) = self.workers[link.worker].peers.get_mut(&peer) {
                        peer.waiting.push_back(incoming);
                    }
                }
            }
            if is_late(self) {
                continue;
            }
            let Some(link) = self.links.get_mut(&peer) else { continue };
            let (client, worker) = (link.client, link.worker);
            match link.down.pop_front() {
                Some(Some(response)) => {
                    link.since = self.now;
                    match client {
                        ClientOf::Producer(producer) => self.answered(producer, &response),
                        ClientOf::Consumer(consumer) => {
                            self.workers[worker].reading.consumers.written(PeerId::from_u64(peer));
                            self.fetched(consumer, &response);
                        }
                    }
                }
                Some(None) => self.cut_link(peer),
                None => {
                    let patience = match client {
                        ClientOf::Producer(producer) => {
                            let link = self.producers[producer].link.as_ref();
                            link.filter(|link| !link.requests.is_empty()).map(|_| PATIENCE)
                        }
                        ClientOf::Consumer(consumer) => {
                            let in_flight = self.consumers[consumer].in_flight.as_ref();
                            in_flight.map(|of| PATIENCE + Duration::from_millis(of.wait_ms as u64))
                        }
                    };
                    match patience {
                        None => link.since = self.now,
                        Some(patience) if self.now > link.since + patience => {
                            self.trace(|| format!("{client:?} waits no longer for worker {worker}"));
                            self.cut_link(peer);
                        }
                        Some(_) => {}
                    }
                }
            }
        }
    }

    /// The connection of a client is over.
    pub fn cut_link(&mut self, peer: u64) {
        let Some(ClientLink { client, worker, .. }) = self.links.remove(&peer) else { return };
        self.workers[worker].forget(peer, self.now);
        let producer = match client {
            ClientOf::Consumer(consumer) => return self.consumers[consumer].lose(),
            ClientOf::Producer(producer) => producer,
        };
        let is_present = self.producers[producer].link.as_ref().is_some_and(|link| link.peer == peer);
        if is_present {
            self.producers[producer].lose();
        }
    }

    fn answered(&mut self, producer: usize, frame: &[u8]) {
        let (number, results) = response(frame);
        self.trace(|| format!("producer {producer} hears {number}: {results:?}"));
        let resumes_at = self.now + Duration::from_millis(self.dice.within(10, 200) as u64);
        let of = &mut self.producers[producer];
        let (acks, answered) = (of.acks, of.answered(number, &results, resumes_at));
        match answered {
            Err(text) => self.ledger.fail(text),
            Ok(acknowledged) => {
                for (which, values, base) in acknowledged {
                    let log = self.servers.log(&stream(which));
                    let of = self.topics[which.0];
                    let had = self.written.of(which, of.incarnation);
                    self.ledger.acknowledge((which, values, base), of, (log, had), acks);
                }
            }
        }
    }

    /// Let a producer do what it can.
    fn go_on(&mut self, producer: usize) {
        let of = &self.producers[producer];
        if of.link.is_none() && !(of.is_idle()) && self.now >= of.resumes_at {
            let (worker, peer) = (self.dice.below(self.workers.len()), self.next_peer);
            self.next_peer += 1;
            self.workers[worker].accept(peer);
            let requests = VecDeque::new();
            self.producers[producer].link = Some(Link { peer, requests });
            let (up, down, since) = (VecDeque::new(), VecDeque::new(), self.now);
            let client = ClientOf::Producer(producer);
            self.links.insert(peer, ClientLink { client, worker, up, down, since });
        }
        self.end_transaction(producer);
        let (now, now_ms) = (self.now, self.now_ms());
        // What is aborted is not sent any more.
        let is_aborting = self.producers[producer].stage == Stage::Ending { commits: false };
        while !is_aborting && self.now >= self.producers[producer].resumes_at && !(self.is_faulty && self.dice.is(20)) {
            let one_alone = self.dice.is(50);
            let Some((frame, values)) = self.producers[producer].next_request(now_ms, one_alone) else { break };
            let link = self.producers[producer].link.as_ref().map(|link| link.peer);
            self.ledger.note_link(&values, link.unwrap_or_default());
            if let Some(link) = link.and_then(|peer| self.links.get_mut(&peer)) {
                if self.producers[producer].link.as_ref().is_some_and(|link| link.requests.len() == 1) {
                    link.since = now;
                }
                link.up.push_back(frame);
            }
        }
    }

    /// Have a producer make a batch; one of a transaction begins it, or adds the partition.
    pub fn produce(&mut self, producer: usize) {
        let which = self.some_partition();
        let count = self.dice.within(1, 4);
        let mut transaction = None;
        if self.producers[producer].kind == Kind::Transactional {
            let of = &self.producers[producer];
            if !matches!(of.stage, Stage::None | Stage::Open) {
                return;
            }
            let (epoch, incarnation, now_ms) = (of.epoch, self.topics[which.0].incarnation, self.now_ms());
            let number = self.coordinator.add(producer, epoch, which, incarnation, now_ms);
            if number.is_none() {
                if of.stage == Stage::Open {
                    self.producers[producer].stage = Stage::Ending { commits: false };
                }
                return;
            }
            if self.numbers[producer].is_some_and(|known| Some(known) != number) {
                return self.ledger.fail("a transaction goes on under another number");
            }
            (self.numbers[producer], transaction) = (number, number);
            self.producers[producer].stage = Stage::Open;
        }
        let values = self.producers[producer].put(which, count);
        let kind = self.producers[producer].kind;
        self.trace(|| format!("producer {producer} puts {values:?} to {which:?} in {transaction:?}"));
        for value in values {
            let number = value.split_once('.').and_then(|(_, number)| number.parse().ok()).unwrap();
            self.ledger.sent.insert(value, Sent { kind, producer, number, link: 0, transaction });
        }
    }

    fn end_transaction(&mut self, producer: usize) {
        let of = &self.producers[producer];
        let Stage::Ending { commits } = of.stage else { return };
        if of.is_in_flight() || commits && !of.is_idle() {
            return;
        }
        let id = self.coordinator.ids[&producer].clone();
        if id.state.is_prepared() {
            return;
        }
        // One that was fenced meanwhile has nothing to commit.
        let is_fenced = id.epoch != of.epoch;
        let ended = if is_fenced && id.state == State::Open { None } else { self.coordinator.end(producer, commits) };
        if let Some(epoch) = ended {
            self.trace(|| format!("producer {producer} ends {:?}, commits: {commits}", self.numbers[producer]));
            self.producers[producer].reset(epoch);
            self.numbers[producer] = None;
        }
    }

    /// When nothing is due before, the world may go on from here.
    pub fn next_due(&self, most: Time) -> Time {
        let is_moving = self.wires.iter().any(|wire| match wire.line {
            Line::Opening(_) => true,
            Line::Open | Line::Left => !wire.up.is_empty() || !wire.down.is_empty() || wire.is_cut,
            Line::Gone => false,
        });
        let is_busy = self.links.values().any(|link| !link.up.is_empty() || !link.down.is_empty());
        let asks = self.workers.iter().any(|worker| !worker.is_idle() || worker.reading.asks());
        if is_moving || is_busy || asks { most.min(self.now + SOON * 5) } else { most.min(self.now + SOON * 200) }
    }
}
