//! Connections of clients, whose bytes arrive by hand: which frames come of it, what is written, who is closed and why.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::time::Duration;

use korvet_proto::peer::{Event, Frame, Limits, Login, PeerId, Peers, Reason};
use korvet_proto::pipeline::Time;
use proptest::collection::vec;
use proptest::prelude::*;

const RECEIVE: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(600);
const METADATA: i16 = 3;
const PRODUCE: i16 = 0;
const KIB: usize = 1024;

fn at(milliseconds: u64) -> Time {
    Duration::from_millis(milliseconds)
}

fn limits() -> Limits {
    Limits {
        idle: Some(IDLE),
        receive: RECEIVE,
        produce_frame: 1_000 * KIB,
        other_frame: 100 * KIB,
        frames_max: 5,
        ahead_bytes: 300 * KIB,
        budget: 400 * KIB,
        login_budget: 100 * KIB,
        halves_budget: 100 * KIB,
        handshakes_max: 3,
    }
}

/// A frame of an API whose rest is filled with a byte.
fn frame(api_key: i16, size: usize, filling: u8) -> Vec<u8> {
    let mut bytes = (size as u32).to_be_bytes().to_vec();
    bytes.extend(api_key.to_be_bytes());
    bytes.resize(4 + size, filling);
    bytes
}

fn over(bytes_max: usize) -> Reason {
    Reason::OverBudget(format!("requests of more than {bytes_max} bytes are being received or served"))
}

struct World {
    peers: Peers<Vec<u8>>,
    now: Time,
    events: Vec<Event>,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self { peers: Peers::new(limits), now: at(0), events: Vec::new() }
    }

    fn turn(&mut self) {
        while let Some(event) = self.peers.next_event() {
            if event != Event::Timer {
                self.events.push(event);
            }
        }
    }

    fn accept(&mut self) -> PeerId {
        let peer = self.peers.accept(None, false, self.now);
        self.turn();
        peer
    }

    fn send(&mut self, peer: PeerId, bytes: &[u8]) {
        self.peers.received(peer, bytes, 0, true, self.now);
        self.turn();
    }

    fn take(&mut self, peer: PeerId) -> Option<Frame> {
        let frame = self.peers.next_frame(peer, self.now);
        self.turn();
        frame
    }

    fn answer(&mut self, peer: PeerId, frame: &Frame, answer: &[u8]) {
        self.peers.answer(peer, frame.number, vec![answer.to_vec()], self.now);
        self.turn();
    }

    fn read_max(&mut self, peer: PeerId) -> usize {
        let size = self.peers.read_max(peer, self.now);
        self.turn();
        size
    }

    /// Write all of a peer's answers, and return them.
    fn write(&mut self, peer: PeerId) -> Vec<u8> {
        let bytes = self.peers.unwritten(peer).collect::<Vec<_>>().concat();
        self.peers.wrote(peer, bytes.len(), false, self.now);
        self.turn();
        bytes
    }

    fn wait(&mut self, milliseconds: u64) {
        let until = self.now + at(milliseconds);
        while let Some(due) = self.peers.due().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.peers.tick(self.now);
            self.turn();
            assert!(self.peers.due().is_none_or(|due| due > self.now), "it is due again at once");
        }
        self.now = until;
    }

    fn closed(&self, peer: PeerId) -> Option<&Reason> {
        self.events.iter().find_map(|event| match event {
            Event::Closed { peer: closed, reason } if *closed == peer => Some(reason),
            _ => None,
        })
    }

    /// Whether the peer is read, as was said last.
    fn reads(&self, peer: PeerId) -> bool {
        let watch = self.events.iter().rev().find_map(|event| match event {
            Event::Watch { peer: watched, reads, .. } if *watched == peer => Some(*reads),
            _ => None,
        });
        watch.unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_come_whole_and_in_order_however_they_are_cut(
        sizes in vec(8_usize..3_000, 1..12), cuts in vec(1_usize..5_000, 1..12)
    ) {
        let mut world = World::new(limits());
        let peer = world.accept();
        let bytes: Vec<u8> = sizes.iter().enumerate().flat_map(|(index, size)| frame(METADATA, *size, index as u8)).collect();
        let (mut left, mut cuts, mut taken) = (&bytes[..], cuts.into_iter().cycle(), 0);
        while !left.is_empty() {
            let cut = cuts.next().unwrap().min(left.len());
            world.send(peer, &left[..cut]);
            left = &left[cut..];
            while let Some(got) = world.take(peer) {
                prop_assert_eq!(&got.bytes[got.begin..], &frame(METADATA, sizes[taken], taken as u8)[4..]);
                prop_assert_eq!(got.number, taken as u64);
                taken += 1;
                world.answer(peer, &got, &[taken as u8]);
                prop_assert_eq!(world.write(peer), [taken as u8]);
            }
        }
        prop_assert_eq!(taken, sizes.len());
        prop_assert_eq!(world.peers.held(), (0, 0, 0));
    }
}

