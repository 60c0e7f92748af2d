//! The calls of `DataPath` from Python.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use korvet_proto::ErrorCode;
use korvet_proto::access::{Right, Session};
use korvet_proto::client::LaneId;
use korvet_proto::failure::Failure;
use korvet_proto::fetch::{self, Consumers};
use korvet_proto::peer::PeerId;
use korvet_proto::produce::{self, Decision, End, Pressure, Producers, RequestId};
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit, prelude::*};

use crate::args::{
    BatchArgs, DecisionArgs, EndFields, NotedFields, PartitionArgs, decision_of, noted_fields, outcome_fields,
    question_fields, script_of, seconds,
};
use crate::channels::Channels;
use crate::client::RedisClient;
use crate::data_path::{DataPath, Lease};
use crate::fetch_args::{FetchNotedFields, fetch_decision_of, fetch_noted_fields, fetch_question_fields};
use crate::peers::ClientSockets;

/// For how long a log is listened to that nobody reads.
const LINGER: Duration = Duration::from_secs(5);

#[pymethods]
impl DataPath {
    #[new]
    #[allow(clippy::too_many_arguments)] // each by its name, or once
    #[pyo3(signature = (
        redis, lanes, scripts, on_news, *, is_cluster, plain_bytes_max, held_bytes_max, timeout_s, replicas,
        sessions_max, seed, wait_max_s, now_s
    ))]
    fn new(
        redis: Py<RedisClient>,
        lanes: (LaneId, LaneId),
        scripts: (Bound<'_, PyAny>, Bound<'_, PyAny>),
        on_news: Py<PyAny>,
        is_cluster: bool,
        plain_bytes_max: usize,
        held_bytes_max: usize,
        timeout_s: f64,
        replicas: u32,
        sessions_max: usize,
        seed: u64,
        wait_max_s: Option<f64>,
        now_s: f64,
    ) -> PyResult<Self> {
        let timeout = seconds(timeout_s)?;
        let options = produce::Options { plain_bytes_max, held_bytes_max, timeout, is_cluster, replicas };
        let scripts = [script_of(&scripts.0)?, script_of(&scripts.1)?];
        let wait_max = wait_max_s.map(seconds).transpose()?;
        let consumers = fetch::Options {
            plain_bytes_max,
            held_bytes_max,
            sessions_max,
            seed,
            is_cluster,
            replicas,
            linger: LINGER,
            wait_max,
        };
        let (appends, reads) = lanes;
        Ok(Self {
            producers: Producers::new(options, scripts),
            consumers: Consumers::new(consumers),
            redis,
            appends,
            reads,
            number: usize::MAX,
            sockets: None,
            channels: None,
            on_news: Some(on_news),
            ready: VecDeque::new(),
            lease: Lease::default(),
            begun: Instant::now(),
            begun_s: now_s,
            is_running: false,
            has_more: false,
        })
    }

    /// Have the client of Redis bring what came of scripts.
    fn join(slf: &Bound<'_, Self>) -> PyResult<()> {
        let redis = slf.try_borrow()?.redis.clone_ref(slf.py());
        let number = redis.bind(slf.py()).try_borrow_mut()?.attach(slf.clone().unbind());
        slf.try_borrow_mut()?.number = number;
        Ok(())
    }

    /// Serve the clients of these sockets.
    #[pyo3(signature = (sockets, /))]
    fn serve_clients(slf: &Bound<'_, Self>, sockets: Bound<'_, ClientSockets>) -> PyResult<()> {
        sockets.try_borrow_mut()?.attach(slf.clone().unbind());
        slf.try_borrow_mut()?.sockets = Some(sockets.unbind());
        Ok(())
    }

    /// Hear by these what comes to logs.
    #[pyo3(signature = (channels, /))]
    fn hear_by(slf: &Bound<'_, Self>, channels: Bound<'_, Channels>) -> PyResult<()> {
        channels.try_borrow_mut()?.attach(slf.clone().unbind());
        slf.try_borrow_mut()?.channels = Some(channels.unbind());
        Ok(())
    }

    // --- what Python decides on

    #[pyo3(signature = (partition, /))]
    fn put_partition(slf: &Bound<'_, Self>, partition: PartitionArgs<'_>) -> PyResult<()> {
        let partition = partition.partition()?;
        let mut own = slf.try_borrow_mut()?;
        own.producers.put_partition(partition.clone());
        own.consumers.put_partition(partition);
        Ok(())
    }

    #[pyo3(signature = (name, /))]
    fn forget_topic(&mut self, name: &str) {
        self.producers.forget_topic(name);
        self.consumers.forget_topic(name);
    }

    fn forget_topics(&mut self) {
        self.producers.forget_topics();
        self.consumers.forget_topics();
    }

    #[pyo3(signature = (peer, may_all, ends_s, /))]
    fn put_session(slf: &Bound<'_, Self>, peer: u64, may_all: bool, ends_s: Option<f64>) -> PyResult<()> {
        let (py, peer) = (slf.py(), PeerId::from_u64(peer));
        Self::change(slf, |own, _, _| {
            let sockets = own.sockets.as_ref().map(|sockets| sockets.bind(py).try_borrow()).transpose()?;
            // One that is over was forgotten already, and nobody would forget it again.
            if sockets.is_some_and(|sockets| sockets.sockets.peers.is_there(peer)) {
                let ends_at = ends_s.map(|ends_s| own.time_of(ends_s));
                own.producers.put_session(peer, Session { may_all, ends_at });
                own.consumers.put_session(peer, Session { may_all, ends_at });
                own.look([peer]);
            }
            Ok(())
        })
    }

    /// Grant a right to a client that produces (`writes`) or consumes.
    #[pyo3(signature = (peer, writes, kind, name, /))]
    fn grant(&mut self, peer: u64, writes: bool, kind: &str, name: &Bound<'_, PyAny>) -> PyResult<()> {
        let right = match kind {
            "topic" => Right::Topic(name.extract::<&str>()?.into()),
            "topic id" => Right::TopicId(name.extract()?),
            "cluster" => Right::Cluster,
            _ => Right::TransactionalId(name.extract::<&str>()?.into()),
        };
        let peer = PeerId::from_u64(peer);
        if writes {
            self.producers.grant(peer, right);
        } else {
            self.consumers.grant(peer, right);
        }
        Ok(())
    }

    fn forget_rights(&mut self) {
        self.producers.forget_rights();
        self.consumers.forget_rights();
    }

    #[pyo3(signature = (until_s, /))]
    fn trust_rights(&mut self, until_s: f64) {
        let until = self.time_of(until_s);
        self.producers.trust_rights(until);
        self.consumers.trust_rights(until);
    }

    #[pyo3(signature = (is_metered, /))]
    fn set_metered(&mut self, is_metered: bool) {
        self.producers.set_metered(is_metered);
        self.consumers.set_metered(is_metered);
    }

    #[pyo3(signature = (end_boot_s, late_until_s, length_s, /))]
    fn set_lease(&mut self, end_boot_s: f64, late_until_s: f64, length_s: f64) -> PyResult<()> {
        let (end, late_until) = (Some(seconds(end_boot_s)?), self.time_of(late_until_s));
        self.lease = Lease { end, late_until, length: seconds(length_s)? };
        Ok(())
    }

    fn reordered(&mut self) {
        self.producers.reordered();
    }

    #[pyo3(signature = (node, history, epoch, /))]
    fn put_epoch(slf: &Bound<'_, Self>, node: usize, history: &str, epoch: i32) -> PyResult<()> {
        Self::change(slf, |own, _, _| {
            own.producers.put_epoch(node, history, epoch);
            own.consumers.put_epoch(node, history, epoch);
            Ok(())
        })
    }

    #[pyo3(signature = (node, text, /))]
    fn no_epoch(slf: &Bound<'_, Self>, node: usize, text: &str) -> PyResult<()> {
        Self::change(slf, |own, client, clock| {
            own.producers.no_epoch(node, text, &client.nodes(own.appends), clock);
            Ok(())
        })
    }

    #[pyo3(signature = (node, throttle_ms, refusal, due_s, until_s, /))]
    fn put_pressure(&mut self, node: usize, throttle_ms: u32, refusal: Option<String>, due_s: f64, until_s: f64) {
        let (due, until) = (self.time_of(due_s), self.time_of(until_s));
        self.producers.put_pressure(node, Pressure { throttle_ms, refusal, due, until });
    }

    #[pyo3(signature = (node, history, count, until_s, /))]
    fn put_insync(&mut self, node: usize, history: &str, count: u32, until_s: f64) {
        let until = self.time_of(until_s);
        self.producers.put_insync(node, history, count, until);
    }

    #[pyo3(signature = (throttle_ms, /))]
    fn set_full_throttle(&mut self, throttle_ms: u32) {
        self.producers.set_full_throttle(throttle_ms);
    }

    // --- requests

    /// Append batches and markers of the worker itself; its number comes with the news `done`.
    #[pyo3(signature = (batches, /))]
    fn append(slf: &Bound<'_, Self>, batches: Vec<BatchArgs<'_>>) -> PyResult<u64> {
        let asked = batches.into_iter().map(BatchArgs::asked).collect::<PyResult<Vec<_>>>()?;
        Self::change(slf, |own, client, clock| {
            Ok(own.producers.append(asked, &client.nodes(own.appends), clock).as_u64())
        })
    }

    #[pyo3(signature = (request, /))]
    fn outcomes<'py>(slf: &Bound<'py, Self>, request: u64) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let outcomes = slf.try_borrow_mut()?.producers.take_outcomes(RequestId::from_u64(request));
        outcomes.into_iter().map(|outcome| outcome_fields(slf.py(), outcome)).collect()
    }

    #[pyo3(signature = (request, /))]
    fn questions<'py>(slf: &Bound<'py, Self>, request: u64) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let (questions, begun_s) = {
            let own = slf.try_borrow()?;
            let questions: Vec<_> = own.producers.questions(RequestId::from_u64(request)).cloned().collect();
            (questions, own.begun_s)
        };
        questions.into_iter().map(|question| question_fields(slf.py(), question, begun_s)).collect()
    }

    #[pyo3(signature = (request, decisions, /))]
    fn decide(slf: &Bound<'_, Self>, request: u64, decisions: Vec<Option<DecisionArgs<'_>>>) -> PyResult<()> {
        let decisions = decisions.iter().map(Option::as_ref).map(decision_of).collect::<PyResult<Vec<Decision>>>()?;
        Self::change(slf, |own, client, clock| {
            own.producers.decide(RequestId::from_u64(request), decisions, &client.nodes(own.appends), clock);
            Ok(())
        })
    }

    #[pyo3(signature = (request, /))]
    fn fetch_questions<'py>(slf: &Bound<'py, Self>, request: u64) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let questions: Vec<_> = {
            let own = slf.try_borrow()?;
            own.consumers.questions(RequestId::from_u64(request)).cloned().collect()
        };
        questions.into_iter().map(|question| fetch_question_fields(slf.py(), question)).collect()
    }

    #[pyo3(signature = (request, decisions, /))]
    fn decide_fetch(slf: &Bound<'_, Self>, request: u64, decisions: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let mut outcome = Ok(());
        let decisions = decisions.iter().map(|decision| {
            fetch_decision_of(decision).unwrap_or_else(|error| {
                outcome = Err(error);
                fetch::Decision::Refuse(Failure::rule(ErrorCode::UnknownServerError, "a decision that is none"))
            })
        });
        let decisions = decisions.collect();
        // A mistake of Python's is its error, and its client gets an answer all the same.
        Self::change(slf, |own, client, clock| {
            own.consumers.decide(RequestId::from_u64(request), decisions, &client.nodes(own.reads), clock.now);
            Ok(())
        })?;
        outcome
    }

    // --- what Fetch waits for

    fn drain(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::change(slf, |own, client, clock| {
            own.consumers.drain(&client.nodes(own.reads), clock.now);
            Ok(())
        })
    }

    fn tick(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::change(slf, |own, client, clock| {
            own.consumers.tick(&client.nodes(own.reads), clock.now);
            Ok(())
        })
    }

    fn take_timer_s(&mut self) -> Option<f64> {
        self.consumers.take_timer().map(|at| at.saturating_sub(self.now()).as_secs_f64())
    }

    /// How many requests wait for records.
    #[getter]
    fn parked(&self) -> usize {
        self.consumers.parked()
    }

    #[pyo3(signature = (bytes_max, /))]
    fn set_fetch_bytes_max(&mut self, bytes_max: usize) {
        self.consumers.set_bytes_max(bytes_max);
    }

    /// What an answer made elsewhere may take of the memory for records.
    #[getter]
    fn fetch_room(&self) -> usize {
        self.consumers.room()
    }

    #[pyo3(signature = (taken, released, /))]
    fn hold_fetched(&mut self, taken: usize, released: usize) {
        self.consumers.hold(taken, released);
    }

    fn take_fetch_noted(slf: &Bound<'_, Self>) -> PyResult<FetchNotedFields> {
        let noted = slf.try_borrow_mut()?.consumers.take_noted();
        Ok(fetch_noted_fields(&noted))
    }

    // --- what Python reads

    #[getter]
    fn count(&self) -> usize {
        self.producers.count() + self.consumers.count()
    }

    #[pyo3(signature = (stream, /))]
    fn end_of(&self, stream: &str) -> Option<EndFields> {
        self.producers.end_of(stream).map(|end| (end.topic_id.to_string(), end.epoch, end.end))
    }

    #[pyo3(signature = (stream, topic_id, epoch, end, /))]
    fn put_end(&mut self, stream: &str, topic_id: &str, epoch: i32, end: i64) {
        self.producers.put_end(stream, End { topic_id: topic_id.into(), epoch, end });
    }

    fn take_noted(slf: &Bound<'_, Self>) -> PyResult<NotedFields> {
        let noted = slf.try_borrow_mut()?.producers.take_noted();
        Ok(noted_fields(noted))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.redis)?;
        visit.call(&self.sockets)?;
        visit.call(&self.channels)?;
        visit.call(&self.on_news)
    }

    fn __clear__(&mut self) {
        drop((self.sockets.take(), self.channels.take(), self.on_news.take()));
    }
}
