//! The channel to a program: started for each notification, with Rollcall's own body on its standard input.
//!
//! No shell takes part: the program gets its arguments as they are written, and no name of a unit is one of them. Its
//! environment is empty but for what the configuration names. An exit status of 0 means that the receiver was notified;
//! every other one is tried again. The end of its standard error explains a failure. A program that takes too long is
//! killed, with all that it has started in its group.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::secrets::Secrets;
use super::webhook::body_of;
use super::{Channel, Failure, ReceiverAnswer};
use crate::alerting::message::{MessageConfig, ReceiverMessage, SizeLimit, test_delivery};
use crate::alerting::text::short;
use crate::clock::Timestamp;
use crate::store::Delivery;

/// How many bytes of a program's standard error are kept, from its end. The rest is read and dropped.
const MAX_OUTPUT: usize = 64 << 10;
/// The most characters of the standard error that are shown.
const MAX_SHOWN: usize = 200;
/// How long the rest of a program's output may take after its end.
const REST_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecConfig {
    /// The program, with its whole path, and its arguments.
    pub command: Vec<String>,
    /// All of its environment.
    pub environment: BTreeMap<String, String>,
}

pub struct Exec {
    receiver: String,
    config: ExecConfig,
    message: MessageConfig,
    secrets: Secrets,
}

impl Exec {
    /// A channel. Errors name the option.
    pub fn new(receiver: &str, config: &ExecConfig, message: &MessageConfig) -> Result<Exec, String> {
        match config.command.first() {
            None => Err("command is empty; write [\"/usr/local/bin/notify\"]".to_owned()),
            Some(program) if !Path::new(program).is_absolute() => Err(format!(
                "command: {program:?} is not an absolute path; write one such as \"/usr/local/bin/notify\""
            )),
            Some(_) => Ok(Exec {
                receiver: receiver.to_owned(),
                config: config.clone(),
                message: message.clone(),
                secrets: secrets(config),
            }),
        }
    }

    fn program(&self) -> &str {
        &self.config.command[0]
    }

    async fn start(&self, message: &ReceiverMessage<'_>) -> Result<(), Failure> {
        let failed = |what: &str, error: std::io::Error| {
            Failure::temporary(format!("{} {what}: {error}", self.program()))
        };
        let child = Command::new(self.program())
            .args(&self.config.command[1..])
            .env_clear()
            .envs(&self.config.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed("cannot be started", error))?;
        let mut running = Running::new(child);
        let (stdin, stderr) = (running.child.stdin.take(), running.child.stderr.take());
        let mut body = body_of(message, &self.message, SizeLimit::default().bytes());
        // A line of its own for a program that appends to a file.
        if !body.ends_with('\n') {
            body.push('\n');
        }
        let written = write(stdin, body);
        let mut said = Vec::new();
        let status = {
            let talking = async { tokio::join!(written, last_of(stderr, &mut said)) };
            tokio::pin!(talking);
            tokio::select! {
                status = running.child.wait() => {
                    // The last output of the program is still in the pipe, which another program may hold open.
                    let _ = timeout(REST_TIMEOUT, &mut talking).await;
                    status
                }
                _ = &mut talking => running.child.wait().await,
            }
        };
        let status = status.map_err(|error| failed("its exit status cannot be read", error))?;
        running.has_ended = true;
        if status.success() {
            return Ok(());
        }
        let mut why = format!("{} ended with {status}", self.program());
        // The last line says most.
        if let Some(said) = String::from_utf8_lossy(&said).trim().lines().next_back() {
            why = format!("{why}, \"{}\"", short(&self.secrets.hide(said), MAX_SHOWN));
        }
        Err(Failure::temporary(why))
    }
}

/// The values of the environment, and arguments that may be secrets: they are no options and no paths.
fn secrets(config: &ExecConfig) -> Secrets {
    let arguments = config.command[1..].iter();
    let arguments = arguments.map(|one| one.split_once('=').map_or(one.as_str(), |(_, value)| value));
    let arguments = arguments.filter(|one| one.len() >= 8 && !one.starts_with(['-', '/']));
    Secrets::new(config.environment.values().cloned().chain(arguments.map(str::to_owned)))
}

#[async_trait]
impl Channel for Exec {
    async fn send(&self, delivery: &Delivery, _now: Timestamp) -> Result<ReceiverAnswer, Failure> {
        self.start(&ReceiverMessage::new(delivery)).await.map(|()| ReceiverAnswer::default())
    }

    async fn send_test(&self, now: Timestamp) -> Result<(), Failure> {
        self.start(&ReceiverMessage::test(&test_delivery(&self.receiver, now))).await
    }

    /// Whether there is a program that may be started.
    async fn probe(&self) -> Result<(), Failure> {
        let program = self.program();
        match tokio::fs::metadata(program).await {
            Err(error) => Err(Failure::temporary(format!("{program} cannot be started: {error}"))),
            Ok(file) if !file.is_file() || file.permissions().mode() & 0o111 == 0 => {
                Err(Failure::temporary(format!("{program} is not executable; chmod +x it")))
            }
            Ok(_) => Ok(()),
        }
    }

    fn render(&self, delivery: &Delivery) -> Result<String, String> {
        Ok(body_of(&ReceiverMessage::new(delivery), &self.message, SizeLimit::default().bytes()))
    }
}

/// Writes the input of a program, which need not read it.
async fn write(stdin: Option<ChildStdin>, body: String) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(body.as_bytes()).await;
    }
}

/// A program and the others in its group, which end with it.
struct Running {
    child: Child,
    group: Option<Pid>,
    has_ended: bool,
}

impl Running {
    fn new(child: Child) -> Running {
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Running { child, group, has_ended: false }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Do not kill the group after its end: then its number may belong to another group.
        if let Some(group) = self.group.filter(|_| !self.has_ended) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Reads an output to its end, and keeps the last part of it.
async fn last_of(output: Option<impl AsyncRead + Unpin>, last: &mut Vec<u8>) {
    let Some(mut output) = output else { return };
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut chunk).await {
        last.extend_from_slice(&chunk[..length]);
        let surplus = last.len().saturating_sub(MAX_OUTPUT);
        last.drain(..surplus);
    }
}