#[test]
fn answers_leave_in_the_order_of_the_frames_and_no_more_than_five_are_out() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.send(peer, &[0, 1, 2, 3, 4, 5].map(|filling| frame(METADATA, 10, filling)).concat());
    let frames: Vec<Frame> = std::iter::from_fn(|| world.take(peer)).collect();
    assert_eq!(frames.len(), 5);
    for place in [2, 1, 4] {
        world.answer(peer, &frames[place], &[place as u8]);
    }
    assert_eq!(world.write(peer), []);
    world.answer(peer, &frames[0], &[0]);
    // As long as answers are not written nothing else is begun.
    assert!(world.take(peer).is_none());
    assert_eq!(world.write(peer), [0, 1, 2]);
    assert_eq!(world.take(peer).unwrap().number, 5);
    world.answer(peer, &frames[3], &[3]);
    assert_eq!(world.write(peer), [3, 4]);
}

#[test]
fn a_peer_that_takes_its_answer_slowly_is_closed_when_it_takes_nothing() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.send(peer, &frame(METADATA, 10, 0));
    let taken = world.take(peer).unwrap();
    world.answer(peer, &taken, &[7; 100]);
    world.wait(29_000);
    world.peers.wrote(peer, 1, true, world.now);
    world.turn();
    assert!(world.events.contains(&Event::Watch { peer, reads: false, writes: true }));
    world.wait(29_999);
    assert_eq!(world.closed(peer), None);
    world.wait(1);
    assert_eq!(world.closed(peer), Some(&Reason::Slow));
}

#[test]
fn a_peer_that_stalls_within_a_frame_or_says_nothing_is_closed() {
    let mut world = World::new(limits());
    let (stalled, idle, served) = (world.accept(), world.accept(), world.accept());
    world.send(stalled, &frame(METADATA, 10, 0)[..13]);
    world.send(served, &frame(METADATA, 10, 0));
    assert!(world.take(served).is_some());
    world.wait(30_000);
    assert_eq!((world.closed(stalled), world.closed(idle)), (Some(&Reason::Slow), None));
    world.wait(570_000);
    assert_eq!((world.closed(idle), world.closed(served)), (Some(&Reason::Idle), None));
    world.wait(10_000_000);
    assert_eq!(world.closed(served), None);
}

#[test]
fn a_frame_that_trickles_is_closed_though_each_byte_comes_in_time() {
    let mut world = World::new(limits());
    let peer = world.accept();
    for byte in frame(METADATA, 100, 0) {
        world.wait(20_000);
        world.send(peer, &[byte]);
        if world.closed(peer).is_some() {
            break;
        }
    }
    assert_eq!(world.closed(peer), Some(&Reason::Slow));
    assert!(world.now <= at(100_000));
}

#[test]
fn a_size_that_cannot_be_closes_the_connection_after_the_answers_to_the_frames_before() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.send(peer, &[frame(METADATA, 10, 0), b"GET / HTTP/1.1\r\n".to_vec()].concat());
    let taken = world.take(peer).unwrap();
    assert_eq!((world.take(peer), world.closed(peer)), (None, None));
    world.answer(peer, &taken, &[1]);
    assert_eq!(world.write(peer), [1]);
    assert!(matches!(world.closed(peer), Some(Reason::Malformed(_))));
}

