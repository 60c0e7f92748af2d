//! Whose certificate is accepted, in every form that a trust store and a client's certificate may have.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod support;

use korvet_tls::{ClientAuth, ConfigError, Options, Server, Session};
use support::{
    BOTH, CA, CA_FOR_SOME, CA_THAT_SIGNS_DATA, CA_WITHOUT_USAGE, FAR, Issued, LATE, LEAF, Site, USAGE_WITHOUT_CA, carry,
};

const UNTRUSTED: Option<&str> = Some("certificate verify failed: unable to get local issuer certificate");
const EXPIRED: Option<&str> = Some("certificate verify failed: certificate has expired");
const MISSED: Option<&str> = Some("peer did not return a certificate");

/// The reason for refusing a client that shows `chain` to a server that trusts `trusted`, in both versions.
fn refusal(site: &Site, client_auth: ClientAuth, trusted: &Issued, chain: &[&Issued]) -> Option<String> {
    let [old, new] = ["TLSv1.2", "TLSv1.3"].map(|version| {
        let server = site.server(client_auth, &[version], trusted);
        let (mut session, mut client) = (Session::new(&server).unwrap(), site.client(chain));
        let carried = carry(&mut session, &mut client, &[], 1 << 20);
        let shown = chain.first().filter(|_| client_auth != ClientAuth::None);
        match carried.done {
            Ok(()) => assert_eq!(session.peer_certificate(), shown.map(|shown| &shown.certificate[..])),
            Err(ref failure) => {
                assert!(failure.is_refusal());
                session.close(); // of messages that came with the certificate some are not read yet
                assert!(session.unwritten().is_empty());
            }
        }
        carried.done.err().map(|failure| failure.to_string())
    });
    assert_eq!(old, new);
    new
}

fn required(site: &Site, trusted: &Issued, chain: &[&Issued]) -> Option<String> {
    refusal(site, ClientAuth::Required, trusted, chain)
}

#[test]
fn certificates_are_asked_for_or_not_and_shown_or_missed() {
    let site = Site::new();
    let alice = Issued::new("alice", Some(&site.ca), Some(LEAF), FAR);
    let late = Issued::new("late", Some(&site.ca), Some(LEAF), LATE);
    let stranger = Issued::new("alice", Some(&Site::of("Other CA").ca), Some(LEAF), FAR);
    for (auth, chain, expected) in [
        (ClientAuth::None, &[&late][..], None),
        (ClientAuth::Requested, &[], None),
        (ClientAuth::Requested, &[&alice], None),
        (ClientAuth::Requested, &[&stranger], UNTRUSTED),
        (ClientAuth::Required, &[&alice], None),
        (ClientAuth::Required, &[], MISSED),
        (ClientAuth::Required, &[&late], EXPIRED),
        (ClientAuth::Required, &[&stranger], UNTRUSTED),
    ] {
        assert_eq!(refusal(&site, auth, &site.ca, chain).as_deref(), expected);
    }
}

#[test]
fn a_certificate_of_the_trust_store_issues_others_only_if_it_is_an_authority() {
    let site = Site::new();
    for (extensions, expected) in [
        (CA, None),
        (CA_WITHOUT_USAGE, None),
        (USAGE_WITHOUT_CA, None),
        (LEAF, UNTRUSTED),
        (&[], UNTRUSTED),
        (CA_THAT_SIGNS_DATA, UNTRUSTED),
    ] {
        let issuer = Issued::new("issuer", None, Some(extensions), FAR);
        for form in [Some(LEAF), None] {
            let mallory = Issued::new("mallory", Some(&issuer), form, FAR);
            assert_eq!(required(&site, &issuer, &[&mallory]).as_deref(), expected, "{extensions:x?}");
            assert_eq!(required(&site, &issuer, &[&mallory, &issuer]).as_deref(), expected, "{extensions:x?}");
        }
    }
}

#[test]
fn an_authority_counts_while_it_is_valid() {
    let site = Site::new();
    let late = Issued::new("late", None, Some(CA), LATE);
    for form in [Some(LEAF), None] {
        let alice = Issued::new("alice", Some(&late), form, FAR);
        assert_eq!(required(&site, &late, &[&alice]).as_deref(), UNTRUSTED);
    }
}

#[test]
fn any_certificate_may_be_trusted_by_itself_while_it_is_valid() {
    let site = Site::new();
    let issuer = Issued::new("elsewhere", None, Some(CA), FAR);
    for form in [Some(LEAF), Some(CA), Some(&[][..]), None] {
        for issuer in [None, Some(&issuer)] {
            let alice = Issued::new("alice", issuer, form, FAR);
            assert_eq!(required(&site, &alice, &[&alice]), None);
            let late = Issued::new("alice", issuer, form, LATE);
            assert_eq!(required(&site, &late, &[&late]).as_deref(), EXPIRED);
        }
    }
}

