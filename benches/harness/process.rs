//! CPU time and memory of a process, from `/proc`.

use std::time::Duration;

use anyhow::Context;

/// `/proc` counts CPU time in hundredths of a second on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// The cost of a storm: the processes that notify, and Redis.
pub const CPU: &str = "CPU of all processes and of Redis for each";

/// The resources that a process has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// CPU time since its start, all threads.
    pub cpu: Duration,
    /// Resident memory now, in bytes.
    pub rss: u64,
}

/// Reads the resources of the process with this id.
pub fn usage(pid: u32) -> anyhow::Result<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} cannot be read; has it ended?"))?;
    // The name in parentheses may hold spaces; user and system time are the 12th and 13th after it.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    let kilobytes: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap_or(0);
    Ok(Usage { cpu: TICK * (ticks(11) + ticks(12)), rss: kilobytes * 1024 })
}

/// The bytes that this process has written to disks so far.
pub fn bytes_written() -> anyhow::Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    written.context("/proc/self/io has no write_bytes")?.parse().context("write_bytes is not a number")
}

/// The CPU time of several processes together.
pub fn cpu_of(pids: &[u32]) -> anyhow::Result<Duration> {
    pids.iter().map(|pid| Ok(usage(*pid)?.cpu)).sum()
}

/// The CPU time of several processes since a moment.
pub struct Spent {
    pids: Vec<u32>,
    before: Duration,
}

impl Spent {
    /// Begins to measure these processes.
    pub fn begin(pids: Vec<u32>) -> anyhow::Result<Spent> {
        Ok(Spent { before: cpu_of(&pids)?, pids })
    }

    /// The CPU time for each of `items` items, in µs, including the work that follows the last of them.
    pub async fn each(&self, items: usize) -> anyhow::Result<f64> {
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok((cpu_of(&self.pids)? - self.before).as_secs_f64() * 1e6 / items as f64)
    }
}
