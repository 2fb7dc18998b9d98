//! Other load on the machine: a virtual machine shares its processors, and figures from a minute with much
//! other load mean little.

use anyhow::Context;

/// The processor time of the machine up to a moment, in ticks.
#[derive(Clone, Copy)]
pub struct OtherLoad {
    all: u64,
    stolen: u64,
}

impl OtherLoad {
    /// Begins to measure.
    pub fn watch() -> anyhow::Result<OtherLoad> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let ticks: Vec<u64> =
            stat.lines().next().unwrap_or_default().split_whitespace().flat_map(str::parse).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted among the first two.
        let stolen = *ticks.get(7).context("/proc/stat has no processor time that others took")?;
        Ok(OtherLoad { all: ticks[..8].iter().sum(), stolen })
    }

    /// The share of the machine that other load took since, in percent.
    pub fn percent(&self) -> anyhow::Result<f64> {
        let now = OtherLoad::watch()?;
        Ok(100.0 * (now.stolen - self.stolen) as f64 / (now.all - self.all).max(1) as f64)
    }
}
