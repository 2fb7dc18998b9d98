//! The diary of a device: when it sent heartbeats, and when the broker acknowledged them.
//!
//! The oracle uses the diary and not the plan of a device: on a busy machine a device
//! may get no time, and then it was silent.

use std::time::Duration;

use rollcall::clock::Timestamp;

use super::TIMEOUT;

/// A heartbeat, by the clock of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    /// The heartbeat cannot have arrived before this moment.
    pub sent: Timestamp,
    /// The broker had the heartbeat by this moment. `None`: the broker may have it or not.
    pub acked: Option<Timestamp>,
}

/// A device and its diary.
#[derive(Clone, Debug)]
pub struct Device {
    pub unit: String,
    pub topic: String,
    pub beats: Vec<Beat>,
    /// Planned silences; the last may end at [`Timestamp::NEVER`].
    pub silences: Vec<(Timestamp, Timestamp)>,
    /// The time of the next heartbeat.
    pub next: Timestamp,
}

impl Device {
    pub fn is_silent(&self, now: Timestamp) -> bool {
        self.silences.iter().any(|&(from, to)| from <= now && now < to)
    }

    /// Whether the device has fallen silent permanently, until a test wakes it.
    pub fn is_dead(&self, now: Timestamp) -> bool {
        self.silences.iter().any(|&(from, to)| from <= now && to == Timestamp::NEVER)
    }

    /// Whether the device sent all the time, by its diary: a machine that starves a device for a timeout has silenced
    /// it, whatever was planned. Allows for heartbeats that are late on their way.
    pub fn spoke_throughout(&self, now: Timestamp) -> bool {
        let sent = self.beats.iter().map(|beat| beat.sent).chain([now]);
        let gaps = sent.clone().zip(sent.skip(1)).map(|(one, next)| next.since(one));
        self.silences.is_empty() && gaps.max().is_some_and(|longest| longest < TIMEOUT - LATE_ON_ITS_WAY)
    }

    /// Whether a planned silence has not ended yet.
    pub fn has_plans(&self, now: Timestamp) -> bool {
        self.silences.iter().any(|&(from, to)| from > now || (to > now && to != Timestamp::NEVER))
    }

    /// Ends a silence that has no end.
    pub fn wake(&mut self, at: Timestamp) {
        for (from, to) in &mut self.silences {
            if *to == Timestamp::NEVER {
                *to = at.max(*from);
            }
        }
    }

    /// The last heartbeat before a silence with this last seen time.
    pub fn beat_before(&self, last_seen: Timestamp) -> Option<usize> {
        self.beats.partition_point(|beat| beat.sent <= last_seen + SKEW).checked_sub(1)
    }

    /// The longest time without a heartbeat that the broker can have seen after this heartbeat, up to the next one
    /// that it has; outages of the broker are left out. `None` if there is no next one.
    pub fn longest_gap_after(&self, beat: usize, outages: &[(Timestamp, Timestamp)]) -> Option<Duration> {
        let from = self.beats[..=beat].iter().rev().find(|beat| beat.acked.is_some())?.sent;
        let to = self.beats[beat + 1..].iter().find_map(|beat| beat.acked)?;
        let blind: Duration = outages
            .iter()
            .map(|&(began, ended)| ended.min(to).since(began.max(from)).saturating_sub(UNNOTICED))
            .sum();
        Some(to.since(from).saturating_sub(blind))
    }

    /// The diary as text, for a message of a failed test.
    pub fn story(&self) -> String {
        const SHOWN: usize = 24;
        let skipped = self.beats.len().saturating_sub(SHOWN);
        let mut story = format!("diary of {} ({skipped} heartbeats before these):", self.unit);
        for beat in &self.beats[skipped..] {
            let took =
                beat.acked.map_or("?".to_owned(), |acked| format!("+{}", acked.since(beat.sent).as_millis()));
            story += &format!(" {}{took}", beat.sent.as_millis());
        }
        story + &format!("; silent on purpose: {:?}", self.silences)
    }
}

/// How late a heartbeat may be on its way on a busy machine.
const LATE_ON_ITS_WAY: Duration = Duration::from_secs(1);
/// The time of the fleet is known to within a round trip to a server, which may be busy. Heartbeats are much further
/// apart.
const SKEW: Duration = Duration::from_millis(150);
/// An outage shorter than this may have passed between two canaries.
const UNNOTICED: Duration = Duration::from_millis(1000);
