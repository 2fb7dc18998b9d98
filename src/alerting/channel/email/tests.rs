use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream, copy_bidirectional};
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use std::sync::Arc;

use super::*;
use crate::clock::Clock;
use crate::simulate::mail_sink::{MailSink, MailSinkOptions};

const MAX_WAIT: Duration = Duration::from_secs(20);

/// When a server begins TLS.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begins {
    AtOnce,
    AfterStartTls,
}

/// A mail server with TLS, and the authority of its certificate in PEM.
async fn server(sink: &MailSink, begins: Begins) -> (u16, String) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let own = own.signed_by(&key, &authority).unwrap().der().clone();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, behind) = (listener.local_addr().unwrap().port(), sink.port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, acceptor.clone(), behind, begins));
        }
    });
    (port, authority.pem())
}

/// Passes a connection on to the sink, within TLS.
async fn serve(stream: TcpStream, acceptor: TlsAcceptor, behind: u16, begins: Begins) -> std::io::Result<()> {
    let mut stream = BufStream::new(stream);
    let mut inside = BufStream::new(TcpStream::connect(("127.0.0.1", behind)).await?);
    if begins == Begins::AfterStartTls {
        let mut line = String::new();
        for answer in ["220 mail\r\n", "250-mail\r\n250 STARTTLS\r\n", "220 go on\r\n"] {
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await?;
            if !answer.starts_with("220 go") {
                stream.read_line(&mut line).await?;
            }
        }
        assert!(line.ends_with("STARTTLS\r\n"), "{line}");
        // The client expects no second greeting.
        inside.read_line(&mut line).await?;
    }
    let mut outside = acceptor.accept(stream.into_inner()).await?;
    copy_bidirectional(&mut outside, &mut inside).await.map(|_| ())
}

fn channel(port: u16) -> Email {
    email(format!("smtps://localhost:{port}"), None).unwrap()
}

fn email(smtp: String, password: Option<&str>) -> Result<Email, String> {
    let config = EmailConfig { smtp, password: password.map(str::to_owned), ..config() };
    Email::new("mail", &config, &MessageConfig::default())
}

fn config() -> EmailConfig {
    let (from, to) = ("rollcall@example.org".to_owned(), vec!["ops@example.org".to_owned()]);
    EmailConfig { from, to, ..EmailConfig::default() }
}

#[tokio::test]
async fn a_mail_goes_out_within_tls_to_a_server_of_an_own_authority() {
    for (scheme, begins) in [("smtps", Begins::AtOnce), ("smtp+starttls", Begins::AfterStartTls)] {
        let sink = MailSink::start(MailSinkOptions::default()).await.unwrap();
        let (port, authority) = server(&sink, begins).await;
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.pem");
        std::fs::write(&ca, authority).unwrap();
        let config = EmailConfig {
            smtp: format!("{scheme}://localhost:{port}"),
            tls: TlsFiles { ca: Some(ca), ..TlsFiles::default() },
            ..config()
        };
        let channel = Email::new("mail", &config, &MessageConfig::default()).unwrap();
        channel.probe().await.unwrap();
        channel.send_test(Clock::system().now()).await.unwrap();
        let mails = sink.wait_for(1, MAX_WAIT).await.unwrap();
        assert!(mails[0].header("Subject").unwrap().starts_with("TEST: "), "{scheme}");
    }
}

#[tokio::test]
async fn a_mail_server_with_an_unknown_authority_gets_no_mail() {
    let sink = MailSink::start(MailSinkOptions::default()).await.unwrap();
    let (port, _) = server(&sink, Begins::AtOnce).await;
    let why = channel(port).send_test(Clock::system().now()).await.unwrap_err().to_string();
    assert!(why.contains("certificate"), "{why}");
    assert!(sink.mails().is_empty());
    // And a server without TLS gets nothing in the clear.
    let why = channel(sink.port()).send_test(Clock::system().now()).await.unwrap_err().to_string();
    assert!(why.contains(&format!("mail server localhost:{}", sink.port())), "{why}");
    assert!(sink.mails().is_empty());
}

#[tokio::test]
async fn a_mail_server_that_repeats_the_password_is_shown_without_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let channel = email(format!("smtp://ops@127.0.0.1:{port}"), Some("pa55-word"));
    let server = async {
        let mut stream = BufStream::new(listener.accept().await.unwrap().0);
        let mut line = String::new();
        for answer in ["220 mail", "250-mail\r\n250 AUTH PLAIN", "535 no pa55-word: "] {
            let end = if answer.starts_with("535") { line.as_str() } else { "\r\n" };
            stream.write_all(format!("{answer}{end}").as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            line.clear();
            stream.read_line(&mut line).await.unwrap();
        }
    };
    let channel = channel.unwrap();
    let (probed, ()) = tokio::join!(channel.probe(), server);
    let why = probed.unwrap_err().to_string();
    assert!(why.contains("no ***: AUTH PLAIN ***"), "{why}");
}
