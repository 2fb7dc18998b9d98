//! Servers, load and figures that benchmarks share.

use std::time::Duration;

use anyhow::bail;

pub mod bare_commands;
pub mod figures;
pub mod fleet;
pub mod machine;
pub mod other_load;
pub mod plain;
pub mod poster;
pub mod process;
pub mod publisher;
pub mod records;
pub mod redis_writer;
pub mod servers;
pub mod sink;
pub mod subscriber;
pub mod world;

use rollcall::clock::Stopwatch;
pub use servers::Servers;
pub use world::World;

/// Prints the current step.
pub fn say(what: impl std::fmt::Display) {
    eprintln!("    {what}");
}

/// Waits for a fact, checking every few milliseconds, and answers how long that took.
pub async fn until(
    what: &str,
    patience: Duration,
    mut fact: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Duration> {
    let began = Stopwatch::start();
    while !fact().await? {
        if began.elapsed() > patience {
            bail!("not within {patience:?}: {what}");
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    Ok(began.elapsed())
}

/// The value below which `share` of the values are; `NAN` of none.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (share * values.len() as f64).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// A number with separated thousands.
pub fn thousands(number: impl Into<u64>) -> String {
    let digits = number.into().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}
