//! External entries: what other clients XADD to the stream of a log, past the log's end. In layout `record` they become
//! records, under other ids if theirs are not the next offsets. In layout `batch` they are removed.

use super::call::number;
use super::state::Counters;
use super::stream::{EXACT_MAX, Fields, Id, Ids, Stream};
use super::{IndexRows, Model, Refusal, Reply, check_epoch, exact, shown, storage_error};

/// No entry of more names and values can be moved by a script.
const ARGUMENTS_MAX: usize = 7_900;
/// So many entries are copied into Lua at once.
const CHUNK: usize = 50;
/// What an append or log/expel deals with in one step: some milliseconds of Redis.
const BYTES_MAX: i64 = 4 << 20;
const TAKEN_MAX: usize = 2_000;

/// The bytes of an entry, and its time: its first field `timestamp` that holds an int64.
fn measured(fields: &[Vec<u8>]) -> (i64, Option<Vec<u8>>) {
    let size: usize = fields.iter().map(Vec::len).sum();
    let is_number = |text: &[u8]| {
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        text.len() <= 20 && digits.iter().all(u8::is_ascii_digit) && number(text).is_some()
    };
    let time = fields.chunks(2).find(|pair| pair[0] == b"timestamp" && is_number(&pair[1]));
    (size as i64, time.map(|pair| pair[1].clone()))
}

/// The time of an entry without such a field: that of its id, if this is one.
fn time_of(id: Id, now_ms: i64) -> Vec<u8> {
    let is_none = id.ms == 0 || id.ms as f64 > EXACT_MAX as f64;
    if is_none { now_ms.to_string() } else { id.ms.to_string() }.into_bytes()
}

fn with_time(fields: &Fields, time: &[u8]) -> Fields {
    let mut fields = fields.to_vec();
    fields.extend([b"timestamp".to_vec(), time.to_vec()]);
    fields.into()
}

/// The lowest end that the next entry can follow: Redis takes no last id below the largest that it has deleted.
fn lowest_end(ids: Ids, end: i64, deleted: Id) -> i64 {
    let is_bound = ids.of_end(end) == Id::ZERO && deleted != Id::ZERO;
    if is_bound { ids.end_of(Id { ms: 0, sequence: 1 }).unwrap() } else { end }
}

/// Take entries past the end of a log out of its stream. In an empty log by XTRIM, which Redis does not remember.
fn remove(stream: &mut Stream, taken: &[Id], end: i64) {
    if end == 0 {
        stream.trim_to_length(stream.length - taken.len());
    } else {
        stream.delete(taken);
    }
}

/// Count `added` entries as ever added, and if none is left past the end let ids go on there: what was removed is not
/// deleted.
fn set_back(stream: &mut Stream, ids: Ids, end: i64, added: u64, deleted: Id, is_empty: bool) -> i64 {
    let lowest = lowest_end(ids, end, deleted);
    let end_id = ids.of_end(lowest);
    let deleted = if deleted == Id::ZERO {
        if end_id == Id::ZERO { Id::ZERO } else { Id { ms: 0, sequence: 1 } }
    } else if ids.end_of(deleted).is_none_or(|deleted| deleted > end) {
        end_id
    } else {
        deleted
    };
    stream.set_id(stream.last_id, Some(added), Some(deleted)).unwrap();
    if is_empty {
        stream.set_id(end_id, None, None).unwrap();
    }
    lowest
}

/// Remove entries past the end of a log in layout `batch`. Returns how many, and if none is left the lowest end that the
/// next entry can follow.
pub(super) fn expel_entries(stream: &mut Stream, end: i64, most: usize) -> (usize, Option<i64>) {
    let ids = Ids { bits: -1 };
    let (last_id, added, deleted) = (stream.last_id, stream.added, stream.deleted);
    let (mut removed, mut bytes, mut is_emptied) = (0, 0, false);
    while removed < most && bytes < BYTES_MAX {
        let fitting = ((BYTES_MAX - bytes) * removed as i64 + bytes.max(1) - 1) / bytes.max(1);
        let count = (fitting.max(1) as usize).min(CHUNK).min(most - removed);
        let entries: Vec<(Id, Fields)> =
            stream.after(ids.of_end(end)).take(count).map(|(id, fields)| (id, fields.clone())).collect();
        if entries.is_empty() {
            is_emptied = true;
            break;
        }
        bytes += entries.iter().map(|(_, fields)| measured(fields).0).sum::<i64>();
        removed += entries.len();
        remove(stream, &entries.iter().map(|(id, _)| *id).collect::<Vec<_>>(), end);
    }
    let lowest = lowest_end(ids, end, deleted);
    if removed > 0 || last_id != ids.of_end(lowest) {
        set_back(stream, ids, end, added - removed as u64, deleted, is_emptied);
    }
    (removed, is_emptied.then_some(lowest))
}

