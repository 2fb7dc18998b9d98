//! `rollcall check` looks at the certificates of the web server and of the in-process broker.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::certificates::Authority;

/// The outcome and the text of the finding about the web server; `None`: there is none.
fn found(dir: &Path, options: &str) -> Option<(String, String)> {
    found_of(dir, "http certificate", &format!("{options}\nmqtt.url = \"mqtt://127.0.0.1:1\""))
}

fn found_of(dir: &Path, name: &str, options: &str) -> Option<(String, String)> {
    // Nothing answers there, which is another finding.
    let rest = "engine.url = \"redis://127.0.0.1:1\"";
    std::fs::write(dir.join("rollcall.toml"), format!("{options}\n{rest}\n")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_rollcall"))
        .args(["check", "--json"])
        .current_dir(dir)
        .env_remove("ROLLCALL_CONFIG")
        .output()
        .unwrap();
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut all = findings.as_array().unwrap().iter();
    let one = all.find(|finding| finding["name"] == name)?;
    Some([&one["outcome"], &one["text"]].map(|text| text.as_str().unwrap().to_owned()).into())
}

#[test]
fn a_certificate_is_checked_with_its_key_and_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let options =
        "http = { tls_listen = \"127.0.0.1:0\", cert_file = \"server.pem\", key_file = \"server.key\" }";
    let authority = Authority::new(dir);
    authority.certify_server(dir, false);
    let good = found(dir, options).unwrap();
    assert!(
        good.0 == "ok" && good.1.contains("belongs to its key and is valid until 4096-01-01"),
        "{good:?}"
    );
    assert_eq!(found(dir, "http.listen = \"127.0.0.1:0\""), None, "without TLS there is nothing to look at");

    let key = std::fs::read(dir.join("server.key")).unwrap();
    authority.certify_server(dir, true);
    let expired = found(dir, options).unwrap();
    assert!(expired.0 == "fail" && expired.1.contains("expired at 2021-01-01"), "{expired:?}");
    std::fs::write(dir.join("server.key"), key).unwrap();
    let foreign = found(dir, options).unwrap();
    assert!(foreign.0 == "fail" && foreign.1.contains("does not belong to"), "{foreign:?}");
    std::fs::write(dir.join("server.pem"), "no certificate").unwrap();
    let wrong = found(dir, options).unwrap();
    assert!(wrong.0 == "fail" && wrong.1.contains("holds no certificate"), "{wrong:?}");
    std::fs::remove_file(dir.join("server.pem")).unwrap();
    let gone = found(dir, options).unwrap();
    assert!(gone.0 == "fail" && gone.1.contains("cannot be read"), "{gone:?}");
}

#[cfg(feature = "broker")]
#[test]
fn so_is_that_of_the_broker_within_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let options =
        "broker = { tls_listen = \"127.0.0.1:0\", cert_file = \"server.pem\", key_file = \"server.key\" }";
    let authority = Authority::new(dir);
    for (is_expired, outcome) in [(false, "ok"), (true, "fail")] {
        authority.certify_server(dir, is_expired);
        let finding = found_of(dir, "broker certificate", options).unwrap();
        assert_eq!(finding.0, outcome, "{finding:?}");
    }
}
