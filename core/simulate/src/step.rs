//! The steps of a history.

use crate::chance::Chance;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A caller asks for something.
    Ask,
    /// Time passes, and bytes are on their way.
    Run,
    /// Something happens to a connection.
    Wire,
    /// Something happens to a server.
    Host,
    /// Slots move, and nodes come and go.
    Slots,
    /// Another server becomes the master.
    Failover,
    /// The owner of a client does something to it.
    Own,
    /// A clock jumps.
    Clock,
    Publish,
    /// All faults end for a moment.
    Heal,
}

/// One step, with the seed of all that happens by chance in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Its place in the history of the seed.
    pub index: usize,
    pub kind: Kind,
    pub dice: u64,
}

const KINDS: [(Kind, usize); 10] = [
    (Kind::Ask, 34),
    (Kind::Run, 34),
    (Kind::Wire, 8),
    (Kind::Host, 6),
    (Kind::Slots, 8),
    (Kind::Failover, 3),
    (Kind::Own, 6),
    (Kind::Clock, 1),
    (Kind::Publish, 4),
    (Kind::Heal, 1),
];

pub(crate) fn steps(seed: u64) -> Vec<Step> {
    let mut chance = Chance::new(seed ^ 0x5eed);
    let count = chance.within(20, 160);
    let mut kinds = KINDS;
    // Of one kind there may be more than usual, or nothing.
    let often = chance.below(kinds.len() * 2);
    kinds.iter_mut().skip(often).take(1).for_each(|(_, weight)| *weight *= 4);
    let never = chance.below(kinds.len() * 2);
    kinds.iter_mut().skip(never.max(2)).take(1).for_each(|(_, weight)| *weight = 0);
    let total: usize = kinds.iter().map(|(_, weight)| weight).sum();
    let step = |index| {
        let mut left = chance.below(total);
        let kind = kinds.iter().find(|(_, weight)| {
            let is_it = left < *weight;
            left = left.saturating_sub(*weight);
            is_it
        });
        Step { index, kind: kind.map_or(Kind::Run, |(kind, _)| *kind), dice: chance.number() }
    };
    (0..count).map(step).collect()
}