/// Take all entries past the end of a log in layout `record` into it, before an append writes its first. Returns how many
/// got other ids; `None`, with nothing done, if log/renumber has to.
pub(super) fn take_in(stream: &mut Stream, ids: Ids, now_ms: i64, log: &mut Counters) -> Option<i64> {
    let mut taken_log = *log;
    let (mut to_move, mut taken, mut taken_bytes) = (Vec::<(Id, Fields)>::new(), 0, 0);
    for (id, fields) in stream.after(ids.of_end(log.next)) {
        let mut fields = fields.clone();
        let mut end = ids.end_of(id);
        let (mut size, mut time) = measured(&fields);
        let is_next = to_move.is_empty() && end == Some(taken_log.next + 1) && time.is_some();
        if ids.is_dense() && !is_next {
            if fields.len() > ARGUMENTS_MAX {
                return None;
            }
            if time.is_none() {
                let made = time_of(id, now_ms);
                fields = with_time(&fields, &made);
                size = measured(&fields).0;
                time = Some(made);
            }
            to_move.push((id, fields));
            end = Some(taken_log.next + 1);
        }
        taken += 1;
        taken_bytes += size;
        if id == Id::LAST || taken > TAKEN_MAX || taken_bytes > BYTES_MAX {
            return None;
        }
        taken_log.next = end?;
        count_in(&mut taken_log, size, &time.unwrap_or_else(|| time_of(id, now_ms)));
        taken_log.records += 1;
    }
    if taken == 0 {
        // It is deleted, and its id is still the stream's last.
        return None;
    }
    let end = taken_log.next - to_move.len() as i64;
    if !to_move.is_empty() && end == 0 && stream.deleted != Id::ZERO {
        return None;
    }
    *log = taken_log;
    if to_move.is_empty() {
        return Some(0);
    }
    let (added, deleted) = (stream.added, stream.deleted);
    remove(stream, &to_move.iter().map(|(id, _)| *id).collect::<Vec<_>>(), end);
    set_back(stream, ids, end, added - to_move.len() as u64, deleted, true);
    let mut moved = 0;
    for (end, (old_id, fields)) in (end + 1..).zip(to_move) {
        moved += i64::from(ids.of_end(end) != old_id);
        stream.add(ids.of_end(end), fields).unwrap();
    }
    Some(moved)
}

/// Count an entry as the log's last record, whose end is noted.
fn count_in(log: &mut Counters, size: i64, time: &[u8]) {
    log.bytes += size;
    log.note_time(exact(number(time).unwrap_or(EXACT_MAX)));
    if log.first < 0 {
        log.first = log.next - 1;
    }
}

/// One step of log/renumber.
struct Step<'a> {
    name: &'a [u8],
    stream: &'a mut Option<Stream>,
    moving: &'a mut Option<Stream>,
    log: Counters,
    ids: Ids,
    now_ms: i64,
    node_max: usize,
    /// How many entries and bytes this step may still look at or move.
    limit: usize,
    bytes_left: i64,
    rows: IndexRows,
    failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    More,
    Unreadable,
}

