//! The machine of a run: figures mean nothing without it.

use std::fmt;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::process::usage;

/// The machine and its programs.
#[derive(Clone, Serialize, Deserialize)]
pub struct Machine {
    cores: usize,
    processor: String,
    memory_gb: u64,
    /// The server that keeps the fleet, with its version.
    pub redis: String,
    mosquitto: String,
    rollcall: String,
}

/// Runnable processes over the last minute: other load makes figures noisy.
pub fn load() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

impl Machine {
    /// Whether figures of both machines belong in one table; the table says which server each benchmark had.
    pub fn is_like(&self, other: &Machine) -> bool {
        let of = |one: &Machine| (one.cores, one.processor.clone(), one.memory_gb, one.mosquitto.clone());
        of(self) == of(other) && self.rollcall == other.rollcall
    }

    /// Reads this machine.
    pub fn detect() -> anyhow::Result<Machine> {
        let processor = read("/proc/cpuinfo", "model name").unwrap_or_default();
        let kilobytes = read("/proc/meminfo", "MemTotal").unwrap_or_default();
        let kilobytes: u64 = kilobytes.trim_end_matches(" kB").parse().unwrap_or(0);
        // Fails before the run if processes cannot be read.
        usage(std::process::id())?;
        Ok(Machine {
            cores: std::thread::available_parallelism()?.get(),
            processor,
            memory_gb: kilobytes.div_ceil(1 << 20),
            redis: redis(),
            mosquitto: version("mosquitto", &["-h"], "version "),
            rollcall: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Measured by `make bench` on {} cores ({}) with {} GB, shared by devices, broker, Redis and Rollcall \
             {}; {}, Mosquitto {}.",
            self.cores, self.processor, self.memory_gb, self.rollcall, self.redis, self.mosquitto
        )
    }
}

fn read(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The server that is found as `redis-server`: `Redis 7.0.15`, or `Valkey 8.1.1`.
fn redis() -> String {
    let name = version("redis-server", &["--version"], "");
    format!("{name} {}", version("redis-server", &["--version"], "v="))
}

/// The text after `mark` in the version output of a program.
fn version(program: &str, args: &[&str], mark: &str) -> String {
    let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default());
    let said = Command::new(program).args(args).env("PATH", path).output();
    let text = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
    let version = text.split_once(mark).and_then(|(_, rest)| rest.split_whitespace().next());
    version.unwrap_or("?").to_owned()
}
