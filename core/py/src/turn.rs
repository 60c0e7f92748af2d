//! From what a client says to objects of Python: finished calls, and actions of the driver.
//!
//! To make objects and to drop them may run any code of Python, which may call the client: it is not borrowed
//! meanwhile.

use std::ops::Range;
use std::time::Duration;

use korvet_proto::client::{CallId, Event, Prevented, Ready, Time};
use korvet_proto::produce::GroupId;
use korvet_proto::shared::Shared;
use pyo3::types::{PyList, PyString, PyTuple};
use pyo3::{IntoPyObject, PyRefMut, intern, prelude::*};

use crate::call::{Asked, Came, Kind, Token};
use crate::channels::Channels;
use crate::client::RedisClient;
use crate::data_path::DataPath;
use crate::resp::{Builder, Payload, RawReply, list_of};
use crate::sockets::{Step, Todo};

const NO_MEMORY_FOR_REPLY: &str = "the connection to Redis was lost (there is no memory for what it sent): \
    the outcome of the request is unknown";

/// Finished calls, and actions.
pub type Lists<'py> = (Bound<'py, PyList>, Bound<'py, PyList>);

/// What comes of one call from Python.
pub struct Turn<'a, 'py> {
    slf: &'a Bound<'py, RedisClient>,
    py: Python<'py>,
    done: Option<Bound<'py, PyList>>,
    actions: Option<Bound<'py, PyList>>,
    sets_timer: bool,
}

/// The outcomes of the call that was looked at last.
struct Current<'py> {
    call: CallId,
    outcomes: Bound<'py, PyList>,
    is_answered: bool,
}

impl<'a, 'py> Turn<'a, 'py> {
    /// Begin a turn that ends with `act`.
    pub fn new(slf: &'a Bound<'py, RedisClient>) -> Self {
        Self { slf, py: slf.py(), done: None, actions: None, sets_timer: false }
    }

    /// Begin a turn that ends with `lists`.
    pub fn resumed(slf: &'a Bound<'py, RedisClient>) -> PyResult<Self> {
        let done = slf.try_borrow_mut()?.undelivered.take();
        Ok(Self { done: done.map(|done| done.into_bound(slf.py())), ..Self::new(slf) })
    }