impl Step<'_> {
    fn past_end(&self, count: usize) -> Vec<(Id, Fields)> {
        let after = self.stream.as_ref().map(|stream| stream.after(self.ids.of_end(self.log.next)));
        after.into_iter().flatten().take(count).map(|(id, fields)| (id, fields.clone())).collect()
    }

    /// How many to copy next: one at first, then as many as there is room for, of entries like the `done` before.
    fn fitting(&self, done: usize, room: i64) -> usize {
        if done == 0 {
            return 1;
        }
        let size = (room - self.bytes_left).max(1);
        let fitting = (self.bytes_left.max(0) * done as i64 + size - 1) / size;
        (fitting.max(0) as usize).clamp(1, CHUNK)
    }

    fn count(&mut self, held: &mut super::Log, end: i64, size: i64, time: &[u8]) {
        self.log.next = end;
        self.log.records = if self.ids.is_dense() { end } else { self.log.records + 1 };
        count_in(&mut self.log, size, time);
        self.bytes_left -= size;
        let needs_index = &mut held.state.as_mut().unwrap().needs_index;
        self.rows.write(&mut held.index, needs_index, &mut self.log);
    }

    /// Advance the end over entries whose ids are the next offsets.
    fn take_in(&mut self, held: &mut super::Log) -> Left {
        let (mut taken, room) = (0, self.bytes_left);
        loop {
            let entries = self.past_end(self.fitting(taken, room));
            if entries.is_empty() {
                return Left::Nothing;
            }
            for (id, fields) in entries {
                let (size, time) = measured(&fields);
                let is_next = |end: &i64| !self.ids.is_dense() || *end == self.log.next + 1 && time.is_some();
                let Some(end) = self.ids.end_of(id).filter(is_next) else { return Left::Unreadable };
                if self.limit == 0 || self.bytes_left <= 0 {
                    return Left::More;
                }
                let now_ms = self.now_ms;
                self.count(held, end, size, &time.unwrap_or_else(|| time_of(id, now_ms)));
                self.limit -= 1;
                taken += 1;
            }
        }
    }

    /// Let what is past the end wait in `moving`. If nothing is left, the answer is the lowest end for the next entry.
    fn evacuate(&mut self) -> Option<i64> {
        let known = self.stream.as_ref();
        let (last_id, added, deleted) =
            known.map_or((Id::ZERO, 0, Id::ZERO), |stream| (stream.last_id, stream.added, stream.deleted));
        let (mut moved, room, mut is_emptied) = (0, self.bytes_left, false);
        while moved < self.limit && self.bytes_left > 0 && self.failure.is_none() {
            let entries = self.past_end(self.fitting(moved, room).min(self.limit - moved));
            if entries.is_empty() {
                is_emptied = true;
                break;
            }
            let mut taken = Vec::new();
            for (id, fields) in entries {
                if fields.len() > ARGUMENTS_MAX {
                    let (name, count) = (shown(self.name), fields.len() / 2);
                    let text = format!("entry {id} has {count} fields, too many to renumber it; remove it with XDEL");
                    self.failure = Some(format!("{name}: {text}"));
                    break;
                }
                self.bytes_left -= measured(&fields).0;
                let noted = [vec![b"id".to_vec(), id.to_string().into_bytes()], fields.to_vec()].concat();
                self.moving.get_or_insert_with(|| Stream::new(self.node_max)).add_next(noted.into());
                taken.push(id);
            }
            if let Some(stream) = self.stream.as_mut().filter(|_| !taken.is_empty()) {
                remove(stream, &taken, self.log.next);
            }
            moved += taken.len();
        }
        if let Some(stream) = self.stream.as_mut().filter(|_| last_id != Id::ZERO) {
            // Even if nothing moved: the last id may be that of an entry that its writer deleted.
            set_back(stream, self.ids, self.log.next, added - moved as u64, deleted, is_emptied);
        }
        self.limit -= moved;
        is_emptied.then(|| lowest_end(self.ids, self.log.next, deleted))
    }

    /// Bring entries back from `moving`. One keeps its id if that is free and an offset; else it gets the next free one.
    fn bring_back(&mut self, held: &mut super::Log, lowest: i64) -> i64 {
        let (ids, now_ms) = (self.ids, self.now_ms);
        let lowest = lowest.max(ids.end_of(Id::ZERO).unwrap());
        let (mut changed, mut brought, room) = (0, 0, self.bytes_left);
        while self.limit > 0 && self.bytes_left > 0 && self.failure.is_none() {
            let count = self.fitting(brought, room).min(self.limit);
            let waiting = self.moving.as_ref().map(|moving| moving.after(Id::ZERO));
            let entries: Vec<(Id, Fields)> =
                waiting.into_iter().flatten().take(count).map(|(id, fields)| (id, fields.clone())).collect();
            if entries.is_empty() {
                break;
            }
            let mut done = Vec::new();
            for (waiting_id, noted) in entries {
                let old_id = Id::parsed(&noted[1]).unwrap();
                let mut fields: Fields = noted[2..].to_vec().into();
                let (_, mut time) = measured(&fields);
                let mut free = 0;
                if ids.is_dense() && time.is_none() {
                    let made = time_of(old_id, now_ms);
                    fields = with_time(&fields, &made);
                    time = Some(made);
                } else if !ids.is_dense() {
                    let is_time = old_id.ms < (EXACT_MAX / ids.width()) as u64;
                    let ms = if is_time { old_id.ms as i64 } else { now_ms };
                    free = ids.end_of(old_id).unwrap_or(ms * ids.width() + 1);
                }
                if self.log.next == EXACT_MAX {
                    self.failure = Some(format!("the offsets of {} are used up", shown(self.name)));
                    break;
                }
                let end = (self.log.next + 1).max(lowest + 1).max(free);
                let id = ids.of_end(end);
                let stream = self.stream.get_or_insert_with(|| Stream::new(self.node_max));
                stream.add(id, fields.clone()).unwrap();
                done.push(waiting_id);
                changed += i64::from(id != old_id);
                self.count(held, end, measured(&fields).0, &time.unwrap_or_else(|| time_of(id, now_ms)));
            }
            if let Some(moving) = self.moving.as_mut() {
                moving.delete(&done);
            }
            self.limit -= done.len();
            brought += done.len();
        }
        changed
    }

    /// No entry is past the end, but the stream's last id may be one there, above which XADD must go on.
    fn skip_deleted(&mut self) {
        let Some(stream) = self.stream.as_mut() else { return };
        let last_end = self.ids.end_of(stream.last_id);
        if stream.last_id == Id::ZERO || last_end.is_some_and(|end| end <= self.log.next) {
            return;
        }
        let last_end = match last_end.filter(|_| !self.ids.is_dense()) {
            Some(end) => end,
            None => set_back(stream, self.ids, self.log.next, stream.added, stream.deleted, true),
        };
        self.log.next = self.log.next.max(last_end);
    }
}

