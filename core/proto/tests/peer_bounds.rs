//! Connections of clients: how much memory they may take, and how much time.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use korvet_proto::peer::{Event, Frame, PeerId, Reason};
use proptest::collection::vec;
use proptest::prelude::*;
use support::*;

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
fn a_peer_has_the_whole_time_to_find_room_though_it_was_not_read_before_for_another_reason() {
    let mut world = World::new(limits());
    let (first, second) = (world.accept(), world.accept());
    let large = frame(PRODUCE, 900 * KIB, 0);
    world.send(second, &large[..KIB]);
    world.peers.mute(second, world.now + at(40_000), world.now);
    world.wait(39_000);
    world.send(first, &large);
    assert!(world.take(first).is_some());
    // It is not muted any more, and waits for room from now on.
    world.wait(30_999);
    assert_eq!((world.closed(second), world.reads(second)), (None, false));
    world.wait(1);
    assert_eq!(world.closed(second), Some(&over(400 * KIB)));
}

#[test]
fn a_peer_that_has_left_takes_no_room_from_those_who_wait_after_it() {
    let mut world = World::new(limits());
    let [small, large, gone, waiting] = [(); 4].map(|()| world.accept());
    world.send(small, &frame(PRODUCE, 340 * KIB, 0));
    world.send(large, &frame(PRODUCE, 300 * KIB, 0));
    assert!(world.take(small).is_some());
    let taken = world.take(large).unwrap();
    for peer in [gone, waiting] {
        world.send(peer, &frame(PRODUCE, 900 * KIB, 0)[..KIB]);
        assert!(!world.reads(peer));
    }
    world.peers.close(gone, Reason::Ended);
    // There is room for one.
    world.answer(large, &taken, &[1]);
    assert!(world.reads(waiting));
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
fn a_peer_is_not_idle_while_it_is_muted() {
    let mut world = World::new(limits());
    let peer = world.accept();
    world.peers.mute(peer, IDLE, world.now);
    world.wait(600_000);
    world.send(peer, &frame(METADATA, 10, 0));
    assert!(world.take(peer).is_some());
}
