//! A process of `rollcall serve` to which devices connect.

use std::process::{Child, Command};

use rollcall::simulate::servers::free_port;
use tempfile::TempDir;

use crate::support::facts::until;
use crate::support::http::get;

/// A process that ends with the test.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Served {
    pub dir: TempDir,
    pub port: u16,
    pub http: u16,
    /// The most files that the process may open; 0: as many as the test.
    files: u32,
    service: Option<Killed>,
}

impl Served {
    /// Starts a process with these options of its engine, of its broker, and others. The file `rules` lets devices
    /// write timers too.
    pub async fn start(engine: &str, broker: &str, more: &str) -> Served {
        Served::with_files(0, engine, broker, more).await
    }

    pub async fn with_files(files: u32, engine: &str, broker: &str, more: &str) -> Served {
        Served::within(tempfile::tempdir().unwrap(), files, engine, broker, more).await
    }

    /// Starts a process in this directory, which may hold files that its options name.
    pub async fn within(dir: TempDir, files: u32, engine: &str, broker: &str, more: &str) -> Served {
        let (port, http) = (free_port().unwrap(), free_port().unwrap());
        let text = format!(
            "engine = {{ {engine} }}\nhttp.listen = \"127.0.0.1:{http}\"\n\
             broker = {{ listen = \"127.0.0.1:{port}\", {broker} }}\n{more}"
        );
        std::fs::write(dir.path().join("rollcall.toml"), text).unwrap();
        std::fs::write(dir.path().join("rules"), "topic write rollcall/timers/+\ntopic readwrite units/#\n")
            .unwrap();
        let mut served = Served { dir, port, http, files, service: None };
        served.restart().await;
        served
    }

    /// Kills the process if it runs, and starts it again.
    pub async fn restart(&mut self) {
        self.kill();
        let limit = if self.files > 0 { format!("ulimit -n {} && ", self.files) } else { String::new() };
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{limit}exec {} serve", env!("CARGO_BIN_EXE_rollcall")));
        self.service = Some(Killed(command.current_dir(self.dir.path()).spawn().unwrap()));
        self.until("it is ready", async || {
            self.page("/readyz").await.is_some_and(|page| page.contains("\"ready\":true"))
        })
        .await;
    }

    pub fn kill(&mut self) {
        self.service = None;
    }

    pub async fn page(&self, path: &str) -> Option<String> {
        get(format!("http://127.0.0.1:{}{path}", self.http)).await.ok()?.text().await.ok()
    }

    /// The value of a metric.
    pub async fn value(&self, name: &str) -> f64 {
        value(&self.page("/metrics").await.expect("it answers"), name)
    }

    pub async fn until(&self, what: &str, fact: impl AsyncFn() -> bool) {
        until(what, fact).await;
    }
}

/// The value of a metric in a page of them: the sum of its series, unless the name has labels.
pub fn value(page: &str, name: &str) -> f64 {
    let of = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once("} ")?.1,
            None => rest.strip_prefix(' ')?,
        };
        value.trim().parse::<f64>().ok()
    };
    let found: Vec<f64> = page.lines().filter_map(of).collect();
    assert!(!found.is_empty(), "{name} is in\n{page}");
    found.into_iter().sum()
}