    fn borrow(&self) -> PyResult<PyRefMut<'py, RedisClient>> {
        Ok(self.slf.try_borrow_mut()?)
    }

    /// Go on with what has come of a change until nothing comes of it. `own` is the call that is being begun: fails if
    /// its commands cannot be packed.
    pub fn run(&mut self, mut step: Step, own: Option<(CallId, &Asked)>) -> PyResult<()> {
        let mut outcome = Ok(());
        loop {
            let is_quiet = step.todos.is_empty();
            if !is_quiet {
                self.handle(&mut step.todos, None);
                self.borrow()?.state.reuse(step.todos);
            }
            step = match (step.ready, own) {
                (Some(ready), Some((call, asked))) if call == ready.piece.call => {
                    let now = self.borrow()?.state.now();
                    let (step, sent) = send_piece(self.slf, &ready, asked, now)?;
                    outcome = outcome.and(sent);
                    step
                }
                (Some(ready), _) => self.send_ready(&ready)?,
                (None, _) if is_quiet && !self.serve_channels() => return outcome,
                (None, _) => self.borrow()?.state.step(),
            }
        }
    }

    /// Send a piece of a call that was begun before, or of a group of appends.
    fn send_ready(&self, ready: &Ready) -> PyResult<Step> {
        let mut client = self.borrow()?;
        let now = client.state.now();
        match client.state.client.token(ready.piece.call) {
            Some(Token::Own { kind, number, group, .. }) => {
                let (kind, number, group) = (*kind, *number, *group);
                let path = client.paths.get(number).map(|path| path.clone_ref(self.py));
                let packed = path.and_then(|path| {
                    let path = path.bind(self.py).try_borrow().ok()?;
                    Some(path.pack(kind, group, &ready.piece)?.map(Payload::from))
                });
                match packed {
                    Some(packed) => drop(client.state.push(ready, packed, true, now)),
                    None => client.state.client.give_up(ready, "what was to be sent is gone", now),
                }
                Ok(client.state.step())
            }
            Some(Token::Python(waiting)) => {
                let asked = waiting.asked.clone_ref(self.py);
                drop(client);
                Ok(send_piece(self.slf, ready, &asked, now)?.0)
            }
            None => {
                drop(client);
                Ok(send_piece(self.slf, ready, &Asked::nothing(self.py), now)?.0)
            }
        }
    }

    /// Note what became of some places of a group of the data path, if it is one. Returns whether it is.
    fn note_own(&self, call: CallId, places: Range<usize>, mut came: impl FnMut(Kind, GroupId, usize) -> Came) -> bool {
        let Ok(mut client) = self.borrow() else { return false };
        let Some(Token::Own { kind, group, outcomes, .. }) = client.state.client.token(call) else { return false };
        for place in places {
            if let Some(entry) = outcomes.get_mut(place) {
                *entry = Some(came(*kind, *group, place));
            }
        }
        true
    }

    /// Whether replies to a call come as their bytes.
    fn is_raw(&self, call: CallId) -> bool {
        let Ok(mut client) = self.borrow() else { return false };
        matches!(client.state.client.token(call), Some(Token::Python(waiting)) if waiting.asked.is_raw)
    }

    /// Have those who listen to channels take something in.
    fn with_channels(&self, mut take: impl FnMut(&mut Channels, Time)) {
        let mut outcome = Ok(());
        if let Ok(client) = self.borrow() {
            for channels in &client.channels {
                match channels.bind(self.py).try_borrow_mut() {
                    Ok(mut channels) => take(&mut channels, client.state.now()),
                    Err(error) => outcome = Err(error.into()),
                }
            }
        }
        self.report(outcome);
    }

    /// Have them do what follows; returns whether anything may have come of it.
    fn serve_channels(&mut self) -> bool {
        let Ok(mut client) = self.borrow() else { return false };
        let RedisClient { channels, state, .. } = &mut *client;
        let mut has_acted = false;
        for channels in channels.iter() {
            let Ok(mut channels) = channels.bind(self.py).try_borrow_mut() else { continue };
            let (has_these, sets_timer) = channels.serve(state);
            has_acted |= has_these;
            self.sets_timer |= sets_timer;
        }
        has_acted
    }

    /// Have the data path take what has come, and those hear who listen to channels.
    fn wake(&self) {
        let Ok(client) = self.borrow() else { return };
        let woken = client.paths.iter().zip(&client.came).filter(|(_, came)| !came.is_empty());
        let woken: Vec<_> = woken.map(|(path, _)| path.clone_ref(self.py)).collect();
        let channels = client
            .channels
            .iter()
            .filter(|channels| channels.bind(self.py).try_borrow().is_ok_and(|channels| channels.has_news()));
        let channels: Vec<_> = channels.map(|channels| channels.clone_ref(self.py)).collect();
        drop(client);
        for path in woken {
            self.report(DataPath::run(path.bind(self.py), true));
        }
        for channels in channels {
            self.report(Channels::report(channels.bind(self.py)));
        }
    }

    /// Make objects of what has happened. Returns whether there was memory for the replies.
    pub fn handle(&mut self, todos: &mut Vec<Todo>, received: Option<&Received<'py>>) -> bool {
        let (mut current, mut has_memory) = (None, true);
        let mut todos = todos.drain(..);
        while let Some(todo) = todos.next() {
            match todo {
                Todo::Event(Event::Reply { call, place, ref range })
                    if self.note_own(call, place..place + 1, |kind, group, place| {
                        let reply = received.map(|received| received.bytes.part(range.clone())).unwrap_or_default();
                        Came::Reply { kind, group, place, reply }
                    }) => {}
                Todo::Event(Event::Prevented { call, first, count, kind: why, ref text })
                    if self.note_own(call, first..first + count.max(1), |kind, group, place| Came::Prevented {
                        kind,
                        group,
                        place,
                        why,
                        text: text.clone(),
                    }) => {}
                Todo::Event(Event::Reply { call, place, range }) => {
                    let is_raw = self.is_raw(call);
                    let reply = received
                        .filter(|_| has_memory)
                        .and_then(|received| if is_raw { received.raw(range) } else { received.build(range) });
                    has_memory = reply.is_some();
                    let outcome = reply.unwrap_or_else(|| self.prevented(Prevented::Unknown, NO_MEMORY_FOR_REPLY));
                    match todos.as_slice().first() {
                        Some(Todo::Event(Event::Finished { call: finished, took })) if *finished == call => {
                            self.finish(call, *took, Some((place, outcome)));
                            todos.next();
                        }
                        _ => self.put(&mut current, call, place, outcome, true),
                    }
                }
                Todo::Event(Event::Prevented { call, first, count, kind, text }) => {
                    let outcome = self.prevented(kind, &text);
                    for index in first..first + count.max(1) {
                        self.put(&mut current, call, index, outcome.clone(), false);
                    }
                }
                Todo::Event(Event::Finished { call, took }) => self.finish(call, took, None),
                Todo::Event(Event::FeedReply { lane, node, range }) => {
                    let reply = received.and_then(|received| received.bytes.as_ref().get(range)).unwrap_or_default();
                    self.with_channels(|channels, now| channels.received(self.py, (lane, node), reply, now));
                }
                Todo::Event(event) => self.tell(event),
                Todo::Write(connection) => self.act((intern!(self.py, "write"), connection.as_u64())),
                Todo::Stuck(connection) => self.act((intern!(self.py, "stuck"), connection.as_u64())),
                Todo::Unstuck(connection) => self.act((intern!(self.py, "unstuck"), connection.as_u64())),
            }
        }
        has_memory
    }

    /// Note the outcome at a place of a call, unless the call is gone.
    fn put(
        &self,
        current: &mut Option<Current<'py>>,
        call: CallId,
        place: usize,
        outcome: Bound<'py, PyAny>,
        is_reply: bool,
    ) {
        let is_current = |current: &&Current<'_>| current.call == call && (current.is_answered || !is_reply);
        if let Some(current) = current.as_ref().filter(is_current) {
            return self.report(current.outcomes.set_item(place, outcome));
        }
        let looked_up = self.borrow().map(|mut client| {
            let Token::Python(token) = client.state.client.token(call)? else { return None };
            token.is_answered |= is_reply;
            let outcomes = token.outcomes.as_ref().map(|outcomes| outcomes.bind(self.py).clone());
            Some((outcomes, token.asked.count(self.py).max(1), token.is_answered))
        });
        let Ok(Some((outcomes, places, is_answered))) = looked_up else { return };
        let outcomes = match outcomes_with(outcomes, places, place, outcome) {
            Ok(outcomes) => outcomes,
            Err(error) => return self.report(Err(error)),
        };
        let replaced = self.borrow().ok().and_then(|mut client| {
            let Token::Python(token) = client.state.client.token(call)? else { return None };
            token.outcomes.replace(outcomes.clone().unbind())
        });
        drop(replaced);
        *current = Some(Current { call, outcomes, is_answered });
    }

    /// Hand a call over, after its last reply if that has just come.
    fn finish(&mut self, call: CallId, took: Duration, last: Option<(usize, Bound<'py, PyAny>)>) {
        let token = self.borrow().ok().and_then(|mut client| {
            let token = client.state.client.finish(call)?;
            if let Token::Own { number, outcomes, .. } = token {
                client.came.get_mut(number)?.extend(outcomes.into_iter().flatten());
                return None;
            }
            Some(token)
        });
        let Some(Token::Python(token)) = token else { return };
        let seconds = if token.is_answered || last.is_some() { took.as_secs_f64() } else { -1.0 };
        let outcomes = token.outcomes.map(|outcomes| outcomes.into_bound(self.py));
        let outcomes = match last {
            Some((place, outcome)) => outcomes_with(outcomes, token.asked.count(self.py), place, outcome),
            None => Ok(outcomes.unwrap_or_else(|| PyList::empty(self.py))),
        };
        let appended = outcomes.and_then(|outcomes| {
            let done = self.done.get_or_insert_with(|| PyList::empty(self.py));
            done.append((token.waiter, outcomes, token.operation, seconds))
        });
        self.report(appended);
    }

    /// The error that stands for a reply which there is not.
    fn prevented(&self, kind: Prevented, text: &str) -> Bound<'py, PyAny> {
        let word = match kind {
            Prevented::Away => intern!(self.py, "away"),
            Prevented::Unknown => intern!(self.py, "unknown"),
            Prevented::History => intern!(self.py, "history"),
            Prevented::Full => intern!(self.py, "full"),
            Prevented::Closed => intern!(self.py, "closed"),
        };
        let callable = self.borrow().map(|client| client.prevented.clone_ref(self.py));
        let error = callable.and_then(|callable| callable.bind(self.py).call1((word, text)));
        error.unwrap_or_else(|failure| failure.into_value(self.py).into_bound(self.py).into_any())
    }

    fn tell(&mut self, event: Event) {
        let py = self.py;
        if let Some(word) = match event {
            Event::Reordered => Some(Came::Reordered),
            Event::Connected { is_again: true, .. } => Some(Came::Reconnected),
            _ => None,
        } {
            if let Ok(mut client) = self.borrow() {
                client.came.iter_mut().for_each(|came| came.push(word.clone()));
            }
        }
        if matches!(event, Event::Connected { .. } | Event::Refused { .. } | Event::Lost { .. } | Event::Map) {
            self.with_channels(|channels, now| channels.note(&event, now));
        }
        match event {
            Event::Open { connection, address, is_sentinel } => {
                self.act((intern!(py, "open"), connection.as_u64(), address.host, address.port, is_sentinel));
            }
            Event::Close { connection } => self.act((intern!(py, "close"), connection.as_u64())),
            Event::Flush { connection } => self.act((intern!(py, "flush"), connection.as_u64())),
            Event::Timer => self.sets_timer = true,
            Event::Connected { lane, node, history, is_again } => {
                self.act((intern!(py, "connected"), lane, node, history, is_again));
            }
            Event::Refused { lane, node, text } => self.act((intern!(py, "refused"), lane, node, text)),
            Event::Lost { lane, node, text } => self.act((intern!(py, "lost"), lane, node, text)),
            Event::Reordered => self.act((intern!(py, "reordered"),)),
            Event::Map => self.act((intern!(py, "map"),)),
            Event::Failover => self.act((intern!(py, "failover"),)),
            Event::Reply { .. } | Event::Prevented { .. } | Event::Finished { .. } | Event::FeedReply { .. } => {}
        }
    }

    fn act(&mut self, action: impl IntoPyObject<'py, Target = PyTuple>) {
        let actions = self.actions.get_or_insert_with(|| PyList::empty(self.py));
        let appended = actions.append(action);
        self.report(appended);
    }

    /// Give an error that nobody waits for to Python's hook for such errors: the others must not be lost for it.
    fn report(&self, result: PyResult<()>) {
        if let Err(error) = result {
            error.write_unraisable(self.py, Some(self.slf));
        }
    }

    /// End the turn: return what has come of it.
    pub fn lists(mut self) -> Lists<'py> {
        self.wake();
        self.end_turn();
        let list = |list: Option<_>| list.unwrap_or_else(|| PyList::empty(self.py));
        (list(self.done), list(self.actions))
    }

    /// End the turn: have the driver act. What is finished comes with the next turn that ends with `lists`.
    pub fn have_acted(mut self) -> PyResult<()> {
        self.wake();
        if let Some(done) = self.done.take() {
            let mut client = self.borrow()?;
            match &client.undelivered {
                Some(earlier) => {
                    earlier.bind(self.py).as_sequence().in_place_concat(done.as_sequence())?;
                }
                None => client.undelivered = Some(done.unbind()),
            }
            self.sets_timer = true;
        }
        self.end_turn();
        let Some(actions) = self.actions else { return Ok(()) };
        let act = self.slf.try_borrow()?.act.as_ref().map(|act| act.clone_ref(self.py));
        if let Some(act) = act {
            act.bind(self.py).call1((actions,))?;
        }
        Ok(())
    }

    fn end_turn(&mut self) {
        if self.sets_timer {
            self.act((intern!(self.py, "timer"),));
        }
    }
}

