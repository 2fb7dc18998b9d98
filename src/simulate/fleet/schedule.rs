//! The heartbeats of the units of one connection, in order of time.
//!
//! Pure and without a clock: times count from the start of the fleet, and random numbers come from the seed, so the
//! same seed gives the same fleet. One heap holds the next heartbeat of every unit, so that no unit needs a timer or a
//! task.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::FleetConfig;

/// The reason of the time between two heartbeats of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WaitCause {
    Interval,
    /// The unit falls silent by itself.
    Silence,
    /// The site of the unit has no power.
    PowerCut,
}

impl WaitCause {
    pub fn is_silence(self) -> bool {
        self != WaitCause::Interval
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScheduledHeartbeat {
    /// The time since the start of the fleet.
    pub at: Duration,
    /// The number of the unit, from 0.
    pub unit: u32,
    pub before: WaitCause,
    pub after: WaitCause,
}

/// An iterator over the heartbeats of some units; endless if there are units.
pub(super) struct Schedule {
    next: BinaryHeap<Reverse<(Duration, u32, WaitCause)>>,
    chance: SmallRng,
    config: FleetConfig,
}

impl Schedule {
    /// The units of the `part`th connection. Each sends its first heartbeat within the first interval.
    pub fn new(config: &FleetConfig, part: usize) -> Schedule {
        let mut chance = SmallRng::seed_from_u64(config.seed.wrapping_add((part as u64) << 32));
        let units = (part..config.units).step_by(config.connections());
        let next = units
            .map(|unit| {
                Reverse((config.interval.mul_f64(chance.random::<f64>()), unit as u32, WaitCause::Interval))
            })
            .collect();
        Schedule { next, chance, config: config.clone() }
    }

    /// The time of the next heartbeat.
    pub fn due(&self) -> Option<Duration> {
        self.next.peek().map(|Reverse((at, ..))| *at)
    }

    fn wait(&mut self) -> Duration {
        let jitter = self.config.jitter * (self.chance.random::<f64>() * 2.0 - 1.0);
        self.config.interval.mul_f64(1.0 + jitter)
    }

    fn silence(&mut self) -> Duration {
        let range = &self.config.silence_for;
        range.start + range.end.saturating_sub(range.start).mul_f64(self.chance.random::<f64>())
    }

    /// The next heartbeat of the unit if its site has no power at `at`: within an interval after the power is back.
    fn after_power_cut(&mut self, unit: u32, at: Duration) -> Option<Duration> {
        let cuts = self.config.power_cuts.filter(|cuts| cuts.site == self.config.site(unit))?;
        let end = cuts.end_of(at)?;
        Some(end + self.config.interval.mul_f64(self.chance.random::<f64>()))
    }
}

impl Iterator for Schedule {
    type Item = ScheduledHeartbeat;

    fn next(&mut self) -> Option<ScheduledHeartbeat> {
        let Reverse((at, unit, before)) = self.next.pop()?;
        let mut after = match self.chance.random_bool(self.config.silence_chance) {
            true => WaitCause::Silence,
            false => WaitCause::Interval,
        };
        let wait = if after == WaitCause::Silence { self.silence() } else { self.wait() };
        // Without a wait the iterator would return one unit for ever.
        let mut next = at + wait.max(Duration::from_millis(1));
        if let Some(later) = self.after_power_cut(unit, next) {
            next = later;
            after = if after == WaitCause::Interval { WaitCause::PowerCut } else { after };
        }
        self.next.push(Reverse((next, unit, after)));
        Some(ScheduledHeartbeat { at, unit, before, after })
    }
}

#[cfg(test)]
mod tests {
    use super::super::PowerCuts;
    use super::*;
    use std::collections::HashMap;

    fn config() -> FleetConfig {
        let minute = Duration::from_secs(60);
        FleetConfig {
            units: 100,
            interval: minute,
            jitter: 0.2,
            silence_chance: 0.1,
            silence_for: 10 * minute..20 * minute,
            connections: 3,
            ..FleetConfig::new("mqtt://127.0.0.1")
        }
    }

    #[test]
    fn every_unit_of_every_connection_has_a_heartbeat_in_the_first_interval() {
        let config = config();
        let mut heard: Vec<u32> = (0..3)
            .flat_map(|part| {
                Schedule::new(&config, part).take_while(|heartbeat| heartbeat.at < config.interval)
            })
            .filter(|heartbeat| heartbeat.before == WaitCause::Interval)
            .map(|heartbeat| heartbeat.unit)
            .collect();
        heard.sort_unstable();
        heard.dedup();
        assert_eq!(heard, (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn heartbeats_depend_on_the_seed_alone() {
        let heartbeats = |seed| {
            Schedule::new(&FleetConfig { seed, ..config() }, 1)
                .take(5_000)
                .collect::<Vec<ScheduledHeartbeat>>()
        };
        assert_eq!(heartbeats(7), heartbeats(7));
        assert_ne!(heartbeats(7), heartbeats(8));
    }

    #[test]
    fn waits_stay_within_the_jitter_and_silences_within_their_range() {
        let mut before: HashMap<u32, ScheduledHeartbeat> = HashMap::new();
        let (mut at, mut silences) = (Duration::ZERO, 0);
        for heartbeat in Schedule::new(&config(), 0).take(20_000) {
            assert!(heartbeat.at >= at, "out of order");
            at = heartbeat.at;
            let Some(before) = before.insert(heartbeat.unit, heartbeat) else { continue };
            let (waited, expected) = (
                heartbeat.at - before.at,
                if before.after == WaitCause::Silence { 600..1200 } else { 48..72 },
            );
            assert_eq!(heartbeat.before, before.after);
            assert!(expected.contains(&waited.as_secs()), "{waited:?} {before:?}");
            silences += u32::from(before.after == WaitCause::Silence);
        }
        assert!((1_000..3_000).contains(&silences), "{silences} silences in 20 000 heartbeats at 0.1");
    }

    #[test]
    fn a_site_without_power_sends_nothing_and_all_its_units_are_back_within_an_interval() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let cuts = PowerCuts { site: 1, first: minutes(5), lasts: minutes(10), every: minutes(60) };
        let config = FleetConfig { silence_chance: 0.0, power_cuts: Some(cuts), connections: 1, ..config() };
        let dark: Vec<u32> = (0..100).filter(|unit| config.site(*unit) == 1).collect();
        let mut back = Vec::new();
        for heartbeat in Schedule::new(&config, 0).take_while(|heartbeat| heartbeat.at < minutes(60)) {
            let is_dark = dark.contains(&heartbeat.unit);
            assert!(!is_dark || cuts.end_of(heartbeat.at).is_none(), "{heartbeat:?}");
            assert!(is_dark || !heartbeat.after.is_silence(), "{heartbeat:?}");
            if heartbeat.before == WaitCause::PowerCut {
                assert!(heartbeat.at < minutes(16), "{heartbeat:?}");
                back.push(heartbeat.unit);
            }
        }
        back.sort_unstable();
        assert_eq!(back, dark);
    }
}
