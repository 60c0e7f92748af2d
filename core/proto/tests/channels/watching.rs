//! What is announced to the core's own readers.

use super::support::{LINGER, World, cluster, heard, one_server};

/// A channel that is watched, and live.
fn watched() -> World {
    let mut world = one_server();
    assert!(!world.channels.watch("log", 0, world.now));
    world.turn();
    world.connect(0);
    world.confirm(0, &["log"]);
    assert_eq!(world.said(), ["0 is kept, and asked", "to 0: SSUBSCRIBE log"]);
    assert_eq!(world.announced(), ["log is live"]);
    world
}

#[test]
fn the_end_of_a_log_is_announced() {
    let mut world = watched();
    assert!(!world.channels.has_announced());
    assert_eq!(world.publish(0, "log", "17"), []);
    assert!(world.channels.has_announced());
    assert_eq!(world.announced(), ["log ends at 17"]);
    assert!(!world.channels.has_announced());
    assert!(world.said().is_empty());
}

#[test]
fn of_several_ends_the_last_is_announced_until_it_is_taken() {
    let mut world = watched();
    world.channels.watch("other", 0, world.now);
    world.turn();
    world.confirm(0, &["other"]);
    world.announced();
    for end in 1..=1_000 {
        world.publish(0, "log", &end.to_string());
        world.publish(0, "other", "5");
    }
    assert_eq!(world.announced(), ["log ends at 1000", "other ends at 5"]);
    world.publish(0, "log", "9");
    assert_eq!(world.announced(), ["log ends at 9"]);
}

#[test]
fn a_message_that_is_no_end_has_the_log_read_again() {
    let mut world = watched();
    for message in ["", "x", "-1", "1.5", "99999999999999999999", "7 "] {
        world.publish(0, "log", message);
        assert_eq!(world.announced(), ["log again"], "{message:?}");
    }
    world.channels.received(0, b"*3\r\n$8\r\nsmessage\r\n$3\r\nlog\r\n$1\r\n\xff\r\n", world.now);
    assert_eq!(world.announced(), ["log again"]);
    world.publish(0, "log", "9223372036854775807");
    assert_eq!(world.announced(), ["log ends at 9223372036854775807"]);
}

#[test]
fn a_channel_may_have_listeners_beside_the_watch() {
    let mut world = watched();
    assert!(world.listen("log", 0, 1));
    assert_eq!(world.publish(0, "log", "3"), heard(&[(1, "3")]));
    world.channels.unwatch("log", world.now);
    assert_eq!(world.publish(0, "log", "4"), heard(&[(1, "4")]));
    assert_eq!(world.announced(), ["log ends at 3"]);
    assert!(world.channels.watch("log", 0, world.now));
}

#[test]
fn a_watch_that_goes_leaves_after_the_linger_alone() {
    let mut world = watched();
    world.channels.unwatch("log", world.now);
    world.channels.unwatch("log", world.now);
    assert_eq!(world.publish(0, "log", "3"), []);
    assert!(world.announced().is_empty());
    world.wait(LINGER);
    assert_eq!(world.said(), ["0 is kept", "0 is not kept", "to 0: SUNSUBSCRIBE log"]);
}

#[test]
fn after_a_loss_the_log_is_read_again() {
    let mut world = watched();
    world.lose(0, "cut");
    assert_eq!(world.announced(), ["log is interrupted"]);
    // That Redis is away the reads find out.
    world.refuse(0, "away");
    assert!(world.announced().is_empty());
    world.connect(0);
    world.confirm(0, &["log"]);
    assert_eq!(world.announced(), ["log again"]);
}

#[test]
fn a_log_whose_node_goes_away_is_read_again_which_finds_out() {
    let mut world = cluster(&[(1, 0)]);
    world.channels.watch("log", 1, world.now);
    world.turn();
    world.connect(0);
    world.confirm(0, &["log"]);
    world.lose(0, "cut");
    assert_eq!(world.announced(), ["log is live", "log is interrupted"]);
    world.refuse(0, "away");
    world.refuse(0, "away");
    assert_eq!(world.announced(), ["log failed: away"]);
    world.connect(0);
    world.confirm(0, &["log"]);
    assert_eq!(world.announced(), ["log again"]);
}

#[test]
fn a_log_whose_slot_moves_is_interrupted_until_its_node_confirms() {
    let mut world = cluster(&[(1, 0), (2, 0)]);
    world.live("stays", 2, 1);
    world.channels.watch("log", 1, world.now);
    world.turn();
    world.confirm(0, &["log"]);
    world.announced();
    world.unsubscribe(0, "log");
    assert_eq!(world.announced(), ["log is interrupted"]);
    world.change_map(&[(1, 1), (2, 0)]);
    world.connect(1);
    assert!(world.announced().is_empty());
    world.confirm(1, &["log"]);
    assert_eq!(world.announced(), ["log again"]);
}

#[test]
fn a_watch_stays_at_a_node_that_is_away_and_hears_when_the_channel_is_live() {
    let mut world = cluster(&[(1, 0)]);
    assert!(!world.channels.watch("log", 1, world.now));
    world.turn();
    world.refuse(0, "away");
    assert_eq!(world.announced(), ["log failed: away"]);
    // Who comes is not to wait.
    assert!(!world.channels.watch("other", 1, world.now));
    assert_eq!(world.announced(), ["other failed: away"]);
    world.connect(0);
    world.confirm(0, &["log"]);
    assert_eq!(world.announced(), ["log again"]);
}
