//! One connection between many callers and a server that counts, with everything that a network and a clock do.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use korvet_proto::pipeline::{Due, Limits, Owner, Packed, Pipeline, Request, Time};
use korvet_proto::resp::{Element, Elements, Inbox, put_argument, put_count};
use proptest::collection::vec;
use proptest::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(1);
const LIMITS: Limits =
    Limits { commands_max: 8, bytes_max: 4_000, reply_bytes_max: 100, timeout: TIMEOUT, silence: Some(SILENCE) };

type Token = usize;
type Link = Pipeline<Token, Vec<u8>>;

fn at(milliseconds: u64) -> Time {
    Duration::from_millis(milliseconds)
}

/// Commands that say whose they are, each with a payload that stays where it is.
fn packed(token: Token, count: usize, payload_bytes: usize) -> Packed<Vec<u8>> {
    let mut packed = Packed::default();
    for index in 0..count {
        put_count(&mut packed.text, 3);
        put_argument(&mut packed.text, b"COUNT");
        put_argument(&mut packed.text, format!("{token}.{index}").as_bytes());
        packed.put_payload(vec![b'p'; payload_bytes]);
    }
    packed
}

fn request(token: Token, count: usize, deadline: Time) -> Request<Token, Vec<u8>> {
    Request { token, packed: packed(token, count, 10), count, deadline, reply_bytes: 0 }
}

fn link() -> Link {
    Pipeline::new(LIMITS, at(0))
}

fn all_unwritten(link: &Link) -> Vec<u8> {
    link.unwritten().collect::<Vec<_>>().concat()
}

/// A server that answers each command with the name of the command and how many it ran before.
#[derive(Default)]
struct Server {
    inbox: Inbox,
    ran: Vec<String>,
    /// Answers on their way.
    answers: Vec<u8>,
}

impl Server {
    fn take(&mut self, bytes: &[u8]) {
        self.inbox.room(bytes.len()).unwrap().extend_from_slice(bytes);
        while let Some(range) = self.inbox.next_reply().unwrap() {
            let words: Vec<_> = Elements::of(&self.inbox.bytes()[range]).collect();
            let Element::Bulk(name) = words[2] else { panic!("a command has no name") };
            let name = String::from_utf8(name.to_vec()).unwrap();
            self.answers.extend(format!("+{name}={}\r\n", self.ran.len()).bytes());
            self.ran.push(name);
        }
    }
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Replies(Vec<String>),
    GivenUp,
    Lost,
}

#[derive(Clone, Debug)]
enum Step {
    Ask { count: usize, payload_bytes: usize, reply_bytes: usize, timeout_ms: u64 },
    Write(usize),
    Answer(usize),
    Clock(i64),
    Lose,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ask = (1_usize..4, 0_usize..3_000, prop::sample::select(vec![0, 0, 60]), 1_u64..20_000).prop_map(
        |(count, payload_bytes, reply_bytes, timeout_ms)| Step::Ask { count, payload_bytes, reply_bytes, timeout_ms },
    );
    let step = prop_oneof![
        6 => ask,
        6 => (1_usize..5_000).prop_map(Step::Write),
        6 => (1_usize..60).prop_map(Step::Answer),
        2 => (-3_000_i64..12_000).prop_map(Step::Clock),
        1 => Just(Step::Lose),
    ];
    vec(step, 1..200)
}

/// One history: a link, a server, and what was reported to each caller.
struct World {
    link: Link,
    inbox: Inbox,
    server: Server,
    now_ms: i64,
    asked: BTreeMap<Token, usize>,
    parts: Vec<String>,
    outcomes: BTreeMap<Token, Outcome>,
    commands: Vec<String>,
    late: BTreeSet<Token>,
    is_lost: bool,
}

impl World {
    fn new() -> Self {
        Self {
            link: link(),
            inbox: Inbox::default(),
            server: Server::default(),
            now_ms: 0,
            asked: BTreeMap::new(),
            parts: Vec::new(),
            outcomes: BTreeMap::new(),
            commands: Vec::new(),
            late: BTreeSet::new(),
            is_lost: false,
        }
    }

    fn now(&self) -> Time {
        at(self.now_ms.unsigned_abs())
    }

    fn report(&mut self, token: Token, outcome: Outcome) {
        assert_eq!(self.outcomes.insert(token, outcome), None, "{token} has two outcomes");
    }

