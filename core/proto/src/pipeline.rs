//! One connection to Redis: requests on their way out, replies on their way to their callers.
//!
//! Theory of operation. Redis answers in the order of the requests, so a queue of what is pending is all the
//! bookkeeping. A [`Pipeline`] takes requests, says which bytes to write next and whose each reply is. Its owner has
//! the socket and the clock, and says how many bytes were written and when a reply has arrived.
//!
//! * Small commands are joined to pieces, payloads stay where they are: a write takes pieces.
//! * A request that is due and not answered is given up ([`Pipeline::tick`]): its token is reported, and its replies
//!   are dropped when they come. If nothing at all was heard meanwhile, the connection is lost.
//! * A loss ends the connection, whatever its reason: [`Pipeline::lose`] returns the token of each request that is
//!   pending, once. What became of such a request is unknown, for it may have been run: nothing is sent again.
//!
//! Times count from any beginning. A clock that stops or goes back delays what is due, and does nothing else.

use std::collections::VecDeque;
use std::time::Duration;

use crate::resp;

/// Time since any beginning, the same for all calls.
pub type Time = Duration;

/// From this size on a piece of text takes no more commands. A piece is freed once it is written: one that always takes
/// more while the kernel is full would keep all that was ever written.
const JOINED_BYTES_MAX: usize = 64 << 10;

/// How much may be under way, in commands and bytes, and in bytes that large replies are expected to have.
///
/// The request that reaches a limit may exceed it, so that one larger than the limit goes through alone.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Limits {
    pub commands_max: usize,
    pub bytes_max: usize,
    pub reply_bytes_max: usize,
    /// Nothing was heard for so long while a reply was due: the connection is lost.
    pub timeout: Duration,
    /// Nothing was heard for so long while a reply was pending: this is reported, about as often.
    pub silence: Option<Duration>,
}

/// Commands as bytes: text, and payloads by their places in it.
#[derive(Debug)]
pub struct Packed<B> {
    /// Of all commands, without the payloads.
    pub text: Vec<u8>,
    payloads: Vec<(usize, B)>,
    payload_bytes: usize,
}

impl<B> Default for Packed<B> {
    fn default() -> Self {
        Self { text: Vec::new(), payloads: Vec::new(), payload_bytes: 0 }
    }
}

impl<B> From<Vec<u8>> for Packed<B> {
    fn from(text: Vec<u8>) -> Self {
        Self { text, payloads: Vec::new(), payload_bytes: 0 }
    }
}

impl<B> Packed<B> {
    /// The same with other payloads, of the same bytes.
    pub fn map<C>(self, mut other: impl FnMut(B) -> C) -> Packed<C> {
        let Self { text, payloads, payload_bytes } = self;
        let payloads = payloads.into_iter().map(|(place, payload)| (place, other(payload))).collect();
        Packed { text, payloads, payload_bytes }
    }
}

impl<B: AsRef<[u8]>> Packed<B> {
    /// Add an argument that stays where it is.
    pub fn put_payload(&mut self, payload: B) {
        let size = payload.as_ref().len();
        resp::put_length(&mut self.text, size);
        self.payloads.push((self.text.len(), payload));
        self.payload_bytes += size;
        resp::put_end(&mut self.text);
    }

    /// Add all of others.
    pub fn put_all(&mut self, others: &Self)
    where
        B: Clone,
    {
        let begin = self.text.len();
        self.text.extend_from_slice(&others.text);
        self.payloads.extend(others.payloads.iter().map(|(place, payload)| (begin + place, payload.clone())));
        self.payload_bytes += others.payload_bytes;
    }

    /// How many bytes it has.
    pub fn size(&self) -> usize {
        self.text.len() + self.payload_bytes
    }

    /// All bytes in one piece.
    pub fn joined(&self) -> Vec<u8> {
        let mut joined = Vec::with_capacity(self.size());
        let mut begin = 0;
        for (end, payload) in &self.payloads {
            joined.extend_from_slice(self.text.get(begin..*end).unwrap_or_default());
            joined.extend_from_slice(payload.as_ref());
            begin = *end;
        }
        joined.extend_from_slice(self.text.get(begin..).unwrap_or_default());
        joined
    }
}

/// Bytes that are written from one place in memory.
#[derive(Debug)]
enum Piece<B> {
    Text(Vec<u8>),
    Payload(B),
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Piece<B> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            Self::Payload(payload) => payload.as_ref(),
        }
    }
}

/// Bytes that wait until the kernel takes them.
#[derive(Debug)]
struct Outbox<B> {
    pieces: VecDeque<Piece<B>>,
    /// How much of the first piece was written.
    written: usize,
}

