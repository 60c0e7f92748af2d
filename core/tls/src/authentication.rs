//! Whose certificate is trusted: one that leads to an authority of the trust store, or that is in the store itself.
//!
//! webpki checks chains. What it does not do as OpenSSL and Java do is done here: a certificate may be trusted by itself,
//! be it the end of a chain or not; an authority counts while it is valid, and only if it may issue certificates; and a
//! client's certificate may be of version 1, as `openssl x509 -req` makes it, if an authority of the store signed it.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use crate::der::{Key, Parts};

#[derive(Debug)]
pub struct Verifier {
    /// What `Parts` can be read of.
    pub trusted: Vec<CertificateDer<'static>>,
    pub required: bool,
    pub provider: Arc<CryptoProvider>,
}

impl Verifier {
    /// Those of the trust store that may issue certificates `now`, in seconds since 1970.
    fn authorities(&self, now: u64) -> impl Iterator<Item = (&CertificateDer<'static>, Parts<'_>)> {
        let parts = self.trusted.iter().filter_map(|trusted| Some((trusted, Parts::of(trusted)?)));
        parts.filter(move |(_, parts)| parts.is_authority && parts.validity.contains(&now))
    }

    /// The verifier of chains that lead to these authorities. They are few, so it is made for each client.
    fn chains(&self, now: u64) -> Option<Arc<dyn ClientCertVerifier>> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.authorities(now).map(|(authority, _)| authority.clone()));
        WebPkiClientVerifier::builder_with_provider(roots.into(), self.provider.clone()).build().ok()
    }

    /// Whether an authority signed this certificate of version 1. None that limits names: those are not looked at here.
    fn is_issued(&self, shown: &Parts<'_>, now: u64) -> bool {
        let issuers =
            self.authorities(now).filter(|(_, issuer)| issuer.subject == shown.issuer && !issuer.limits_names);
        let all = self.provider.signature_verification_algorithms.all.iter();
        let fitting = all.filter(|algorithm| algorithm.signature_alg_id().as_ref() == shown.algorithm);
        issuers.into_iter().any(|(_, issuer)| verifies(fitting.clone(), &issuer.key, shown.signed, shown.signature))
    }
}

/// Whether one of `algorithms` finds this signature to be made by `key`.
fn verifies<'a>(
    mut algorithms: impl Iterator<Item = &'a &'static dyn SignatureVerificationAlgorithm>,
    key: &Key<'_>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    algorithms.any(|algorithm| {
        algorithm.public_key_alg_id().as_ref() == key.algorithm
            && algorithm.verify_signature(key.bits, message, signature).is_ok()
    })
}

impl ClientCertVerifier for Verifier {
    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let seconds = now.as_secs();
        let parts = Parts::of(shown).ok_or(CertificateError::BadEncoding)?;
        let is_trusted = self.trusted.contains(shown);
        if !is_trusted && !parts.is_version_1 {
            let chains = self.chains(seconds).ok_or(CertificateError::UnknownIssuer)?;
            return chains.verify_client_cert(shown, intermediates, now);
        }
        if !is_trusted && !self.is_issued(&parts, seconds) {
            Err(CertificateError::UnknownIssuer.into())
        } else if seconds < *parts.validity.start() {
            Err(CertificateError::NotValidYet.into())
        } else if seconds > *parts.validity.end() {
            Err(CertificateError::Expired.into())
        } else {
            Ok(ClientCertVerified::assertion())
        }
    }

    /// As OpenSSL does by Python, name no authorities: a client shows the certificate it has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let Some(parts) = Parts::of(shown).filter(|parts| parts.is_version_1) else {
            return verify_tls12_signature(message, shown, signed, algorithms);
        };
        let of_scheme = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
        let is_valid = verifies(of_scheme.flat_map(|(_, fitting)| *fitting), &parts.key, message, signed.signature());
        is_valid.then(HandshakeSignatureValid::assertion).ok_or(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match Parts::of(shown).filter(|parts| parts.is_version_1) {
            None => verify_tls13_signature(message, shown, signed, algorithms),
            Some(parts) => {
                let key = SubjectPublicKeyInfoDer::from(parts.key.whole);
                verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
            }
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
