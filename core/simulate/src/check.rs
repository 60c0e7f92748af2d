//! Checks if the commands that servers ran and the answers of callers can both be true.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use korvet_proto::client::Prevented;
use korvet_proto::pipeline::Time;

use crate::plan::{Kind, Name, Plan, TAGS, sha};

/// So often a command is sent again at the most: it waits the longer the more often it was refused.
const REFUSALS_MAX: usize = 60;
/// It is told so often at the most within `HASTE` that its slot is elsewhere.
const ELSEWHERE_MAX: usize = 5;
const HASTE: Time = Time::from_millis(100);

/// What a caller was told about a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Reply(Vec<u8>),
    Prevented(Prevented, String),
}

/// What a server last said to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Nothing,
    /// It was run.
    Ran(Vec<u8>),
    /// It is run with EXEC.
    Queued(Vec<u8>),
    /// It was not run.
    Refused(Vec<u8>),
}

#[derive(Debug)]
struct Command {
    said: Said,
    runs: usize,
    refusals: usize,
    /// When it was told to go elsewhere, of the last times.
    elsewhere: VecDeque<Time>,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
struct Call {
    plan: Rc<Plan>,
    commands: Vec<Command>,
    is_finished: bool,
    /// How often the map had changed when it was asked for.
    maps: usize,
    /// By the clock of the worker.
    asked_at: Time,
}

/// The last run of a lane at a slot.
#[derive(Clone, Copy, Debug)]
struct Last {
    name: Name,
    wire: usize,
}

#[derive(Debug, Default)]
struct Order {
    small: Option<Last>,
    large: Option<Last>,
}

#[derive(Debug, Default)]
pub(crate) struct Of {
    calls: Vec<Call>,
    /// By lane and slot.
    orders: Vec<[Order; TAGS]>,
}

/// All that was asked, run and told.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub failure: Option<String>,
    pub workers: Vec<Of>,
    /// Changes with where slots are, and with what a client believes.
    pub maps: usize,
    pub finished: usize,
    /// The clock of a worker has jumped.
    pub has_jumped: bool,
    /// Nothing fails.
    pub is_calm: bool,
    pub is_cluster: bool,
    /// How long pieces follow their slots.
    pub timeout: Time,
    /// How often what happened.
    pub seen: BTreeMap<String, usize>,
}

impl Ledger {
    pub fn fail(&mut self, text: impl Into<String>) {
        if self.failure.is_none() {
            self.failure = Some(text.into());
        }
    }

    pub fn see(&mut self, what: &str) {
        match self.seen.get_mut(what) {
            Some(count) => *count += 1,
            None => drop(self.seen.insert(what.to_owned(), 1)),
        }
    }

    pub fn add_worker(&mut self, lanes: usize) {
        let orders = (0..lanes).map(|_| Default::default()).collect();
        self.workers.push(Of { calls: Vec::new(), orders });
    }

    pub fn ask(&mut self, plan: &Rc<Plan>, now: Time) {
        let command =
            |_: usize| Command { said: Said::Nothing, runs: 0, refusals: 0, elsewhere: VecDeque::new(), outcome: None };
        let commands = (0..plan.places.len()).map(command).collect();
        let call = Call { plan: plan.clone(), commands, is_finished: false, maps: self.maps, asked_at: now };
        self.workers[plan.worker].calls.push(call);
    }

    pub fn next_number(&self, worker: usize) -> usize {
        self.workers[worker].calls.len()
    }

    fn command(&mut self, name: Name) -> Option<&mut Command> {
        self.workers.get_mut(name.worker)?.calls.get_mut(name.call)?.commands.get_mut(name.place)
    }

    // --- what servers say

    pub fn plan(&self, name: Name) -> Option<Rc<Plan>> {
        Some(self.workers.get(name.worker)?.calls.get(name.call)?.plan.clone())
    }

    pub fn refused(&mut self, name: Name, reply: &[u8], now: Time) {
        let Some(command) = self.command(name) else { return self.fail(format!("{name} is nobody's")) };
        command.refusals += 1;
        let refusals = command.refusals;
        let mut is_hasty = false;
        if [&b"-MOVED"[..], b"-ASK", b"-TRYAGAIN"].iter().any(|word| reply.starts_with(word)) {
            command.elsewhere.push_back(now);
            if command.elsewhere.len() > ELSEWHERE_MAX {
                is_hasty = command.elsewhere.pop_front().is_some_and(|first| now < first + HASTE);
            }
        }
        command.said = Said::Refused(reply.to_vec());
        let word = reply.get(1..).unwrap_or_default().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        self.see(&String::from_utf8_lossy(word));
        if is_hasty && !self.has_jumped {
            self.fail(format!("{name} was sent {ELSEWHERE_MAX} times within {HASTE:?}"));
        }
        if refusals > REFUSALS_MAX {
            self.fail(format!("{name} was sent {refusals} times, and always refused"));
        }
    }

    pub fn queued(&mut self, name: Name, reply: &[u8]) {
        let Some(command) = self.command(name) else { return self.fail(format!("{name} is nobody's")) };
        command.said = Said::Queued(reply.to_vec());
    }