impl<B: AsRef<[u8]>> Outbox<B> {
    fn put_text(&mut self, text: &[u8]) {
        match self.pieces.back_mut() {
            Some(Piece::Text(last)) if last.len() < JOINED_BYTES_MAX => last.extend_from_slice(text),
            _ if text.is_empty() => {}
            _ => self.pieces.push_back(Piece::Text(text.to_vec())),
        }
    }

    fn put(&mut self, packed: Packed<B>) {
        if packed.payloads.is_empty() && self.pieces.is_empty() {
            self.pieces.push_back(Piece::Text(packed.text));
            return;
        }
        let mut begin = 0;
        for (end, payload) in packed.payloads {
            self.put_text(packed.text.get(begin..end).unwrap_or_default());
            if !payload.as_ref().is_empty() {
                self.pieces.push_back(Piece::Payload(payload));
            }
            begin = end;
        }
        self.put_text(packed.text.get(begin..).unwrap_or_default());
    }

    fn wrote(&mut self, size: usize) {
        let mut left = self.written + size;
        while let Some(piece) = self.pieces.front() {
            let length = piece.as_ref().len();
            if left < length {
                break;
            }
            left -= length;
            self.pieces.pop_front();
        }
        self.written = left;
    }
}

/// A request: who waits for the replies, to how many commands, until when, and how large they are expected to be.
#[derive(Debug)]
pub struct Request<T, B> {
    /// Comes back with the replies.
    pub token: T,
    /// The commands.
    pub packed: Packed<B>,
    /// How many commands they are; at least one.
    pub count: usize,
    /// When the token is reported as not answered.
    pub deadline: Time,
    /// Of large replies; 0 if small ones are expected.
    pub reply_bytes: usize,
}

#[derive(Debug)]
struct Pending<T> {
    token: T,
    count: usize,
    answered: usize,
    size: usize,
    reply_bytes: usize,
    deadline: Time,
    sent_at: Time,
    has_given_up: bool,
}

/// Whose reply it is.
#[derive(Debug, PartialEq, Eq)]
pub enum Owner<T> {
    /// One of several to the oldest request, the `index`th; others follow.
    #[allow(missing_docs)]
    Part { token: T, index: usize },
    /// The last, or only, reply to a request.
    Last(Answered<T>),
    /// A reply to a request that was given up; others follow.
    Dropped,
    /// Nobody asked.
    Nobody,
}

/// A request that was answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Answered<T> {
    /// The request's token.
    pub token: T,
    /// How many replies it has.
    pub count: usize,
    /// How long it took.
    pub took: Duration,
    /// It was too late: the token was reported as not answered before.
    pub has_given_up: bool,
}

/// What a look at the clock brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// Nothing was heard for the limit's `silence`.
    Silence,
    /// Nothing was heard for a whole timeout while a reply was due: the connection is to be given up.
    Loss,
}

/// The state of one connection, from its first request to its loss. `T` is a token of who waits, `B` a payload.
#[derive(Debug)]
pub struct Pipeline<T, B> {
    limits: Limits,
    pending: VecDeque<Pending<T>>,
    outbox: Outbox<B>,
    commands: usize,
    bytes: usize,
    reply_bytes: usize,
    heard_at: Time,
    check_at: Option<Time>,
}

impl<T: Copy, B: AsRef<[u8]>> Pipeline<T, B> {
    /// Begin with a connection that is there since `now`.
    pub fn new(limits: Limits, now: Time) -> Self {
        Self {
            limits,
            pending: VecDeque::new(),
            outbox: Outbox { pieces: VecDeque::new(), written: 0 },
            commands: 0,
            bytes: 0,
            reply_bytes: 0,
            heard_at: now,
            check_at: None,
        }
    }

    /// Whether there is room for a request with `reply_bytes` of large replies.
    pub fn has_room(&self, reply_bytes: usize) -> bool {
        self.commands < self.limits.commands_max
            && self.bytes < self.limits.bytes_max
            && (reply_bytes == 0 || self.has_reply_room())
    }

    /// Whether large replies have room.
    pub fn has_reply_room(&self) -> bool {
        self.reply_bytes < self.limits.reply_bytes_max
    }

    /// Commands, bytes, and bytes of large replies that are under way.
    pub fn under_way(&self) -> (usize, usize, usize) {
        (self.commands, self.bytes, self.reply_bytes)
    }

    /// Whether no request is pending.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Take a request, also if there is no room for it.
    pub fn push(&mut self, request: Request<T, B>, now: Time) {
        let Request { token, packed, count, deadline, reply_bytes } = request;
        let size = packed.size();
        self.commands += count;
        self.bytes += size;
        self.reply_bytes += reply_bytes;
        let pending =
            Pending { token, count, answered: 0, size, reply_bytes, deadline, sent_at: now, has_given_up: false };
        self.pending.push_back(pending);
        if self.check_at.is_none_or(|at| deadline < at) {
            self.check_at = Some(self.limits.silence.map_or(deadline, |silence| deadline.min(now + silence)));
        }
        self.outbox.put(packed);
    }

