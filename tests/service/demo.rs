//! `rollcall demo` on a machine with nothing else installed: ports may be in use, and the demo leaves nothing
//! behind.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rollcall::clock::monotonic;
use rollcall::simulate::servers::free_port;
use tempfile::TempDir;

/// How long the demo may take to print the next awaited line.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// A demo with its own directory for temporary files, and an empty PATH.
struct Demo {
    process: Child,
    /// The output before the first event.
    welcome: Vec<String>,
    lines: mpsc::Receiver<String>,
    dir: TempDir,
}

impl Demo {
    fn start(arguments: &[&str]) -> Demo {
        let dir = tempfile::tempdir().unwrap();
        let nothing = dir.path().join("nothing");
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        command.arg("demo").args(arguments).env_clear();
        command.env("PATH", &nothing).env("TMPDIR", dir.path());
        // Two demos that search for free ports at the same time may find the same ports.
        let turn = File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo.lock")).unwrap();
        turn.lock().unwrap();
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let (lines, seen) = mpsc::channel();
        let out = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let mut demo = Demo { process, welcome: Vec::new(), lines: seen, dir };
        demo.welcome = demo.up_to("Events of the fleet");
        demo
    }

    /// Waits for a line with this text, and returns all lines up to it.
    fn up_to(&self, wanted: &str) -> Vec<String> {
        let mut all = Vec::new();
        let until = monotonic() + MAX_WAIT;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(monotonic())) {
                Ok(line) => all.push(line),
                Err(_) => panic!("no {wanted:?} in:\n{}", all.join("\n")),
            }
            if all.last().is_some_and(|line| line.contains(wanted)) {
                return all;
            }
        }
    }

    /// Waits for a line with this text, and returns it.
    fn prints(&self, wanted: &str) -> String {
        self.up_to(wanted).pop().unwrap()
    }

    /// The line with this text before the first event.
    fn intro_line(&self, wanted: &str) -> &str {
        let line = self.welcome.iter().find(|line| line.contains(wanted));
        line.unwrap_or_else(|| panic!("no {wanted:?} in {:#?}", self.welcome))
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until the demo ends with success, and checks that it leaves nothing behind.
    fn ends(mut self) {
        self.prints("Receivers were notified of ");
        self.prints(" is removed.");
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
        assert_eq!(names(self.dir.path()), [] as [String; 0]);
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    std::fs::read_dir(dir).unwrap().map(name).collect()
}

/// The body of a page at an address that the demo printed.
fn page(address: &str) -> String {
    let (host, path) = address.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer
}

fn address(line: &str) -> &str {
    line.split_whitespace().find(|word| word.starts_with("http://")).unwrap()
}

#[test]
fn the_demo_shows_a_site_that_falls_silent_and_returns_and_ctrl_c_leaves_no_files() {
    let demo = Demo::start(&["--units", "30", "--port", &free_port().unwrap().to_string()]);
    // With seed 1, the second site loses power; 30 units at 5 sites are 6 at each.
    demo.prints("fleet  site-02 loses power");
    let output = demo.prints(" at site-02: ");
    assert!(output.contains("alert  OFFLINE ") && output.contains(" ms of the deadline"), "{output}");
    assert_eq!(names(demo.dir.path()).len(), 1, "the directory of the fleet");
    let records = page(address(demo.intro_line("offline units")));
    assert!(records.contains(r#""site":"site-02""#), "{records}");
    demo.prints("fleet  site-02 has power again");
    let output = demo.prints("alert  BACK ");
    assert!(output.contains(" at site-02"), "{output}");
    demo.signal("-INT");
    demo.ends();
}

#[test]
fn ports_in_use_are_replaced_and_the_demo_ends_when_its_time_is_over() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    // A failure means that another process holds the port.
    let _held = TcpListener::bind("127.0.0.1:1883");
    let demo = Demo::start(&["--port", &port, "--duration", "1s"]);
    demo.intro_line(&format!("Port {port} is in use; the web server listens on "));
    demo.intro_line("Port 1883 is in use; the broker listens on ");
    let home = page(address(demo.intro_line("units by state")));
    assert!(home.contains("<title>Fleet"), "{home}");
    demo.ends();
}

/// A device that an operator starts beside the fleet.
#[test]
fn every_client_may_be_a_unit_of_the_demo() {
    let demo = Demo::start(&["--units", "1", "--port", &free_port().unwrap().to_string()]);
    let (_, arguments) = demo.intro_line("mosquitto_pub ").split_once("mosquitto_pub ").unwrap();
    let arguments = arguments.split_whitespace().map(|word| word.trim_matches('\''));
    assert!(Command::new("mosquitto_pub").args(arguments).status().unwrap().success());
    demo.prints("alert  OFFLINE mine at north");
    let port = demo.intro_line("mosquitto_pub ").split_once("-p ").unwrap().1.split(' ').next().unwrap();
    let hostile = ["-h", "127.0.0.1", "-p", port, "-t", "sites/north/mi\u{202e}ne/heartbeat", "-m", "{}"];
    assert!(Command::new("mosquitto_pub").args(hostile).status().unwrap().success());
    demo.prints("alert  OFFLINE mi\\u{202e}ne at north");
    demo.signal("-TERM");
    demo.ends();
}

#[test]
fn the_same_seed_is_the_same_fleet() {
    let demos = ["7", "7", "8"]
        .map(|seed| Demo::start(&["--seed", seed, "--port", &free_port().unwrap().to_string()]));
    let stories = demos.map(|demo| {
        let line = |_| demo.prints(" falls silent").split_once("  fleet  ").unwrap().1.to_owned();
        (0..2).map(line).collect::<Vec<String>>()
    });
    assert_eq!(stories[0], stories[1]);
    assert_ne!(stories[0], stories[2]);
}
