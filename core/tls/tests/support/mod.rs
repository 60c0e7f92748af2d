//! Certificates of every form, and a client in memory that shows any of them.
#![allow(dead_code, clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::Read;
use std::sync::Arc;

use korvet_tls::{ClientAuth, Failure, Options, Server, Session};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme};

pub const BOTH: &[&str] = &["TLSv1.2", "TLSv1.3"];
const BEGIN: &str = "20200101000000Z";
pub const FAR: &str = "20991231235959Z";
pub const LATE: &str = "20210101000000Z";

const SEQUENCE: u8 = 0x30;
const OCTETS: u8 = 0x04;
const BITS: u8 = 0x03;
/// ecdsa-with-SHA256, and the algorithm of a key on P-256.
const ALGORITHM: &[u8] = b"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
const CURVE: &[u8] = b"\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";

/// Extensions, by the last byte of their identifier, each with its value.
pub type Extensions = [(u8, &'static [u8])];
pub const CA: &Extensions = &[(0x13, b"\x30\x03\x01\x01\xff"), (0x0f, b"\x03\x02\x02\x04")];
pub const CA_FOR_SOME: &Extensions = &[CA[0], CA[1], (0x1e, b"\x30\x0e\xa0\x0c\x30\x0a\x82\x08some.org")];
pub const CA_WITHOUT_USAGE: &Extensions = &[CA[0]];
pub const USAGE_WITHOUT_CA: &Extensions = &[CA[1]];
pub const CA_THAT_SIGNS_DATA: &Extensions = &[CA[0], (0x0f, b"\x03\x02\x07\x80")];
pub const LEAF: &Extensions = &[(0x13, b"\x30\x00"), (0x11, b"\x30\x0b\x82\x09localhost")];

pub struct Issued {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    pub name: Vec<u8>,
}

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let size = match u16::try_from(content.len()).unwrap().to_be_bytes() {
        [0, low @ ..0x80] => vec![low],
        [0, low] => vec![0x81, low],
        [high, low] => vec![0x82, high, low],
    };
    [&[tag], &size[..], &content].concat()
}

impl Issued {
    /// Issue a certificate, by itself if there is no issuer; without extensions it is of version 1.
    pub fn new(name: &str, issuer: Option<&Self>, extensions: Option<&Extensions>, until: &str) -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_ASN1_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap().as_ref().to_vec();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, &key, &random).unwrap();
        let common_name = der(SEQUENCE, &[b"\x06\x03\x55\x04\x03", &der(0x0c, &[name.as_bytes()])]);
        let name = der(SEQUENCE, &[&der(0x31, &[&common_name])]);
        let issuing_key = issuer.map_or(&key, |issuer| &issuer.key);
        let issuing = EcdsaKeyPair::from_pkcs8(algorithm, issuing_key, &random).unwrap();
        let listed = extensions
            .unwrap_or_default()
            .iter()
            .map(|(identifier, value)| der(SEQUENCE, &[&[6, 3, 0x55, 0x1d, *identifier], &der(OCTETS, &[value])]));
        let version: &[u8] = if extensions.is_some() { b"\xa0\x03\x02\x01\x02" } else { b"" };
        let tail = if extensions.is_some() {
            der(0xa3, &[&der(SEQUENCE, &[&listed.collect::<Vec<_>>().concat()])])
        } else {
            Vec::new()
        };
        let signed = der(
            SEQUENCE,
            &[
                version,
                b"\x02\x01\x07",
                ALGORITHM,
                issuer.map_or(&name, |issuer| &issuer.name),
                &der(SEQUENCE, &[&der(0x18, &[BEGIN.as_bytes()]), &der(0x18, &[until.as_bytes()])]),
                &name,
                &der(SEQUENCE, &[CURVE, &der(BITS, &[&[0], pair.public_key().as_ref()])]),
                &tail,
            ],
        );
        let signature = issuing.sign(&random, &signed).unwrap();
        let certificate = der(SEQUENCE, &[&signed, ALGORITHM, &der(BITS, &[&[0], signature.as_ref()])]);
        Self { certificate, key, name }
    }

    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    /// Key and certificate.
    pub fn store(&self) -> String {
        pem("PRIVATE KEY", &self.key) + &self.pem()
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in der.chunks(3) {
        let number = three.iter().chain([0, 0].iter()).take(3).fold(0, |number, byte| number << 8 | usize::from(*byte));
        for index in 0..4 {
            let digit = DIGITS[number >> (18 - 6 * index) & 63];
            text.push(if index > three.len() { '=' } else { char::from(digit) });
        }
    }
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// A CA, and a broker's certificate that it issued.
pub struct Site {
    pub ca: Issued,
    pub broker: Issued,
}

impl Site {
    pub fn new() -> Self {
        Self::of("CA")
    }

    pub fn of(ca: &str) -> Self {
        let ca = Issued::new(ca, None, Some(CA), FAR);
        let broker = Issued::new("broker", Some(&ca), Some(LEAF), FAR);
        Self { ca, broker }
    }

    pub fn server(&self, client_auth: ClientAuth, versions: &[&str], trusted: &Issued) -> Server {
        let (key_store, trust_store) = (self.broker.store(), trusted.pem());
        let (key_store, trust_store) = (key_store.as_str(), trust_store.as_str());
        Server::new(&Options { key_store, trust_store, client_auth, versions, suites: &[] }).unwrap()
    }

    /// A session with a server that asks for nothing.
    pub fn session(&self, versions: &[&str]) -> Session {
        Session::new(&self.server(ClientAuth::None, versions, &self.ca)).unwrap()
    }

    /// A client that trusts the CA and shows these certificates, with the key of the first.
    pub fn client(&self, chain: &[&Issued]) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.certificate.clone().into()).unwrap();
        let shown = chain.first().map(|own| {
            let key = any_supported_type(&PrivatePkcs8KeyDer::from(own.key.clone()).into()).unwrap();
            let chain = chain.iter().map(|issued| CertificateDer::from(issued.certificate.clone()));
            Arc::new(CertifiedKey::new(chain.collect(), key))
        });
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let mut config = builder.with_client_cert_resolver(Arc::new(Shown(shown)));
        config.max_fragment_size = Some(600);
        ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap()
    }
}