#[test]
fn the_end_of_a_peer_within_a_frame_is_an_error_and_after_one_it_waits_for_the_answer() {
    let mut world = World::new(limits());
    let (cut, whole) = (world.accept(), world.accept());
    world.send(cut, &frame(METADATA, 10, 0)[..7]);
    world.peers.ended(cut, world.now);
    world.send(whole, &frame(METADATA, 10, 0));
    world.peers.ended(whole, world.now);
    world.turn();
    assert_eq!(world.closed(cut), Some(&Reason::Malformed("closed after 7 bytes of a frame of 10".to_owned())));
    let taken = world.take(whole).unwrap();
    world.answer(whole, &taken, &[1]);
    assert_eq!(world.closed(whole), None);
    assert_eq!(world.write(whole), [1]);
    assert_eq!(world.closed(whole), Some(&Reason::Closed));
}

#[test]
fn over_the_budget_only_the_oldest_frame_is_read_on_until_others_are_answered() {
    let mut world = World::new(limits());
    let (first, second) = (world.accept(), world.accept());
    let large = frame(PRODUCE, 900 * KIB, 0);
    world.send(first, &large[..250 * KIB]);
    world.send(second, &large[..250 * KIB]);
    assert_eq!((world.reads(first), world.reads(second)), (true, false));
    world.send(first, &large[250 * KIB..]);
    let taken = world.take(first).unwrap();
    world.wait(20_000);
    world.answer(first, &taken, &[1]);
    assert!(world.reads(second));
    world.send(second, &large[250 * KIB..600 * KIB]);
    // The time for which it was held up does not make it slow.
    world.wait(29_000);
    world.send(second, &large[600 * KIB..]);
    let taken = world.take(second).unwrap();
    world.answer(second, &taken, &[1]);
    assert_eq!(world.peers.held(), (0, 0, 0));
}

#[test]
fn a_frame_that_finds_no_room_in_time_is_closed_and_holds_nothing() {
    let mut world = World::new(limits());
    let (first, second) = (world.accept(), world.accept());
    let large = frame(PRODUCE, 900 * KIB, 0);
    world.send(first, &large);
    world.send(second, &large[..250 * KIB]);
    let taken = world.take(first).unwrap();
    world.wait(30_000);
    assert_eq!(world.closed(second), Some(&over(400 * KIB)));
    assert_eq!(world.peers.held(), (900 * KIB, 0, 0));
    world.answer(first, &taken, &[1]);
    assert_eq!(world.peers.held(), (0, 0, 0));
}

#[test]
fn of_too_many_half_frames_that_goes_which_is_silent_the_longest() {
    let mut world = World::new(limits());
    let half = &frame(METADATA, 60 * KIB, 0)[..30 * KIB];
    let peers: Vec<PeerId> = (0..3)
        .map(|_| {
            world.wait(1);
            let peer = world.accept();
            world.send(peer, half);
            peer
        })
        .collect();
    world.send(peers[0], &half[..10]);
    world.wait(1);
    let last = world.accept();
    world.send(last, half);
    assert_eq!(world.closed(peers[1]), Some(&over(100 * KIB)));
    assert_eq!([peers[0], peers[2], last].map(|peer| world.closed(peer)), [None; 3]);
    assert!(world.peers.held().2 <= 100 * KIB);
}

#[test]
fn a_muted_peer_is_not_read_and_its_frame_comes_when_the_time_is_over() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.send(peer, &[frame(METADATA, 10, 0), frame(METADATA, 10, 1)].concat());
    let taken = world.take(peer).unwrap();
    world.peers.mute(peer, at(5_000), world.now);
    world.answer(peer, &taken, &[1]);
    assert_eq!(world.write(peer), [1]);
    assert!(world.take(peer).is_none() && !world.reads(peer));
    world.wait(5_000);
    assert_eq!(world.take(peer).unwrap().number, 1);
    assert!(world.reads(peer));
}

