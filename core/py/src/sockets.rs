//! The sockets of a client, and what is to be done about them.
//!
//! Bytes are written at once if nothing else is under way, and if they are many; else at the end of the turn of the
//! event loop, with all that others send until then. With TLS there is no socket here: Python takes the bytes to write,
//! and brings those it has decrypted.
//!
//! A socket is closed when Python says that it does not watch it any more, and not at the loss of the connection: the
//! kernel may give its number to another one at once, and between the two a greenlet may run that opens one.

use std::collections::TryReserveError;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::time::Instant;

use korvet_proto::client::{Client, ConnectionId, Event, Ready, Time};
use korvet_proto::pipeline::Packed;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use crate::call::Token;
use crate::resp::Payload;

/// One read from the kernel: thousands of small replies, or a part of a large one.
const READ_BYTES: usize = 128 * 1024;
/// From this size on a request is written at once: its bytes cost more than a write.
const LARGE_BYTES: usize = 8 * 1024;
/// How many pieces one write takes.
pub const PIECES_MAX: usize = 64;

pub const NO_MEMORY: &str = "there is no memory for what it sent";

struct Socket {
    connection: ConnectionId,
    /// `None`: it is not open, or elsewhere.
    fd: Option<OwnedFd>,
    is_stuck: bool,
    is_flushing: bool,
}

/// What Python is to do or to know.
pub enum Todo {
    Event(Event),
    /// Write what is unwritten now: the socket is elsewhere.
    Write(ConnectionId),
    /// Watch for room to write.
    Stuck(ConnectionId),
    /// Do not watch for it any more.
    Unstuck(ConnectionId),
}

/// What has come of something that was done.
pub struct Step {
    /// To be packed and pushed.
    pub ready: Option<Ready>,
    pub todos: Vec<Todo>,
}

impl Step {
    pub fn is_nothing(&self) -> bool {
        self.ready.is_none() && self.todos.is_empty()
    }
}

/// A client and its sockets.
pub struct State {
    pub client: Client<Token, Payload>,
    begun: Instant,
    /// By the lower half of the connection's number, which is small and given again.
    sockets: Vec<Option<Socket>>,
    closing: Vec<(ConnectionId, OwnedFd)>,
    todos: Vec<Todo>,
}

fn index_of(connection: ConnectionId) -> usize {
    connection.as_u64() as u32 as usize
}

fn socket_of(sockets: &mut [Option<Socket>], connection: ConnectionId) -> Option<&mut Socket> {
    sockets.get_mut(index_of(connection))?.as_mut().filter(|socket| socket.connection == connection)
}

/// The system's words for an error, without its number.
pub fn reason_of(error: Errno) -> String {
    let text = std::io::Error::from(error).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Write once, of `count` pieces as many as one write takes; the second result is their size.
pub fn write_pieces<'a>(
    fd: &OwnedFd,
    count: usize,
    mut pieces: impl Iterator<Item = &'a [u8]>,
) -> (rustix::io::Result<usize>, usize) {
    if count == 1 {
        let piece = pieces.next().unwrap_or_default();
        return (rustix::io::write(fd, piece), piece.len());
    }
    let (mut slices, mut size) = ([IoSlice::new(&[]); PIECES_MAX], 0);
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
        size += piece.len();
    }
    (rustix::io::writev(fd, slices.get(..count.min(PIECES_MAX)).unwrap_or_default()), size)
}

impl State {
    pub fn new(client: Client<Token, Payload>) -> Self {
        Self { client, begun: Instant::now(), sockets: Vec::new(), closing: Vec::new(), todos: Vec::new() }
    }

    pub fn now(&self) -> Time {
        self.begun.elapsed()
    }

    /// Take what has come of the last change.
    pub fn step(&mut self) -> Step {
        Step { ready: self.client.next_ready(), todos: self.todos() }
    }

    /// Take what Python is to know.
    pub fn todos(&mut self) -> Vec<Todo> {
        while let Some(event) = self.client.next_event() {
            match event {
                Event::Flush { connection } => self.flush(connection),
                Event::Open { connection, .. } => {
                    self.add(connection);
                    self.todos.push(Todo::Event(event));
                }
                Event::Close { connection } => {
                    self.close(connection);
                    self.todos.push(Todo::Event(event));
                }
                _ => self.todos.push(Todo::Event(event)),
            }
        }
        if self.todos.is_empty() { Vec::new() } else { std::mem::take(&mut self.todos) }
    }

    /// Take back the memory of what has been done.
    pub fn reuse(&mut self, todos: Vec<Todo>) {
        if self.todos.capacity() == 0 {
            self.todos = todos;
        }
    }