    fn lose(&mut self) {
        self.is_lost = true;
        for token in self.link.lose() {
            self.report(token, Outcome::Lost);
        }
        assert_eq!(self.link.lose(), []);
        assert_eq!((self.link.under_way(), self.link.due(), self.link.pieces()), ((0, 0, 0), None, 0));
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Ask { count, payload_bytes, reply_bytes, timeout_ms } => {
                let had_room = self.link.has_room(*reply_bytes);
                if !had_room {
                    return;
                }
                let token = self.asked.len();
                self.asked.insert(token, *count);
                self.commands.extend((0..*count).map(|index| format!("{token}.{index}")));
                let packed = packed(token, *count, *payload_bytes);
                let deadline = self.now() + at(*timeout_ms);
                let (count, reply_bytes) = (*count, *reply_bytes);
                self.link.push(Request { token, packed, count, deadline, reply_bytes }, self.now());
            }
            Step::Write(size) => {
                let bytes = all_unwritten(&self.link);
                let taken = (*size).min(bytes.len());
                self.server.take(&bytes[..taken]);
                self.link.wrote(taken);
            }
            Step::Answer(size) => {
                let taken = (*size).min(self.server.answers.len());
                let bytes: Vec<u8> = self.server.answers.drain(..taken).collect();
                self.receive(&bytes);
            }
            Step::Clock(change_ms) => {
                self.now_ms = (self.now_ms + change_ms).max(0);
                self.tick();
            }
            Step::Lose => self.lose(),
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.link.heard(self.now());
        self.inbox.room(bytes.len()).unwrap().extend_from_slice(bytes);
        while let Some(range) = self.inbox.next_reply().unwrap() {
            let Some(Element::Simple(line)) = Elements::of(&self.inbox.bytes()[range]).next() else {
                panic!("an answer is no status")
            };
            let line = String::from_utf8(line.to_vec()).unwrap();
            match self.link.answer(self.now()) {
                Owner::Part { token, index } => {
                    assert_eq!(index, self.parts.len());
                    assert!(line.starts_with(&format!("{token}.{index}=")));
                    self.parts.push(line);
                }
                Owner::Dropped => self.parts.clear(),
                Owner::Nobody => panic!("nobody asked for {line}"),
                Owner::Last(answered) if answered.has_given_up => {
                    self.parts.clear();
                    assert!(self.late.remove(&answered.token));
                }
                Owner::Last(answered) => {
                    self.parts.push(line);
                    assert_eq!(answered.count, self.parts.len());
                    let replies = std::mem::take(&mut self.parts);
                    self.report(answered.token, Outcome::Replies(replies));
                }
            }
        }
    }

    fn tick(&mut self) {
        let (now, mut late) = (self.now(), Vec::new());
        if self.link.due().is_none_or(|due| due > now) {
            return;
        }
        match self.link.tick(now, |token| late.push(*token)) {
            Due::Loss => self.lose(),
            Due::Nothing | Due::Silence => {
                assert!(self.link.due().is_none_or(|due| due > now), "it is due again at once");
            }
        }
        for token in late {
            self.late.insert(token);
            self.report(token, Outcome::GivenUp);
        }
    }

    fn check(&self) {
        // Each was run at most once, in the order of asking.
        assert_eq!(self.server.ran[..], self.commands[..self.server.ran.len()]);
        for (token, outcome) in &self.outcomes {
            if let Outcome::Replies(replies) = outcome {
                let own: Vec<String> = (0..self.asked[token])
                    .map(|index| format!("{token}.{index}"))
                    .map(|name| format!("{name}={}", self.server.ran.iter().position(|ran| *ran == name).unwrap()))
                    .collect();
                assert_eq!(*replies, own);
            }
        }
        let (commands, bytes, reply_bytes) = self.link.under_way();
        assert!(commands < 8 + 3 && bytes < 4_000 + 9_300 && reply_bytes < 100 + 60);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_command_runs_at_most_once_and_each_answer_reaches_who_asked(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check();
            if world.is_lost {
                break;
            }
        }
        if !world.is_lost {
            world.step(&Step::Write(usize::MAX));
            world.step(&Step::Answer(usize::MAX));
            prop_assert_eq!(world.link.under_way(), (0, 0, 0));
            prop_assert!(world.link.is_idle());
            prop_assert_eq!(world.late.len(), 0);
            world.check();
        }
        // Each caller has an outcome.
        prop_assert_eq!(world.outcomes.len(), world.asked.len());
    }