#[test]
fn before_the_login_frames_are_small_and_the_time_is_bounded() {
    let mut world = World::new(limits());
    let login = Login { frame_max: KIB, is_token: false, until: at(10_000) };
    let [large, late, done] = [0; 3].map(|_| world.peers.accept(Some(login), false, world.now));
    world.send(large, &frame(METADATA, 2 * KIB, 0)[..8]);
    assert!(matches!(world.closed(large), Some(Reason::Malformed(_))));
    world.send(done, &frame(METADATA, 10, 0));
    let taken = world.take(done).unwrap();
    // What follows is judged when it is known how far the login has come.
    world.send(done, &[0, 0, 0, 2, 9, 9]);
    assert_eq!((world.take(done), world.closed(done)), (None, None));
    world.peers.set_login(done, Some(Login { is_token: true, ..login }), world.now);
    world.answer(done, &taken, &[1]);
    world.write(done);
    let login_token = world.take(done).unwrap();
    assert_eq!(login_token.bytes[login_token.begin..], [9, 9]);
    world.peers.set_login(done, None, world.now);
    world.answer(done, &login_token, &[1]);
    world.write(done);
    world.wait(10_000);
    assert_eq!((world.closed(late), world.closed(done)), (Some(&Reason::Idle), None));
    world.send(done, &frame(METADATA, 20 * KIB, 0));
    assert!(world.take(done).is_some());
}

#[test]
fn a_peer_that_is_left_gets_its_answers_and_sees_their_end() {
    let mut world = World::new(limits());
    let (busy, calm) = (world.accept(), world.accept());
    world.send(busy, &[frame(METADATA, 10, 0), frame(METADATA, 10, 1)].concat());
    let taken = world.take(busy).unwrap();
    for peer in [busy, calm] {
        world.peers.leave(peer, at(1_000), true, world.now);
    }
    world.turn();
    assert!(world.events.contains(&Event::ShutDown { peer: calm }));
    assert!(!world.events.contains(&Event::ShutDown { peer: busy }));
    world.answer(busy, &taken, &[1]);
    assert_eq!(world.write(busy), [1]);
    assert!(world.events.contains(&Event::ShutDown { peer: busy }));
    // What it still sends is read, and dropped.
    assert!(world.reads(busy));
    world.send(busy, &frame(METADATA, 10, 2));
    assert!(world.take(busy).is_none());
    world.peers.ended(calm, world.now);
    world.turn();
    assert_eq!((world.closed(calm), world.closed(busy)), (Some(&Reason::Ended), None));
    world.wait(1_000);
    assert_eq!(world.closed(busy), Some(&Reason::Ended));
    world.wait(600_000);
    assert_eq!((world.peers.count(), world.peers.due()), (0, None));
}

#[test]
fn an_encrypted_peer_is_opened_in_time_or_closed_and_of_too_many_handshakes_the_oldest_ends() {
    let mut world = World::new(limits());
    let [oldest, opened, left, late] = [0; 4].map(|_| {
        world.wait(1);
        world.peers.accept(None, true, world.now)
    });
    world.turn();
    let too_many = Reason::Handshake("more than 3 others began after it".to_owned());
    assert_eq!(world.closed(oldest), Some(&too_many));
    world.peers.opened(opened, world.now);
    world.peers.ended(left, world.now);
    world.turn();
    assert!(matches!(world.closed(left), Some(Reason::Lost(_))));
    world.wait(30_000);
    assert_eq!(world.closed(late), Some(&Reason::Handshake("not done within 30 s".to_owned())));
    world.send(opened, &frame(METADATA, 10, 0));
    assert!(world.take(opened).is_some());
}

#[test]
fn what_tls_has_to_say_keeps_a_peer_from_being_read_and_no_longer_than_an_answer_would() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.wait(1_000);
    world.peers.wrote(peer, 0, true, world.now);
    world.turn();
    assert!(!world.reads(peer));
    world.wait(29_999);
    assert_eq!(world.closed(peer), None);
    world.wait(1);
    assert_eq!(world.closed(peer), Some(&Reason::Slow));
}

