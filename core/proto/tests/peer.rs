//! Connections of clients: which frames come of their bytes, what is written, who is closed and why.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use korvet_proto::peer::{Event, Frame, Login, Reason};
use proptest::collection::vec;
use proptest::prelude::*;
use support::*;

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
fn whoever_has_found_that_there_is_no_frame_hears_of_the_next() {
    let mut world = World::new(limits());
    let peer = world.accept();
    for number in 0..3 {
        world.send(peer, &frame(PRODUCE, 10, number));
        assert!(world.events.drain(..).any(|event| event == Event::Frame { peer }));
        assert_eq!(world.peers.next_key(peer), Some(0));
        let taken = world.peers.next_frame(peer, world.now).unwrap();
        assert_eq!(world.peers.next_key(peer), None);
        world.answer(peer, &taken, &[number]);
        assert_eq!(world.write(peer), [number]);
    }
    world.peers.close(peer, Reason::Ended);
    assert!(!world.peers.is_there(peer));
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