#[test]
fn an_intermediate_is_trusted_as_the_end_of_a_chain_or_leads_to_one() {
    let site = Site::new();
    let between = Issued::new("between", Some(&site.ca), Some(CA), FAR);
    let alice = Issued::new("alice", Some(&between), Some(LEAF), FAR);
    assert_eq!(required(&site, &between, &[&alice]), None);
    assert_eq!(required(&site, &site.ca, &[&alice, &between]), None);
    assert_eq!(required(&site, &site.ca, &[&alice]).as_deref(), UNTRUSTED);
}

#[test]
fn a_certificate_of_version_1_is_accepted_if_an_authority_of_the_store_signed_it() {
    let site = Site::new();
    let alice = Issued::new("alice", Some(&site.ca), None, FAR);
    assert_eq!(required(&site, &site.ca, &[&alice]), None);
    let late = Issued::new("alice", Some(&site.ca), None, LATE);
    assert_eq!(required(&site, &site.ca, &[&late]).as_deref(), EXPIRED);
    // Of the same name as the CA, which did not sign it.
    let forged = Issued::new("alice", Some(&Site::new().ca), None, FAR);
    assert_eq!(required(&site, &site.ca, &[&forged]).as_deref(), UNTRUSTED);
    let limiting = Issued::new("limiting", None, Some(CA_FOR_SOME), FAR);
    let outside = Issued::new("alice", Some(&limiting), None, FAR);
    assert_eq!(required(&site, &limiting, &[&outside]).as_deref(), UNTRUSTED);
    let old_ca = Issued::new("old", None, None, FAR);
    for form in [Some(LEAF), None] {
        let alice = Issued::new("alice", Some(&old_ca), form, FAR);
        assert_eq!(required(&site, &old_ca, &[&alice]), None);
    }
}

#[test]
fn the_key_of_another_certificate_of_version_1_is_refused() {
    let site = Site::new();
    let (alice, mallory) = (Issued::new("alice", Some(&site.ca), None, FAR), Issued::new("mallory", None, None, FAR));
    let stolen = Issued { certificate: alice.certificate, ..mallory };
    let refused = required(&site, &site.ca, &[&stolen]);
    assert!(refused.is_some_and(|refused| refused.starts_with("certificate verify failed: ")));
}

#[test]
fn what_cannot_be_used_is_named_before_a_client_comes() {
    let site = Site::new();
    let (store, trusted) = (site.broker.store(), site.ca.pem());
    let good = || Options {
        key_store: &store,
        trust_store: &trusted,
        client_auth: ClientAuth::Required,
        versions: BOTH,
        suites: &[],
    };
    let server = Server::new(&good()).unwrap();
    let is_checked_alone = format!("{server:?}").ends_with("config: OnceLock(<uninit>) }");
    assert!(is_checked_alone, "the process that forks checks, and may make no keys of hash tables");
    let mixed = site.broker.store().replace(&site.broker.pem(), "") + &site.ca.pem();
    let broken = "-----BEGIN CERTIFICATE-----\nMAAA\n-----END CERTIFICATE-----\n";
    for (options, expected) in [
        (Options { key_store: &trusted, ..good() }, "key store: there is no private key in PEM, or it is encrypted"),
        (Options { key_store: &mixed, ..good() }, "key store: the private key does not belong to the first"),
        (Options { key_store: "", ..good() }, "key store: there is no certificate in PEM"),
        (Options { trust_store: "", ..good() }, "trust store: there is no certificate in PEM"),
        (Options { trust_store: broken, ..good() }, "trust store: a certificate cannot be read"),
        (Options { versions: &["TLSv1.1"], ..good() }, "versions: TLSv1.1 is none of TLSv1.2, TLSv1.3"),
        (Options { suites: &["TLS_X"], ..good() }, "suites: TLS_X is none of TLS_AES_256_GCM_SHA384, "),
    ] {
        let ConfigError(text) = Server::new(&options).unwrap_err();
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn suites_have_the_names_of_iana_and_one_alone_is_taken() {
    assert_eq!(Server::suites().len(), 9);
    let site = Site::new();
    for suite in ["TLS_CHACHA20_POLY1305_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"] {
        let (key_store, suites) = (site.broker.store(), [suite]);
        let (client_auth, versions) = (ClientAuth::None, if suite.contains("WITH") { &BOTH[..1] } else { &BOTH[1..] });
        let options = Options { key_store: &key_store, trust_store: "", client_auth, versions, suites: &suites };
        let mut client = site.client(&[]);
        let mut session = Session::new(&Server::new(&options).unwrap()).unwrap();
        carry(&mut session, &mut client, &[], 1 << 20).done.unwrap();
        let agreed = format!("{:?}", client.negotiated_cipher_suite().unwrap().suite());
        assert_eq!(agreed.replace("TLS13_", "TLS_"), suite);
    }
}
