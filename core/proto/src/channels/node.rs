//! The state of a node that has channels: its connection, and the commands to send over it.

use super::Name;
use crate::resp::{put_argument, put_count};

/// Channels of one command: Redis serves others between two commands, not within one.
const CHANNELS_PER_COMMAND: usize = 1000;

const SUBSCRIBE: &[u8] = b"SSUBSCRIBE";
const UNSUBSCRIBE: &[u8] = b"SUNSUBSCRIBE";

/// A channel that is to be subscribed to, or unsubscribed from.
#[derive(Debug)]
struct Queued {
    slot: u16,
    command: &'static [u8],
    channel: Name,
}

#[derive(Debug)]
pub(super) struct Node {
    pub name: String,
    /// How many channels are here.
    pub channels: usize,
    /// How many listeners these have: whether a silent node lives is found out only if there are any.
    pub listeners: usize,
    /// Whether it was said that the connection is to be kept, and whether it is to be asked if it lives.
    pub kept: (bool, bool),
    pub is_connected: bool,
    /// Whether it has confirmed anything over this connection.
    pub is_confirmed: bool,
    /// Nobody is to wait for a confirmation, for the last attempt to get one failed: `refusal`.
    pub is_away: bool,
    pub refusal: String,
    queue: Vec<Queued>,
}

impl Node {
    pub fn new(name: &str) -> Self {
        Self {
            name: format!("Redis at {name}"),
            channels: 0,
            listeners: 0,
            kept: (false, false),
            is_connected: false,
            is_confirmed: false,
            is_away: false,
            refusal: String::new(),
            queue: Vec::new(),
        }
    }

    /// How its connection is to be kept.
    pub fn wanted(&self) -> (bool, bool) {
        (self.channels > 0, self.listeners > 0)
    }

    /// Whether it is to be kept in another way than was said.
    pub fn is_changed(&self) -> bool {
        self.wanted() != self.kept
    }

    /// Subscribe to a channel over the present connection; with the next one all are subscribed to.
    pub fn subscribe(&mut self, channel: &Name, slot: u16) {
        self.put(channel, slot, SUBSCRIBE);
    }

    /// Unsubscribe from a channel.
    pub fn unsubscribe(&mut self, channel: &Name, slot: u16) {
        self.put(channel, slot, UNSUBSCRIBE);
    }

    fn put(&mut self, channel: &Name, slot: u16, command: &'static [u8]) {
        if self.is_connected {
            self.queue.push(Queued { slot, command, channel: Name::clone(channel) });
        }
    }

    /// Forget what was to be sent: the connection is gone.
    pub fn clear(&mut self) {
        self.queue.clear();
    }

    /// The commands for what was queued, packed: those of a slot in their order, neighbours of one kind in one command.
    pub fn take_commands(&mut self) -> Vec<u8> {
        let (mut queue, mut text) = (std::mem::take(&mut self.queue), Vec::new());
        queue.sort_by_key(|queued| queued.slot);
        for run in queue.chunk_by(|one, next| (one.slot, one.command) == (next.slot, next.command)) {
            for channels in run.chunks(CHANNELS_PER_COMMAND) {
                put_count(&mut text, 1 + channels.len());
                put_argument(&mut text, channels.first().map(|first| first.command).unwrap_or_default());
                for queued in channels {
                    put_argument(&mut text, queued.channel.as_bytes());
                }
            }
        }
        text
    }
}
