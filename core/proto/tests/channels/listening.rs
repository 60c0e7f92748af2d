//! At one server: channels that come, are confirmed, are heard, and go after the linger.

use super::support::{LINGER, at, heard, one_server, push};

#[test]
fn nothing_connects_before_the_first_listener() {
    let mut world = one_server();
    world.forget("c", 1);
    world.wait(LINGER);
    assert!(world.said().is_empty());
    assert!(!world.channels.is_live("c"));
    assert_eq!(world.channels.count(), 0);
}

#[test]
fn a_channel_is_live_when_redis_has_confirmed_it() {
    let mut world = one_server();
    assert!(!world.listen("c", 0, 1));
    assert_eq!(world.said(), ["0 is kept, and asked"]);
    world.connect(0);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE c"]);
    assert!(!world.channels.is_live("c"));
    world.confirm(0, &["c"]);
    assert_eq!(world.said(), ["c is live"]);
    assert!(world.channels.is_live("c"));
    assert_eq!(world.publish(0, "c", "first"), heard(&[(1, "first")]));
    assert_eq!(world.publish(0, "other", "not for us"), []);
}

#[test]
fn a_second_listener_finds_the_channel_live() {
    let mut world = one_server();
    world.live("c", 0, 1);
    assert!(world.listen("c", 0, 2));
    assert_eq!(world.publish(0, "c", "x"), heard(&[(1, "x"), (2, "x")]));
    world.forget("c", 1);
    assert_eq!(world.publish(0, "c", "y"), heard(&[(2, "y")]));
    assert!(world.said().is_empty());
}

#[test]
fn a_listener_listens_once_per_channel() {
    let mut world = one_server();
    world.live("c", 0, 1);
    assert!(world.listen("c", 0, 1));
    assert_eq!(world.publish(0, "c", "x"), heard(&[(1, "x")]));
    world.forget("c", 1);
    world.wait(LINGER);
    assert_eq!(world.said(), ["0 is kept", "0 is not kept", "to 0: SUNSUBSCRIBE c"]);
}

#[test]
fn replies_of_resp3_are_the_same() {
    let mut world = one_server();
    world.listen("c", 0, 1);
    world.connect(0);
    for kind in ["ssubscribe", "smessage"] {
        let mut reply = push(kind, "c", b"x");
        reply[0] = b'>';
        let said = world.answer(0, &reply);
        assert_eq!(said, if kind == "smessage" { heard(&[(1, "x")]) } else { Vec::new() });
    }
}

#[test]
fn ten_thousand_channels_take_ten_commands() {
    let mut world = one_server();
    world.live("c", 0, 1);
    for number in 0..10_000 {
        world.channels.listen(&format!("korvet:topic:{number}"), 0, 1, world.now);
    }
    let [sent] = &world.said()[..] else { panic!("all are sent at once") };
    let commands: Vec<_> = sent.strip_prefix("to 0: ").unwrap().split(", ").collect();
    assert_eq!(commands.len(), 10);
    assert!(commands.iter().all(|command| command.split(' ').count() == 1_001));
}

#[test]
fn a_channel_lingers_and_is_then_unsubscribed_from() {
    let mut world = one_server();
    for channel in ["c", "d", "stays"] {
        world.live(channel, 0, 1);
    }
    world.forget("c", 1);
    world.forget("d", 1);
    world.wait(LINGER - 1);
    assert!(world.listen("d", 0, 1));
    assert!(world.said().is_empty());
    world.wait(1);
    assert_eq!(world.said(), ["to 0: SUNSUBSCRIBE c"]);
    assert!(!world.channels.is_live("c"));
    world.unsubscribe(0, "c");
    world.wait(LINGER);
    assert!(world.channels.is_live("d"));
    assert!(!world.listen("c", 0, 1));
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE c"]);
}

#[test]
fn coming_and_going_keeps_no_memory_of_it() {
    let mut world = one_server();
    world.live("c", 0, 1);
    for _ in 0..1_000 {
        world.wait(1);
        world.forget("c", 1);
        world.listen("c", 0, 1);
    }
    world.forget("c", 1);
    world.wait(LINGER - 1);
    assert!(world.channels.is_live("c"));
    world.wait(1);
    assert_eq!(world.channels.count(), 0);
    assert_eq!(world.channels.due(), None);
    world.said();
}

#[test]
fn a_node_is_asked_whether_it_lives_only_while_somebody_listens() {
    let mut world = one_server();
    world.live("c", 0, 1);
    world.forget("c", 1);
    assert_eq!(world.said(), ["0 is kept"]);
    world.listen("c", 0, 2);
    assert_eq!(world.said(), ["0 is kept, and asked"]);
}

#[test]
fn the_answer_to_an_unsubscription_does_not_end_a_later_subscription() {
    let mut world = one_server();
    world.live("c", 0, 1);
    world.live("stays", 0, 1);
    world.forget("c", 1);
    world.wait(LINGER);
    assert_eq!(world.said(), ["to 0: SUNSUBSCRIBE c"]);
    assert!(!world.listen("c", 0, 1));
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE c"]);
    world.unsubscribe(0, "c");
    assert!(!world.channels.is_live("c"));
    world.confirm(0, &["c"]);
    assert_eq!(world.said(), ["c is live"]);
}

#[test]
fn what_is_unsubscribed_from_and_subscribed_to_in_one_turn_is_sent_in_that_order() {
    let mut world = one_server();
    for channel in ["a", "b", "stays"] {
        world.live(channel, 0, 1);
    }
    world.forget("a", 1);
    world.forget("b", 1);
    world.now += at(LINGER);
    world.channels.tick(world.now);
    world.channels.serve(&world.map, world.now);
    world.channels.listen("a", 0, 1, world.now);
    assert_eq!(world.said(), ["to 0: SUNSUBSCRIBE a b", "to 0: SSUBSCRIBE a"]);
}

#[test]
fn a_listener_that_goes_before_the_confirmation_leaves_nothing() {
    let mut world = one_server();
    world.live("a", 0, 1);
    world.listen("b", 0, 2);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE b"]);
    world.forget("b", 2);
    // What waits for the channel waits no more.
    assert_eq!(world.said(), ["b failed: nobody listens to it any more"]);
    // Unsubscribed from now, the late confirmation could pass for that of a later subscription.
    world.wait(LINGER);
    assert!(world.said().is_empty());
    world.confirm(0, &["b"]);
    world.wait(LINGER);
    assert_eq!(world.said(), ["to 0: SUNSUBSCRIBE b"]);
    assert_eq!(world.channels.count(), 1);
}

#[test]
fn of_two_that_wait_one_may_go() {
    let mut world = one_server();
    world.listen("c", 0, 1);
    world.listen("c", 0, 2);
    world.connect(0);
    world.forget("c", 1);
    assert!(!world.said().iter().any(|line| line.contains("failed")));
    world.confirm(0, &["c"]);
    assert_eq!(world.said(), ["c is live"]);
}