    /// Note the answer to MULTI or EXEC, or to a command that has counted.
    pub fn answered(&mut self, name: Name, reply: &[u8]) {
        let Some(command) = self.command(name) else { return self.fail(format!("{name} is nobody's")) };
        command.said = Said::Ran(reply.to_vec());
    }

    /// Note that a command was run that came over a wire.
    pub fn run(&mut self, name: Name, wire: usize, wire_is_closed: bool, histories: &[String]) {
        self.see("ran");
        let maps = self.maps;
        let Some(of) = self.workers.get_mut(name.worker) else { return };
        let Some(call) = of.calls.get_mut(name.call) else { return };
        let (plan, asked_maps) = (call.plan.clone(), call.maps);
        let Some(command) = call.commands.get_mut(name.place) else { return };
        command.runs += 1;
        let runs = command.runs;
        let (first, last) = plan.transaction(name.place).unwrap_or((name.place, name.place));
        let refusals: usize = call.commands[first..=last].iter().map(|command| command.refusals).sum();
        let place = plan.places[name.place];
        let order = &mut of.orders[plan.lane][place.tag];
        let is_large = plan.reply_bytes > 0;
        let before = if is_large { [order.large, None] } else { [order.small, order.large] };
        let has_order = place.kind != Kind::Time;
        let overtaken = before.into_iter().flatten().find(|last| last.name > name);
        let newest = if is_large { &mut order.large } else { &mut order.small };
        if has_order && newest.is_none_or(|last| last.name < name) {
            *newest = Some(Last { name, wire });
        }
        if runs > 1 {
            self.fail(format!("{name} ran {runs} times"));
        }
        let is_moved = refusals > 0 || asked_maps != maps || !has_order;
        if let Some(last) = overtaken.filter(|last| !is_moved && (!wire_is_closed || last.wire == wire)) {
            self.fail(format!("{name} ran after {} of the same lane and slot", last.name));
        }
        if plan.history.as_ref().is_some_and(|wanted| !histories.contains(wanted)) {
            self.fail(format!("{name} ran in the histories {histories:?}, and was for another one"));
        }
    }

    // --- what callers are told

    fn call(&mut self, plan: &Plan, what: &str) -> Option<&mut Call> {
        let number = plan.number;
        if self.is_finished(plan.worker, number) {
            self.fail(format!("{what} of the call {}.{number}, which is finished", plan.worker));
            return None;
        }
        self.workers.get_mut(plan.worker)?.calls.get_mut(number)
    }

    pub fn reply(&mut self, plan: &Plan, place: usize, reply: &[u8]) {
        let Some(call) = self.call(plan, "a reply") else { return };
        match call.commands.get_mut(place) {
            Some(command) => command.outcome = Some(Outcome::Reply(reply.to_vec())),
            None => self.fail(format!("a reply at the place {place} of {}.{}", plan.worker, plan.number)),
        }
    }

    pub fn prevented(&mut self, plan: &Plan, first: usize, count: usize, kind: Prevented, text: &str) {
        let Some(call) = self.call(plan, "an outcome") else { return };
        let Some(commands) = call.commands.get_mut(first..first + count) else {
            return self.fail(format!("an outcome at {first}..{} of {}.{}", first + count, plan.worker, plan.number));
        };
        for command in commands {
            command.outcome = Some(Outcome::Prevented(kind, text.to_owned()));
        }
        self.see(&format!("{kind:?}"));
    }

    pub fn finish(&mut self, plan: &Plan, now: Time) {
        self.finished += 1;
        let Some(call) = self.call(plan, "the end") else { return };
        call.is_finished = true;
        let took = now.saturating_sub(call.asked_at);
        self.check_call(plan.worker, plan.number);
        self.check_effort(plan, took);
    }

    /// Whether enough was done for a call before its caller was told why it did not run.
    fn check_effort(&mut self, plan: &Plan, took: Time) {
        let (timeout, is_calm) = (self.timeout, self.is_calm);
        let commands = &self.workers[plan.worker].calls[plan.number].commands;
        let mut problem = None;
        for (place, command) in commands.iter().enumerate() {
            let follows = self.is_cluster && plan.node.is_none();
            let is_wrong = match &command.outcome {
                Some(Outcome::Reply(reply)) => {
                    let is_elsewhere =
                        [&b"-MOVED"[..], b"-ASK", b"-TRYAGAIN"].iter().any(|word| reply.starts_with(word));
                    let is_missing = reply.starts_with(b"-NOSCRIPT") && plan.is_rerun;
                    // A command to the receiver waits behind earlier ones, which may need keys of both.
                    let is_hard = plan.places[place].kind == Kind::Pair
                        || plan.transaction(place).is_some()
                        || reply.starts_with(b"-ASK");
                    follows && is_elsewhere && (took < timeout || is_calm && !is_hard) || is_calm && is_missing
                }
                Some(Outcome::Prevented(kind, _)) => is_calm && *kind != Prevented::History,
                None => false,
            };
            if is_wrong {
                let name = plan.name(place);
                problem = Some(format!("{name} has {:?} after {took:?}", command.outcome));
            }
        }
        if let Some(problem) = problem {
            self.fail(problem);
        }
    }

