//! What happens to a log in a history of the model beside a server, by chance.

use std::sync::Arc;

use korvet_proto::log::{Known, Read};
use korvet_proto::partition::Layout;

use super::compare::{Pair, STREAM, key, words};
use super::model::call::{Batch, Call, Kind};
use super::model::state::{Counters, Producer};
use super::model::stream::{EXACT_MAX, Id, Ids};
use super::model::{Log, Reply, Script, SortedSet};
use super::reading::commands_of;
use super::topics::{TopicOf, partition};

const PRODUCERS: [&str; 4] = ["", "7", "8", "4611686018427387904"];
const TOPICS: [&str; 2] = ["first-topic", "second-topic"];
const STEP_BYTES: i64 = 1 << 20;
const LARGE: i64 = 300_000;

fn texts<const N: usize>(numbers: [i64; N]) -> Vec<Vec<u8>> {
    numbers.map(|number| number.to_string().into_bytes()).to_vec()
}

impl Pair<'_> {
    fn known(&mut self) -> &Log {
        self.model.log(STREAM.as_bytes())
    }

    fn counters(&mut self) -> Counters {
        self.known().state.as_ref().map_or(Counters::EMPTY, |state| state.log)
    }

    fn topic(&mut self) -> Vec<u8> {
        let topic = self.known().state.as_ref().map(|state| state.topic.clone());
        let topic = topic.map(|topic| topic.strip_prefix(b"deleted ").map(<[u8]>::to_vec).unwrap_or(topic));
        topic.filter(|_| !self.dice.is(3)).unwrap_or(TOPICS[0].as_bytes().to_vec())
    }

    fn one_of<V: Copy>(&mut self, values: &[V]) -> V {
        values[self.dice.below(values.len())]
    }

    /// Let one thing happen.
    pub fn act(&mut self) {
        self.model.now_ms += if self.dice.is(3) { -100 } else { self.dice.below(20) as i64 };
        match self.dice.below(100) {
            0..=47 => self.append(),
            48..=54 => self.read(),
            55..=64 => self.put_external(),
            65..=68 => self.delete_entry(),
            69..=75 if self.bits >= 0 => self.renumber(),
            69..=75 => self.expel(),
            76..=83 => self.trim(),
            84..=87 => self.expire(),
            88..=90 => self.ask_epoch(),
            91 => self.leader_epoch += 1,
            92 => self.use_up(),
            93..=95 => self.create(),
            96 => self.clear(),
            97 => self.burst(),
            98 => self.delete_index(),
            _ => self.delete_stream(),
        }
    }

    /// Send what a consumer's read sends.
    fn read(&mut self) {
        let layout = if self.bits < 0 { Layout::Batch } else { Layout::Record { bits: self.bits as u8 } };
        let of = TopicOf { layout, partitions: 1, incarnation: 0, replicas: 0 };
        let mut partition = partition((0, 0), of);
        let named = |name: &str| String::from_utf8(key(name)).unwrap().into_boxed_str();
        partition.keys.stream = STREAM.into();
        (partition.keys.state, partition.keys.aborted) = (named("state"), named("aborted"));
        let Counters { start, next, .. } = self.counters();
        let offset = start.saturating_sub(1).max(0) + self.dice.below((next - start + 3).max(1) as usize) as i64;
        let end = Some(offset + self.dice.below(5) as i64).filter(|_| self.dice.is(20));
        let (entries_max, aborted_max) = (self.dice.below(5) as u32, self.dice.within(1, 4) as u32);
        let partition = Arc::new(partition);
        let read = Read { partition, offset, entries_max, end, is_committed: self.dice.is(50), aborted_max };
        let mut text = Vec::new();
        read.put(&Known::default(), &mut text);
        let mut commands: Vec<Vec<Vec<u8>>> =
            commands_of(&text).iter().map(|words| words.iter().map(|word| word.to_vec()).collect()).collect();
        let least = offset.to_string();
        let most = aborted_max.to_string();
        let aborted = String::from_utf8(key("aborted")).unwrap();
        commands.push(words(&["ZRANGEBYSCORE", &aborted, &least, "+inf", "LIMIT", "0", &most]));
        for command in commands.iter().filter(|command| command.len() > 1) {
            let expected = self.model.query(command);
            self.both(command, &expected);
        }
    }

    fn append(&mut self) {
        let count = if self.dice.is(70) { 1 } else { self.dice.within(2, 6) };
        let batches: Vec<Batch> = (0..count).map(|_| self.batch()).collect();
        let leader_epoch = if self.dice.is(95) { self.leader_epoch } else { self.leader_epoch - 1 };
        let (topic, sent_ms) = (self.topic(), (self.model.now_ms + self.dice.below(50) as i64) as u64);
        let call = Call { topic, leader_epoch, sent_ms, bits: self.bits.max(0) as u8, batches };
        assert_eq!(Call::read(&call.arguments()).as_ref(), Some(&call), "a call is read as it was written");
        let mut keys = vec![STREAM.as_bytes().to_vec(), key("state"), key("index")];
        if call.batches.iter().any(|batch| batch.kind != Kind::Data) {
            keys.extend([key("open"), key("aborted")]);
        }
        let script = if self.bits < 0 { Script::AppendBatch } else { Script::AppendRecord };
        let is_full = self.dice.is(5);
        self.run(script, &keys, &call.arguments(), is_full);
    }

    fn batch(&mut self) -> Batch {
        let producer = self.one_of(&PRODUCERS).as_bytes().to_vec();
        let row = self.known().state.as_ref().and_then(|state| state.producers.get(&producer)).cloned();
        let kinds =
            [Kind::Data, Kind::Data, Kind::Data, Kind::Transaction, Kind::Transaction, Kind::Commit, Kind::Abort];
        let kind = if producer.is_empty() { Kind::Data } else { self.one_of(&kinds) };
        let count = if kind.is_marker() { 1 } else { self.dice.within(1, 5) as u32 };
        let count = if self.dice.is(1) && !kind.is_marker() { 2_100 } else { count };
        let times = [-1, 0, 5, self.model.now_ms, self.model.now_ms - 1_000, 1 << 53, -77];
        let mut batch = Batch {
            epoch: 0,
            sequence: 0,
            count,
            size: if self.dice.is(5) { LARGE as u32 } else { self.dice.within(10, 200) as u32 },
            timestamp: self.one_of(&times),
            kind,
            number: 0,
            fields: 0,
            arguments: Vec::new(),
            producer,
        };
        if let Some(row) = &row {
            self.follow(&mut batch, row);
        } else if !batch.producer.is_empty() {
            batch.epoch = self.dice.below(2) as i16;
            batch.sequence = self.one_of(&[0, 0, 0, 9, i32::MAX as u32 - 1]);
            batch.number = if kind == Kind::Data { 0 } else { self.one_of(&[0, 0, -1, 1, 2]) };
        }
        if kind == Kind::Transaction {
            batch.number = batch.number.max(0);
        }
        self.fill(&mut batch);
        batch
    }

    /// Let a batch be the next one of its producer, one that was sent before, or neither.
    fn follow(&mut self, batch: &mut Batch, row: &Producer) {
        batch.epoch = (row.epoch + self.one_of(&[0, 0, 0, 0, 0, 0, 0, 1, -1])).max(0);
        batch.sequence = if batch.epoch == row.epoch { row.next } else { 0 };
        match self.dice.below(10) {
            0 => batch.sequence = self.dice.below(6) as u32,
            1 | 2 if !row.kept.is_empty() && !batch.kind.is_marker() => {
                let age = self.dice.below(row.kept.len());
                let since: u32 = row.kept[..=age].iter().map(|kept| kept.count).sum();
                batch.sequence = row.next.wrapping_sub(since) % (1 << 31);
                batch.count = row.kept[age].count;
            }
            _ => {}
        }
        let number = row.transaction.map_or(1, |last| last.number);
        let is_open = row.transaction.is_some_and(|last| last.open_from.is_some());
        batch.number = match batch.kind {
            Kind::Data => 0,
            Kind::Transaction if is_open => self.one_of(&[0, 0, 0, number, number + 1, number - 1]),
            Kind::Transaction => self.one_of(&[0, number, number + 1, number + 1, number + 1]),
            _ => self.one_of(&[0, -1, number, number, number + 1, number - 1]),
        };
    }

    /// Give a batch its arguments.
    fn fill(&mut self, batch: &mut Batch) {
        let value = |number: usize| format!("value {number}").into_bytes();
        let letter = self.dice.below(1_000);
        if self.bits < 0 {
            batch.arguments = vec![value(letter)];
            if self.dice.is(20) {
                batch.arguments.push(b"lz4".to_vec());
            }
            return;
        }
        let names = ["value", "timestamp", "key", "header.a"];
        let fields = self.one_of(&[0, 2, 3, 4]);
        batch.fields = fields as u8;
        batch.arguments.extend(names[..fields].iter().map(|name| name.as_bytes().to_vec()));
        for number in 0..batch.count as usize {
            if fields == 0 {
                let pairs = self.dice.within(1, 4);
                batch.arguments.push((2 * pairs).to_string().into_bytes());
                for name in &names[..pairs] {
                    batch.arguments.extend([name.as_bytes().to_vec(), value(letter + number)]);
                }
            } else {
                batch.arguments.extend((0..fields).map(|field| value(letter + number + field)));
            }
        }
    }

    fn external_fields(&mut self) -> Vec<Vec<u8>> {
        let mut fields = words(&["value", "external"]);
        let times =
            ["123", "-5", "later", "9223372036854775808", "-9223372036854775808", "0012", "-", "9007199254740993"];
        for _ in 0..self.dice.below(3) {
            let time = self.one_of(&times);
            fields.extend(words(&["timestamp", time]));
        }
        if self.dice.is(1) {
            fields.extend([b"large".to_vec(), vec![b'x'; 2_500_000]]);
        }
        fields
    }

    /// XADD of another client.
    fn put_external(&mut self) {
        let next = self.counters().next;
        if next > EXACT_MAX - 3_000 {
            // An append that takes entries in where no offsets are left fails in its middle.
            return;
        }
        let last = self.known().stream.as_ref().map_or(Id::ZERO, |stream| stream.last_id);
        let ids = Ids { bits: self.bits };
        let beyond = self.dice.below(5) as i64;
        let now = Id { ms: self.model.now_ms as u64, sequence: self.dice.below(2_000) as u64 };
        let after = Id { sequence: last.sequence.saturating_add(1), ..last };
        let last_of_all = if self.dice.is(5) { Id::LAST } else { now };
        let odd = Id { ms: 1 << 60, sequence: 7 };
        let id =
            self.one_of(&[ids.of_end(next + 1), ids.of_end(next + beyond), after, now, last_of_all, odd, Id::ZERO]);
        let id = if id == odd && !self.dice.is(5) { after } else { id };
        let fields = self.external_fields();
        self.add(id, &fields);
    }

    fn add(&mut self, id: Id, fields: &[Vec<u8>]) {
        let expected = self.model.add_external(STREAM.as_bytes(), id, fields.to_vec());
        let command = [words(&["XADD", STREAM, &id.to_string()]), fields.to_vec()].concat();
        self.both(&command, &expected);
    }

    /// More external entries than one step deals with.
    fn burst(&mut self) {
        if self.counters().next > EXACT_MAX - 3_000 {
            return;
        }
        for _ in 0..self.one_of(&[30, 60, 1_100]) {
            let last = self.known().stream.as_ref().map_or(Id::ZERO, |stream| stream.last_id);
            let id = Id { ms: last.ms, sequence: last.sequence.saturating_add(1) };
            let fields = words(&["value", "external"]);
            self.model.add_external(STREAM.as_bytes(), id, fields.clone());
            self.quietly(&[words(&["XADD", STREAM, &id.to_string()]), fields].concat());
        }
        self.put_external();
    }

    fn delete_entry(&mut self) {
        let ids: Vec<Id> =
            self.known().stream.iter().flat_map(|stream| stream.after(Id::ZERO)).map(|(id, _)| id).collect();
        let last = ids.last().copied();
        let id = if self.dice.is(60) { last } else { self.dice.pick(&ids).copied() };
        let id = id.unwrap_or(Id::LAST);
        let stream = self.model.log(STREAM.as_bytes()).stream.as_mut();
        let count = stream.map_or(0, |stream| stream.delete(&[id]));
        self.both(&words(&["XDEL", STREAM, &id.to_string()]), &Reply::Integer(count as i64));
    }

    /// Whether the stream was deleted, and made again below the log's end: Redis may refuse the XSETID of the scripts for
    /// external entries, which fail then.
    fn is_made_again(&mut self) -> bool {
        let end = Ids { bits: self.bits }.of_end(self.counters().next);
        self.known().stream.as_ref().is_some_and(|stream| stream.last_id < end)
    }

    fn renumber(&mut self) {
        if self.is_made_again() {
            return;
        }
        let keys = ["state", "moving", "index", "share"].map(key);
        let keys = [vec![STREAM.as_bytes().to_vec()], keys.to_vec()].concat();
        let (limit, bytes) = (self.one_of(&[0, 1, 2, 5, 1_000]), self.one_of(&[1, 60, 200, STEP_BYTES]));
        let leader_epoch = self.leader_epoch - i64::from(self.dice.is(5));
        let numbers = texts([leader_epoch, self.bits, limit, bytes]);
        let arguments = [vec![self.topic()], numbers, words(&[STREAM])].concat();
        self.run(Script::Renumber, &keys, &arguments, false);
    }

    fn expel(&mut self) {
        if self.is_made_again() {
            return;
        }
        let limit = self.one_of(&[1, 2, 1_000]);
        let arguments = [vec![self.topic()], texts([limit])].concat();
        self.run(Script::Expel, &[STREAM.as_bytes().to_vec(), key("state")], &arguments, false);
    }

    fn trim(&mut self) {
        let Counters { next, start, .. } = self.counters();
        let within = start + self.dice.below((next - start + 1) as usize) as i64;
        let new_start = self.one_of(&[-1, within, within, within, next, EXACT_MAX.min(next + 1)]);
        let first_record = self.one_of(&[-1, new_start, new_start + 3]);
        let (limit, bytes) = (self.one_of(&[1, 2, 100]), self.one_of(&[0, 500, STEP_BYTES]));
        let keys = ["state", "index", "clean:0", "clean:1", "aborted"].map(key);
        let keys = [vec![STREAM.as_bytes().to_vec()], keys.to_vec()].concat();
        let numbers = texts([self.bits, new_start, first_record, limit, bytes]);
        let arguments = [vec![self.topic()], numbers].concat();
        self.run(Script::Trim, &keys, &arguments, false);
    }

    fn expire(&mut self) {
        let now_ms = self.model.now_ms + self.one_of(&[0, 30, -30]);
        let silence = self.one_of(&[0, 20, 100, 10_000]);
        let arguments = texts([0, 100_000, now_ms, silence]);
        self.run(Script::Expire, &[key("state")], &arguments, false);
    }

    fn ask_epoch(&mut self) {
        let name = b"epoch".to_vec();
        if self.dice.is(40) {
            // As after a failover.
            if let Some(held) = self.model.epochs.get_mut(&name) {
                "another".clone_into(&mut held.history);
                self.both(&words(&["HSET", "epoch", "history", "another"]), &Reply::Integer(0));
            }
        }
        let stored = self.model.epochs.get(&name).map_or(0, |held| held.epoch);
        let floor = self.one_of(&[-1, stored, stored - 1, stored + 1, i64::from(i32::MAX)]);
        let floor = if floor == i64::from(i32::MAX) && self.dice.is(80) { 0 } else { floor };
        let history = self.model.history.clone();
        let floor_history = self.one_of(&[history.as_str(), "", "another"]);
        let arguments = [texts([floor]), words(&[floor_history])].concat();
        self.run(Script::Epoch, &[name], &arguments, false);
    }

    /// Create the partition, of this topic or another one.
    pub fn create(&mut self) {
        let sides = ["state", "index", "moving", "clean:0", "clean:1", "open", "aborted", "share"].map(key);
        let keys = [sides.to_vec(), vec![STREAM.as_bytes().to_vec()]].concat();
        let is_new = self.known().state.is_none() || self.dice.is(10);
        let topic = if is_new { self.one_of(&TOPICS).as_bytes().to_vec() } else { self.topic() };
        let known = self.known().state.as_ref().map_or(1, |state| state.claim);
        let claim = known + self.one_of(&[0, 1, -1]);
        let until = self.model.now_ms + if self.dice.is(5) { -1 } else { 1_000 };
        if self.bits < 0 && self.known().state.is_none() && self.dice.is(80) {
            self.delete_stream();
        }
        let kind = if self.bits < 0 { "refuse" } else { "adopt" };
        let arguments = [vec![topic], texts([claim, until]), words(&[kind])].concat();
        self.run(Script::Create, &keys, &arguments, false);
    }

    fn clear(&mut self) {
        let sides = ["index", "moving", "clean:0", "clean:1", "open", "aborted", "share"].map(key);
        let keys = [vec![key("state"), STREAM.as_bytes().to_vec()], sides.to_vec()].concat();
        let topic = self.topic();
        for _ in 0..self.dice.within(1, 4) {
            let (entries, bytes) = (self.one_of(&[1, 2, 1_000]), self.one_of(&[1, 300, STEP_BYTES]));
            let arguments = [vec![topic.clone()], texts([entries, bytes]), words(&[STREAM])].concat();
            self.run(Script::Clear, &keys, &arguments, false);
        }
        self.create();
    }

    /// Let nearly all offsets be used.
    fn use_up(&mut self) {
        let (next, ids) = (EXACT_MAX - self.dice.within(1, 20) as i64, Ids { bits: self.bits });
        if !self.dice.is(20) {
            return;
        }
        let log = self.model.log(STREAM.as_bytes());
        let (Some(state), Some(stream)) = (log.state.as_mut(), log.stream.as_mut()) else { return };
        let id = ids.of_end(next);
        if stream.set_id(id, None, None).is_err() {
            return;
        }
        state.log.next = next;
        let packed = state.log.packed();
        self.quietly(&words(&["XSETID", STREAM, &id.to_string()]));
        let command = [words(&["HSET"]), vec![key("state"), b"log".to_vec(), packed]].concat();
        self.both(&command, &Reply::Integer(0));
    }

    fn delete_index(&mut self) {
        let index = &mut self.model.log(STREAM.as_bytes()).index;
        let count = i64::from(!index.is_empty());
        *index = SortedSet::default();
        self.both(&[b"DEL".to_vec(), key("index")], &Reply::Integer(count));
    }

    fn delete_stream(&mut self) {
        let count = i64::from(self.model.log(STREAM.as_bytes()).stream.take().is_some());
        self.both(&words(&["DEL", STREAM]), &Reply::Integer(count));
    }
}
