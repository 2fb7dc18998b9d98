//! The certificates of TLS: the authorities that Rollcall trusts, and the certificates that it presents.
//!
//! Without a configured authority, the authorities of browsers are trusted. They are built in, so that a container
//! needs no certificates of its own. The name of a server is always checked against its certificate.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

mod server;
mod validity;

pub use server::{ServerFiles, ServerTls, server_key};
pub use validity::Validity;

/// The authorities that browsers trust.
pub fn authorities() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}

/// TLS for a web server, over HTTP/1.1.
///
/// # Errors
/// Never with the built-in provider, but the library cannot know that.
pub fn web() -> Result<ClientConfig, rustls::Error> {
    let mut config = mail()?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// TLS for a mail server.
///
/// # Errors
/// The errors of [`web`].
pub fn mail() -> Result<ClientConfig, rustls::Error> {
    Ok(builder()?.with_root_certificates(authorities()).with_no_client_auth())
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

/// The files of TLS for a client, in PEM: `ca_file`, `client_cert_file` and `client_key_file` of a section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of authorities; `None` means the authorities of browsers.
    pub ca: Option<PathBuf>,
    /// The client certificate, followed by the intermediate certificates.
    pub client_cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub client_key: Option<PathBuf>,
}

/// The contents of [`TlsFiles`].
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pem {
    pub ca: Option<Vec<u8>>,
    /// The client certificate and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

/// An option and the error of its file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {text}")]
pub struct TlsError {
    /// The option, such as `mqtt.ca_file`.
    pub option: String,
    /// The error, and the advice.
    pub text: String,
}

/// TLS of a client with these files, and their contents. `read` reads a file; `section` is the section of the options.
///
/// # Errors
/// The first file that cannot be used, with advice.
pub fn client(
    section: &str,
    files: &TlsFiles,
    read: impl Fn(&Path) -> io::Result<Vec<u8>>,
) -> Result<(ClientConfig, Pem), TlsError> {
    let error = |name: &str, text: String| TlsError { option: format!("{section}.{name}"), text };
    let content = |name: &'static str, file: &Option<PathBuf>| {
        let unreadable = |file: &Path, why| error(name, format!("{} cannot be read: {why}", file.display()));
        file.as_deref().map(|file| read(file).map_err(|why| unreadable(file, why))).transpose()
    };
    let builder = builder().expect("ring knows the usual versions");
    let ca = content(CA, &files.ca)?;
    let builder = match (&files.ca, &ca) {
        (Some(file), Some(pem)) => {
            builder.with_root_certificates(roots(file, pem).map_err(|text| error(CA, text))?)
        }
        _ => builder.with_root_certificates(authorities()),
    };
    let (cert_file, key_file) = match (&files.client_cert, &files.client_key) {
        (None, None) => return Ok((builder.with_no_client_auth(), Pem { ca, client: None })),
        (Some(_), None) => return Err(error(KEY, format!("is missing; {section}.{CERT} needs its key"))),
        (None, Some(_)) => {
            return Err(error(CERT, format!("is missing; {section}.{KEY} is of use only with it")));
        }
        (Some(cert), Some(key)) => (cert, key),
    };
    let cert = content(CERT, &files.client_cert)?.unwrap_or_default();
    let key = content(KEY, &files.client_key)?.unwrap_or_default();
    let certs = certificates(cert_file, &cert).map_err(|text| error(CERT, text))?;
    let private = private_key(key_file, &key).map_err(|text| error(KEY, text))?;
    let config = builder
        .with_client_auth_cert(certs, private)
        .map_err(|why| error(KEY, unpaired(key_file, cert_file, &why)))?;
    Ok((config, Pem { ca, client: Some((cert, key)) }))
}

/// The reason why a key does not work with its certificate.
fn unpaired(key: &Path, cert: &Path, why: &rustls::Error) -> String {
    let (key, cert) = (key.display(), cert.display());
    match why {
        rustls::Error::InconsistentKeys(_) => {
            format!("{key} does not belong to {cert}; name the key with which its certificate was asked for")
        }
        why => match unfit(why) {
            Some(unfit) => format!("{cert} {unfit}"),
            None => format!("{key} or {cert} cannot be used ({why}); make them as docs/tls.md does"),
        },
    }
}

const CA: &str = "ca_file";
const CERT: &str = "client_cert_file";
const KEY: &str = "client_key_file";

fn roots(file: &Path, pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, pem)? {
        roots.add(certificate).map_err(|error| {
            let why = unfit(&error).map_or_else(|| error.to_string(), |why| format!("it {why}"));
            format!("{} holds a certificate that no authority can have: {why}", file.display())
        })?;
    }
    Ok(roots)
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        found => {
            let why = found.err().map(|error| format!(" ({error})")).unwrap_or_default();
            let todo = "it has to be in PEM and begin with -----BEGIN CERTIFICATE-----";
            Err(format!("{} holds no certificate{why}; {todo}", file.display()))
        }
    }
}

