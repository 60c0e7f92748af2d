//! The sockets of a worker's clients, and what has happened to them.
//!
//! The number of a connection has a generation, unlike the descriptor, which the kernel gives again: an answer that comes late
//! for a connection that is gone reaches nobody. Only this closes a socket, and takes it from the poller before.
//!
//! TLS is between a socket and its `Peer`. One step of a handshake is done in a turn, for it costs as much as a hundred
//! requests; the others stay readable, and so a flood of them leaves turns to those who have shaken hands.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use korvet_proto::peer::{Event, Frame, Limits, Login, PeerId, Peers, Reason};
use korvet_proto::pipeline::Time;
use korvet_proto::shared;
use korvet_tls::{Failure, Session};
use pyo3::prelude::*;
use rustix::io::{Errno, Result};

use crate::poller::{Poller, Ready};
use crate::resp::Payload;
use crate::sockets::{PIECES_MAX, reason_of, write_pieces};

/// Taken from the kernel at once; all that arrives is put here first, so that idle connections take no memory.
const READ_BYTES: usize = 256 << 10;

/// Payloads that are written or will never be. They are dropped when nothing is borrowed: to drop an object of Python may
/// run any code, and that may call here.
#[derive(Clone, Default)]
pub struct Spent(Arc<Mutex<Vec<Payload>>>);

impl Spent {
    pub fn take(&self) -> Vec<Payload> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A large piece of an answer, where Python has it.
pub struct Kept {
    payload: Option<Payload>,
    spent: Spent,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.spent.0.lock().unwrap_or_else(PoisonError::into_inner).extend(self.payload.take());
    }
}

/// A piece of an answer.
pub enum Piece {
    Own(shared::Piece),
    Kept(Kept),
}

impl Piece {
    pub fn kept(payload: Payload, spent: &Spent) -> Self {
        Self::Kept(Kept { payload: Some(payload), spent: spent.clone() })
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Own(piece) => piece.as_ref(),
            Self::Kept(kept) => kept.payload.as_ref().map_or(&[], Payload::as_ref),
        }
    }
}

/// What there is to say about something that has happened.
pub enum Detail {
    Nothing,
    Text(String),
    Bytes(Vec<u8>),
}

/// What has happened, and to whom; without an owner: to all.
pub struct Happened {
    pub owner: Option<Py<PyAny>>,
    pub word: &'static str,
    pub detail: Detail,
}

/// TLS of a connection.
struct Tls {
    session: Session,
    /// How many bytes of answers are encrypted and not with the kernel.
    encrypted: usize,
}

struct Socket {
    id: PeerId,
    fd: OwnedFd,
    owner: Py<PyAny>,
    watched: Ready,
    /// Whether an answer was not written at once, and its owner waits for that.
    is_behind: bool,
    /// The same for answers of `DataPath`.
    is_own_behind: bool,
    tls: Option<Box<Tls>>,
}

pub struct PeerSockets {
    pub peers: Peers<Piece>,
    poller: Poller,
    /// By the lower half of the connection's number: that is small, and given again when the connection is gone. The whole
    /// number is compared.
    sockets: Vec<Option<Socket>>,
    received: Vec<u8>,
    plain: Vec<u8>,
    ready: Vec<(u64, Ready)>,
    has_shaken: bool,
    happened: Vec<Happened>,
    /// Those that have a frame, or are gone, if they are served here.
    pub changed: Changed,
    pub spent: Spent,
    begun: Instant,
}

/// What `DataPath` is to know of connections.
#[derive(Default)]
pub struct Changed {
    /// Whether it wants to.
    pub is_wanted: bool,
    pub ready: Vec<PeerId>,
    pub gone: Vec<PeerId>,
    /// All answers to them are with the kernel.
    pub written: Vec<PeerId>,
}

impl Changed {
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.gone.is_empty() && self.written.is_empty()
    }
}

fn index_of(id: PeerId) -> usize {
    id.as_u64() as u32 as usize
}

