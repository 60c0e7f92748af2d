//! What is announced to the core's own readers.

use super::Name;

/// What has come over a channel that is watched, or become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Announced {
    /// A log ends there by now, says the last of maybe several messages.
    End { channel: Name, end: i64 },
    /// It is live, which was waited for: what was read before may be old.
    Live { channel: Name },
    /// From now on messages may be missed, until `Again`.
    Interrupted { channel: Name },
    /// Messages were missed, and none is from now on: it is live. Or one had something else than the end of a log.
    Again { channel: Name },
    /// It is not live, and nobody is to wait for that, whether it was waited for or is interrupted. `Again` comes once
    /// it is.
    Failed { channel: Name, text: String },
}

/// Where something lies: which time it is taken, and the index then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    taking: u64,
    index: usize,
}

/// What is announced and not taken yet: of the ends of a log the last.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    list: Vec<Announced>,
    taking: u64,
}

impl Announcements {
    pub fn put(&mut self, announced: Announced) {
        self.list.push(announced);
    }

    /// Note where a log ends; `place` is where it was noted last.
    pub fn put_end(&mut self, channel: &Name, end: i64, place: &mut Option<Place>) {
        let last = place.filter(|last| last.taking == self.taking).and_then(|last| self.list.get_mut(last.index));
        if let Some(Announced::End { end: noted, .. }) = last {
            *noted = end;
            return;
        }
        *place = Some(Place { taking: self.taking, index: self.list.len() });
        self.list.push(Announced::End { channel: Name::clone(channel), end });
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn take(&mut self) -> Vec<Announced> {
        self.taking += 1;
        std::mem::take(&mut self.list)
    }
}
