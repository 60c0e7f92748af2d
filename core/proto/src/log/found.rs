//! What a read found: the bounds of a log, and a page of its entries.

use std::sync::Arc;

use super::entries::{Ended, Entries, malformed_entry};
use super::{Aborted, Batches, Epochs, Read, Records, Remote, State};
use crate::Malformed;
use crate::append::BATCH;
use crate::failure::Failure;
use crate::partition::{Layout, Partition};
use crate::shared::Shared;

/// What a read found; it may be nothing, and begin after the offset that was asked for if the log has a gap there.
#[derive(Clone, Debug)]
pub struct Found {
    #[allow(missing_docs)]
    pub partition: Arc<Partition>,
    /// The lowest offset that may be asked for.
    pub log_start: i64,
    /// Where the log starts, as responses report it.
    pub first_offset: i64,
    /// The end of what consumers may see. The log goes on past it if replicas of Redis do not have the rest yet.
    pub high_watermark: i64,
    /// The end of the log.
    pub log_end: i64,
    #[allow(missing_docs)]
    pub epochs: Epochs,
    /// What only the remote tier holds. A read of that finds nothing here.
    pub remote: Option<Remote>,
    /// Below it compaction has removed records.
    pub compacted_end: i64,
    /// Where the oldest open transaction begins.
    pub open: Option<i64>,
    /// Whether only what lies below the last stable offset is shown.
    pub is_committed: bool,
    /// The transactions of which a committed read may have found records, with markers from its offset on.
    pub aborted: Vec<Aborted>,
    /// The offset that was asked for.
    offset: i64,
    page: Page,
    /// Whether entries were asked for.
    has_page: bool,
    /// Whether the bounds are of a later read than the entries.
    is_earlier: bool,
}

/// Entries, where they lie in the reply.
#[derive(Clone, Debug)]
struct Page {
    /// From the first entry on.
    bytes: Option<Shared>,
    count: usize,
    /// Whether the log may go on after the last entry.
    is_full: bool,
    /// The end of the first entry, or of the first batch, if it is one of the log.
    first_end: Option<i64>,
    /// The log's end when the entries were read: what lies past it was written by other clients of Redis.
    read_end: i64,
    /// Entries that end past it are not shown.
    shown_end: i64,
}

impl Found {
    /// Nothing but bounds.
    pub(super) fn new(read: &Read, state: &State) -> Self {
        let (end, remote) = (state.end, state.remote());
        let first = state.first.map_or(end, |first| first.max(state.start).min(end));
        Self {
            partition: Arc::clone(&read.partition),
            log_start: remote.map_or(state.start, |remote| remote.start),
            first_offset: remote.map_or(first, |remote| remote.start),
            high_watermark: end,
            log_end: end,
            epochs: state.epochs.clone(),
            remote,
            compacted_end: state.compacted_end,
            open: state.open,
            is_committed: read.is_committed,
            aborted: Vec::new(),
            offset: read.offset,
            page: Page { bytes: None, count: 0, is_full: false, first_end: None, read_end: end, shown_end: end },
            has_page: read.entries_max > 0,
            is_earlier: false,
        }
    }

    /// Entries that are all of the log, from the first one on; nothing else is known.
    pub(super) fn of_range(partition: &Arc<Partition>, bytes: Shared, count: usize, end: i64) -> Self {
        Self {
            partition: Arc::clone(partition),
            log_start: 0,
            first_offset: 0,
            high_watermark: end,
            log_end: end,
            epochs: Epochs::default(),
            remote: None,
            compacted_end: 0,
            open: None,
            is_committed: false,
            aborted: Vec::new(),
            offset: 0,
            page: Page { bytes: Some(bytes), count, is_full: false, first_end: None, read_end: end, shown_end: end },
            has_page: true,
            is_earlier: false,
        }
    }

    /// Take the entries of a reply, from the first one on. Fails if that is none.
    pub(super) fn take_page(&mut self, bytes: Shared, count: usize, is_full: bool) -> Result<(), Failure> {
        if count > 0 {
            (self.page.bytes, self.page.count) = (Some(bytes), count);
            let first = self.walk().next().transpose();
            self.page.first_end = first.map_err(|why| malformed_entry(&self.partition, &why))?;
        }
        self.page.is_full = is_full;
        Ok(())
    }

    /// Keep nothing but the bounds, and not the reply.
    pub fn forget_entries(&mut self) {
        (self.page.bytes, self.page.count, self.page.first_end) = (None, 0, None);
    }

    /// Show no entries that end past an offset.
    pub(super) fn show_until(&mut self, end: i64) {
        self.page.shown_end = self.page.shown_end.min(end);
    }

    /// Whether the first entry is one of the log.
    pub(super) fn has_first(&self) -> bool {
        self.page.first_end.is_some()
    }

    /// The end of the last entry, whatever it is.
    pub(super) fn last_end(&self) -> Option<i64> {
        let mut entries = self.entries();
        std::iter::from_fn(|| entries.next()).last()?.ok()?.end
    }