    fn add(&mut self, connection: ConnectionId) {
        let index = index_of(connection);
        if self.sockets.len() <= index {
            self.sockets.resize_with(index + 1, || None);
        }
        if let Some(entry) = self.sockets.get_mut(index) {
            *entry = Some(Socket { connection, fd: None, is_stuck: false, is_flushing: false });
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        if socket_of(&mut self.sockets, connection).is_some() {
            let socket = self.sockets.get_mut(index_of(connection)).and_then(Option::take);
            self.closing.extend(socket.and_then(|socket| Some((connection, socket.fd?))));
        }
    }

    /// Close a socket that nobody watches.
    pub fn closed(&mut self, connection: ConnectionId) {
        self.closing.retain(|(closing, _)| *closing != connection);
    }

    /// Take an open socket, or close it if nobody wants it any more.
    pub fn opened(&mut self, connection: ConnectionId, fd: Option<OwnedFd>, now: Time) {
        let socket = socket_of(&mut self.sockets, connection).filter(|socket| socket.fd.is_none());
        let Some(socket) = socket else { return };
        if let Some(Err(error)) = fd.as_ref().map(|fd| rustix::io::ioctl_fionbio(fd, true)) {
            return self.client.failed(connection, &reason_of(error), now);
        }
        socket.fd = fd;
        self.client.opened(connection, now);
    }

    /// Send the commands of a piece, `at_once` if nothing else is sent in this turn; returns whether they are on their way.
    pub fn push(&mut self, ready: &Ready, packed: Packed<Payload>, at_once: bool, now: Time) -> bool {
        let size = packed.size();
        let Some(pushed) = self.client.push(ready, packed, now) else { return false };
        if at_once || pushed.was_idle || size >= LARGE_BYTES {
            self.write_soon(pushed.connection, now);
        } else {
            self.flush(pushed.connection);
        }
        true
    }

    /// Arrange for bytes to be written at the end of this turn.
    pub fn flush(&mut self, connection: ConnectionId) {
        let Some(socket) = socket_of(&mut self.sockets, connection).filter(|socket| !socket.is_stuck) else { return };
        if !std::mem::replace(&mut socket.is_flushing, true) {
            self.todos.push(Todo::Event(Event::Flush { connection }));
        }
    }

    fn write_soon(&mut self, connection: ConnectionId, now: Time) {
        match socket_of(&mut self.sockets, connection) {
            Some(socket) if socket.fd.is_none() => self.todos.push(Todo::Write(connection)),
            Some(socket) if !socket.is_stuck => self.write_out(connection, now),
            _ => {}
        }
    }

    /// Write what the kernel takes at once.
    pub fn write_out(&mut self, connection: ConnectionId, now: Time) {
        let Some(socket) = socket_of(&mut self.sockets, connection) else { return };
        socket.is_flushing = false;
        let Some(fd) = &socket.fd else { return };
        let mut count = self.client.pieces(connection);
        while count > 0 {
            let (written, size) = write_pieces(fd, count, self.client.unwritten(connection));
            match written {
                Ok(taken) => {
                    self.client.wrote(connection, taken);
                    if taken < size {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    // Why the server has closed it may be there to be read, and its end is.
                    socket.is_stuck = true;
                    return;
                }
                Err(error) => return self.client.failed(connection, &reason_of(error), now),
            }
            count = self.client.pieces(connection);
        }
        let was_stuck = std::mem::replace(&mut socket.is_stuck, count > 0);
        if count > 0 {
            self.todos.push(Todo::Stuck(connection));
        } else if was_stuck {
            self.todos.push(Todo::Unstuck(connection));
        }
    }

    /// Read once; returns how much came, and whether there may be more.
    pub fn read(&mut self, connection: ConnectionId, now: Time) -> (usize, bool) {
        const NOTHING: (usize, bool) = (0, false);
        let socket = socket_of(&mut self.sockets, connection);
        let Some(fd) = socket.and_then(|socket| socket.fd.as_ref()) else { return NOTHING };
        let Some(room) = self.client.room(connection, READ_BYTES) else { return NOTHING };
        let Ok(room) = room else {
            self.client.failed(connection, NO_MEMORY, now);
            return NOTHING;
        };
        let size = room.capacity() - room.len();
        match rustix::io::retry_on_intr(|| rustix::io::read(fd, spare_capacity(room))) {
            Ok(0) => self.client.failed(connection, "it closed the connection", now),
            Ok(taken) => return (taken, taken == size),
            Err(Errno::AGAIN) => {}
            Err(error) => self.client.failed(connection, &reason_of(error), now),
        }
        NOTHING
    }

    /// Take bytes that were read elsewhere; returns how many are of use.
    pub fn take(&mut self, connection: ConnectionId, data: &[u8], now: Time) -> usize {
        let Some(room) = self.client.room(connection, data.len()) else { return 0 };
        if room.map(|room| room.extend_from_slice(data)).is_err() {
            self.client.failed(connection, NO_MEMORY, now);
            return 0;
        }
        data.len()
    }

    /// The next bytes that are to be written elsewhere, at most so many.
    pub fn unwritten(&mut self, connection: ConnectionId, size_max: usize) -> Result<Vec<u8>, TryReserveError> {
        if let Some(socket) = socket_of(&mut self.sockets, connection) {
            socket.is_flushing = false;
        }
        let mut joined = Vec::new();
        for piece in self.client.unwritten(connection) {
            let left = size_max.saturating_sub(joined.len());
            let piece = piece.get(..left).unwrap_or(piece);
            joined.try_reserve(piece.len())?;
            joined.extend_from_slice(piece);
            if joined.len() >= size_max {
                break;
            }
        }
        Ok(joined)
    }
}
