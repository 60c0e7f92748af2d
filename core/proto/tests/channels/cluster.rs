//! In a cluster: channels are at the nodes that have their slots, follow them, and a node that is away holds up no other.

use super::support::{FOLLOW_PAUSE, LINGER, Map, SEARCH_PAUSE, TIMEOUT, World, cluster, heard};

const MOVED: &[u8] = b"-MOVED 1 h:1\r\n";

#[test]
fn channels_are_subscribed_to_at_the_node_of_their_slot_alone() {
    let mut world = cluster(&[(1, 0), (2, 1)]);
    world.listen("a", 1, 1);
    world.listen("b", 2, 1);
    assert_eq!(world.said(), ["0 is kept, and asked", "1 is kept, and asked"]);
    world.connect(1);
    assert_eq!(world.said(), ["to 1: SSUBSCRIBE b"]);
    world.connect(0);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE a"]);
    world.confirm(0, &["a"]);
    world.confirm(1, &["b"]);
    assert_eq!(world.publish(1, "a", "not its own"), []);
    assert_eq!(world.publish(0, "a", "x"), heard(&[(1, "x")]));
}

#[test]
fn a_command_has_channels_of_one_slot() {
    let mut world = cluster(&[(1, 0), (2, 0)]);
    world.live("a", 1, 1);
    for (channel, slot) in [("b", 2), ("c", 1), ("d", 2), ("e", 1)] {
        world.channels.listen(channel, slot, 1, world.now);
    }
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE c e, SSUBSCRIBE b d"]);
}

#[test]
fn a_channel_follows_its_slot() {
    let mut world = cluster(&[(1, 0), (2, 0)]);
    world.live("moves", 1, 1);
    world.live("stays", 2, 2);
    world.change_map(&[(1, 1), (2, 0)]);
    assert_eq!(world.said(), ["1 is kept, and asked"]);
    assert!(!world.channels.is_live("moves"));
    // The node that has it no more unsubscribes by itself.
    world.unsubscribe(0, "moves");
    assert_eq!(world.publish(0, "moves", "late"), []);
    world.connect(1);
    world.confirm(1, &["moves"]);
    assert_eq!(world.said(), ["to 1: SSUBSCRIBE moves", "moves again"]);
    assert_eq!(world.publish(1, "moves", "x"), heard(&[(1, "x")]));
    assert_eq!(world.publish(0, "stays", "y"), heard(&[(2, "y")]));
}

#[test]
fn a_node_that_unsubscribes_is_asked_once_more_and_says_where_the_slot_is() {
    let mut world = cluster(&[(1, 0), (2, 0)]);
    world.live("moves", 1, 1);
    world.live("stays", 2, 2);
    world.unsubscribe(0, "moves");
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE moves"]);
    world.map = Map::of(true, &[(1, 1), (2, 0)]);
    world.answer(0, MOVED);
    assert_eq!(world.said(), ["1 is at h:1", "1 is kept, and asked"]);
    world.connect(1);
    world.confirm(1, &["moves"]);
    assert_eq!(world.said(), ["to 1: SSUBSCRIBE moves", "moves again"]);
}

#[test]
fn a_channel_that_is_not_live_waits_at_the_node_to_which_it_was_sent() {
    let mut world = cluster(&[(1, 0)]);
    world.listen("a", 1, 1);
    world.connect(0);
    world.map = Map::of(true, &[(1, 1)]);
    world.answer(0, MOVED);
    world.connect(1);
    world.said();
    world.confirm(1, &["a"]);
    // It was never live before: nothing was missed.
    assert_eq!(world.said(), ["a is live"]);
}

#[test]
fn two_nodes_that_name_each_other_are_asked_with_pauses() {
    let mut world = cluster(&[(1, 0)]);
    world.listen("a", 1, 1);
    world.connect(0);
    world.said();
    world.answer(0, MOVED);
    // The map says otherwise, as of a node that knows better.
    assert_eq!(world.said(), ["1 is at h:1", "to 0: SSUBSCRIBE a"]);
    for _ in 0..3 {
        world.answer(0, MOVED);
        assert_eq!(world.said(), ["1 is at h:1"]);
        world.wait(FOLLOW_PAUSE - 1);
        assert!(world.said().is_empty());
        world.wait(1);
        assert_eq!(world.said(), ["to 0: SSUBSCRIBE a"]);
    }
}

#[test]
fn many_changes_of_the_map_are_followed_with_pauses() {
    let mut world = cluster(&[(1, 0)]);
    world.live("a", 1, 1);
    world.change_map(&[(1, 1)]);
    assert!(!world.said().is_empty());
    world.change_map(&[(1, 2)]);
    world.change_map(&[(1, 3)]);
    assert!(world.said().is_empty());
    world.wait(FOLLOW_PAUSE);
    assert_eq!(world.said(), ["1 is not kept", "3 is kept, and asked"]);
}

#[test]
fn a_node_without_channels_is_left() {
    let mut world = cluster(&[(1, 0)]);
    world.live("a", 1, 1);
    world.change_map(&[(1, 1)]);
    assert_eq!(world.said(), ["0 is not kept", "0 is left: it has no channels any more", "1 is kept, and asked"]);
    world.lose(0, "it has no channels any more");
    // Back again: as a node that was never there.
    world.wait(FOLLOW_PAUSE);
    world.change_map(&[(1, 0)]);
    world.connect(0);
    world.confirm(0, &["a"]);
    assert_eq!(world.said(), ["1 is not kept", "0 is kept, and asked", "to 0: SSUBSCRIBE a", "a again"]);
}