    /// The entries, those that are not shown among them.
    pub(super) fn entries(&self) -> Entries<'_> {
        let bytes = self.page.bytes.as_ref().map(AsRef::as_ref).unwrap_or_default();
        Entries::new(self.partition.layout, bytes, self.page.count)
    }

    /// The bytes in which the entries lie, if there are any.
    pub(super) fn reply(&self) -> Option<&Shared> {
        self.page.bytes.as_ref()
    }

    /// How many bytes they take.
    pub(crate) fn size_bytes(&self) -> usize {
        self.reply().map_or(0, |reply| reply.as_ref().len())
    }

    /// Why a walk ends before an entry with this end, if it does.
    pub(super) fn ended_at(&self, end: Option<i64>) -> Option<Ended> {
        match end {
            Some(end) if end <= self.page.shown_end => None,
            Some(end) if end <= self.page.read_end => Some(Ended::Cut),
            _ => Some(Ended::Outside),
        }
    }

    /// Whether there may be more after a walk, by why it ended; `next_offset` is past the last entry that it met.
    pub(super) fn has_more(&self, ended: Ended, next_offset: Option<i64>) -> bool {
        let visible_end = self.visible_end();
        let goes_on = match ended {
            Ended::Exhausted => self.page.is_full || !self.has_page,
            Ended::Cut => self.page.shown_end < visible_end,
            Ended::Outside | Ended::Damaged => true,
        };
        let reached = next_offset.or((!self.has_page).then_some(self.offset));
        if self.is_earlier && reached.is_none_or(|reached| reached < visible_end) {
            return true;
        }
        // Past the end of a log of records there may be entries that it is to take in. No others are served ever.
        let may_be_external = self.has_page && self.partition.layout != Layout::Batch;
        let is_whole = self.page.shown_end == self.page.read_end;
        goes_on && ((may_be_external && is_whole) || reached.is_some_and(|reached| reached < visible_end))
    }

    /// Whether the first entry may be shown.
    pub fn holds_any(&self) -> bool {
        self.page.first_end.is_some_and(|end| end <= self.page.shown_end)
    }

    /// Whether there are as many entries as were asked for, or the compacted part of the log ends after them.
    pub fn is_full(&self) -> bool {
        self.page.is_full
    }

    /// The last stable offset: all transactions that have records below it have ended.
    pub fn stable_offset(&self) -> i64 {
        // Deletion may have removed the beginning of an open transaction.
        self.open.map_or(self.high_watermark, |open| open.max(self.first_offset).min(self.high_watermark))
    }

    /// The end of what such a read may find.
    pub fn visible_end(&self) -> i64 {
        if self.is_committed { self.stable_offset() } else { self.high_watermark }
    }

    /// The end of the log; as in Kafka it is no error to ask for what lies between it and the high watermark.
    pub fn end_offset(&self) -> i64 {
        self.high_watermark.max(self.log_end)
    }

    /// Show nothing that lies at or past a high watermark, -1 if none is known; `stable` is the last stable offset of the
    /// log up to there. A transaction is open in that as long as its marker lies past it.
    pub fn limit(&mut self, high_watermark: i64, stable: i64) {
        // At the first record that Redis holds at least: that shows nothing.
        let start = self.remote.map_or(self.first_offset, |remote| remote.end);
        let end = high_watermark.max(start);
        if end < self.high_watermark {
            self.high_watermark = end;
            self.open = (stable < end).then_some(stable.max(start));
            self.show_until(self.visible_end());
        }
    }

    /// Take the bounds of a read of now. What was found before stays as it was; there is more if the log goes on after it.
    /// What was found later ends where these do.
    pub fn set_bounds(&mut self, now: &Self) {
        (self.log_start, self.first_offset) = (now.log_start, now.first_offset);
        (self.high_watermark, self.log_end) = (now.high_watermark, now.log_end);
        (self.remote, self.open) = (now.remote, now.open);
        self.epochs = now.epochs.clone();
        self.is_earlier = true;
        self.show_until(self.visible_end());
    }

    /// The same for who waits with it: what came with the entries in one piece of memory is not kept for them.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.page.bytes = self.page.bytes.map(Shared::kept);
        self
    }

    /// The offset past the last entry that may be shown; walks over the entries.
    pub fn next_offset(&self) -> Option<i64> {
        self.walk().map_while(Result::ok).last()
    }

    /// The end of each entry that may be shown; in layout `batch`, of each that claims to be a batch.
    fn walk(&self) -> impl Iterator<Item = Result<i64, Malformed>> {
        let mut entries = self.entries();
        std::iter::from_fn(move || {
            loop {
                match self.walk_on(&mut entries)? {
                    Ok(None) => {}
                    Ok(Some(end)) => return Some(Ok(end)),
                    Err(malformed) => return Some(Err(malformed)),
                }
            }
        })
    }

    /// Walk to the next entry; `None` inside if that is no batch and should be one.
    fn walk_on(&self, entries: &mut Entries<'_>) -> Option<Result<Option<i64>, Malformed>> {
        let end = match entries.next()? {
            Ok(entry) => entry.end,
            Err(malformed) => return Some(Err(malformed)),
        };
        if self.ended_at(end).is_some() {
            return None;
        }
        match self.partition.layout {
            Layout::Record { .. } => Some(Ok(end)),
            Layout::Batch => Some(entries.pair().map(|(name, _)| end.filter(|_| name == BATCH))),
        }
    }

    /// The records, whose values hold `plain_bytes_max` bytes at the most.
    pub fn records(&self, plain_bytes_max: usize) -> Records<'_> {
        Records::new(self, plain_bytes_max)
    }

    /// The batches.
    pub fn batches(&self) -> Batches<'_> {
        Batches::new(self)
    }
}
