//! CPU time and memory of a process, from `/proc`.

use std::time::Duration;

use anyhow::Context;

/// `/proc` counts CPU time in hundredths of a second on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// The resources that a process has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// CPU time since its start, all threads.
    pub cpu: Duration,
    /// Resident memory now, in bytes.
    pub rss: u64,
}

/// Reads it for a process id.
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
    written.context("/proc/self/io has no write_bytes")?.parse().context("write_bytes is no number")
}

/// The CPU time of several processes together.
pub fn cpu_of(pids: &[u32]) -> anyhow::Result<Duration> {
    pids.iter().map(|pid| Ok(usage(*pid)?.cpu)).sum()
}