    /// Whether what the caller was told can be true.
    fn check_call(&mut self, worker: usize, number: usize) {
        let call = &self.workers[worker].calls[number];
        let plan = call.plan.clone();
        let mut problems = Vec::new();
        for (place, command) in call.commands.iter().enumerate() {
            let name = plan.name(place);
            let Some(outcome) = &command.outcome else {
                problems.push(format!("{name} has no outcome"));
                continue;
            };
            let runs = command.runs;
            let problem = match outcome {
                Outcome::Prevented(Prevented::Unknown, _) => (runs > 1).then(|| format!("{name} ran {runs} times")),
                Outcome::Prevented(kind, text) => {
                    (runs > 0).then(|| format!("{name} ran, and its caller was told {kind:?}: {text}"))
                }
                Outcome::Reply(reply) => reply_problem(&plan, place, command, reply),
            };
            problems.extend(problem);
            problems.extend(transaction_problem(&plan, place, &call.commands));
        }
        if let Some(problem) = problems.into_iter().next() {
            self.fail(problem);
        }
    }

    /// At the end of a history each call has its outcome, and that is still true.
    pub fn check_all(&mut self) {
        for worker in 0..self.workers.len() {
            for number in 0..self.workers[worker].calls.len() {
                if self.workers[worker].calls[number].is_finished {
                    self.check_call(worker, number);
                } else {
                    self.fail(format!("the call {worker}.{number} has no end"));
                }
            }
        }
    }

    pub fn is_finished(&self, worker: usize, number: usize) -> bool {
        self.workers[worker].calls[number].is_finished
    }

    /// Whether a call has replies of commands that were run, and nothing else.
    pub fn has_run(&self, worker: usize, number: usize) -> bool {
        let call = &self.workers[worker].calls[number];
        call.is_finished
            && call
                .commands
                .iter()
                .all(|command| matches!(&command.outcome, Some(Outcome::Reply(_))) && command.runs == 1)
    }

    pub fn outcomes(&self, worker: usize, number: usize) -> String {
        let call = &self.workers[worker].calls[number];
        let shown = |command: &Command| match &command.outcome {
            Some(Outcome::Reply(reply)) => String::from_utf8_lossy(&reply[..reply.len().min(60)]).into_owned(),
            other => format!("{other:?}"),
        };
        call.commands.iter().map(shown).collect::<Vec<_>>().join(", ")
    }
}

fn reply_problem(plan: &Plan, place: usize, command: &Command, reply: &[u8]) -> Option<String> {
    let (name, runs) = (plan.name(place), command.runs);
    if let Kind::Script(script) = plan.places[place].kind {
        let of_load = [false, true].map(|is_full| bad_script(&sha(script, is_full)));
        if of_load.iter().any(|text| text == reply) {
            return (runs > 0).then(|| format!("{name} ran, and its caller was told that it does not compile"));
        }
    }
    let (said, expected) = match &command.said {
        Said::Ran(said) => (said, Some(1)),
        Said::Refused(said) => (said, Some(0)),
        Said::Queued(said) => (said, None),
        Said::Nothing => return Some(format!("{name} has a reply, and no server gave one")),
    };
    if said != reply {
        let [got, said] = [reply, said].map(|text| String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned());
        return Some(format!("{name} has the reply {got:?}, and the server said {said:?}"));
    }
    let is_run = !matches!(plan.places[place].kind, Kind::Multi | Kind::Exec);
    let expected = expected.filter(|_| is_run)?;
    (runs != expected)
        .then(|| format!("{name} ran {runs} times, and its caller has {:?}", String::from_utf8_lossy(reply)))
}

/// What is wrong if the commands between MULTI and EXEC were not run together.
fn transaction_problem(plan: &Plan, place: usize, commands: &[Command]) -> Option<String> {
    if plan.places[place].kind != Kind::Exec {
        return None;
    }
    let (first, last) = plan.transaction(place)?;
    let runs: Vec<usize> = commands[first + 1..last].iter().map(|command| command.runs).collect();
    let exec = &commands[last];
    let expected = match (&exec.outcome, &exec.said) {
        (Some(Outcome::Reply(_)), Said::Ran(_)) => Some(1),
        (Some(Outcome::Reply(_)), _) => Some(0),
        _ => None,
    };
    let is_whole = runs.iter().all(|count| Some(count) == runs.first());
    let is_right = is_whole && (expected.is_none() || runs.is_empty() || runs.first().copied() == expected);
    (!is_right)
        .then(|| format!("the transaction at {} ran {runs:?} times, and EXEC has {:?}", plan.name(first), exec.outcome))
}

/// The answer to SCRIPT LOAD of a script that cannot be compiled.
pub(crate) fn bad_script(sha: &str) -> Vec<u8> {
    format!("-ERR Error compiling script: {sha}\r\n").into_bytes()
}