fn socket_of(sockets: &mut [Option<Socket>], id: PeerId) -> Option<&mut Socket> {
    sockets.get_mut(index_of(id))?.as_mut().filter(|socket| socket.id == id)
}

impl PeerSockets {
    pub fn new(limits: Limits) -> Result<Self> {
        Ok(Self {
            peers: Peers::new(limits),
            poller: Poller::new()?,
            sockets: Vec::new(),
            received: vec![0; READ_BYTES],
            plain: Vec::new(),
            ready: Vec::new(),
            has_shaken: false,
            happened: Vec::new(),
            changed: Changed::default(),
            spent: Spent::default(),
            begun: Instant::now(),
        })
    }

    pub fn now(&self) -> Time {
        self.begun.elapsed()
    }

    /// Readable when a turn has something to do.
    pub fn poller_fd(&self) -> RawFd {
        self.poller.as_raw_fd()
    }

    pub fn owners(&self) -> impl Iterator<Item = &Py<PyAny>> {
        let happened = self.happened.iter().filter_map(|happened| happened.owner.as_ref());
        self.sockets.iter().flatten().map(|socket| &socket.owner).chain(happened)
    }

    /// Close all sockets, and return what was theirs.
    pub fn forget(&mut self) -> impl Sized + use<> {
        (std::mem::take(&mut self.sockets), std::mem::take(&mut self.happened))
    }

