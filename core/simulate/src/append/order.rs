//! The order in which a worker began requests, and heard that requests must be sent again.

use std::collections::BTreeMap;

use korvet_proto::produce::GroupId;

/// What was on its way already when something before it was refused may overtake that. Ticks count both, by the values.
#[derive(Debug, Default)]
pub(super) struct Order {
    ticks: usize,
    pub begun: BTreeMap<String, usize>,
    pub refused: BTreeMap<String, usize>,
    pub groups: BTreeMap<GroupId, Vec<String>>,
}

impl Order {
    pub fn tick(&mut self) -> usize {
        self.ticks += 1;
        self.ticks
    }

    /// Whether a value was begun before it was known that another one is to be sent again.
    pub fn may_overtake(&self, value: &str, other: &str) -> bool {
        let (begun, refused) = (self.begun.get(value), self.refused.get(other));
        begun.is_some_and(|begun| refused.is_some_and(|refused| begun < refused))
    }
}

/// The values of records among bytes: `p1.2` is one.
pub(super) fn values_in(bytes: &[u8]) -> Vec<String> {
    let is_value = |word: &&[u8]| {
        let mut parts = word.strip_prefix(b"p").unwrap_or_default().splitn(2, |byte| *byte == b'.');
        let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        parts.next().is_some_and(is_number) && parts.next().is_some_and(is_number)
    };
    let words = bytes.split(|byte| !(byte.is_ascii_digit() || matches!(byte, b'p' | b'.')));
    words.filter(is_value).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}
