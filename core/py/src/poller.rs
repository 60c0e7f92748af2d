//! Sockets that are ready, of many: epoll, or kqueue where there is none. Its own descriptor is readable when there are any.
//!
//! gevent's loop watches that one descriptor, so a connection costs no watcher of Python, and all that are ready at a time
//! one call. Readiness is by level: what is left unread is said again.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, Result};

#[cfg(target_os = "linux")]
use rustix::event::epoll::Event;
#[cfg(not(target_os = "linux"))]
use rustix::event::kqueue::Event;

/// How many are returned at once, by most calls and at most. A call after one that had too little room has twice as much:
/// after a pause all connections may be ready.
const READY_MIN: usize = 256;
const READY_MAX: usize = 16 << 10;
/// The key of the bell. No connection has it: it would be one of four billion that are open.
const BELL: u64 = u64::MAX;

/// What is wanted of a socket, or has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    pub reads: bool,
    pub writes: bool,
}

impl Ready {
    const NONE: Self = Self { reads: false, writes: false };
    const WRITES: Self = Self { reads: false, writes: true };
}

pub struct Poller {
    poll: OwnedFd,
    /// Always writable, for its other end is closed: watched, it makes the poller's own descriptor readable.
    bell: UnixStream,
    is_rung: bool,
    room: usize,
}

impl Poller {
    pub fn new() -> Result<Self> {
        let (bell, _) = UnixStream::pair().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        Ok(Self { poll: new_poll()?, bell, is_rung: false, room: READY_MIN })
    }

    /// Watch a socket by a key, for something else, or no more. Nothing comes of one that is watched for nothing, whatever
    /// happens to it: epoll would say over and over that its peer is gone.
    pub fn set(&self, socket: impl AsFd, key: u64, former: Ready, wanted: Ready) -> Result<()> {
        if former == wanted { Ok(()) } else { set(&self.poll, socket, key, former, wanted) }
    }

    /// Make the descriptor readable until the next `find`.
    pub fn ring(&mut self) -> Result<()> {
        if !self.is_rung {
            self.set(&self.bell, BELL, Ready::NONE, Ready::WRITES)?;
            self.is_rung = true;
        }
        Ok(())
    }

    /// Find those that are ready now. An error or a hang-up is both.
    pub fn find(&mut self, into: &mut Vec<(u64, Ready)>) -> Result<()> {
        if self.is_rung {
            self.set(&self.bell, BELL, Ready::WRITES, Ready::NONE)?;
            self.is_rung = false;
        }
        let mut events: Vec<Event> = Vec::with_capacity(self.room);
        match wait(&self.poll, &mut events) {
            // They are still ready, and so the next call finds them.
            Err(Errno::INTR) => {}
            outcome => outcome?,
        }
        into.extend(events.iter().map(ready));
        self.room = if events.len() < self.room { READY_MIN } else { (2 * self.room).min(READY_MAX) };
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn new_poll() -> Result<OwnedFd> {
    use rustix::event::epoll;
    epoll::create(epoll::CreateFlags::CLOEXEC)
}

#[cfg(target_os = "linux")]
fn set(poll: &OwnedFd, socket: impl AsFd, key: u64, former: Ready, wanted: Ready) -> Result<()> {
    use rustix::event::epoll::{self, EventFlags};
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, wanted.reads);
    flags.set(EventFlags::OUT, wanted.writes);
    if wanted == Ready::NONE {
        epoll::delete(poll, socket)
    } else if former == Ready::NONE {
        epoll::add(poll, socket, epoll::EventData::new_u64(key), flags)
    } else {
        epoll::modify(poll, socket, epoll::EventData::new_u64(key), flags)
    }
}

#[cfg(target_os = "linux")]
fn wait(poll: &OwnedFd, events: &mut Vec<Event>) -> Result<()> {
    let now = rustix::event::Timespec::default();
    rustix::event::epoll::wait(poll, spare_capacity(events), Some(&now)).map(|_| ())
}

#[cfg(target_os = "linux")]
fn ready(event: &Event) -> (u64, Ready) {
    use rustix::event::epoll::EventFlags;
    let (flags, key) = (event.flags, event.data.u64());
    let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
    let (reads, writes) = (flags.contains(EventFlags::IN), flags.contains(EventFlags::OUT));
    (key, Ready { reads: reads || broken, writes: writes || broken })
}

#[cfg(not(target_os = "linux"))]
fn new_poll() -> Result<OwnedFd> {
    rustix::event::kqueue::kqueue()
}

#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
fn set(poll: &OwnedFd, socket: impl AsFd, key: u64, former: Ready, wanted: Ready) -> Result<()> {
    use rustix::event::kqueue::{Event, EventFilter, EventFlags, kevent};
    let fd = socket.as_fd().as_raw_fd();
    let filters =
        [(EventFilter::Read(fd), former.reads, wanted.reads), (EventFilter::Write(fd), former.writes, wanted.writes)];
    let changes: Vec<Event> = filters
        .into_iter()
        .filter(|(_, former, wanted)| former != wanted)
        .map(|(filter, _, wanted)| {
            let flags = if wanted { EventFlags::ADD } else { EventFlags::DELETE };
            Event::new(filter, flags, key as *mut std::ffi::c_void)
        })
        .collect();
    let mut none: [Event; 0] = [];
    // SAFETY: the descriptors of the changes are open, for the caller has them; the key is a number, and not followed.
    unsafe { kevent(poll, &changes, &mut none, None) }.map(|_| ())
}

#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
fn wait(poll: &OwnedFd, events: &mut Vec<Event>) -> Result<()> {
    let now = std::time::Duration::ZERO;
    // SAFETY: there are no changes.
    unsafe { rustix::event::kqueue::kevent(poll, &[], spare_capacity(events), Some(now)) }.map(|_| ())
}

#[cfg(not(target_os = "linux"))]
fn ready(event: &Event) -> (u64, Ready) {
    let is_write = matches!(event.filter(), rustix::event::kqueue::EventFilter::Write(_));
    (event.udata() as u64, Ready { reads: !is_write, writes: is_write })
}

impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}