    #[test]
    fn pieces_are_written_in_order_however_few_bytes_the_kernel_takes(
        sizes in vec((1_usize..3, 0_usize..200), 1..9), taken in vec(1_usize..50, 1..9)
    ) {
        let (mut link, mut expected, mut written) = (link(), Vec::new(), Vec::<u8>::new());
        let mut taken = taken.into_iter().cycle();
        for (token, (count, payload_bytes)) in sizes.into_iter().enumerate() {
            let packed = packed(token, count, payload_bytes);
            expected.extend(packed.joined());
            link.push(Request { token, packed, count, deadline: at(1), reply_bytes: 0 }, at(0));
            let bytes = all_unwritten(&link);
            let size = taken.next().unwrap().min(bytes.len());
            written.extend(&bytes[..size]);
            link.wrote(size);
        }
        while link.pieces() > 0 {
            prop_assert!(link.unwritten().all(|piece| !piece.is_empty()));
            let bytes = all_unwritten(&link);
            let size = taken.next().unwrap().min(bytes.len());
            written.extend(&bytes[..size]);
            link.wrote(size);
        }
        prop_assert_eq!(written, expected);
    }
}

#[test]
fn small_commands_are_one_piece_and_payloads_are_never_joined() {
    let mut link = link();
    for token in 0..3 {
        let mut packed = Packed::default();
        put_count(&mut packed.text, 1);
        put_argument(&mut packed.text, b"PING");
        link.push(Request { token, packed, count: 1, deadline: at(1), reply_bytes: 0 }, at(0));
    }
    assert_eq!(link.pieces(), 1);
    link.push(request(3, 1, at(1)), at(0));
    assert_eq!(link.pieces(), 3);
}

#[test]
fn the_request_that_reaches_a_limit_may_exceed_it() {
    let mut link = link();
    link.push(request(0, 7, at(1)), at(0));
    assert!(link.has_room(0));
    link.push(request(1, 7, at(1)), at(0));
    assert!(!link.has_room(0));
    let mut link = self::link();
    link.push(Request { reply_bytes: 5_000, ..request(0, 1, at(1)) }, at(0));
    assert!(link.has_room(0) && !link.has_room(1) && !link.has_reply_room());
}

#[test]
fn a_request_that_is_due_is_given_up_once_and_its_answer_dropped() {
    let (mut link, mut late) = (link(), Vec::new());
    link.push(request(0, 2, at(500)), at(0));
    link.push(request(1, 1, at(9_000)), at(0));
    assert_eq!(link.due(), Some(at(500)));
    assert_eq!(link.tick(at(500), |token| late.push(*token)), Due::Nothing);
    assert_eq!(link.tick(at(600), |token| late.push(*token)), Due::Nothing);
    assert_eq!(late, [0]);
    assert_eq!(link.answer(at(700)), Owner::Dropped);
    let Owner::Last(answered) = link.answer(at(700)) else { panic!("it is the last") };
    assert!(answered.has_given_up && answered.took == at(700));
    assert!(matches!(link.answer(at(800)), Owner::Last(answered) if answered.token == 1));
    assert_eq!(link.answer(at(800)), Owner::Nobody);
}

#[test]
fn silence_is_reported_as_long_as_it_lasts_and_ends_the_connection_after_a_timeout() {
    let (mut link, nobody) = (link(), |_: &Token| panic!("it is not due"));
    link.push(request(0, 1, at(10_000)), at(0));
    assert_eq!(link.due(), Some(at(1_000)));
    assert_eq!(link.tick(at(1_000), nobody), Due::Silence);
    link.heard(at(1_500));
    assert_eq!(link.tick(at(2_000), nobody), Due::Nothing);
    assert_eq!(link.tick(at(3_000), nobody), Due::Silence);
    link.heard(at(3_000));
    let mut late = Vec::new();
    // It is due, but something was heard within the timeout.
    assert_eq!(link.tick(at(12_000), |token| late.push(*token)), Due::Silence);
    assert_eq!(late, [0]);
    assert_eq!(link.tick(at(13_000), |_| panic!("it was given up before")), Due::Loss);
    // It was reported before, and is not again.
    assert_eq!(link.lose(), []);
}

#[test]
fn an_idle_connection_is_not_silent_and_nothing_is_due() {
    let mut link = link();
    link.push(request(0, 1, at(10_000)), at(0));
    assert!(matches!(link.answer(at(1)), Owner::Last(_)));
    assert_eq!(link.tick(at(60_000), |_| panic!("nobody waits")), Due::Nothing);
    assert_eq!(link.due(), None);
}

#[test]
fn a_clock_that_goes_back_is_no_time_at_all() {
    let mut link = link();
    link.push(request(0, 1, at(90_000)), at(80_000));
    assert_eq!(link.tick(at(1_000), |_| panic!("it is not due")), Due::Nothing);
    assert!(matches!(link.answer(at(2_000)), Owner::Last(answered) if answered.took == Duration::ZERO));
}
