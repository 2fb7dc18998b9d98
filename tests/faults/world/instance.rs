//! A process of `rollcall serve` with its configuration, which tests freeze, kill and start.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::simulate::servers::ExitCleanup;

use super::processor::Process;

/// The token for pages of an instance that requires one.
const TOKEN: &str = "token-of-the-faults";
pub const TOKEN_SHA256: &str = "7435140393f4c623d7851dca146bd88a13675f7a56f94cf94eee87bac32f2a44";

pub struct Instance {
    pub name: String,
    config: PathBuf,
    log: PathBuf,
    /// Host and port of the pages.
    pub http: String,
    /// A prefix of the command line, for example for another clock.
    pub before: Vec<String>,
    running: Option<(Child, ExitCleanup)>,
    process: Process,
    /// How often the instance was started.
    pub starts: usize,
    /// The most memory that ended processes of the instance used.
    peak: u64,
}

impl Instance {
    /// The blind intervals in its log.
    pub fn blind(&self) -> Vec<(Timestamp, Timestamp)> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let moment = |line: &str, field: &str| -> Option<Timestamp> {
            let text = line.split_whitespace().find_map(|word| word.strip_prefix(field))?;
            serde_json::from_value(text.into()).ok()
        };
        let lines = log.lines().filter(|line| line.contains(" was blind: "));
        lines.filter_map(|line| Some((moment(line, "from=")?, moment(line, "to=")?))).collect()
    }

    /// An instance that does not run yet.
    pub fn new(dir: &Path, name: &str, http: &str, config: &str) -> Instance {
        let file = dir.join(format!("{name}.toml"));
        std::fs::write(&file, config).unwrap();
        let process = Process::default();
        let (name, log, http) = (name.to_owned(), dir.join(format!("{name}.log")), http.to_owned());
        Instance {
            name,
            config: file,
            log,
            http,
            before: Vec::new(),
            running: None,
            process,
            starts: 0,
            peak: 0,
        }
    }

    pub fn start(&mut self) {
        self.starts += 1;
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut line = self.before.clone();
        line.extend([env!("CARGO_BIN_EXE_rollcall").to_owned(), "serve".to_owned()]);
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).arg("--config").arg(&self.config);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap_or_else(|why| panic!("{:?} could not be started: {why}", line[0]));
        let guard = ExitCleanup::new("kill -9 \"$1\"", child.id().to_string()).unwrap();
        self.process.store(child.id(), Ordering::Relaxed);
        self.running = Some((child, guard));
    }

    /// Its process, also when it is started again.
    pub fn process(&self) -> Process {
        self.process.clone()
    }

    /// Ends the process like a power cut.
    pub fn kill(&mut self) {
        self.peak = self.peak_memory();
        if let Some((mut child, guard)) = self.running.take() {
            drop(guard);
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends the process by SIGTERM, and waits for its end.
    pub fn stop(&mut self) {
        self.peak = self.peak_memory();
        self.signal("TERM");
        if let Some((mut child, guard)) = self.running.take() {
            drop(guard);
            let _ = child.wait();
        }
    }

    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    pub fn signal(&self, name: &str) {
        signal(self.running.as_ref().expect("it runs").0.id(), name);
    }

    /// Why the process has ended without being killed or stopped.
    pub fn death(&mut self) -> Option<String> {
        let (child, _) = self.running.as_mut()?;
        let status = child.try_wait().ok().flatten()?;
        Some(format!("{} ended by itself: {status}; see {}", self.name, self.log.display()))
    }

    /// The most memory that the instance ever used, in bytes.
    pub fn peak_memory(&self) -> u64 {
        let now = self.running.as_ref().and_then(|(child, _)| peak_memory(child.id()));
        self.peak.max(now.unwrap_or(0))
    }

    pub fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The output of `rollcall check` with its configuration.
    pub fn check(&self) -> String {
        let mut check = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        let said = check.arg("check").arg("--config").arg(&self.config).output().unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    /// A page of the instance; `None` if it does not answer.
    pub async fn page(&self, path: &str) -> Option<(u16, String)> {
        let url = format!("http://{}{path}", self.http);
        let asked = tokio::time::timeout(Duration::from_secs(5), async {
            let asked = super::http::CLIENT.get(url).bearer_auth(TOKEN);
            let answer = asked.send().await.ok()?;
            Some((answer.status().as_u16(), answer.text().await.ok()?))
        });
        asked.await.ok().flatten()
    }

    /// The sum of a metric over its labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let (_, page) = self.page("/metrics").await?;
        let of_this = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let values =
            page.lines().filter(of_this).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Some(values.sum())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The most memory that a process ever used, in bytes; `None` if there is none.
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

/// Sends a signal to a process that the test started.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.unwrap().success(), "no process {pid} to send {name}");
}