    /// Take over a socket, which is closed if that fails.
    pub fn adopt(
        &mut self,
        fd: OwnedFd,
        owner: Py<PyAny>,
        login: Option<Login>,
        tls: Option<Session>,
    ) -> Result<PeerId> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let now = self.now();
        let id = self.peers.accept(login, tls.is_some(), now);
        let watched = Ready { reads: true, writes: false };
        if let Err(error) = self.poller.set(&fd, id.as_u64(), Ready::default(), watched) {
            self.peers.close(id, Reason::Ended);
            return Err(error);
        }
        let index = index_of(id);
        if self.sockets.len() <= index {
            self.sockets.resize_with(index + 1, || None);
        }
        let tls = tls.map(|session| Box::new(Tls { session, encrypted: 0 }));
        if let Some(entry) = self.sockets.get_mut(index) {
            *entry = Some(Socket { id, fd, owner, watched, is_behind: false, is_own_behind: false, tls });
        }
        Ok(id)
    }

    /// Read and write where there is something to read, or room.
    pub fn turn(&mut self) -> Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.has_shaken = false;
        let outcome = self.poller.find(&mut ready);
        for (key, now) in ready.drain(..) {
            let id = PeerId::from_u64(key);
            if now.writes {
                self.write(id, self.now());
            }
            if now.reads {
                self.read(id);
            }
        }
        self.ready = ready;
        outcome
    }

    /// Read the rest of a frame that has come in part. Of several requests that were sent together it may have come
    /// meanwhile: they are served together too.
    pub fn read_rest(&mut self, id: PeerId) {
        if !self.peers.has_frame(id) && self.peers.has_half_frame(id) {
            self.read(id);
        }
    }

    pub fn next_frame(&mut self, id: PeerId) -> Option<Frame> {
        let now = self.now();
        self.peers.next_frame(id, now)
    }

    /// The API that the next frame asks; `None`: there is none yet.
    pub fn next_key(&mut self, id: PeerId) -> Option<i16> {
        self.peers.next_key(id)
    }

    /// Have Python take the next frame.
    pub fn has_frame(&mut self, py: Python<'_>, id: PeerId) {
        self.happens(py, id, "frame", Detail::Nothing);
    }

    /// Who has a connection, unless it is gone.
    pub fn owner(&self, py: Python<'_>, id: PeerId) -> Option<Py<PyAny>> {
        let socket = self.sockets.get(index_of(id))?.as_ref().filter(|socket| socket.id == id)?;
        Some(socket.owner.clone_ref(py))
    }

    /// Give a peer no further frame for a while, and have its owner know: by the number of the reason, and in milliseconds.
    pub fn throttle(&mut self, py: Python<'_>, id: PeerId, throttle: Time, reason: u32) {
        let now = self.now();
        self.peers.mute(id, now + throttle, now);
        self.happens(py, id, "throttled", Detail::Text(format!("{reason} {}", throttle.as_millis())));
    }

    /// End a connection once its answers are written, and have its owner know why.
    pub fn end_for(&mut self, py: Python<'_>, id: PeerId, word: &'static str, text: String) {
        self.happens(py, id, word, Detail::Text(text));
        let now = self.now();
        self.peers.end(id, now);
    }

    /// Take the answer to a frame, empty for none, of which the owner knows nothing: `write_answers` writes it.
    pub fn put_answer(&mut self, id: PeerId, number: u64, response: impl IntoIterator<Item = shared::Piece>) {
        let now = self.now();
        self.peers.answer(id, number, response.into_iter().map(Piece::Own).collect(), now);
    }

    /// Write what of the answers of `DataPath` the kernel takes at once. Returns whether nothing is left; else it learns that.
    pub fn write_answers(&mut self, id: PeerId) -> bool {
        let is_written = self.peers.unwritten(id).next().is_none() || self.write(id, self.now());
        if let Some(socket) = socket_of(&mut self.sockets, id) {
            socket.is_own_behind |= !is_written;
        }
        is_written
    }

    /// Write the answers to frames. Returns whether all are with the kernel.
    pub fn answer(&mut self, id: PeerId, answers: Vec<(u64, Vec<Piece>)>) -> bool {
        let now = self.now();
        let mut has_output = false;
        for (number, pieces) in answers {
            has_output |= self.peers.answer(id, number, pieces, now);
        }
        let is_written = !has_output || self.write(id, now);
        if let Some(socket) = socket_of(&mut self.sockets, id) {
            socket.is_behind |= !is_written;
        }
        is_written
    }

    /// Whether the peer has closed, or at least its sending half, even if not all is received yet.
    pub fn is_gone(&mut self, id: PeerId) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(socket) = socket_of(&mut self.sockets, id) else { return true };
        let mut asked = [PollFd::new(&socket.fd, PollFlags::RDHUP)];
        poll(&mut asked, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Read once, and take in what came.
    fn read(&mut self, id: PeerId) {
        let now = self.now();
        let size_max = self.peers.read_max(id, now);
        let Some(socket) = socket_of(&mut self.sockets, id).filter(|_| size_max > 0) else { return };
        let is_shaking = socket.tls.as_ref().is_some_and(|tls| tls.session.is_handshaking());
        if is_shaking && std::mem::replace(&mut self.has_shaken, true) {
            return;
        }
        let now = self.begun.elapsed();
        let size_max = size_max.min(READ_BYTES);
        let Some(room) = self.received.get_mut(..size_max) else { return };
        match rustix::io::retry_on_intr(|| rustix::io::read(&socket.fd, &mut *room)) {
            Ok(0) => self.peers.ended(id, now),
            Ok(size) if socket.tls.is_some() => self.decrypt(id, size, is_shaking, size < size_max, now),
            Ok(size) => {
                self.peers.received(id, self.received.get(..size).unwrap_or_default(), 0, size < size_max, now);
            }
            Err(Errno::AGAIN) => {}
            Err(error) => self.peers.close(id, Reason::Lost(reason_of(error))),
        }
    }

    /// Take in `size` bytes that are encrypted.
    fn decrypt(&mut self, id: PeerId, size: usize, was_shaking: bool, is_all: bool, now: Time) {
        let socket = socket_of(&mut self.sockets, id);
        let Some((socket, data)) = socket.zip(self.received.get_mut(..size)) else { return };
        let Some(Tls { session, .. }) = socket.tls.as_deref_mut() else { return };
        self.plain.clear();
        let done = session.received(data, &mut self.plain);
        let is_shaking = session.is_handshaking();
        if was_shaking && !is_shaking {
            self.peers.opened(id, now);
            let certificate = session.peer_certificate();
            self.happened.push(Happened {
                owner: Some(Python::attach(|py| socket.owner.clone_ref(py))),
                word: "open",
                detail: certificate.map_or(Detail::Nothing, |der| Detail::Bytes(der.to_vec())),
            });
        }
        self.peers.received(id, &self.plain, session.withheld(), is_all, now);
        if let Err(failure) = done {
            // The peer learns why, if the kernel takes that at once.
            let _ = rustix::io::write(&socket.fd, session.unwritten());
            self.peers.close(id, reason_of_failure(&failure, is_shaking));
            return;
        }
        let (is_over, has_output) = (session.is_closed(), !session.unwritten().is_empty());
        if has_output {
            self.write(id, now);
        }
        if is_over {
            self.peers.ended(id, now);
        }
    }

    /// Write what the kernel takes at once. Returns whether nothing is left.
    fn write(&mut self, id: PeerId, now: Time) -> bool {
        let Some(socket) = socket_of(&mut self.sockets, id) else { return true };
        let Socket { fd, tls, .. } = socket;
        let outcome = match tls {
            Some(tls) => write_encrypted(&mut self.peers, id, fd, tls, now),
            None => write_plain(&mut self.peers, id, fd, now),
        };
        outcome.unwrap_or_else(|reason| {
            self.peers.close(id, reason);
            true
        })
    }

    /// Do what has come of a change, and note what Python has to know.
    pub fn settle(&mut self, py: Python<'_>) {
        while let Some(event) = self.peers.next_event() {
            match event {
                Event::Frame { peer } if !self.peers.has_frame(peer) => {} // it is taken already
                Event::Frame { peer } if self.changed.is_wanted => self.changed.ready.push(peer),
                Event::Frame { peer } => self.has_frame(py, peer),
                Event::Written { peer } => {
                    let Some(socket) = socket_of(&mut self.sockets, peer) else { continue };
                    if std::mem::take(&mut socket.is_own_behind) {
                        self.changed.written.push(peer);
                    }
                    if std::mem::take(&mut socket.is_behind) {
                        self.happens(py, peer, "written", Detail::Nothing);
                    }
                }
                Event::Watch { peer, reads, writes } => self.watch(peer, Ready { reads, writes }),
                Event::ShutDown { peer } => {
                    if let Some(socket) = socket_of(&mut self.sockets, peer) {
                        say_end(socket);
                        // A peer that has left already is noticed by reading.
                        let _ = rustix::net::shutdown(&socket.fd, rustix::net::Shutdown::Write);
                        // What TLS itself had to say is not waited for any more.
                        let now = self.begun.elapsed();
                        self.peers.wrote(peer, 0, false, now);
                    }
                }
                Event::Closed { peer, reason } => self.close(peer, reason),
                Event::Timer => self.happened.push(Happened { owner: None, word: "timer", detail: Detail::Nothing }),
            }
        }
    }

    /// Take what `DataPath` is to know.
    pub fn take_changed(&mut self) -> Changed {
        let is_wanted = self.changed.is_wanted;
        std::mem::replace(&mut self.changed, Changed { is_wanted, ..Changed::default() })
    }

    /// What has happened since this was last asked.
    pub fn happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    /// Take back the memory of what has been said.
    pub fn reuse(&mut self, happened: Vec<Happened>) {
        if self.happened.capacity() == 0 {
            self.happened = happened;
        }
    }

    /// Have a turn say what has happened, if anything has.
    pub fn ring(&mut self) -> Result<()> {
        if self.happened.is_empty() { Ok(()) } else { self.poller.ring() }
    }

    fn happens(&mut self, py: Python<'_>, id: PeerId, word: &'static str, detail: Detail) {
        if let Some(socket) = socket_of(&mut self.sockets, id) {
            let owner = Some(socket.owner.clone_ref(py));
            self.happened.push(Happened { owner, word, detail });
        }
    }

    fn watch(&mut self, id: PeerId, wanted: Ready) {
        let Some(socket) = socket_of(&mut self.sockets, id) else { return };
        match self.poller.set(&socket.fd, id.as_u64(), socket.watched, wanted) {
            Ok(()) => socket.watched = wanted,
            Err(error) => self.peers.close(id, Reason::Lost(reason_of(error))),
        }
    }

    fn close(&mut self, id: PeerId, reason: Reason) {
        if socket_of(&mut self.sockets, id).is_none() {
            return;
        }
        let Some(mut socket) = self.sockets.get_mut(index_of(id)).and_then(Option::take) else { return };
        let _ = self.poller.set(&socket.fd, id.as_u64(), socket.watched, Ready::default());
        say_end(&mut socket);
        let (word, text) = words_of(reason);
        let detail = text.map_or(Detail::Nothing, Detail::Text);
        self.happened.push(Happened { owner: Some(socket.owner), word, detail });
        if self.changed.is_wanted {
            self.changed.gone.push(id);
        }
    }
}

