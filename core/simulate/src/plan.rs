//! What callers ask for: calls of commands that say whose they are.

use std::fmt::{self, Display};

use korvet_proto::client::{Caller, LaneId, NodeId, Piece, SLOTS, Span, slot_of};
use korvet_proto::pipeline::Packed;
use korvet_proto::resp::{put_argument, put_count};

/// So many slots are used, each with two keys.
pub(crate) const TAGS: usize = 8;
/// A script that the server cannot compile.
pub(crate) const BAD_SCRIPT: usize = 5;
pub(crate) const SCRIPTS: usize = 6;

/// Whose a command is: the worker, its call, and the place in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub worker: usize,
    pub call: usize,
    pub place: usize,
}

impl Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "#{}.{}.{}#", self.worker, self.call, self.place)
    }
}

impl Name {
    pub fn parsed(text: &str) -> Option<Self> {
        let mut numbers = text.strip_prefix('#')?.strip_suffix('#')?.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self { worker: next()?, call: next()?, place: next()? })
    }
}

/// A command by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Counts, at one key.
    Count,
    /// Counts, at both keys of a slot.
    Pair,
    /// Runs, and answers with an error.
    Fail,
    /// Answers with so many bytes.
    Blob(usize),
    /// Counts, and has so large an argument.
    Large(usize),
    /// Has no key.
    Time,
    Multi,
    Exec,
    /// The script of a number.
    Script(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub kind: Kind,
    /// Which slot, and which of its two keys.
    pub tag: usize,
    pub is_second: bool,
}

pub(crate) fn key(tag: usize, is_second: bool) -> String {
    format!("{{t{tag}}}{}", if is_second { "y" } else { "x" })
}

pub(crate) fn slot(tag: usize) -> u16 {
    slot_of(key(tag, false).as_bytes()) % SLOTS
}

/// The name of a script's text.
pub(crate) fn sha(script: usize, is_full: bool) -> String {
    format!("{}{script}", if is_full { "full" } else { "script" })
}

pub(crate) fn has_full(script: usize) -> bool {
    script % 2 == 0
}

/// What one caller asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub worker: usize,
    pub number: usize,
    pub lane: LaneId,
    pub node: Option<NodeId>,
    pub places: Vec<Place>,
    pub is_scripts: bool,
    pub is_rerun: bool,
    pub reply_bytes: usize,
    pub history: Option<String>,
    /// For a map of the cluster, and for no lane.
    pub is_map: bool,
}

impl Plan {
    pub fn name(&self, place: usize) -> Name {
        Name { worker: self.worker, call: self.number, place }
    }

    /// MULTI and EXEC of the transaction at a place, if it is in one.
    pub fn transaction(&self, place: usize) -> Option<(usize, usize)> {
        let first = (0..=place).rev().find(|place| self.places[*place].kind == Kind::Multi)?;
        let last = (first..self.places.len()).find(|place| self.places[*place].kind == Kind::Exec)?;
        (place <= last).then_some((first, last))
    }

    /// Its pieces in a cluster.
    pub fn spans(&self) -> Vec<Span> {
        let (mut spans, mut first) = (Vec::new(), 0);
        while first < self.places.len() {
            let count = self.transaction(first).map_or(1, |(_, last)| last + 1 - first);
            spans.push(Span { first, count, slot: Some(slot(self.places[first].tag)) });
            first += count;
        }
        spans
    }

    /// The bytes of a piece.
    pub fn packed(&self, piece: &Piece, lease_end_ms: i64) -> Packed<Vec<u8>> {
        let mut packed = Packed::default();
        for place in piece.first..piece.first + piece.count {
            let Place { kind, tag, is_second } = self.places[place];
            let name = self.name(place).to_string();
            if let (Kind::Script(script), true) = (kind, piece.way.loads) {
                put(&mut packed, &["SCRIPT", "LOAD", &format!("text of {}", sha(script, piece.way.is_full))]);
            }
            if piece.way.asks && place == piece.first {
                put(&mut packed, &["ASKING", &name]);
            }
            let key = key(tag, is_second);
            match kind {
                Kind::Large(size) => {
                    // A payload that stays where it is.
                    put_count(&mut packed.text, 4);
                    put_argument(&mut packed.text, b"COUNT");
                    put_argument(&mut packed.text, key.as_bytes());
                    packed.put_payload(name.into_bytes());
                    packed.put_payload(vec![b'p'; size]);
                }
                Kind::Count => put(&mut packed, &["COUNT", &key, &name]),
                Kind::Pair => put(&mut packed, &["PAIR", &key, &name]),
                Kind::Fail => put(&mut packed, &["FAIL", &key, &name]),
                Kind::Blob(size) => put(&mut packed, &["BLOB", &key, &name, &size.to_string()]),
                Kind::Time => put(&mut packed, &["TIME", &name]),
                Kind::Multi => put(&mut packed, &["MULTI", &name]),
                Kind::Exec => put(&mut packed, &["EXEC", &name]),
                Kind::Script(script) => {
                    let (sha, lease) = (sha(script, piece.way.is_full), lease_end_ms.to_string());
                    put(&mut packed, &["EVALSHA", &sha, "1", &key, &name, &lease]);
                }
            }
        }
        packed
    }
}

pub(crate) fn put(packed: &mut Packed<Vec<u8>>, words: &[&str]) {
    put_count(&mut packed.text, words.len());
    for word in words {
        put_argument(&mut packed.text, word.as_bytes());
    }
}

/// Who waits for a call.
#[derive(Clone, Debug)]
pub(crate) struct Token(pub std::rc::Rc<Plan>);

impl Caller for Token {
    fn runs_when_full(&self, place: usize) -> bool {
        matches!(self.0.places[place].kind, Kind::Script(script) if has_full(script))
    }

    fn is_same_script(&self, place: usize, other: usize) -> bool {
        self.0.places[place].kind == self.0.places[other].kind
    }
}

/// The bytes of a command that was sent before.
pub(crate) fn one_command(plan: &Plan, place: usize) -> Vec<u8> {
    let Place { tag, is_second, .. } = plan.places[place];
    let mut packed = Packed::default();
    put(&mut packed, &["FAIL", &key(tag, is_second), &plan.name(place).to_string()]);
    packed.joined()
}