/// Pack a piece and send it, or give it up; the second result says why.
pub fn send_piece(
    slf: &Bound<'_, RedisClient>,
    ready: &Ready,
    asked: &Asked,
    now: Time,
) -> PyResult<(Step, PyResult<()>)> {
    let py = slf.py();
    let packed = match asked.packed(py, ready) {
        Ok(packed) => packed,
        Err(error) => {
            let text = error.to_string();
            let mut client = slf.try_borrow_mut()?;
            client.state.client.give_up(ready, &text, now);
            return Ok((client.state.step(), Err(error)));
        }
    };
    let (history, step) = {
        let mut client = slf.try_borrow_mut()?;
        let is_noted = client.state.push(ready, packed, false, now) && asked.sent.is_some();
        let history = is_noted.then(|| PyString::new(py, client.state.client.history(ready.lane, ready.node)));
        (history, client.state.step())
    };
    let noted = match (&asked.sent, history) {
        (Some(sent), Some(history)) => sent.bind(py).append((ready.node, history)),
        _ => Ok(()),
    };
    Ok((step, noted))
}

/// The list of a call's outcomes with one more, which makes the list if it is the first.
fn outcomes_with<'py>(
    outcomes: Option<Bound<'py, PyList>>,
    places: usize,
    place: usize,
    outcome: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let py = outcome.py();
    let outcomes = match outcomes {
        Some(outcomes) => outcomes,
        None if places == 1 => return Ok(list_of(py, 1, || Ok(outcome.clone()))?.cast_into()?),
        None => list_of(py, places, || Ok(py.None().into_bound(py)))?.cast_into()?,
    };
    outcomes.set_item(place, outcome)?;
    Ok(outcomes)
}

/// Bytes in which replies lie, and what makes objects of them.
pub struct Received<'py> {
    pub bytes: Shared,
    pub builder: Builder<'py>,
}

impl<'py> Received<'py> {
    /// `None` if there is no memory for the reply.
    fn build(&self, range: Range<usize>) -> Option<Bound<'py, PyAny>> {
        self.builder.build(self.bytes.as_ref().get(range).unwrap_or_default()).ok()
    }

    /// The bytes of a reply; `None` as above.
    fn raw(&self, range: Range<usize>) -> Option<Bound<'py, PyAny>> {
        let reply = self.bytes.as_ref().get(range).unwrap_or_default();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(reply.len()).ok()?;
        bytes.extend_from_slice(reply);
        Some(Bound::new(self.builder.py, RawReply(bytes.into())).ok()?.into_any())
    }
}
