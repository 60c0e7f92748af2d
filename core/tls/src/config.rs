//! What a listener shows to its clients and asks of them: made of PEM, once for each state of its files.

use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage, ServerConfig};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, SupportedCipherSuite, SupportedProtocolVersion, version};

use crate::authentication::Verifier;
use crate::der::Parts;

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked.
    None,
    /// They may.
    Requested,
    /// They have to.
    Required,
}

/// What `ssl.*` of a listener says. The private key is not encrypted here any more.
pub struct Options<'a> {
    /// PEM with the private key and the chain, the broker's own certificate first.
    pub key_store: &'a str,
    /// PEM with what clients' certificates are trusted by.
    pub trust_store: &'a str,
    /// What is asked of clients.
    pub client_auth: ClientAuth,
    /// "TLSv1.2", "TLSv1.3".
    pub versions: &'a [&'a str],
    /// IANA's names; empty: all.
    pub suites: &'a [&'a str],
}

/// Why a configuration cannot be used: "key store: ...", or another of `Options`. Nothing of a key is in it.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

const NO_KEY: &str = "key store: there is no private key in PEM, or it is encrypted";
const KINDS: &str = "key store: the private key is none of RSA (2048 to 4096 bits), EC (P-256, P-384) and Ed25519";
const MISMATCH: &str =
    "key store: the private key does not belong to the first certificate, which has to be the broker's own";

/// TLS of a listener, for new connections; open ones keep the keys and settings they began with.
#[derive(Debug)]
pub struct Server {
    provider: Arc<CryptoProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
    identity: Arc<SingleCertAndKey>,
    verifier: Arc<dyn ClientCertVerifier>,
    config: OnceLock<Arc<ServerConfig>>,
}

impl Server {
    /// Check `options` and make it of them.
    pub fn new(options: &Options<'_>) -> Result<Self, ConfigError> {
        let provider = Arc::new(limited(ring::default_provider(), options.suites)?);
        let verifier: Arc<dyn ClientCertVerifier> = match options.client_auth {
            ClientAuth::None => Arc::new(NoClientAuth),
            asked => Arc::new(Verifier {
                trusted: certificates("trust store", options.trust_store)?,
                required: asked == ClientAuth::Required,
                provider: provider.clone(),
            }),
        };
        let identity = identity(options.key_store, &provider)?;
        Ok(Self { versions: versions(options.versions)?, provider, identity, verifier, config: OnceLock::new() })
    }

    /// IANA's names of all suites that there are.
    pub fn suites() -> Vec<String> {
        ring::default_provider().cipher_suites.iter().map(name).collect()
    }

    /// What connections share. It is made for the first one: it has hash keys, which may not be there before a fork.
    pub(crate) fn config(&self) -> Result<Arc<ServerConfig>, Error> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_protocol_versions(&self.versions)?.with_client_cert_verifier(self.verifier.clone());
        let mut config = builder.with_cert_resolver(self.identity.clone());
        // A resumed session could outlive what its certificate was trusted for.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(self.config.get_or_init(|| Arc::new(config)).clone())
    }
}

/// The broker's key and chain. rustls's own check of the two takes no certificate of version 1.
fn identity(key_store: &str, provider: &CryptoProvider) -> Result<Arc<SingleCertAndKey>, ConfigError> {
    let chain = certificates("key store", key_store)?;
    let key = PrivateKeyDer::from_pem_slice(key_store.as_bytes()).map_err(|_| ConfigError(NO_KEY.into()))?;
    let key = provider.key_provider.load_private_key(key).map_err(|_| ConfigError(KINDS.into()))?;
    let own = chain.first().and_then(|own| Parts::of(own)).map(|parts| parts.key);
    let known = provider.signature_verification_algorithms.all;
    if !own.as_ref().is_some_and(|own| known.iter().any(|kind| kind.public_key_alg_id().as_ref() == own.algorithm)) {
        return Err(ConfigError(KINDS.into())); // RSA-PSS, whose keys may be written as those of RSA
    }
    if key.public_key().is_some_and(|public| own.is_none_or(|own| own.whole != public.as_ref())) {
        return Err(ConfigError(MISMATCH.into()));
    }
    Ok(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key))))
}

fn name(suite: &SupportedCipherSuite) -> String {
    // rustls names the suites of TLS 1.3 TLS13_..., IANA TLS_...
    format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
}

fn limited(mut provider: CryptoProvider, suites: &[&str]) -> Result<CryptoProvider, ConfigError> {
    let names: Vec<_> = provider.cipher_suites.iter().map(name).collect();
    if let Some(unknown) = suites.iter().find(|suite| !names.iter().any(|name| name == *suite)) {
        return Err(ConfigError(format!("suites: {unknown} is none of {}", names.join(", "))));
    }
    provider.cipher_suites.retain(|suite| suites.is_empty() || suites.contains(&name(suite).as_str()));
    Ok(provider)
}

fn versions(names: &[&str]) -> Result<Vec<&'static SupportedProtocolVersion>, ConfigError> {
    let versions = names.iter().map(|name| match *name {
        "TLSv1.3" => Ok(&version::TLS13),
        "TLSv1.2" => Ok(&version::TLS12),
        _ => Err(ConfigError(format!("versions: {name} is none of TLSv1.2, TLSv1.3"))),
    });
    versions.collect()
}

/// The certificates of `pem`, at least one, each of which has its parts.
fn certificates(store: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all: Option<Vec<CertificateDer<'_>>> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|certificate| certificate.ok().filter(|certificate| Parts::of(certificate).is_some()))
        .collect();
    match all {
        None => Err(ConfigError(format!("{store}: a certificate cannot be read"))),
        Some(all) if all.is_empty() => Err(ConfigError(format!("{store}: there is no certificate in PEM"))),
        Some(all) => Ok(all),
    }
}
