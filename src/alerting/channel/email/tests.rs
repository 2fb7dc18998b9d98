use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream, copy_bidirectional};
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::server::Security;
use super::*;
use crate::clock::Clock;
use crate::simulate::mail_sink::{MailSink, Options};

const MAX_WAIT: Duration = Duration::from_secs(20);

/// A mail server with TLS from the first byte, and the authority of its certificate.
async fn server(sink: &MailSink) -> (u16, RootCertStore) {
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
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outside = acceptor.accept(stream).await?;
                let mut inside = TcpStream::connect(("127.0.0.1", behind)).await?;
                copy_bidirectional(&mut outside, &mut inside).await
            });
        }
    });
    let mut authorities = RootCertStore::empty();
    authorities.add(authority.der().clone()).unwrap();
    (port, authorities)
}

fn channel(port: u16) -> Email {
    let to = ["ops@example.org".to_owned()];
    let smtp = format!("smtps://localhost:{port}");
    Email::new("mail", &smtp, None, "rollcall@example.org", &to, &MessageConfig::default()).unwrap()
}

#[tokio::test]
async fn a_mail_goes_out_over_tls_from_the_first_byte() {
    let sink = MailSink::start(Options::default()).await.unwrap();
    let (port, authorities) = server(&sink).await;
    let mut channel = channel(port);
    let Security::Tls(connector, _) = &mut channel.server.security else { panic!("smtps is TLS") };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trusting = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(authorities)
        .with_no_client_auth();
    *connector = Arc::new(trusting).into();
    let now = Clock::system().now();
    channel.probe().await.unwrap();
    channel.send_test(now).await.unwrap();
    let mails = sink.wait_for(1, MAX_WAIT).await.unwrap();
    assert!(mails[0].header("Subject").unwrap().starts_with("TEST: "));
}

#[tokio::test]
async fn a_mail_server_with_an_unknown_authority_gets_no_mail() {
    let sink = MailSink::start(Options::default()).await.unwrap();
    let (port, _) = server(&sink).await;
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
    let (to, smtp) = (["ops@example.org".to_owned()], format!("smtp://ops@127.0.0.1:{port}"));
    let channel =
        Email::new("mail", &smtp, Some("pa55-word"), "rollcall@example.org", &to, &MessageConfig::default());
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
