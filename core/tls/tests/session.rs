//! Sessions against rustls's own client, in memory.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod support;

use std::io::{Read, Write};

use korvet_tls::{ClientAuth, Failure, PIECE_BYTES, Session};
use support::{BOTH, Site, carry};

const AT_ONCE: usize = 1 << 20;

#[test]
fn data_goes_both_ways_whatever_its_size_and_pieces() {
    let site = Site::new();
    for versions in [&["TLSv1.3"][..], &["TLSv1.2"]] {
        for step in [7, 500, 5000, AT_ONCE] {
            let (mut session, mut client) = (site.session(versions), site.client(&[]));
            carry(&mut session, &mut client, &[], step).done.unwrap();
            assert!(!session.is_handshaking() && !client.is_handshaking());
            for sizes in [&[1][..], &[0, 5, 0], &[60, 100_000], &[16_384; 9], &[100; 1000], &[40_000, 3, 70_000, 1]] {
                let pieces: Vec<_> = (0..=u8::MAX).cycle().zip(sizes).map(|(place, size)| vec![place; *size]).collect();
                let mut all = pieces.concat();
                assert_eq!(carry(&mut session, &mut client, &pieces, step).by_client, all);
                all.truncate(60_000);
                client.writer().write_all(&all).unwrap();
                assert_eq!(carry(&mut session, &mut client, &[], step).by_server, all);
            }
            client.send_close_notify();
            carry(&mut session, &mut client, &[], step).done.unwrap();
            assert!(session.is_closed());
            session.close();
            carry(&mut session, &mut client, &[], step);
            assert_eq!(client.reader().read(&mut [0]).unwrap(), 0); // by a close_notify: without one it is an error
        }
    }
}

#[test]
fn no_more_is_encrypted_than_a_piece_before_the_former_is_written() {
    let site = Site::new();
    let (mut session, mut client) = (site.session(BOTH), site.client(&[]));
    let data = vec![7; 3 * PIECE_BYTES];
    assert_eq!(session.encrypt([&data[..]].into_iter()), Ok(0), "before the handshake");
    carry(&mut session, &mut client, &[], AT_ONCE).done.unwrap();
    assert_eq!(session.encrypt([&data[..10], &data[10..]].into_iter()), Ok(PIECE_BYTES));
    let unwritten = session.unwritten().len();
    assert!((PIECE_BYTES..PIECE_BYTES + 1000).contains(&unwritten));
    session.wrote(unwritten - 1);
    assert_eq!(session.encrypt([&data[..]].into_iter()), Ok(0));
    assert_eq!(session.unwritten().len(), 1);
    session.wrote(1);
    assert_eq!(session.encrypt([&data[..1]].into_iter()), Ok(1));
}

#[test]
fn what_is_not_tls_is_named() {
    let mut session = Site::new().session(BOTH);
    assert_eq!(session.received(&mut b"GET / HTTP/1.1".to_vec(), &mut Vec::new()), Err(Failure::NotTls));
    assert_eq!(session.received(&mut b"\x16".to_vec(), &mut Vec::new()), Ok(()), "it is over");
    assert!(session.unwritten().is_empty());
}

#[test]
fn keys_are_changed_and_a_peer_that_does_nothing_else_is_cut_off() {
    let site = Site::new();
    let (mut session, mut client) = (site.session(BOTH), site.client(&[]));
    carry(&mut session, &mut client, &[], AT_ONCE).done.unwrap();
    client.refresh_traffic_keys().unwrap();
    client.writer().write_all(b"abc").unwrap();
    assert_eq!(carry(&mut session, &mut client, &[], AT_ONCE).by_server, b"abc");
    assert_eq!(carry(&mut session, &mut client, &[b"def".to_vec()], AT_ONCE).by_client, b"def");
    let last = (0..40).find_map(|_| {
        client.refresh_traffic_keys().unwrap();
        carry(&mut session, &mut client, &[], AT_ONCE).done.err()
    });
    assert!(last.is_some());
}