/// rustls itself refuses to show a certificate of version 1.
#[derive(Debug)]
struct Shown(Option<Arc<CertifiedKey>>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

/// What came out at either end, and how the session ended.
pub struct Carried {
    pub by_server: Vec<u8>,
    pub by_client: Vec<u8>,
    pub done: Result<(), Failure>,
}

/// Carry bytes both ways, `step` at once, until nothing moves; the session sends `pieces` once it can.
pub fn carry(session: &mut Session, client: &mut ClientConnection, pieces: &[Vec<u8>], step: usize) -> Carried {
    let mut carried = Carried { by_server: Vec::new(), by_client: Vec::new(), done: Ok(()) };
    let data = pieces.concat();
    let mut encrypted = 0;
    loop {
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        for part in sent.chunks_mut(step) {
            if carried.done.is_ok() {
                carried.done = session.received(part, &mut carried.by_server);
            }
        }
        // The pieces that are left, and the rest of the one of which a part is encrypted.
        let mut begin = 0;
        let left = pieces.iter().filter_map(|piece| {
            begin += piece.len();
            (begin > encrypted).then(|| &data[encrypted.max(begin - piece.len())..begin])
        });
        let taken = session.encrypt(left).unwrap();
        encrypted += taken;
        let unwritten = session.unwritten().len();
        while !session.unwritten().is_empty() {
            let mut part = &session.unwritten()[..step.min(session.unwritten().len())];
            let size = part.len();
            while !part.is_empty() {
                client.read_tls(&mut part).unwrap();
                let _ = client.process_new_packets();
                let _ = client.reader().read_to_end(&mut carried.by_client);
            }
            session.wrote(size);
        }
        if sent.is_empty() && taken == 0 && unwritten == 0 {
            return carried;
        }
    }
}
