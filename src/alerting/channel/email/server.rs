//! An SMTP server: its address, the login, and connections to it.

use std::path::PathBuf;
use std::sync::Arc;

use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{
    AsyncSmtpConnection, AsyncTokioStream, Certificate, CertificateStore, Identity, TlsParameters,
};
use lettre::transport::smtp::extension::ClientId;
use percent_encoding::percent_decode_str;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

use super::EmailConfig;
use super::limited_stream::LimitedStream;
use crate::address::is_this_machine;
use crate::alerting::channel::secrets::Secrets;
use crate::alerting::channel::{Failure, cause_of, tls};
use crate::small_file::read_file;
use crate::trust::TlsFiles;

/// A server that takes mails.
pub(super) struct MailServer {
    host: String,
    port: u16,
    security: Security,
    credentials: Option<Credentials>,
    pub secrets: Secrets,
}

enum Security {
    None,
    Tls(TlsConnector, ServerName<'static>),
    StartTls(TlsParameters),
}

impl MailServer {
    pub fn new(config: &EmailConfig) -> Result<MailServer, String> {
        let EmailConfig { smtp, password, tls: files, .. } = config;
        let hint = "write smtps://user@host, smtp+starttls://user@host:587 or smtp://host:25";
        let url = Url::parse(smtp).map_err(|error| format!("smtp is not an address ({error}); {hint}"))?;
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or(format!("smtp names no host; {hint}"))?.trim_matches(['[', ']']).to_owned();
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(format!("smtp has something after host and port; {hint}"));
        }
        let connector = || -> Result<Security, String> {
            let config = tls::client(files)?;
            let name = ServerName::try_from(host.clone())
                .map_err(|_| format!("smtp: {host} has no name for TLS"))?;
            Ok(Security::Tls(Arc::new(config).into(), name))
        };
        let (port, security) = match url.scheme() {
            "smtp" => (25, Security::None),
            "smtps" => (465, connector()?),
            "smtp+starttls" => (587, Security::StartTls(starttls(&host, files)?)),
            other => return Err(format!("smtp begins with {other}:; {hint}")),
        };
        let (credentials, secrets) = match login(&url, password.as_deref())? {
            Some((user, password)) => {
                let secrets = Secrets::default().with_login(&user, &password);
                (Some(Credentials::new(user, password)), secrets)
            }
            None => (None, Secrets::default()),
        };
        if credentials.is_some() && matches!(security, Security::None) && !is_this_machine(&host) {
            return Err(format!("smtp would send the password in the clear; {hint}"));
        }
        Ok(MailServer { host, port: url.port().unwrap_or(port), security, credentials, secrets })
    }

    /// Connects, greets and logs in. A failure before a mail is handed over is temporary.
    pub async fn connect(&self, hello: &ClientId) -> Result<AsyncSmtpConnection, Failure> {
        let failed = |error: &(dyn std::error::Error + 'static)| self.failure(error);
        let stream =
            TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| failed(&error))?;
        let stream: Box<dyn AsyncTokioStream> = match &self.security {
            Security::None => Box::new(LimitedStream::new(stream, true)),
            Security::StartTls(_) => Box::new(LimitedStream::new(stream, false)),
            Security::Tls(connector, name) => {
                let stream = connector.connect(name.clone(), stream).await.map_err(|error| failed(&error))?;
                Box::new(LimitedStream::new(stream, true))
            }
        };
        let smtp = async {
            let mut connection = AsyncSmtpConnection::connect_with_transport(stream, hello).await?;
            if let Security::StartTls(parameters) = &self.security {
                connection.starttls(parameters.clone(), hello).await?;
            }
            if let Some(credentials) = &self.credentials {
                connection.auth(&[Mechanism::Plain, Mechanism::Login], credentials).await?;
            }
            Ok(connection)
        };
        smtp.await.map_err(|error: Error| failed(&error))
    }

    /// The failure without secrets: a server may repeat its input.
    pub fn failure(&self, error: &(dyn std::error::Error + 'static)) -> Failure {
        let text = match error.downcast_ref::<Error>() {
            Some(error) => self.words(error),
            None => cause_of(error),
        };
        // A mail server has no option `url`.
        let text = text.replace("receiver.url", "smtp").replace("receiver.", "");
        Failure::temporary(format!("{}: {}", self.name(), self.secrets.hide(&text)))
    }

    /// The library's error about an answer or the connection, in words for operators.
    fn words(&self, error: &Error) -> String {
        let text = cause_of(error);
        let said = text.split_once("): ").map_or("", |(_, said)| said);
        match error.status().map(u16::from) {
            // RFC 4954: the login is needed, refused, or too weak.
            Some(code @ (454 | 530 | 534 | 535 | 538)) if self.credentials.is_some() => {
                format!("it refuses the login: {code} {said}; check the user in smtp and password_file")
            }
            Some(code @ 530) => {
                format!("it wants a login: {code} {said}; write user@ in smtp and set password_file")
            }
            Some(code) if error.is_transient() => format!("it takes no mail now: {code} {said}"),
            Some(code) => format!("it refuses: {code} {said}"),
            // The library cannot read the answer: its lines have different codes, or none.
            None if text.starts_with("response error: error ") => {
                "its answer is not SMTP; check that a mail server listens there".to_owned()
            }
            None if error.is_response() => {
                "the other side closed the connection before it answered".to_owned()
            }
            None if error.is_timeout() => "no answer in time".to_owned(),
            None => text,
        }
    }

    /// The name for errors, without user and password.
    pub fn name(&self) -> String {
        format!("mail server {}:{}", self.host, self.port)
    }
}

/// TLS after `STARTTLS`, which the library begins.
fn starttls(host: &str, files: &TlsFiles) -> Result<TlsParameters, String> {
    // Called for its errors only: errors of the files are worded in one place.
    tls::client(files)?;
    let read = |file: &Option<PathBuf>| file.as_deref().map(read_file).transpose();
    let failed = |error: &(dyn std::error::Error + 'static)| format!("smtp: {}", cause_of(error));
    let made = || -> Result<TlsParameters, Box<dyn std::error::Error>> {
        let mut builder = TlsParameters::builder(host.to_owned());
        if let Some(pem) = read(&files.ca)? {
            builder = builder.certificate_store(CertificateStore::None);
            builder = builder.add_root_certificate(Certificate::from_pem(&pem)?);
        }
        if let (Some(cert), Some(key)) = (read(&files.client_cert)?, read(&files.client_key)?) {
            builder = builder.identify_with(Identity::from_pem(&cert, &key)?);
        }
        Ok(builder.build()?)
    };
    made().map_err(|error| failed(&*error))
}

/// User and password.
fn login(url: &Url, password: Option<&str>) -> Result<Option<(String, String)>, String> {
    let user = decode(url.username());
    let password = password.map(str::to_owned).or_else(|| url.password().map(decode));
    match (user.is_empty(), password) {
        (true, None) => Ok(None),
        (false, Some(password)) => Ok(Some((user, password))),
        (true, Some(_)) => Err("smtp names no user for the password; write user@ before the host".to_owned()),
        (false, None) => Err("smtp names a user but there is no password; set password_file".to_owned()),
    }
}

/// Undoes the percent signs of a user or a password in an address.
fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
