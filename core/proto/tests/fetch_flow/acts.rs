//! What may happen, in any order.

use std::ops::Range;

use korvet_proto::client::Prevented;
use proptest::prelude::*;

pub type Place = (&'static str, i32);

/// In the first two are transactions, others are cut, and the last topic is deleted and created again.
pub const STREAMS: [(&str, i32); 8] = [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("a", 5), ("b", 0), ("b", 1)];
pub const TRANSACTIONS: usize = 2;
pub const CUT: Range<usize> = 2..6;
pub const KINDS: [Prevented; 3] = [Prevented::Away, Prevented::Unknown, Prevented::Closed];

/// How a client asks: in which version, for what is committed, and with a session.
pub const CLIENTS: [(i16, bool, bool); 4] =
    [(12, false, false), (12, true, true), (13, false, true), (13, true, false)];

#[derive(Clone, Debug)]
pub enum Act {
    /// A client asks: for which wait in milliseconds, and for how many bytes at least and at most.
    Begin(usize, i32, i32, i32),
    /// Batches come: to which log, how many, of how many bytes, and whether that is announced.
    Append(usize, usize, usize, bool),
    /// A transaction goes on, or ends.
    Transact(usize, u8),
    DeleteRecords(usize, u8),
    Cut(usize, u8),
    DeleteTopic,
    CreateTopic,
    Interrupt(usize),
    Live(usize),
    Fail(usize),
    Reply(usize),
    Prevent(usize, usize),
    Decide(usize, bool),
    Wait(u64),
    Disconnect(usize),
    ForgetTopics,
    Written(usize),
}

pub fn act() -> impl Strategy<Value = Act> {
    let (client, log, which) = (0..CLIENTS.len(), 0..STREAMS.len(), any::<usize>());
    let asks = (client.clone(), 0..3_usize, 0..3_usize, 0..3_usize);
    prop_oneof![
        8 => asks.prop_map(|(client, wait, least, most)| {
            Act::Begin(client, [0, 500, 12_000][wait], [0, 1, 900][least], [150, 2_000, 50 << 20][most])
        }),
        6 => (log.clone(), 1..4_usize, 0..300_usize, any::<bool>()).prop_map(|(log, count, bytes, is_announced)| {
            Act::Append(log, count, bytes, is_announced)
        }),
        3 => (0..TRANSACTIONS, 0..4_u8).prop_map(|(log, what)| Act::Transact(log, what)),
        1 => (log.clone(), 0..8_u8).prop_map(|(log, count)| Act::DeleteRecords(log, count)),
        1 => (CUT, 0..4_u8).prop_map(|(log, count)| Act::Cut(log, count)),
        1 => Just(Act::DeleteTopic),
        1 => Just(Act::CreateTopic),
        1 => which.prop_map(Act::Interrupt),
        4 => which.prop_map(Act::Live),
        1 => which.prop_map(Act::Fail),
        20 => which.prop_map(Act::Reply),
        1 => (which, 0..KINDS.len()).prop_map(|(call, kind)| Act::Prevent(call, kind)),
        8 => (which, 0..10_u8).prop_map(|(request, how)| Act::Decide(request, how > 0)),
        3 => prop_oneof![1..700_u64, Just(130_000)].prop_map(Act::Wait),
        1 => client.clone().prop_map(Act::Disconnect),
        1 => Just(Act::ForgetTopics),
        2 => client.prop_map(Act::Written),
    ]
}