fn private_key(file: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let todo = "it has to be in PEM, not encrypted, such as -----BEGIN PRIVATE KEY-----";
        format!("{} holds no private key ({error}); {todo}", file.display())
    })
}

/// The TLS error among the sources of an error, if there is one.
pub fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    chain(error).find_map(|one| one.downcast_ref())
}

/// The error and its causes, the innermost last.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // These two error types skip their inner error in `source`.
        let of_io = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let shared = error.downcast_ref::<Arc<dyn Error + Send + Sync>>().map(|shared| &**shared);
        let inner = of_io.or(shared);
        inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
    })
}

/// The reason why a certificate cannot be that of a server, if the library gives it in its own terms.
fn unfit(bad: &impl std::fmt::Debug) -> Option<&'static str> {
    let word = format!("{bad:?}");
    if word.contains("CaUsedAsEndEntity") {
        Some("is that of an authority (CA:TRUE), and a server needs one of its own that the authority signs")
    } else if word.contains("UnsupportedCertVersion") {
        Some("has version 1 of X.509, and version 3 with a subjectAltName is needed")
    } else {
        None
    }
}

/// Advice for a connection that TLS refused. `peer` is the other side, `section` is the section of the options.
pub fn advice(section: &str, peer: &str, cause: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error as Tls};
    match cause {
        Tls::InvalidCertificate(Bad::UnknownIssuer) => {
            format!("its certificate is not from a trusted authority; name the authority in {section}.{CA}")
        }
        Tls::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            format!("the host in {section}.url is not the {peer}'s name in its certificate ({cause})")
        }
        Tls::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            format!("its certificate has expired ({cause}); renew it on the {peer}")
        }
        Tls::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            format!("its certificate is not valid yet ({cause}); compare the clocks of both machines")
        }
        Tls::InvalidCertificate(bad) => match unfit(bad) {
            Some(why) => format!("its certificate {why}; give the {peer} another one"),
            None => format!("its certificate {}", of_certificate(bad)),
        },
        Tls::AlertReceived(Alert::CertificateExpired) => {
            format!(
                "the client certificate has expired ({cause}); renew {section}.{CERT} and restart rollcall"
            )
        }
        Tls::AlertReceived(
            Alert::CertificateRequired
            | Alert::HandshakeFailure
            | Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::DecryptError,
        ) => format!("it does not accept the client certificate ({cause}); check {section}.{CERT}"),
        Tls::InvalidMessage(_) => format!("it does not speak TLS on this port; check {section}.url"),
        Tls::AlertReceived(Alert::ProtocolVersion) | Tls::PeerIncompatible(_) => {
            format!(
                "it speaks no version or cipher of TLS that Rollcall speaks (1.2 and 1.3); update the {peer}"
            )
        }
        Tls::AlertReceived(Alert::UnrecognisedName) => {
            format!("it has no certificate for this name; check the host in {section}.url")
        }
        Tls::AlertReceived(alert) => format!("it ended TLS ({alert:?}); its log says more"),
        Tls::NoCertificatesPresented => format!("the {peer} shows no certificate"),
        cause => format!("TLS failed ({cause}); check that {section}.url names a port that speaks TLS"),
    }
}

/// The fault of a certificate, if it needs no other advice.
fn of_certificate(bad: &rustls::CertificateError) -> String {
    use rustls::CertificateError as Bad;
    match bad {
        Bad::Revoked => "was revoked by its authority".to_owned(),
        Bad::BadSignature => "is not signed by the authority that it names".to_owned(),
        Bad::BadEncoding => "is damaged".to_owned(),
        Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
            "may not be used for this side (extendedKeyUsage)".to_owned()
        }
        bad => format!("is not valid ({bad})"),
    }
}
