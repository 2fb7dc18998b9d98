//! The commands of docs/tls.md that make certificates, run; and Rollcall with these certificates.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rollcall::simulate::servers::free_port;
use rollcall::trust::{self, TlsFiles};

use super::Page;

const MAX_WAIT: Duration = Duration::from_secs(60);

/// A process that ends with the test.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_commands_of_the_documentation_make_certificates_that_work() {
    let dir = tempfile::tempdir().unwrap();
    let page = Page::new("docs/tls.md");
    let blocks = page.blocks();
    let commands =
        blocks.iter().find(|block| block.text.starts_with("openssl ")).expect("the commands are there");
    let made =
        Command::new("sh").args(["-e", "-c", &commands.text]).current_dir(dir.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let [http, https, mqtts] = [(); 3].map(|()| free_port().unwrap());
    let text = format!(
        r#"
        engine = {{ type = "embedded", path = "data" }}
        http = {{ listen = "127.0.0.1:{http}", tls_listen = "127.0.0.1:{https}", cert_file = "server.pem", key_file = "server.key" }}
        broker = {{ tls_listen = "127.0.0.1:{mqtts}", cert_file = "server.pem", key_file = "server.key", client_ca_file = "ca.pem" }}
        kind = [{{ name = "detector", topics = ["units/{{unit}}/heartbeat"], timeout = "1h" }}]
        "#
    );
    std::fs::write(dir.path().join("rollcall.toml"), text).unwrap();
    let rollcall = |command: &str| {
        let mut rollcall = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        rollcall.arg(command).current_dir(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        rollcall
    };
    let checked = rollcall("check").output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success() && said.contains("belongs to its key"), "{said}");
    let _serving = Serving(rollcall("serve").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());

    let answered = async {
        while !page_over_tls(dir.path(), https).is_some_and(|page| page.contains("200 OK")) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, answered).await.expect("the pages answer within TLS");
    let publish = |arguments: &[&str]| {
        let mut publish = Command::new("mosquitto_pub");
        publish.args(["-h", "localhost", "-p", &mqtts.to_string(), "--cafile", "ca.pem", "-q", "1"]);
        publish.args(["-t", "units/1/heartbeat", "-m", "x"]).args(arguments).current_dir(dir.path());
        publish.output().unwrap()
    };
    let with_certificate = publish(&["--cert", "client.pem", "--key", "client.key"]);
    assert!(with_certificate.status.success(), "{}", String::from_utf8_lossy(&with_certificate.stderr));
    assert!(!publish(&[]).status.success(), "a device needs a certificate");
}

/// The answer to a request for `/healthz`, by a client that trusts only the authority.
fn page_over_tls(dir: &Path, port: u16) -> Option<String> {
    let files = TlsFiles { ca: Some(dir.join("ca.pem")), ..TlsFiles::default() };
    let (config, _) = trust::client("tls", &files, |file| std::fs::read(file)).unwrap();
    let name = "localhost".to_owned().try_into().unwrap();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let mut stream = rustls::Stream::new(&mut tls, &mut stream);
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    // The end without a farewell of TLS is an error after the whole answer.
    let _ = stream.read_to_string(&mut answer);
    Some(answer)
}
