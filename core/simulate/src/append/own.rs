//! Scripts of a worker's owner: leader epochs, and entries of other clients of Redis.

use std::sync::Arc;

use korvet_proto::client::{Begin, NodeId, Span};
use korvet_proto::failure::Failure;
use korvet_proto::partition::{Layout, Partition};
use korvet_proto::pipeline::Time;
use korvet_proto::produce::{Decision, Question};
use korvet_proto::resp::{Element, Elements};
use korvet_proto::serving::Clock;

use super::commands::command;
use super::model::Script;
use super::redis::EPOCH_KEY;
use super::topics::bits;
use super::worker::{Known, Purpose, Token, Worker};

const STEP_ENTRIES: &str = "50";
const STEP_BYTES: &str = "1048576";

impl Worker {
    fn own(
        &mut self,
        purpose: Purpose,
        (node, slot): (Option<NodeId>, Option<u16>),
        history: Option<String>,
        packed: Vec<u8>,
        now: Time,
    ) {
        let begin = Begin {
            token: Token::Own(purpose, packed, vec![None]),
            lane: self.lane,
            node,
            reply_bytes: 0,
            is_scripts: true,
            is_rerun: true,
            history,
        };
        self.client.begin(begin, &[Span { first: 0, count: 1, slot }], now);
    }

    /// Ask a node for its epoch, which is to be later than one that is known.
    pub fn ask_epoch(&mut self, node: NodeId, later: i32, now: Time) {
        let (history, epoch) = self.epochs.get(&node).cloned().unwrap_or_else(|| (String::new(), -1));
        let (history, floor) = if later > epoch { (String::new(), later) } else { (history, epoch) };
        self.send_epoch(node, later, (floor, &history), now);
    }

    /// Ask a node for its epoch; only if that is not as late as one that is known, another one begins.
    pub fn refresh_epoch(&mut self, node: NodeId, known: i32, now: Time) {
        let (history, epoch) = self.epochs.get(&node).cloned().unwrap_or_else(|| (String::new(), -1));
        self.send_epoch(node, known, (epoch, &history), now);
    }

    fn send_epoch(&mut self, node: NodeId, later: i32, (floor, history): (i32, &str), now: Time) {
        let packed = command(Script::Epoch, &[EPOCH_KEY], &[&floor.to_string(), history]);
        self.own(Purpose::Epoch { node, later }, (Some(node), None), None, packed, now);
    }

    /// Do a step about the entries of other clients in a log.
    pub fn settle(&mut self, partition: &Arc<Partition>, may_ask: bool, clock: Clock) {
        let keys = &partition.keys;
        let (topic, side) = (&*partition.topic.id_text, |name: &str| format!("{{{}}}:{name}", keys.stream));
        let node = self.client.node_at(partition.slot).unwrap_or_default();
        let history = self.client.history(self.lane, node).to_owned();
        let mut epoch = String::new();
        if partition.layout != Layout::Batch {
            // It goes only to the history that has the epoch.
            match self.epochs.get(&node).filter(|(of, _)| *of == history) {
                Some((_, known)) => epoch = known.to_string(),
                None if may_ask => {
                    self.unsettled.push((node, Arc::clone(partition)));
                    return self.ask_epoch(node, -1, clock.now);
                }
                None => {
                    let purpose = Purpose::External(Arc::clone(partition));
                    return self.own_failed(&purpose, "another Redis is the master now", clock);
                }
            }
        }
        let packed = match partition.layout {
            Layout::Batch => command(Script::Expel, &[&keys.stream, &keys.state], &[topic, STEP_ENTRIES]),
            Layout::Record { .. } => {
                let (moving, share, bits) = (side("moving"), side("share"), bits(partition.layout).to_string());
                let names = [&*keys.stream, &*keys.state, &moving, &*keys.index, &share];
                let arguments = [topic, &epoch, &bits, STEP_ENTRIES, STEP_BYTES, &*keys.stream];
                command(Script::Renumber, &names, &arguments)
            }
        };
        let history = Some(history).filter(|_| partition.layout != Layout::Batch);
        self.own(Purpose::External(Arc::clone(partition)), (None, Some(partition.slot)), history, packed, clock.now);
    }

    /// Go on where the epoch of a node was asked for.
    fn settle_rest(&mut self, node: NodeId, clock: Clock) {
        for (of, partition) in std::mem::take(&mut self.unsettled) {
            if of == node {
                self.settle(&partition, false, clock);
            } else {
                self.unsettled.push((of, partition));
            }
        }
    }

    /// Take the reply to a script of the owner.
    pub fn own_replied(&mut self, purpose: Purpose, reply: &[u8], clock: Clock) {
        let elements: Vec<Element<'_>> = Elements::of(reply).collect();
        if let [Element::Error(text), ..] = elements.as_slice() {
            return self.own_failed(&purpose, &String::from_utf8_lossy(text), clock);
        }
        match purpose {
            Purpose::Epoch { node, later } => {
                let [_, Element::Bulk(history), Element::Bulk(epoch)] = elements.as_slice() else { return };
                let [history, epoch] = [history, epoch].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                self.learn_epoch(node, &history, epoch.parse().unwrap(), later, clock);
            }
            Purpose::External(partition) => {
                if let Some(Element::Integer(0)) = elements.get(2) {
                    self.producers.reordered();
                    let about = |question: &Question| is_about(question, &partition);
                    self.decide_own(&Decision::Go, about);
                    self.settled(&partition, None);
                } else {
                    self.settle(&partition, true, clock);
                }
            }
        }
    }

    fn learn_epoch(&mut self, node: NodeId, history: &str, epoch: i32, later: i32, clock: Clock) {
        let known = self.epochs.get(&node).cloned();
        if known.as_ref().is_none_or(|(_, known)| epoch > *known) {
            if known.is_some() {
                self.producers.reordered();
            }
            self.epochs.insert(node, (history.to_owned(), epoch));
        }
        if epoch < later {
            return self.ask_epoch(node, later, clock.now);
        }
        let is_old = known.is_some() && self.faults.old_epoch;
        let epoch = known.filter(|_| is_old).map_or(epoch, |(_, known)| known);
        self.producers.put_epoch(node, history, epoch);
        self.reading.consumers.put_epoch(node, history, epoch);
        self.epoch_known(node, None);
        self.settle_rest(node, clock);
        self.decide_own(&Decision::Go, |question| matches!(question, Question::Stale { node: of, .. } if *of == node));
    }

    pub fn own_failed(&mut self, purpose: &Purpose, text: &str, clock: Clock) {
        match purpose {
            Purpose::Epoch { node, .. } => {
                self.producers.no_epoch(*node, text, &Known(&self.client, self.lane), clock);
                self.epoch_known(*node, Some(text));
                self.settle_rest(*node, clock);
                let about = |question: &Question| matches!(question, Question::Stale { node: of, .. } if of == node);
                self.decide_own(&Decision::Go, about);
            }
            Purpose::External(partition) => {
                self.settled(partition, Some(text));
                let refusal = Decision::Refuse(Failure::unavailable(text));
                self.decide_own(&refusal, |question| is_about(question, partition));
            }
        }
    }
}

fn is_about(question: &Question, partition: &Partition) -> bool {
    matches!(question, Question::External { partition: of } if of.keys == partition.keys)
}
