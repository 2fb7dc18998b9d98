//! Alertmanager with the file of the stack: which alerts are mailed.

use std::path::Path;
use std::time::Duration;

use rollcall::simulate::mail_sink::{MailSink, MailSinkOptions};
use rollcall::simulate::servers::{Server, free_port};

use super::{output, read};

/// How long a mail may take.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Alertmanager with the shipped file, except for addresses and the waits of groups.
fn alertmanager(dir: &Path, mail: &MailSink) -> Server {
    let text = read("config/alertmanager/alertmanager.yml");
    let here = text.replace("mailpit:1025", &format!("127.0.0.1:{}", mail.port()));
    assert_ne!(text, here, "the mail goes elsewhere");
    let at_once =
        here.replace("group_wait: 10s", "group_wait: 0s").replace("group_wait: 30s", "group_wait: 0s");
    std::fs::write(dir.join("alertmanager.yml"), at_once).unwrap();
    let port = free_port().unwrap();
    let arguments = [
        "--config.file=alertmanager.yml".to_owned(),
        "--storage.path=data".to_owned(),
        format!("--web.listen-address=127.0.0.1:{port}"),
        // A single instance: no port for a cluster.
        "--cluster.listen-address=".to_owned(),
    ];
    Server::start("prometheus-alertmanager", &arguments, dir, port, "Listening on").unwrap()
}

/// A firing alert as Prometheus sends it.
fn fire(server: &Server, labels: &[&str]) {
    let url = format!("--alertmanager.url=http://127.0.0.1:{}", server.port());
    let added = output("amtool", &[&["alert", "add", &url], labels].concat());
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cause_is_mailed_and_its_consequences_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let mail = MailSink::start(MailSinkOptions::default()).await.unwrap();
    let server = alertmanager(dir.path(), &mail);
    fire(&server, &["alertname=RollcallWatchdog", "severity=none"]);
    fire(&server, &["alertname=RollcallEngineDown", "severity=critical", "instance=a", "job=rollcall"]);
    mail.wait_for(1, MAX_WAIT).await.unwrap();
    // Groups are by job: these would be separate mails before the last one.
    fire(&server, &["alertname=RollcallBlind", "severity=critical", "job=one"]);
    fire(&server, &["alertname=RollcallMirrorOld", "severity=warning", "job=two"]);
    fire(&server, &["alertname=RollcallDeadLetters", "severity=warning", "receiver=hook", "job=three"]);
    let mails = mail.wait_for(2, MAX_WAIT).await.unwrap();
    let subjects: Vec<_> = mails.iter().filter_map(|mail| mail.header("Subject")).collect();
    assert!(subjects[0].contains("RollcallEngineDown"), "{subjects:?}");
    assert!(subjects[1].contains("RollcallDeadLetters"), "{subjects:?}");
    assert_eq!(subjects.len(), 2, "{subjects:?}");
}