#[test]
fn a_connection_to_a_node_that_was_left_meanwhile_is_closed() {
    let mut world = cluster(&[(1, 0)]);
    world.listen("a", 1, 1);
    world.change_map(&[(1, 1)]);
    world.said();
    world.connect(0);
    assert_eq!(world.said(), ["0 is left: it has no channels any more"]);
}

#[test]
fn a_channel_without_listeners_is_not_taken_to_another_node() {
    let mut world = cluster(&[(1, 0), (2, 0)]);
    world.live("a", 1, 1);
    world.live("stays", 2, 1);
    world.forget("a", 1);
    world.change_map(&[(1, 1), (2, 0)]);
    assert!(world.said().is_empty());
    assert_eq!(world.channels.count(), 1);
    world.wait(LINGER);
    assert!(world.said().is_empty());
}

#[test]
fn a_channel_without_listeners_that_its_node_unsubscribes_is_forgotten() {
    let mut world = cluster(&[(1, 0), (2, 0)]);
    world.live("a", 1, 1);
    world.live("stays", 2, 1);
    world.forget("a", 1);
    world.unsubscribe(0, "a");
    world.wait(LINGER);
    assert!(world.said().is_empty());
    assert_eq!(world.channels.count(), 1);
}

#[test]
fn a_dead_node_holds_up_no_other() {
    let mut world = cluster(&[(1, 0), (2, 1)]);
    world.live("lost", 1, 1);
    world.live("kept", 2, 2);
    world.lose(0, "it closed the connection");
    assert!(world.said().is_empty());
    world.listen("second", 1, 3);
    world.refuse(0, "Redis at h:0 cannot be reached");
    // Who listens reads again, which finds out.
    assert_eq!(world.said(), ["the map is read", "lost again", "second failed: Redis at h:0 cannot be reached"]);
    // Once, and not with each attempt.
    world.refuse(0, "Redis at h:0 cannot be reached");
    assert_eq!(world.said(), ["the map is read"]);
    world.forget("second", 3);
    assert!(!world.listen("second", 1, 3));
    assert_eq!(world.said(), ["second failed: Redis at h:0 cannot be reached"]);
    world.forget("second", 3);
    assert_eq!(world.publish(1, "kept", "x"), heard(&[(2, "x")]));
    // Until it confirms something nobody is to wait for it.
    world.connect(0);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE lost"]);
    world.listen("second", 1, 3);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE second", "second failed: Redis at h:0 cannot be reached"]);
    world.confirm(0, &["lost", "second"]);
    assert_eq!(world.said(), ["lost again", "second again"]);
    assert_eq!(world.publish(0, "lost", "y"), heard(&[(1, "y")]));
}

#[test]
fn a_replica_that_takes_over_gets_the_channels() {
    let mut world = cluster(&[(1, 0)]);
    world.live("a", 1, 1);
    world.lose(0, "it did not answer a PING");
    world.refuse(0, "Redis at h:0 cannot be reached");
    world.said();
    world.change_map(&[(1, 1)]);
    assert_eq!(world.said(), ["0 is not kept", "1 is kept, and asked"]);
    world.connect(1);
    world.confirm(1, &["a"]);
    assert_eq!(world.said(), ["to 1: SSUBSCRIBE a", "a again"]);
}

#[test]
fn a_slot_without_a_master_is_reported_and_searched_for() {
    let mut world = cluster(&[(1, 0)]);
    world.live("a", 1, 1);
    assert!(!world.listen("b", 7, 1));
    assert_eq!(world.said(), ["the map is read", "b failed: no master of the Redis cluster has slot 7"]);
    world.wait(SEARCH_PAUSE - 1);
    assert!(world.said().is_empty());
    // Who comes meanwhile hears it at once.
    assert!(!world.listen("b", 7, 2));
    assert_eq!(world.said(), ["b failed: no master of the Redis cluster has slot 7"]);
    world.wait(1);
    assert_eq!(world.said(), ["the map is read"]);
    world.change_map(&[(1, 0), (7, 0)]);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE b"]);
    world.wait(SEARCH_PAUSE);
    assert!(world.said().is_empty());
}

#[test]
fn nobody_searches_for_a_channel_that_is_forgotten() {
    let mut world = cluster(&[(1, 0)]);
    world.listen("b", 7, 1);
    world.forget("b", 1);
    world.said();
    world.wait(SEARCH_PAUSE);
    assert!(world.said().is_empty());
    assert_eq!(world.channels.due(), None);
}

#[test]
fn a_channel_whose_slot_has_no_master_any_more_stays_where_it_is() {
    let mut world = cluster(&[(1, 0)]);
    world.live("a", 1, 1);
    world.change_map(&[]);
    assert!(world.said().is_empty());
    assert_eq!(world.publish(0, "a", "x"), heard(&[(1, "x")]));
    // It refuses it, and is asked again once the map has a master for it.
    world.unsubscribe(0, "a");
    world.wait(FOLLOW_PAUSE);
    world.answer(0, MOVED);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE a", "1 is at h:1"]);
    world.wait(FOLLOW_PAUSE);
    world.change_map(&[(1, 0)]);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE a"]);
}

#[test]
fn before_the_map_is_known_channels_wait_for_it() {
    let mut world = World::new(true, Map::of(false, &[]));
    assert!(!world.listen("a", 1, 1));
    assert_eq!(world.said(), ["the map is read"]);
    world.change_map(&[(1, 0)]);
    assert_eq!(world.said(), ["0 is kept, and asked"]);
    let mut world = World::new(true, Map::of(false, &[]));
    world.listen("a", 1, 1);
    world.wait(TIMEOUT);
    assert_eq!(world.said().last().unwrap(), "a failed: no master of the Redis cluster has slot 1");
}
