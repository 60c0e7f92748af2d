//! A client of Redis, with servers' answers by hand: what it sends, and what each caller gets.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use korvet_proto::client::{
    Address, Begin, CallId, Caller, Client, ConnectionId, Event, LaneOptions, Login, Options, Prevented, Span, Target,
    Time, slot_of,
};
use korvet_proto::pipeline::Packed;
use korvet_proto::resp::{put_argument, put_count};

const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const INFO: &str = "$34\r\nrole:master\r\nmaster_replid:abc\r\n\r\n\r\n";
const REPLICA: &str = "$12\r\nrole:slave\r\n\r\n";

/// Commands by their places, each a line of words.
struct Commands(Vec<&'static str>);

impl Caller for Commands {
    fn runs_when_full(&self, place: usize) -> bool {
        self.0[place].contains("full")
    }

    fn is_same_script(&self, place: usize, other: usize) -> bool {
        self.0[place] == self.0[other]
    }
}

fn at(milliseconds: u64) -> Time {
    Duration::from_millis(milliseconds)
}

fn address(port: u16) -> Address {
    Address { host: "h".to_owned(), port }
}

fn packed(words: &str) -> Vec<u8> {
    let mut text = Vec::new();
    put_count(&mut text, words.split(' ').count());
    words.split(' ').for_each(|word| put_argument(&mut text, word.as_bytes()));
    text
}

/// A client with one lane, and what it has opened, sent and said.
struct World {
    client: Client<Commands, Vec<u8>>,
    is_cluster: bool,
    now: Time,
    /// The connections to each server that are open or about to be, the latest last.
    open: Vec<(ConnectionId, u16)>,
    replies: BTreeMap<(CallId, usize), String>,
    finished: Vec<CallId>,
    said: Vec<String>,
}

impl World {
    fn new(target: Target) -> Self {
        let is_cluster = matches!(target, Target::Cluster(_));
        let options = Options {
            target,
            login: Login { password: "secret".to_owned(), ..Login::default() },
            sentinel_login: Login::default(),
            timeout: TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            seed: 7,
            is_watching: true,
        };
        let mut client = Client::new(options);
        client.add_lane(LaneOptions {
            commands_max: 4,
            bytes_max: 100_000,
            reply_bytes_max: 100,
            first: Vec::new(),
            ping: None,
        });
        Self {
            client,
            is_cluster,
            now: at(0),
            open: Vec::new(),
            replies: BTreeMap::new(),
            finished: Vec::new(),
            said: Vec::new(),
        }
    }

    fn ask(&mut self, commands: &[&'static str], is_scripts: bool, history: Option<&str>) -> CallId {
        let spans: Vec<Span> = if self.is_cluster {
            let slot = |command: &str| command.split(' ').nth(1).map(|key| slot_of(key.as_bytes()));
            (0..commands.len()).map(|first| Span { first, count: 1, slot: slot(commands[first]) }).collect()
        } else {
            vec![Span { first: 0, count: commands.len(), slot: None }]
        };
        let (token, history) = (Commands(commands.to_vec()), history.map(str::to_owned));
        let begin = Begin { token, lane: 0, node: None, reply_bytes: 0, is_scripts, is_rerun: is_scripts, history };
        let call = self.client.begin(begin, &spans, self.now);
        self.turn(&[]);
        call
    }

    /// Push each piece that is ready, and note the events; replies lie in `bytes`.
    fn turn(&mut self, bytes: &[u8]) {
        while let Some(ready) = self.client.next_ready() {
            let way = ready.piece.way;
            let commands = &self.client.token(ready.piece.call).unwrap().0;
            let mut text = Vec::new();
            if way.loads {
                text.extend(packed("LOAD"));
            }
            if way.asks {
                text.extend(packed("ASKING"));
            }
            for command in &commands[ready.piece.first..ready.piece.first + ready.piece.count] {
                text.extend(packed(&if way.is_full { format!("{command} again") } else { (*command).to_owned() }));
            }
            self.client.push(&ready, Packed::from(text), self.now);
        }
        while let Some(event) = self.client.next_event() {
            match event {
                Event::Reply { call, place, range } => {
                    let text = String::from_utf8_lossy(&bytes[range]).trim_end().to_owned();
                    self.replies.insert((call, place), text);
                }
                Event::Prevented { call, first, count, kind, text } => {
                    for place in first..first + count.max(1) {
                        self.replies.insert((call, place), format!("{kind:?}: {text}"));
                    }
                }
                Event::Finished { call, .. } => {
                    assert!(self.client.finish(call).is_some());
                    self.finished.push(call);
                }
                Event::Open { connection, address, .. } => self.open.push((connection, address.port)),
                Event::Close { connection } => self.open.retain(|(open, _)| *open != connection),
                Event::Flush { .. } | Event::Timer => {}
                other => self.said.push(format!("{other:?}")),
            }
        }
    }

    /// What the latest connection to a server is to write, words by spaces and commands by commas.
    fn sent(&mut self, port: u16) -> String {
        let Some((connection, _)) = self.open.iter().rev().find(|(_, open)| *open == port).copied() else {
            return String::new();
        };
        let text = self.client.unwritten(connection).collect::<Vec<_>>().concat();
        self.client.wrote(connection, text.len());
        let text = String::from_utf8(text).unwrap();
        let commands = text.split('*').skip(1).map(|command| {
            let words = command.split("\r\n").skip(2).step_by(2).filter(|word| !word.is_empty());
            words.collect::<Vec<_>>().join(" ")
        });
        commands.collect::<Vec<_>>().join(", ")
    }

    fn connection(&self, port: u16) -> ConnectionId {
        self.open.iter().rev().find(|(_, open)| *open == port).unwrap_or_else(|| panic!("{port} is not open")).0
    }

    fn answer(&mut self, port: u16, text: &str) {
        let connection = self.connection(port);
        self.client.room(connection, text.len()).unwrap().unwrap().extend_from_slice(text.as_bytes());
        self.client.received(connection, self.now);
        let bytes = self.client.lend(connection);
        self.turn(&bytes);
        self.client.give_back(connection, bytes);
    }

    fn open(&mut self, port: u16) {
        let connection = self.connection(port);
        self.client.opened(connection, self.now);
        self.turn(&[]);
    }

    /// Open the connection to a server that keeps records, and answer its greeting.
    fn greet(&mut self, port: u16, info: &str) {
        self.open(port);
        assert_eq!(self.sent(port), "AUTH secret, CLIENT SETNAME korvet, INFO replication");
        self.answer(port, &format!("+OK\r\n+OK\r\n{info}"));
    }

    fn fail(&mut self, port: u16, reason: &str) {
        let connection = self.connection(port);
        self.client.failed(connection, reason, self.now);
        self.turn(&[]);
    }

    fn wait(&mut self, milliseconds: u64) {
        let until = self.now + at(milliseconds);
        while let Some(due) = self.client.due().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.client.tick(self.now);
            self.turn(&[]);
            assert!(self.client.due().is_none_or(|due| due > self.now), "it is due again at once");
        }
        self.now = until;
    }

    fn reply(&self, call: CallId, place: usize) -> &str {
        assert!(self.finished.contains(&call), "it is not finished");
        &self.replies[&(call, place)]
    }
}

fn one_server() -> World {
    World::new(Target::Server(address(1)))
}

/// A cluster of two nodes, of which the first has the slots below 8,192, and whose map is known.
fn cluster() -> World {
    let mut world = World::new(Target::Cluster(vec![address(1)]));
    let call = world.client.read_map(Commands(Vec::new()), world.now);
    world.turn(&[]);
    world.open(1);
    assert!(world.sent(1).ends_with("CLUSTER SLOTS"));
    world.answer(1, &format!("+OK\r\n+OK\r\n{}", map(8191)));
    assert_eq!(world.finished, [call]);
    assert_eq!(world.open, []);
    world
}

fn map(last: u16) -> String {
    let (first, rest) = (format!("*3\r\n:0\r\n:{last}\r\n*2\r\n$1\r\nh\r\n:1\r\n"), last + 1);
    format!("*2\r\n{first}*3\r\n:{rest}\r\n:16383\r\n*2\r\n$1\r\nh\r\n:2\r\n")
}

// Of slots 4,813 and 15,495.
const LOW: &str = "GET b";
const HIGH: &str = "GET a";

#[test]
fn what_is_asked_while_connecting_is_sent_in_order_when_the_server_is_greeted() {
    let mut world = one_server();
    let (first, second) = (world.ask(&["GET a", "GET b"], false, None), world.ask(&["GET c"], false, None));
    world.greet(1, INFO);
    assert_eq!(world.sent(1), "GET a, GET b, GET c");
    world.answer(1, "$1\r\n1\r\n-ERR no\r\n");
    assert_eq!((world.reply(first, 0), world.reply(first, 1)), ("$1\r\n1", "-ERR no"));
    world.answer(1, "$-1\r\n");
    assert_eq!(world.reply(second, 0), "$-1");
    assert_eq!(world.client.under_way(0, 0), (0, 0, 0));
    assert!(world.said[0].contains("history: \"abc\", is_again: false"));
}

#[test]
fn a_refused_attempt_fails_who_waits_and_whoever_comes_in_the_pause() {
    let mut world = one_server();
    let waiting = world.ask(&["GET a"], false, None);
    world.fail(1, "Connection refused");
    let away = "Away: Redis at h:1 cannot be reached: Connection refused";
    assert_eq!(world.reply(waiting, 0), away);
    let late = world.ask(&["GET a"], false, None);
    assert_eq!(world.reply(late, 0), away);
    world.wait(100);
    world.ask(&["GET a"], false, None);
    world.greet(1, INFO);
    assert_eq!(world.sent(1), "GET a");
}

#[test]
fn a_refused_login_says_what_was_refused_and_no_password() {
    let mut world = one_server();
    let call = world.ask(&["GET a"], false, None);
    world.open(1);
    world.answer(1, "-WRONGPASS invalid secret\r\n+OK\r\n");
    assert_eq!(world.reply(call, 0), "Away: Redis at h:1 refused the connection (AUTH): WRONGPASS invalid ***");
    assert_eq!(world.open, []);
}

#[test]
fn what_was_sent_over_a_lost_connection_is_unknown_and_what_waited_is_sent_over_the_next() {
    let mut world = one_server();
    let calls: Vec<CallId> = (0..5).map(|_| world.ask(&["GET a"], false, None)).collect();
    world.greet(1, INFO);
    assert_eq!(world.sent(1), ["GET a"; 4].join(", "));
    world.fail(1, "Connection reset by peer");
    let unknown = "Unknown: the connection to Redis at h:1 was lost (Connection reset by peer): the outcome of the \
                   request is unknown";
    assert_eq!(world.reply(calls[3], 0), unknown);
    world.greet(1, INFO);
    assert_eq!(world.sent(1), "GET a");
    world.answer(1, "+x\r\n");
    assert_eq!(world.reply(calls[4], 0), "+x");
    assert!(world.said.iter().any(|said| said.contains("is_again: true")));
}

#[test]
fn a_call_that_finds_no_room_in_time_was_not_sent() {
    let mut world = one_server();
    world.ask(&["GET a"; 4], false, None);
    world.greet(1, INFO);
    let waiting = world.ask(&["GET b"], false, None);
    world.answer(1, "+1\r\n");
    world.wait(9_000);
    // It is alive, and slow.
    world.answer(1, "+1\r\n");
    world.wait(1_000);
    assert!(world.reply(waiting, 0).starts_with("Full: too much is in flight"));
    assert_eq!(world.sent(1), ["GET a"; 4].join(", "));
}

#[test]
fn a_script_that_is_missing_is_loaded_once_and_run_again_and_others_are_not() {
    let mut world = one_server();
    let call = world.ask(&["EVALSHA x", "EVALSHA y", "EVALSHA x"], true, None);
    world.greet(1, INFO);
    world.sent(1);
    world.answer(1, "-NOSCRIPT no\r\n:2\r\n-NOSCRIPT no\r\n");
    assert_eq!(world.sent(1), "LOAD, EVALSHA x, EVALSHA x");
    world.answer(1, "+sha\r\n:1\r\n:3\r\n");
    assert_eq!([0, 1, 2].map(|place| world.reply(call, place)), [":1", ":2", ":3"]);
    let call = world.ask(&["EVALSHA bad"], true, None);
    world.sent(1);
    world.answer(1, "-NOSCRIPT no\r\n");
    world.answer(1, "-ERR it does not compile\r\n-NOSCRIPT no\r\n");
    assert_eq!(world.reply(call, 0), "-ERR it does not compile");
}

#[test]
fn a_script_that_a_full_memory_refuses_runs_as_its_other_text_if_it_has_one() {
    let mut world = one_server();
    let call = world.ask(&["EVALSHA full", "EVALSHA other"], true, None);
    world.greet(1, INFO);
    world.sent(1);
    world.answer(1, "-OOM no\r\n-OOM no\r\n");
    assert_eq!(world.sent(1), "EVALSHA full again");
    world.answer(1, "-NOSCRIPT no\r\n");
    assert_eq!(world.sent(1), "LOAD, EVALSHA full again");
    world.answer(1, "+sha\r\n:1\r\n");
    assert_eq!((world.reply(call, 0), world.reply(call, 1)), (":1", "-OOM no"));
}

#[test]
fn a_call_for_another_history_is_not_sent() {
    let mut world = one_server();
    let (right, wrong) = (world.ask(&["EVALSHA x"], true, Some("abc")), world.ask(&["EVALSHA y"], true, Some("other")));
    world.greet(1, INFO);
    assert_eq!(world.sent(1), "EVALSHA x");
    assert_eq!(world.reply(wrong, 0), "History: Redis has another history: nothing was sent");
    world.answer(1, ":1\r\n");
    assert_eq!(world.reply(right, 0), ":1");
}

#[test]
fn a_connection_that_leads_to_a_replica_is_left_and_its_successor_is_a_failover() {
    let mut world = one_server();
    world.ask(&["SET a"], false, None);
    world.greet(1, INFO);
    world.wait(1_000);
    world.answer(1, "-READONLY You can't write\r\n");
    assert_eq!(world.open, []);
    world.ask(&["SET a"], false, None);
    world.greet(1, INFO);
    assert_eq!(world.said.last().unwrap(), "Failover");
}

#[test]
fn a_silent_server_costs_its_callers_a_timeout_and_is_left() {
    let mut world = one_server();
    let call = world.ask(&["GET a"], false, None);
    world.greet(1, INFO);
    world.wait(9_999);
    assert!(world.finished.is_empty());
    world.wait(1);
    assert!(world.reply(call, 0).contains("nothing was heard for 10000 ms"));
    assert_eq!(world.client.due(), None);
}

#[test]
fn each_command_goes_to_the_master_of_its_slot_and_follows_it_at_once_when_it_has_moved() {
    let mut world = cluster();
    let call = world.ask(&[LOW, HIGH], false, None);
    world.greet(1, INFO);
    world.greet(2, INFO);
    assert_eq!((world.sent(1), world.sent(2)), (LOW.to_owned(), HIGH.to_owned()));
    world.answer(1, "-MOVED 3300 h:2\r\n");
    assert_eq!(world.sent(2), LOW);
    world.answer(2, "+high\r\n+low\r\n");
    assert_eq!((world.reply(call, 0), world.reply(call, 1)), ("+low", "+high"));
    assert_eq!(world.client.node_at(3300), Some(1));
}

#[test]
fn a_command_whose_slot_is_on_its_way_is_asked_of_the_receiver_or_tried_again_later() {
    let mut world = cluster();
    let call = world.ask(&[LOW], false, None);
    world.greet(1, INFO);
    world.sent(1);
    world.answer(1, "-ASK 3300 h:2\r\n");
    world.greet(2, INFO);
    assert_eq!(world.sent(2), format!("ASKING, {LOW}"));
    world.answer(2, "+OK\r\n-TRYAGAIN keys are on both\r\n");
    assert_eq!((world.sent(1), world.sent(2)), (String::new(), String::new()));
    world.wait(1_000);
    assert_eq!(world.sent(1), LOW);
    world.answer(1, "+here\r\n");
    assert_eq!(world.reply(call, 0), "+here");
}

#[test]
fn a_node_that_is_away_fails_its_own_requests_at_once_while_it_is_tried_again() {
    let mut world = cluster();
    let call = world.ask(&[LOW, HIGH], false, None);
    world.greet(2, INFO);
    world.fail(1, "Connection refused");
    world.answer(2, "+high\r\n");
    assert!(world.reply(call, 0).starts_with("Away: Redis at h:1 cannot be reached"));
    world.wait(100);
    let waits_not = world.ask(&[LOW], false, None);
    world.wait(1);
    let fails = world.ask(&[LOW], false, None);
    assert!(world.reply(fails, 0).starts_with("Away"));
    assert!(!world.finished.contains(&waits_not));
}

#[test]
fn the_master_is_the_server_that_a_sentinel_names_and_that_says_so_itself() {
    let mut world = World::new(Target::Sentinels { addresses: vec![address(11), address(12)], master: "m".to_owned() });
    let call = world.ask(&["GET a"], false, None);
    let named = |port: u16| format!("+OK\r\n*2\r\n$1\r\nh\r\n${}\r\n{port}\r\n", port.to_string().len());
    world.open(11);
    assert_eq!(world.sent(11), "CLIENT SETNAME korvet, SENTINEL GET-MASTER-ADDR-BY-NAME m");
    world.answer(11, &named(1));
    world.greet(1, REPLICA);
    world.open(12);
    world.answer(12, &named(2));
    world.greet(2, INFO);
    assert_eq!(world.sent(2), "GET a");
    world.answer(2, "+a\r\n");
    assert_eq!(world.reply(call, 0), "+a");
    // The one that was right is watched.
    world.open(12);
    assert_eq!(world.sent(12), "CLIENT SETNAME korvet, SUBSCRIBE +switch-master");
    world.answer(12, "+OK\r\n*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n");
    world.open(12);
    world.answer(12, &named(1));
    world.greet(1, INFO);
    assert!(world.said.last().unwrap().contains("Sentinel names h:1 as the master"));
}

#[test]
fn a_failed_search_for_the_master_says_what_was_wrong_with_each_server() {
    let mut world = World::new(Target::Sentinels { addresses: vec![address(11), address(12)], master: "m".to_owned() });
    let call = world.ask(&["GET a"], false, None);
    world.fail(11, "Connection refused");
    world.open(12);
    world.answer(12, "+OK\r\n$-1\r\n");
    let problems = "Redis at h:11 cannot be reached: Connection refused; the Sentinel at h:12 knows no master m";
    assert_eq!(world.reply(call, 0), format!("Away: no master for m (Sentinels h:11, h:12): {problems}"));
}

#[test]
fn a_closed_lane_fails_what_is_under_way_and_what_comes() {
    let mut world = one_server();
    let sent = world.ask(&["GET a"], false, None);
    world.greet(1, INFO);
    world.client.close(0, world.now);
    world.turn(&[]);
    let late = world.ask(&["GET a"], false, None);
    assert!(world.reply(sent, 0).contains("closed by this broker"));
    assert!(world.reply(late, 0).starts_with(&format!("{:?}: ", Prevented::Closed)));
    assert_eq!(world.open, []);
    world.wait(1_000);
    assert_eq!(world.client.due(), None);
}

#[test]
fn a_feed_that_is_kept_is_asked_whether_it_lives_and_is_left_if_it_does_not_answer() {
    let mut world = one_server();
    let ping = Some(at(10_000));
    let feed = world.client.add_lane(LaneOptions {
        commands_max: 0,
        bytes_max: 0,
        reply_bytes_max: 0,
        first: Vec::new(),
        ping,
    });
    world.client.keep(feed, 0, true, true, world.now);
    world.turn(&[]);
    world.greet(1, INFO);
    world.wait(9_999);
    assert_eq!(world.sent(1), "");
    world.wait(1);
    assert_eq!(world.sent(1), "PING");
    world.answer(1, "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    world.wait(10_000);
    assert_eq!(world.sent(1), "PING");
    world.wait(2_000);
    assert!(world.said.iter().any(|said| said.contains("it did not answer a PING")));
}

#[test]
fn large_replies_of_a_cluster_are_expected_to_be_shared_by_its_nodes() {
    let mut world = cluster();
    let commands = ["GET b", "GET b", "GET b", "GET b"];
    let spans: Vec<Span> = (0..4).map(|first| Span { first, count: 1, slot: Some(slot_of(b"b")) }).collect();
    let token = Commands(commands.to_vec());
    // As much as the limit of a connection.
    let (lane, reply_bytes) = (0, 100);
    let begin = Begin { token, lane, node: None, reply_bytes, is_scripts: false, is_rerun: false, history: None };
    world.client.begin(begin, &spans, world.now);
    world.turn(&[]);
    world.greet(1, INFO);
    assert_eq!(world.sent(1), commands.join(", "));
    assert_eq!(world.client.under_way(0, 0).2, 100);
}

#[test]
fn a_refusal_that_names_no_port_is_followed_by_nobody() {
    let mut world = cluster();
    world.ask(&[LOW], false, None);
    world.greet(1, INFO);
    world.sent(1);
    world.answer(1, "-MOVED 3300 /tmp/socket:0\r\n");
    assert!(world.open.iter().all(|(_, port)| *port > 0));
}

#[test]
fn a_user_who_may_not_send_asking_waits_for_the_slot() {
    let mut world = cluster();
    let call = world.ask(&[LOW], false, None);
    world.greet(1, INFO);
    world.sent(1);
    world.answer(1, "-ASK 3300 h:2\r\n");
    world.greet(2, INFO);
    assert_eq!(world.sent(2), format!("ASKING, {LOW}"));
    world.answer(2, "-NOPERM no permissions to run the 'asking' command\r\n-MOVED 3300 h:1\r\n");
    assert_eq!((world.sent(1), world.sent(2)), (String::new(), String::new()));
    world.wait(1_000);
    assert_eq!(world.sent(1), LOW);
    world.answer(1, "+here\r\n");
    assert_eq!(world.reply(call, 0), "+here");
}

#[test]
fn a_command_that_runs_though_asking_was_refused_is_not_sent_again() {
    let mut world = cluster();
    let call = world.ask(&[LOW], false, None);
    world.greet(1, INFO);
    world.sent(1);
    world.answer(1, "-ASK 3300 h:2\r\n");
    world.greet(2, INFO);
    world.sent(2);
    // The slot has become the receiver's meanwhile.
    world.answer(2, "-NOPERM no permissions to run the 'asking' command\r\n+ran\r\n");
    assert_eq!(world.reply(call, 0), "+ran");
    world.wait(1_000);
    assert_eq!((world.sent(1), world.sent(2)), (String::new(), String::new()));
}

#[test]
fn what_was_asked_first_for_a_slot_on_its_way_is_sent_first() {
    let mut world = cluster();
    let (first, second) = (world.ask(&[LOW], false, None), world.ask(&["SET b"], false, None));
    world.greet(1, INFO);
    world.sent(1);
    world.answer(1, "-TRYAGAIN keys are on both\r\n-ASK 3300 h:2\r\n");
    assert_eq!(world.open.len(), 1);
    world.wait(1_000);
    assert_eq!(world.sent(1), format!("{LOW}, SET b"));
    assert!(world.said.iter().any(|said| said == "Reordered"));
    world.answer(1, "+1\r\n+2\r\n");
    assert_eq!((world.reply(first, 0), world.reply(second, 0)), ("+1", "+2"));
}

#[test]
fn a_call_has_one_timeout_for_its_wait_and_its_answer() {
    let mut world = one_server();
    let call = world.ask(&["GET a"], false, None);
    world.wait(1_900);
    world.greet(1, INFO);
    world.answer(1, "");
    world.wait(8_099);
    assert!(world.finished.is_empty());
    world.answer(1, "+");
    world.wait(1);
    assert!(world.reply(call, 0).contains("did not answer in time"));
}

#[test]
fn in_a_cluster_all_of_a_call_waits_for_the_attempt_that_it_begins() {
    let mut world = cluster();
    world.ask(&[LOW], false, None);
    world.fail(1, "Connection refused");
    world.wait(100);
    let call = world.ask(&[LOW, "SET b"], false, None);
    world.greet(1, INFO);
    assert_eq!(world.sent(1), format!("{LOW}, SET b"));
    world.answer(1, "+1\r\n+2\r\n");
    assert_eq!((world.reply(call, 0), world.reply(call, 1)), ("+1", "+2"));
}