impl Model {
    /// log/expel.
    pub(super) fn expel(&mut self, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Result<Reply, Refusal> {
        let most = number(&arguments[1]).unwrap() as usize;
        let (held, _) = self.open_log(&keys[1], &arguments[0])?;
        let log = &mut held.state.as_mut().unwrap().log;
        let Some(stream) = held.stream.as_mut() else {
            return Ok(Reply::Array(vec![Reply::Integer(0), Reply::Integer(0), Reply::text(log.next)]));
        };
        let (removed, lowest) = expel_entries(stream, log.next, most);
        log.next = log.next.max(lowest.unwrap_or_default());
        let is_unfinished = i64::from(lowest.is_none());
        Ok(Reply::Array(vec![Reply::Integer(removed as i64), Reply::Integer(is_unfinished), Reply::text(log.next)]))
    }

    /// log/renumber.
    pub(super) fn renumber(&mut self, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Result<Reply, Refusal> {
        let [leader_epoch, bits, limit, bytes_left] = [1, 2, 3, 4].map(|index| number(&arguments[index]).unwrap());
        let node_max = self.node_max;
        let (held, now_ms) = self.open_log(&keys[1], &arguments[0])?;
        let known = held.state.as_ref().unwrap().log;
        let begins_epoch = check_epoch(&keys[1], &known, leader_epoch)?;
        let (mut stream, mut moving) = (held.stream.take(), held.moving.take());
        let mut step = Step {
            name: &keys[0],
            stream: &mut stream,
            moving: &mut moving,
            log: known,
            ids: Ids { bits },
            now_ms,
            node_max,
            limit: limit as usize,
            bytes_left,
            rows: IndexRows::new(&known),
            failure: None,
        };
        let (mut changed, mut is_unfinished) = (0, false);
        if !step.log.is_moving {
            match step.take_in(held) {
                Left::Unreadable => step.log.is_moving = true,
                Left::More => is_unfinished = true,
                Left::Nothing => step.skip_deleted(),
            }
        }
        if step.log.is_moving {
            let lowest = step.evacuate();
            changed = lowest.map_or(0, |lowest| step.bring_back(held, lowest));
            let waiting = step.moving.as_ref().map_or(0, |moving| moving.length);
            is_unfinished = waiting > 0 || !step.past_end(1).is_empty();
            step.log.is_moving = is_unfinished;
            if waiting == 0 {
                *step.moving = None;
            } else if let Some(lowest) = lowest.filter(|_| step.ids.is_dense()) {
                // An entry added now gets an id after the waiting ones.
                let last_id = step.ids.of_end(step.log.next.max(lowest) + waiting as i64);
                step.stream.as_mut().unwrap().set_id(last_id, None, None).unwrap();
            }
        }
        let (mut log, failure) = (step.log, step.failure.take());
        (held.stream, held.moving) = (stream, moving);
        let state = held.state.as_mut().unwrap();
        if log.next > known.next {
            if begins_epoch {
                state.epochs = state.epochs_with(leader_epoch);
                log.epoch = leader_epoch;
            }
            self.published.push((arguments[5].clone(), log.next.to_string()));
        }
        self.log(&keys[1]).state.as_mut().unwrap().log = log;
        if let Some(failure) = failure {
            return storage_error(&failure);
        }
        let next = Reply::text(log.next);
        Ok(Reply::Array(vec![Reply::Integer(changed), Reply::Integer(i64::from(is_unfinished)), next]))
    }
}
