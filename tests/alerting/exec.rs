//! Claims about the channel to a program.

use std::path::Path;

use rollcall::alerting::{ExecConfig, Failure, open, probe, send_test};
use serde_json::Value;

use super::*;
use rollcall::clock::monotonic;

/// A receiver that starts a script with this text.
fn script(dir: &Path, text: &str) -> ReceiverConfig {
    let environment = [("OUT".to_owned(), dir.join("out").display().to_string())].into();
    let command = ["/bin/sh", "-c", text, "sh", "$(touch evil)"].map(str::to_owned).into();
    receiver("hook", ChannelConfig::Exec(ExecConfig { command, environment }))
}

#[tokio::test]
async fn a_program_gets_the_notification_on_its_standard_input_and_no_environment() {
    let dir = tempfile::tempdir().unwrap();
    let text = "/bin/cat > \"$OUT\"; /usr/bin/env > \"$OUT.env\"; echo \"$1\" > \"$OUT.arg\"";
    let delivery = delivery(vec![silent("detector:a", now())], vec![]);
    open(&script(dir.path(), text)).unwrap().send(&delivery, now()).await.unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let body: Value = serde_json::from_str(&read("out")).unwrap();
    assert_eq!([&body["type"], &body["data"]["offline"][0]["unit"]], ["rollcall.notification", "a"]);
    let environment = read("out.env");
    assert!(!environment.contains("HOME=") && !environment.contains("CARGO"), "{environment}");
    assert_eq!(read("out.arg"), "$(touch evil)\n");
}

#[tokio::test]
async fn a_program_that_fails_is_tried_again_and_its_last_line_explains_it() {
    let dir = tempfile::tempdir().unwrap();
    let text = "i=0; while [ $i -lt 5000 ]; do echo 'a long line of output' >&2; i=$((i+1)); done; echo \"no: $OUT\" \
                >&2; exit 3";
    let failure = send_test(&script(dir.path(), text), now()).await.unwrap_err();
    let why = failure.to_string();
    assert!(matches!(failure, Failure::Temporary { .. }));
    assert!(why.contains("exit status: 3") && why.contains("no: ***") && why.len() < 300, "{why}");
}

#[tokio::test]
async fn a_program_that_takes_too_long_ends_with_all_that_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let text = "(/bin/sleep 100; echo late > \"$OUT\") & echo $! > \"$OUT.pid\"; wait";
    let slow = ReceiverConfig { timeout: Duration::from_secs(2), ..script(dir.path(), text) };
    let failure = send_test(&slow, now()).await.unwrap_err();
    assert!(failure.to_string().contains("within 2s"), "{failure}");
    let pid = std::fs::read_to_string(dir.path().join("out.pid")).unwrap();
    let process = Path::new("/proc").join(pid.trim()).join("stat");
    let is_running = || std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z "));
    let until = monotonic() + MAX_WAIT;
    while is_running() {
        assert!(monotonic() < until, "it goes on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!dir.path().join("out").exists());
}

#[tokio::test]
async fn a_program_that_leaves_another_one_behind_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    send_test(&script(dir.path(), "/bin/sleep 20 & exit 0"), now()).await.unwrap();
}

#[tokio::test]
async fn a_probe_looks_for_the_program_and_does_not_start_it() {
    let dir = tempfile::tempdir().unwrap();
    probe(&script(dir.path(), "echo started > \"$OUT\"")).await.unwrap();
    assert!(!dir.path().join("out").exists());
    let command = vec!["/nowhere/notify".to_owned()];
    let gone = receiver("hook", ChannelConfig::Exec(ExecConfig { command, ..ExecConfig::default() }));
    for result in [probe(&gone).await, send_test(&gone, now()).await] {
        assert!(result.unwrap_err().to_string().starts_with("/nowhere/notify cannot be started"));
    }
}