#[test]
fn a_hello_in_records_of_a_byte_each_is_taken_up_to_a_limit() {
    let site = Site::new();
    let mut sent = Vec::new();
    site.client(&[]).write_tls(&mut sent).unwrap();
    let hello = &sent[5..];
    let in_bytes = |message: &[u8]| message.iter().flat_map(|byte| [0x16, 3, 1, 0, 1, *byte]).collect::<Vec<_>>();
    let mut session = site.session(BOTH);
    assert_eq!(session.received(&mut in_bytes(hello), &mut Vec::new()), Ok(()));
    assert!(!session.unwritten().is_empty());
    let mut endless = in_bytes(&[&[1, 0, 0xff, 0xf0], &vec![0; 0xfff0][..]].concat());
    let mut session = site.session(BOTH);
    let (begin, rest) = endless.split_at_mut(7);
    assert_eq!(session.received(begin, &mut Vec::new()), Ok(()));
    let done = rest.chunks_mut(1000).map(|part| session.received(part, &mut Vec::new()));
    assert_eq!(done.take_while(Result::is_ok).count(), 65);
}

#[test]
fn bytes_that_were_changed_on_their_way_end_the_connection_with_an_alert() {
    let site = Site::new();
    let (mut session, mut client) = (site.session(BOTH), site.client(&[]));
    carry(&mut session, &mut client, &[], AT_ONCE).done.unwrap();
    client.writer().write_all(&[0; 100]).unwrap();
    let mut sent = Vec::new();
    client.write_tls(&mut sent).unwrap();
    sent[50] ^= 1;
    let failure = session.received(&mut sent, &mut Vec::new()).unwrap_err();
    assert_eq!(failure.to_string(), "decryption failed or bad record mac");
    assert!(!failure.is_refusal());
    let alert = session.unwritten().to_vec();
    client.read_tls(&mut &alert[..]).unwrap();
    assert!(client.process_new_packets().unwrap_err().to_string().contains("BadRecordMac"));
    assert_eq!(session.encrypt([&[0; 10][..]].into_iter()), Ok(0), "it is over");
}

#[test]
fn a_client_that_does_not_trust_the_broker_is_named_by_its_alert() {
    let site = Site::new();
    let (mut session, mut client) = (site.session(BOTH), Site::of("Other CA").client(&[]));
    let failure = carry(&mut session, &mut client, &[], AT_ONCE).done.unwrap_err();
    assert_eq!(failure.to_string(), "the peer refused, by alert unknown ca");
}

/// Bytes of real connections, changed, cut, doubled and reordered: an end in order, and no data that nobody sent.
#[test]
fn hostile_bytes_end_the_connection_and_nothing_else() {
    let site = Site::new();
    let alice = support::Issued::new("alice", Some(&site.ca), Some(support::LEAF), support::FAR);
    let servers =
        [&["TLSv1.3"][..], &["TLSv1.2"]].map(|versions| site.server(ClientAuth::Requested, versions, &site.ca));
    let mut state = 1_usize;
    let mut random = move |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit.max(1)
    };
    let mut failed = 0;
    let answer = vec![2; 20_000];
    for _ in 0..400 {
        let (mut session, mut client) = (Session::new(&servers[random(2)]).unwrap(), site.client(&[&alice]));
        let mut plain = Vec::new();
        for _ in 0..=random(5) {
            let _ = client.writer().write_all(&vec![1; random(5000)]);
            if random(5) == 0 {
                let _ = client.refresh_traffic_keys();
            }
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            for _ in 0..random(8).saturating_sub(5) {
                let begin = random(sent.len());
                let end = (begin + random(40)).min(sent.len());
                match random(5) {
                    0 => sent[begin..end].reverse(),
                    1 => sent.truncate(begin),
                    2 => sent.extend_from_within(begin..),
                    3 => drop(sent.splice(begin..begin, (0..random(300)).map(|byte| byte as u8))),
                    _ => drop(sent.drain(begin..end)),
                }
            }
            let step = 1 + random(3000);
            let done = sent.chunks_mut(step).try_for_each(|part| session.received(part, &mut plain));
            session.encrypt((0..random(5)).map(|_| &answer[..])).unwrap();
            if done.is_err() || random(20) == 0 {
                session.close();
            }
            let unwritten = session.unwritten().to_vec();
            session.wrote(unwritten.len());
            let is_read = client.read_tls(&mut &unwritten[..]).is_ok() && client.process_new_packets().is_ok();
            if done.is_err() || !is_read {
                failed += usize::from(done.is_err());
                break;
            }
        }
        assert!(plain.iter().all(|byte| *byte == 1));
    }
    assert!((50..350).contains(&failed), "{failed}");
}
