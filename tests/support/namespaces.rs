//! A mount or a network for one case, for an ordinary user too.
//!
//! Only root may make a mount or a network. An ordinary user is root within a user namespace, so the case is run
//! there, by this same program. Where the kernel forbids that, the case is not run: `make test` names it at the end,
//! and without `make test` it fails.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

/// The variable that marks the program within the namespaces.
const WITHIN: &str = "TESTS_WITHIN";
/// A directory in which a case that could not be run leaves a file; `make test` shows them.
const NOT_RUN: &str = "TESTS_NOT_RUN";

/// The namespace of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "no program of tests needs both")]
pub enum Own {
    Mounts,
    Network,
}

/// The full name of the test that calls this macro.
macro_rules! this_test {
    () => {{
        fn here() {}
        std::any::type_name_of_val(&here)
    }};
}
pub(crate) use this_test;

/// Whether the case has run in its own namespaces, or cannot run: then the caller returns at once.
/// `case`: the value of `this_test!()`.
pub fn is_done_elsewhere(case: &str, own: Own) -> bool {
    if std::env::var_os(WITHIN).is_some() {
        prepare(own);
        return false;
    }
    if geteuid().is_root() {
        return false;
    }
    let mut path: Vec<&str> = case.split("::").filter(|part| *part != "{{closure}}").collect();
    path.pop();
    let name = path[1..].join("::");
    let probed = unshare(own).arg("true").output();
    match probed {
        Ok(done) if done.status.success() => run_within(&name, own),
        Ok(done) => not_run(&name, String::from_utf8_lossy(&done.stderr).trim()),
        Err(why) => not_run(&name, &format!("unshare cannot be run: {why}; install util-linux")),
    }
    true
}

fn unshare(own: Own) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount"]);
    if own == Own::Network {
        command.arg("--net");
    }
    command.stdin(Stdio::null());
    command
}

fn run_within(name: &str, own: Own) {
    let this = std::env::current_exe().expect("a program has a file");
    let done = unshare(own).arg(this).args(["--exact", name, "--nocapture"]).env(WITHIN, "1").output();
    let done = done.expect("it could be run a moment ago");
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    println!("{said}");
    assert!(done.status.success(), "{name} fails in namespaces of its own");
    assert!(said.contains("1 passed"), "{name} is not a test of this program");
}

/// A new network has a loopback that is down, and `ip netns` keeps its names where an ordinary user may not
/// write.
fn prepare(own: Own) {
    if own == Own::Network {
        for line in [&["mount", "-t", "tmpfs", "tmpfs", "/run"][..], &["ip", "link", "set", "lo", "up"]] {
            let done = Command::new(line[0]).args(&line[1..]).status();
            assert!(done.is_ok_and(|status| status.success()), "{line:?}");
        }
    }
}

fn not_run(name: &str, why: &str) {
    let Some(dir) = std::env::var_os(NOT_RUN) else {
        panic!("{name} needs root or a user namespace, and neither is to be had: {why}; run it as root");
    };
    let file = Path::new(&dir).join(name.replace("::", "."));
    std::fs::write(file, format!("{name}: {why}\n")).expect("make test has made the directory");
}