fn write_plain(peers: &mut Peers<Piece>, id: PeerId, fd: &OwnedFd, now: Time) -> std::result::Result<bool, Reason> {
    loop {
        let count = peers.unwritten(id).take(PIECES_MAX).count();
        if count == 0 {
            return Ok(true);
        }
        let (written, size) = write_pieces(fd, count, peers.unwritten(id));
        let taken = match written {
            Ok(taken) => taken,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(Reason::Lost(reason_of(error))),
        };
        peers.wrote(id, taken, taken < size, now);
        if taken < size {
            return Ok(false);
        }
    }
}

fn write_encrypted(
    peers: &mut Peers<Piece>,
    id: PeerId,
    fd: &OwnedFd,
    tls: &mut Tls,
    now: Time,
) -> std::result::Result<bool, Reason> {
    loop {
        if tls.session.unwritten().is_empty() {
            let encrypted = tls.session.encrypt(peers.unwritten(id));
            tls.encrypted = encrypted.map_err(|failure| Reason::Lost(failure.to_string()))?;
            if tls.session.unwritten().is_empty() {
                return Ok(true);
            }
        }
        let taken = match rustix::io::write(fd, tls.session.unwritten()) {
            Ok(taken) => taken,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(Reason::Lost(reason_of(error))),
        };
        tls.session.wrote(taken);
        let is_stuck = !tls.session.unwritten().is_empty();
        // Of what is encrypted as much is written, and never all of it before the last byte is.
        let written = if is_stuck { taken.min(tls.encrypted.saturating_sub(1)) } else { tls.encrypted };
        tls.encrypted -= written;
        peers.wrote(id, written, is_stuck, now);
        if is_stuck {
            return Ok(false);
        }
    }
}

