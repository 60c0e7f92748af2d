//! At one server: connections that are lost or do not come, answers that mean something else, and the end.

use super::support::{LINGER, TIMEOUT, heard, one_server};

#[test]
fn a_lost_connection_is_replaced_and_all_listeners_read_again() {
    let mut world = one_server();
    for (channel, listener) in [("a", 1), ("b", 2), ("c", 3)] {
        world.live(channel, 0, listener);
    }
    for _ in 0..5 {
        world.lose(0, "cut");
        assert!(world.said().is_empty());
        assert!(!world.channels.is_live("a"));
        world.connect(0);
        assert_eq!(world.said(), ["to 0: SSUBSCRIBE a b c"]);
        // They read again after the new confirmation: what is published from here on arrives.
        world.confirm(0, &["a", "b", "c"]);
        assert_eq!(world.said(), ["a again", "b again", "c again"]);
    }
    assert_eq!(world.publish(0, "a", "x"), heard(&[(1, "x")]));
}

#[test]
fn who_comes_while_a_channel_is_interrupted_waits_and_reads_again_with_the_others() {
    let mut world = one_server();
    world.live("a", 0, 1);
    world.lose(0, "cut");
    assert!(!world.listen("a", 0, 2));
    world.connect(0);
    world.said();
    world.confirm(0, &["a"]);
    assert_eq!(world.said(), ["a is live", "a again"]);
}

#[test]
fn a_channel_without_listeners_is_not_subscribed_to_again() {
    let mut world = one_server();
    world.live("a", 0, 1);
    world.live("b", 0, 2);
    world.forget("b", 2);
    world.lose(0, "cut");
    world.connect(0);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE a"]);
    assert_eq!(world.channels.count(), 1);
    world.wait(LINGER);
    assert!(world.said().is_empty());
}

#[test]
fn a_redis_that_is_away_is_reported_and_found_again() {
    let mut world = one_server();
    for _ in 0..3 {
        assert!(!world.listen("c", 0, 1));
        world.refuse(0, "Redis at h:0 cannot be reached");
        assert_eq!(world.said(), ["0 is kept, and asked", "c failed: Redis at h:0 cannot be reached"]);
        // Who comes meanwhile is not to wait, either.
        assert!(!world.listen("d", 0, 1));
        assert_eq!(world.said(), ["d failed: Redis at h:0 cannot be reached"]);
        world.forget("c", 1);
        world.forget("d", 1);
        assert_eq!(world.said(), ["0 is not kept"]);
    }
    assert_eq!(world.channels.count(), 0);
    world.listen("c", 0, 1);
    world.connect(0);
    world.confirm(0, &["c"]);
    assert_eq!(world.said(), ["0 is kept, and asked", "to 0: SSUBSCRIBE c", "c is live"]);
}

#[test]
fn a_listener_may_stay_though_redis_is_away_and_hears_when_the_channel_is_live() {
    let mut world = one_server();
    world.listen("c", 0, 1);
    world.refuse(0, "away");
    world.connect(0);
    assert_eq!(world.said(), ["0 is kept, and asked", "c failed: away", "to 0: SSUBSCRIBE c"]);
    assert!(!world.listen("c", 0, 2));
    world.confirm(0, &["c"]);
    assert_eq!(world.said(), ["c is live", "c again"]);
}

#[test]
fn a_redis_that_takes_the_connection_and_then_refuses_is_away() {
    let mut world = one_server();
    world.listen("theirs", 0, 1);
    world.connect(0);
    world.said();
    world.answer(0, b"-NOPERM No permissions to access a channel\r\n");
    let reason = "it answered NOPERM No permissions to access a channel";
    assert_eq!(world.said(), [format!("0 is left for a while: {reason}")]);
    // Of what had come already nothing counts.
    world.confirm(0, &["theirs"]);
    assert!(!world.channels.is_live("theirs"));
    world.lose(0, reason);
    assert_eq!(world.said(), [format!("theirs failed: the connection to Redis at h:0 was lost ({reason})")]);
}

#[test]
fn what_is_no_answer_to_a_subscription_ends_the_connection() {
    for reply in
        [&b"*1\r\n:1\r\n"[..], b"+OK\r\n", b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n", b"-MOVED 1 h:1\r\n"]
    {
        let mut world = one_server();
        world.live("c", 0, 1);
        world.answer(0, reply);
        let said = world.said();
        assert!(said[0].starts_with("0 is left for a while: it answered "), "{said:?}");
    }
}

#[test]
fn of_a_long_answer_the_beginning_is_shown() {
    let mut world = one_server();
    world.live("c", 0, 1);
    world.answer(0, format!("-{}\r\n", "ERR ".repeat(1_000)).as_bytes());
    assert!(world.said()[0].len() < 300);
}

#[test]
fn a_confirmation_that_does_not_come_is_a_time_out() {
    let mut world = one_server();
    world.live("a", 0, 1);
    world.listen("b", 0, 2);
    world.said();
    world.wait(TIMEOUT - 1);
    assert!(world.said().is_empty());
    world.wait(1);
    assert_eq!(world.said(), ["b failed: Redis at h:0 did not confirm a subscription within 10000 ms"]);
    world.forget("b", 2);
    // The late confirmation finds nobody; the next listener finds the channel live and hears.
    world.confirm(0, &["b"]);
    assert!(world.listen("b", 0, 3));
    assert_eq!(world.publish(0, "b", "x"), heard(&[(3, "x")]));
}

#[test]
fn a_reconnect_is_asked_for_where_there_is_a_connection() {
    let mut world = one_server();
    world.channels.reconnect("another Redis is the master now");
    assert!(world.said().is_empty());
    world.live("c", 0, 1);
    world.channels.reconnect("another Redis is the master now");
    assert_eq!(world.said(), ["0 is left: another Redis is the master now"]);
    world.lose(0, "another Redis is the master now");
    world.connect(0);
    world.confirm(0, &["c"]);
    assert_eq!(world.said(), ["to 0: SSUBSCRIBE c", "c again"]);
}

#[test]
fn closing_ends_all_waits_and_nobody_hears_anything_any_more() {
    let mut world = one_server();
    world.live("a", 0, 1);
    world.listen("b", 0, 2);
    world.said();
    let mut gone = world.channels.close();
    gone.sort_unstable();
    assert_eq!(gone, [1, 2]);
    assert_eq!(world.said(), ["b failed: the subscriptions on Redis are closed"]);
    assert_eq!(world.publish(0, "a", "x"), []);
    world.lose(0, "closed by this broker");
    assert!(!world.listen("a", 0, 1));
    assert_eq!(world.said(), ["a failed: the subscriptions on Redis are closed"]);
    world.forget("a", 1);
    world.wait(TIMEOUT + LINGER);
    assert!(world.said().is_empty());
    assert_eq!(world.channels.count(), 0);
    assert_eq!(world.channels.due(), None);
}