#[test]
fn a_frame_came_after_the_socket_was_last_empty_unless_it_was_watched_since() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.wait(1_000);
    world.send(peer, &[frame(METADATA, 10, 0), frame(METADATA, 10, 1)].concat());
    let [first, second] = [0; 2].map(|_| world.take(peer).unwrap());
    assert_eq!([first.came_after, second.came_after], [at(1_000); 2]);
    world.peers.mute(peer, at(9_000), world.now);
    for taken in [first, second] {
        world.answer(peer, &taken, &[1]);
        world.write(peer);
    }
    world.wait(8_000);
    // Nobody looked while it was muted.
    world.send(peer, &frame(METADATA, 10, 2)[..8]);
    world.wait(500);
    world.send(peer, &frame(METADATA, 10, 2)[8..]);
    let third = world.take(peer).unwrap();
    assert_eq!((third.came_after, third.arrived), (at(1_000), at(9_500)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_peers_do_memory_is_bounded_and_nothing_of_them_is_left(
        steps in vec((0_usize..6, 0_u8..10, 1_usize..120), 1..200)
    ) {
        let mut world = World::new(limits());
        let mut peers: Vec<PeerId> = (0..6).map(|_| world.accept()).collect();
        let mut given: Vec<Vec<Frame>> = vec![Vec::new(); 6];
        for (place, step, size) in steps {
            let peer = peers[place];
            world.wait(1);
            match step {
                0..=3 => {
                    let bytes = frame(PRODUCE, size * KIB, 0);
                    let cut = if step == 0 { bytes.len() } else { bytes.len() * step as usize / 4 };
                    let size = cut.min(world.read_max(peer));
                    world.send(peer, &bytes[..size]);
                }
                4 | 5 => given[place].extend(world.take(peer)),
                6 => if let Some(taken) = given[place].pop() {
                    world.answer(peer, &taken, &[1]);
                }
                7 => drop(world.write(peer)),
                8 => world.peers.mute(peer, world.now + at(size as u64), world.now),
                9 => world.wait(size as u64 * 1_000),
                _ => {}
            }
            let (large, _, halves) = world.peers.held();
            // The oldest frame may exceed the budget by itself, and by what was read at once.
            prop_assert!(large <= (400 + 256 + 120) * KIB && halves <= 100 * KIB);
            if world.closed(peer).is_some() {
                world.peers.answer(peer, 0, vec![vec![1]], world.now);
                prop_assert!(world.peers.unwritten(peer).next().is_none());
                peers[place] = world.accept();
                prop_assert_ne!(peers[place], peer);
                given[place].clear();
            }
        }
        for peer in peers {
            world.peers.close(peer, Reason::Ended);
        }
        world.wait(1_000_000);
        prop_assert_eq!((world.peers.held(), world.peers.count(), world.peers.due()), ((0, 0, 0), 0, None));
    }
}

#[test]
fn the_beginning_of_a_tls_record_counts_as_one_of_a_frame() {
    let mut world = World::new(limits());
    let peers: Vec<PeerId> = (0..7)
        .map(|_| {
            let peer = world.peers.accept(None, true, world.now);
            world.peers.opened(peer, world.now);
            world.wait(1);
            world.peers.received(peer, &[], 16 * KIB, true, world.now);
            world.turn();
            peer
        })
        .collect();
    assert_eq!((world.closed(peers[0]), world.peers.held().2), (Some(&over(100 * KIB)), 6 * 16 * KIB));
    for _ in 0..3 {
        world.wait(20_000);
        world.peers.received(peers[1], &[], 16 * KIB, true, world.now);
        world.turn();
    }
    assert_eq!(world.closed(peers[1]), Some(&Reason::Slow));
}

#[test]
fn frames_that_come_with_the_end_of_a_peer_are_all_served() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.send(peer, &[frame(PRODUCE, 10, 0), frame(PRODUCE, 10, 1), vec![0; 3]].concat());
    let first = world.take(peer).unwrap();
    world.peers.ended(peer, world.now);
    let second = world.take(peer).unwrap();
    world.answer(peer, &first, &[]);
    world.answer(peer, &second, &[]);
    assert_eq!(world.closed(peer), Some(&Reason::Malformed("closed after 3 bytes of a frame".to_owned())));
}

#[test]
fn a_large_frame_takes_its_memory_with_it() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.send(peer, &[frame(PRODUCE, 300 * KIB, 0), frame(METADATA, 10, 1)[..9].to_vec()].concat());
    let taken = world.take(peer).unwrap();
    world.answer(peer, &taken, &[]);
    let (large, _, halves) = world.peers.held();
    assert!(large == 0 && (9..KIB).contains(&halves));
}

