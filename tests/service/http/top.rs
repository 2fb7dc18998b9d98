//! `rollcall top` in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollcall::http::{Role, UnitMetrics};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::changes::token;
use super::world::{Fleet, MAX_WAIT, SECOND};

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

/// A terminal in which the program runs.
struct Terminal {
    keyboard: File,
    /// The other end, to read its modes.
    end: File,
    shown: Arc<Mutex<Vec<u8>>>,
    program: Child,
}

impl Terminal {
    fn start(url: &str, variables: &[(&str, &str)]) -> Terminal {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let end = rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let (keyboard, end) = (File::from(keyboard), File::from(end));
        resize(&keyboard, 100, 30);
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        command.args(["top", "--interval", "200ms", "--url", url]).env("TERM", "xterm");
        for name in ["NO_COLOR", "ROLLCALL_TOKEN", "ROLLCALL_TOKEN_FILE", "ROLLCALL_CONFIG"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied());
        let part = || Stdio::from(end.try_clone().unwrap());
        // The program has a process group of its own: Ctrl-Z stops the whole group.
        let program = command.stdin(part()).stdout(part()).stderr(part()).process_group(0).spawn().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, into) = (keyboard.try_clone().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                into.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Terminal { keyboard, end, shown, program }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Forgets the output so far.
    fn forget(&self) {
        self.shown.lock().unwrap().clear();
    }

    async fn shows(&self, text: &str) {
        let shown = async {
            while !self.shown().contains(text) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(MAX_WAIT, shown).await.is_err() {
            panic!("never shown: {text:?}; shown is {:?}", self.shown());
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.program)
    }

    /// Whether keys are echoed, and lines are edited: the modes of an ordinary terminal.
    fn is_ordinary(&self) -> bool {
        let modes = tcgetattr(&self.end).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    /// Waits for the end and returns the exit code; then the terminal is as it was before.
    async fn ends(mut self) -> Option<i32> {
        let code = self.exit_code().await;
        self.shows(LEAVE).await;
        let shown = self.shown();
        let last = |sequence: &str| shown.rfind(sequence);
        assert!(last(LEAVE) > last(ENTER), "{shown:?}");
        assert!(last("\u{1b}[?25h") > last("\u{1b}[?25l"), "the cursor is back: {shown:?}");
        assert!(self.is_ordinary());
        code
    }

    async fn exit_code(&mut self) -> Option<i32> {
        let ended = async {
            loop {
                if let Some(status) = self.program.try_wait().unwrap() {
                    return status.code();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(MAX_WAIT, ended).await.expect("it ends")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn resize(terminal: &File, columns: u16, lines: u16) {
    let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_is_drawn_live_and_q_leaves_the_terminal_as_it_was() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["detector:quiet\u{202e}", "detector:fine"]).await;
    let mut terminal = Terminal::start(&fleet.url, &[]);
    terminal.shows("Rollcall is blind").await;
    assert!(!terminal.is_ordinary());
    terminal.shows("this instance has found no silence since its start").await;
    terminal.forget();
    fleet.pass(121 * SECOND, &["detector:quiet\u{202e}"]).await;
    fleet.hear(&["detector:fine"]).await;
    terminal.shows("detector/quiet\\u{202e}").await;
    terminal.shows("\u{1b}[31moffline\u{1b}[0m").await;
    terminal.shows("1 of 1 silences found within").await;

    // A change of the terminal's size is drawn at once.
    terminal.forget();
    resize(&terminal.keyboard, 20, 4);
    kill_process(terminal.pid(), Signal::WINCH).unwrap();
    terminal.shows("Rollcall at http://1\u{1b}[K").await;
    terminal.press(b"q");
    assert_eq!(terminal.ends().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_out_restores_the_terminal() {
    let fleet = Fleet::start().await;
    fleet.fill();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let terminal = Terminal::start(&fleet.url, &[]);
        terminal.shows("Rollcall at").await;
        kill_process(terminal.pid(), signal).unwrap();
        assert_eq!(terminal.ends().await, Some(0), "{signal:?}");
    }
    let mut terminal = Terminal::start(&fleet.url, &[("NO_COLOR", "1")]);
    terminal.shows("Rollcall is blind").await;
    assert!(!terminal.shown().contains("\u{1b}[3"), "no colours: {:?}", terminal.shown());
    // Ctrl-Z stops it and gives the terminal back for that time.
    terminal.forget();
    terminal.press(b"\x1a");
    terminal.shows(LEAVE).await;
    let state = format!("/proc/{}/stat", terminal.program.id());
    let is_stopped = async {
        while !std::fs::read_to_string(&state).unwrap().contains(") T ") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, is_stopped).await.expect("it is stopped");
    assert!(terminal.is_ordinary());
    terminal.forget();
    kill_process(terminal.pid(), Signal::CONT).unwrap();
    terminal.shows(ENTER).await;
    terminal.shows("Rollcall is blind").await;
    assert!(!terminal.is_ordinary());
    terminal.press(b"\x03");
    assert_eq!(terminal.ends().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_away_is_named_above_its_last_numbers() {
    let fleet = Fleet::start().await;
    fleet.fill();
    let mut terminal = Terminal::start(&fleet.url, &[]);
    terminal.shows("Rollcall is blind").await;
    fleet.stop.cancel();
    terminal.shows("no newer numbers: http://127.0.0.1:").await;
    terminal.press(b"q");
    assert_eq!(terminal.ends().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_before_the_first_numbers_is_said_without_another_screen() {
    let fleet = Fleet::start_with(vec![token("screen", Role::Viewer)], UnitMetrics::All).await;
    let mut terminal = Terminal::start(&fleet.url, &[]);
    assert_eq!(terminal.exit_code().await, Some(1));
    terminal.shows("needs a valid token").await;
    assert!(!terminal.shown().contains(ENTER));

    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    let output = command.args(["top", "--url", &fleet.url]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("top needs a terminal"), "{said}");
}
