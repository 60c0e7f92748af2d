//! Why a connection ends, in words for the log.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// Why a connection cannot go on. What is `unwritten` is still to be sent: the peer learns by it.
#[derive(Debug, PartialEq)]
pub enum Failure {
    /// The first bytes are none of TLS.
    NotTls,
    /// It sends messages of TLS alone, and no data.
    Barren,
    /// The handshake failed, or the bytes after it are not what the keys say.
    Tls(Error),
}

impl Failure {
    /// Whether it is because of the certificate that the client has shown, or has not: the audit log has those.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Tls(Error::InvalidCertificate(_) | Error::NoCertificatesPresented))
    }
}

impl fmt::Display for Failure {
    /// In OpenSSL's words where operators look for them.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTls => formatter.write_str("not TLS"),
            Self::Barren => formatter.write_str("the peer sends messages of TLS alone, and no data"),
            Self::Tls(Error::NoCertificatesPresented) => formatter.write_str("peer did not return a certificate"),
            Self::Tls(Error::DecryptError) => formatter.write_str("decryption failed or bad record mac"),
            Self::Tls(Error::AlertReceived(alert)) => {
                write!(formatter, "the peer refused, by alert {}", words(*alert))
            }
            Self::Tls(Error::InvalidCertificate(error)) => {
                formatter.write_str("certificate verify failed: ")?;
                match error {
                    CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                        formatter.write_str("certificate has expired")
                    }
                    CertificateError::BadSignature => formatter.write_str("certificate signature failure"),
                    CertificateError::UnknownIssuer => formatter.write_str("unable to get local issuer certificate"),
                    other => write!(formatter, "{other}"),
                }
            }
            // Clients of TLS 1.1 have no such extension.
            Self::Tls(Error::PeerIncompatible(
                PeerIncompatible::SignatureAlgorithmsExtensionRequired
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled
                | PeerIncompatible::SupportedVersionsExtensionRequired,
            )) => formatter.write_str("unsupported protocol"),
            Self::Tls(error) => write!(formatter, "{error}"),
        }
    }
}

/// The name of an alert in words: CertificateUnknown is "certificate unknown", UnknownCA "unknown ca".
fn words(alert: AlertDescription) -> String {
    let mut words = String::new();
    let mut is_inside = false;
    for letter in format!("{alert:?}").chars() {
        if is_inside && letter.is_uppercase() {
            words.push(' ');
        }
        is_inside = letter.is_lowercase();
        words.extend(letter.to_lowercase());
    }
    words
}