    /// Write bytes that nobody waits for.
    pub fn push_unasked(&mut self, packed: Packed<B>) {
        self.outbox.put(packed);
    }

    /// The pieces that are to be written next, in their order; none of them is empty.
    pub fn unwritten(&self) -> impl Iterator<Item = &[u8]> {
        let mut written = self.outbox.written;
        self.outbox
            .pieces
            .iter()
            .map(move |piece| piece.as_ref().get(std::mem::take(&mut written)..).unwrap_or_default())
    }

    /// How many pieces are to be written.
    pub fn pieces(&self) -> usize {
        self.outbox.pieces.len()
    }

    /// Note how many bytes the kernel has taken.
    pub fn wrote(&mut self, size: usize) {
        self.outbox.wrote(size);
    }

    /// Note that something has arrived.
    pub fn heard(&mut self, now: Time) {
        self.heard_at = now;
    }

    /// When something arrived last.
    pub fn heard_at(&self) -> Time {
        self.heard_at
    }

    /// Say whose the next reply is.
    pub fn answer(&mut self, now: Time) -> Owner<T> {
        let Some(oldest) = self.pending.front_mut() else { return Owner::Nobody };
        oldest.answered += 1;
        if oldest.answered < oldest.count {
            let (token, index) = (oldest.token, oldest.answered - 1);
            return if oldest.has_given_up { Owner::Dropped } else { Owner::Part { token, index } };
        }
        let Some(pending) = self.pending.pop_front() else { return Owner::Nobody };
        self.commands -= pending.count;
        self.bytes -= pending.size;
        self.reply_bytes -= pending.reply_bytes;
        let Pending { token, count, sent_at, has_given_up, .. } = pending;
        Owner::Last(Answered { token, count, took: now.saturating_sub(sent_at), has_given_up })
    }

    /// When `tick` is to be called, if at all.
    pub fn due(&self) -> Option<Time> {
        self.check_at
    }

    /// Give up the requests that are due, and call `give_up` with the token of each, which stays until the replies
    /// come.
    pub fn tick(&mut self, now: Time, mut give_up: impl FnMut(&T)) -> Due {
        self.check_at = None;
        let heard_s = now.saturating_sub(self.heard_at);
        if heard_s >= self.limits.timeout && self.pending.iter().any(|pending| pending.deadline <= now) {
            return Due::Loss;
        }
        let mut next: Option<Time> = None;
        for pending in &mut self.pending {
            if pending.deadline > now {
                next = Some(next.map_or(pending.deadline, |next| next.min(pending.deadline)));
            } else if !pending.has_given_up {
                pending.has_given_up = true;
                give_up(&pending.token);
            }
        }
        let Some(oldest) = self.pending.front() else { return Due::Nothing };
        let next = next.unwrap_or(now + self.limits.timeout);
        let Some(silence) = self.limits.silence else {
            self.check_at = Some(next);
            return Due::Nothing;
        };
        self.check_at = Some(next.min(now + silence));
        let is_silent = now.saturating_sub(self.heard_at.max(oldest.sent_at)) >= silence;
        if is_silent { Due::Silence } else { Due::Nothing }
    }

    /// End the connection; returns the tokens of pending requests, without requests that were given up.
    pub fn lose(&mut self) -> Vec<T> {
        self.outbox = Outbox { pieces: VecDeque::new(), written: 0 };
        (self.commands, self.bytes, self.reply_bytes, self.check_at) = (0, 0, 0, None);
        self.pending.drain(..).filter(|pending| !pending.has_given_up).map(|pending| pending.token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{JOINED_BYTES_MAX, Outbox, Packed, Piece, VecDeque};

    fn command(bytes: usize) -> Packed<Vec<u8>> {
        Packed { text: vec![b'c'; bytes], ..Packed::default() }
    }

    #[test]
    fn text_that_was_written_is_freed_though_more_of_it_always_waits() {
        const COMMAND_BYTES: usize = 1_000;
        let mut outbox = Outbox { pieces: VecDeque::new(), written: 0 };
        outbox.put(command(COMMAND_BYTES));
        for _ in 0..5_000 {
            outbox.put(command(COMMAND_BYTES));
            outbox.wrote(COMMAND_BYTES);
            let held = outbox.pieces.iter().map(|piece| match piece {
                Piece::Text(text) => text.capacity(),
                Piece::Payload(_) => 0,
            });
            assert!(held.sum::<usize>() <= 4 * JOINED_BYTES_MAX);
        }
        assert_eq!(
            outbox.pieces.iter().map(|piece| piece.as_ref().len()).sum::<usize>() - outbox.written,
            COMMAND_BYTES
        );
    }
}