#[test]
fn the_time_in_which_nobody_reads_a_peer_does_not_make_it_slow() {
    let mut world = World::new(limits());
    let peer = world.accept();
    let half = &frame(METADATA, 60 * KIB, 1)[..30 * KIB];
    world.send(peer, &[&frame(METADATA, 10, 0), half].concat());
    let taken = world.take(peer).unwrap();
    world.answer(peer, &taken, &[1; 100]);
    for _ in 0..5 {
        world.peers.wrote(peer, 10, true, world.now);
        world.wait(20_000);
    }
    world.peers.wrote(peer, 50, false, world.now);
    world.peers.mute(peer, world.now + at(50_000), world.now);
    world.wait(50_000 + 29_999);
    assert_eq!(world.closed(peer), None);
    world.wait(1);
    assert_eq!(world.closed(peer), Some(&Reason::Slow));
}

#[test]
fn peers_that_are_held_up_again_are_read_again_and_do_not_exceed_the_budget_together() {
    let mut world = World::new(limits());
    let peers: Vec<PeerId> = (0..5).map(|_| world.accept()).collect();
    let large = frame(PRODUCE, 300 * KIB, 0);
    let mut left: Vec<&[u8]> = vec![&large; 5];
    let mut served = 0;
    while served < 5 {
        for (peer, left) in peers.iter().zip(&mut left) {
            let size = world.read_max(*peer).min(70 * KIB).min(left.len());
            world.send(*peer, &left[..size]);
            *left = &left[size..];
        }
        // The oldest may exceed it, by itself and by what it read last.
        assert!(world.peers.held().0 <= (400 + 300 + 70 * 5 / 4) * KIB);
        for peer in &peers {
            if let Some(taken) = world.take(*peer) {
                world.answer(*peer, &taken, &[]);
                served += 1;
            }
        }
        world.wait(1_000);
        assert!(world.now < at(60_000), "somebody is not read any more");
    }
}

#[test]
fn a_peer_that_is_left_may_send_the_rest_of_its_frame_and_no_other() {
    let mut world = World::new(limits());
    let peer = world.accept();
    let bytes = [frame(METADATA, 10, 0), frame(METADATA, 10, 1)].concat();
    world.send(peer, &bytes[..7]);
    world.peers.leave(peer, at(1_000), true, world.now);
    world.send(peer, &bytes[7..]);
    let taken = world.take(peer).unwrap();
    assert!(world.take(peer).is_none());
    world.answer(peer, &taken, &[1]);
    assert_eq!(world.write(peer), [1]);
    assert!(world.events.contains(&Event::ShutDown { peer }));
}

#[test]
fn a_connection_that_is_ended_gets_the_answers_that_were_given() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.send(peer, &[0, 1, 2].map(|filling| frame(METADATA, 70 * KIB, filling)).concat());
    let first = world.take(peer).unwrap();
    let _second = world.take(peer).unwrap();
    world.answer(peer, &first, &[1, 2, 3]);
    world.peers.wrote(peer, 1, true, world.now);
    world.peers.end(peer, world.now);
    world.turn();
    assert_eq!((world.closed(peer), world.peers.held().0), (None, 0));
    assert_eq!(world.write(peer), [2, 3]);
    assert_eq!(world.closed(peer), Some(&Reason::Ended));
}

#[test]
fn a_peer_is_not_idle_while_it_is_muted() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.peers.mute(peer, IDLE, world.now);
    world.wait(600_000);
    world.send(peer, &frame(METADATA, 10, 0));
    assert!(world.take(peer).is_some());
}

#[test]
fn each_of_several_frames_has_the_time_of_its_own_read() {
    let mut world = World::new(limits());
    let peer = world.accept();
    let [first, second, third] = [0, 1, 2].map(|filling| frame(METADATA, 10, filling));
    world.send(peer, &[first, second, third[..5].to_vec()].concat());
    world.wait(5_000);
    world.send(peer, &[&third[5..], &frame(METADATA, 10, 3)[..]].concat());
    let taken = [0; 4].map(|_| world.take(peer).unwrap().came_after);
    assert_eq!(taken, [at(0), at(0), at(0), at(5_000)]);
}
