//! Who speaks when: the heartbeats of a part of the fleet, in order of time.
//!
//! Pure and without a clock: times count from the start of the fleet, and chance comes from the
//! seed, so the same seed is the same fleet. One heap holds the next heartbeat of every unit; there
//! is no timer and no task per unit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::FleetConfig;

/// Why a unit does not speak for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wait {
    /// Its interval is not over.
    Usual,
    /// It has fallen silent by itself.
    Silence,
    /// Its site has no power.
    Dark,
}

impl Wait {
    /// Whether the unit is missed meanwhile.
    pub fn is_silence(self) -> bool {
        self != Wait::Usual
    }
}

/// One heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Beat {
    /// Since the start of the fleet.
    pub at: Duration,
    /// The number of the unit, from 0.
    pub unit: u32,
    /// What lies before it.
    pub before: Wait,
    /// What comes after it.
    pub after: Wait,
}

/// The heartbeats of some units. Never ends unless there is no unit.
pub(super) struct Schedule {
    next: BinaryHeap<Reverse<(Duration, u32, Wait)>>,
    chance: SmallRng,
    config: FleetConfig,
}

impl Schedule {
    /// The units that the `part`th of all connections speaks for. Each speaks for the first time
    /// within the first interval.
    pub fn new(config: &FleetConfig, part: usize) -> Schedule {
        let mut chance = SmallRng::seed_from_u64(config.seed.wrapping_add((part as u64) << 32));
        let units = (part..config.units).step_by(config.connections());
        let next = units
            .map(|unit| Reverse((config.interval.mul_f64(chance.random::<f64>()), unit as u32, Wait::Usual)))
            .collect();
        Schedule { next, chance, config: config.clone() }
    }

    /// When the next heartbeat is.
    pub fn due(&self) -> Option<Duration> {
        self.next.peek().map(|Reverse((at, ..))| *at)
    }

    fn wait(&mut self) -> Duration {
        let sway = self.config.jitter * (self.chance.random::<f64>() * 2.0 - 1.0);
        self.config.interval.mul_f64(1.0 + sway)
    }

    fn silence(&mut self) -> Duration {
        let range = &self.config.silence_for;
        range.start + range.end.saturating_sub(range.start).mul_f64(self.chance.random::<f64>())
    }

    /// When the unit speaks again if its site has no power at `at`: within an interval after it is back.
    fn after_power_cut(&mut self, unit: u32, at: Duration) -> Option<Duration> {
        let cuts = self.config.power_cuts.filter(|cuts| cuts.site == self.config.site(unit))?;
        let end = cuts.end_of(at)?;
        Some(end + self.config.interval.mul_f64(self.chance.random::<f64>()))
    }
}

impl Iterator for Schedule {
    type Item = Beat;

    fn next(&mut self) -> Option<Beat> {
        let Reverse((at, unit, before)) = self.next.pop()?;
        let mut after = match self.chance.random_bool(self.config.silence_chance) {
            true => Wait::Silence,
            false => Wait::Usual,
        };
        let wait = if after == Wait::Silence { self.silence() } else { self.wait() };
        // A wait of nothing would hand out one unit for ever.
        let mut next = at + wait.max(Duration::from_millis(1));
        if let Some(later) = self.after_power_cut(unit, next) {
            next = later;
            after = if after == Wait::Usual { Wait::Dark } else { after };
        }
        self.next.push(Reverse((next, unit, after)));
        Some(Beat { at, unit, before, after })
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
    fn every_unit_speaks_in_the_first_interval_whichever_connection_speaks_for_it() {
        let config = config();
        let mut heard: Vec<u32> = (0..3)
            .flat_map(|part| Schedule::new(&config, part).take_while(|beat| beat.at < config.interval))
            .filter(|beat| beat.before == Wait::Usual)
            .map(|beat| beat.unit)
            .collect();
        heard.sort_unstable();
        heard.dedup();
        assert_eq!(heard, (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn the_same_seed_is_the_same_fleet_and_another_seed_another() {
        let beats =
            |seed| Schedule::new(&FleetConfig { seed, ..config() }, 1).take(5_000).collect::<Vec<Beat>>();
        assert_eq!(beats(7), beats(7));
        assert_ne!(beats(7), beats(8));
    }

    #[test]
    fn waits_stay_within_the_jitter_and_silences_within_their_range() {
        let mut before: HashMap<u32, Beat> = HashMap::new();
        let (mut at, mut silences) = (Duration::ZERO, 0);
        for beat in Schedule::new(&config(), 0).take(20_000) {
            assert!(beat.at >= at, "out of order");
            at = beat.at;
            let Some(before) = before.insert(beat.unit, beat) else { continue };
            let (waited, expected) =
                (beat.at - before.at, if before.after == Wait::Silence { 600..1200 } else { 48..72 });
            assert_eq!(beat.before, before.after);
            assert!(expected.contains(&waited.as_secs()), "{waited:?} {before:?}");
            silences += u32::from(before.after == Wait::Silence);
        }
        assert!((1_000..3_000).contains(&silences), "{silences} silences in 20 000 heartbeats at 0.1");
    }

    #[test]
    fn a_site_without_power_says_nothing_and_all_of_it_is_back_within_an_interval() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let cuts = PowerCuts { site: 1, first: minutes(5), lasts: minutes(10), every: minutes(60) };
        let config = FleetConfig { silence_chance: 0.0, power_cuts: Some(cuts), connections: 1, ..config() };
        let dark: Vec<u32> = (0..100).filter(|unit| config.site(*unit) == 1).collect();
        let mut back = Vec::new();
        for beat in Schedule::new(&config, 0).take_while(|beat| beat.at < minutes(60)) {
            let is_dark = dark.contains(&beat.unit);
            assert!(!is_dark || cuts.end_of(beat.at).is_none(), "{beat:?}");
            assert!(is_dark || !beat.after.is_silence(), "{beat:?}");
            if beat.before == Wait::Dark {
                assert!(beat.at < minutes(16), "{beat:?}");
                back.push(beat.unit);
            }
        }
        back.sort_unstable();
        assert_eq!(back, dark);
    }
}