/// Tell a peer with TLS that nothing follows, if the kernel takes that at once. Nothing is encrypted or decrypted any more.
fn say_end(socket: &mut Socket) {
    if let Some(mut tls) = socket.tls.take() {
        tls.session.close();
        let _ = rustix::io::write(&socket.fd, tls.session.unwritten());
    }
}

fn reason_of_failure(failure: &Failure, is_shaking: bool) -> Reason {
    match failure {
        Failure::NotTls => Reason::Handshake(String::new()),
        failure if failure.is_refusal() => Reason::Refused(failure.to_string()),
        failure if is_shaking => Reason::Handshake(failure.to_string()),
        failure => Reason::Malformed(format!("TLS: {failure}")),
    }
}

/// A reason as a word, and what there is to say besides.
fn words_of(reason: Reason) -> (&'static str, Option<String>) {
    match reason {
        Reason::Closed => ("closed", None),
        Reason::Idle => ("idle", None),
        Reason::Slow => ("slow", None),
        // Without a text: the first bytes are none of TLS.
        Reason::Handshake(text) => ("handshake", Some(text).filter(|text| !text.is_empty())),
        Reason::Refused(text) => ("refused", Some(text)),
        Reason::Malformed(text) => ("malformed", Some(text)),
        Reason::OverBudget(text) => ("over budget", Some(text)),
        Reason::Lost(text) => ("lost", Some(text)),
        Reason::Ended => ("ended", None),
    }
}
