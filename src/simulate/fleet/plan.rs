//! What will happen to a fleet, told by whoever knows its seed.
//!
//! The fleet itself sends heartbeats and says nothing: this reads the same schedule beside it, so that
//! people who watch can be shown what Rollcall has to find out.

use std::collections::VecDeque;
use std::time::Duration;

use super::FleetConfig;
use super::schedule::{Beat, Schedule, Wait};

/// What happens to a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The unit with this number, from 0, has sent its last heartbeat before a silence.
    FallsSilent(u32),
    /// The unit is heard again.
    IsBack(u32),
    /// The site with this number, from 0, loses power, and all its units with it.
    LosesPower(usize),
    /// The site has power again.
    HasPower(usize),
}

/// The events of a fleet in order of time, each with its time since the start. Never ends if there is a
/// unit that falls silent.
pub struct Plan {
    parts: Vec<Schedule>,
    config: FleetConfig,
    /// How often a site has lost power, and whether it is without at the moment.
    cuts: (u32, bool),
    /// What happens at the moment that was reached and was not told yet.
    waiting: VecDeque<(Duration, Event)>,
}

impl Plan {
    /// The events of this fleet.
    pub fn new(config: &FleetConfig) -> Plan {
        let parts = (0..config.connections()).map(|part| Schedule::new(config, part)).collect();
        Plan { parts, config: config.clone(), cuts: (0, false), waiting: VecDeque::new() }
    }

    /// The next heartbeat of all parts.
    fn beat(&mut self) -> Option<Beat> {
        self.parts.iter_mut().min_by_key(|part| part.due().unwrap_or(Duration::MAX))?.next()
    }

    /// When a site loses power or has it again.
    fn next_change(&self) -> Option<(Duration, Event)> {
        let cuts = self.config.power_cuts?;
        let (number, is_dark) = self.cuts;
        Some(match is_dark {
            false => (cuts.nth(number), Event::LosesPower(cuts.site)),
            true => (cuts.nth(number) + cuts.lasts, Event::HasPower(cuts.site)),
        })
    }
}

impl Iterator for Plan {
    type Item = (Duration, Event);

    fn next(&mut self) -> Option<(Duration, Event)> {
        while self.waiting.is_empty() {
            let beat = self.beat()?;
            while let Some(change) = self.next_change().filter(|change| change.0 <= beat.at) {
                self.waiting.push_back(change);
                let (number, is_dark) = self.cuts;
                self.cuts = (number + u32::from(is_dark), !is_dark);
            }
            if beat.before == Wait::Silence {
                self.waiting.push_back((beat.at, Event::IsBack(beat.unit)));
            }
            if beat.after == Wait::Silence {
                self.waiting.push_back((beat.at, Event::FallsSilent(beat.unit)));
            }
        }
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::super::PowerCuts;
    use super::*;

    fn config(seed: u64) -> FleetConfig {
        let seconds = Duration::from_secs;
        FleetConfig {
            units: 200,
            interval: seconds(1),
            silence_chance: 0.001,
            silence_for: seconds(10)..seconds(20),
            power_cuts: Some(PowerCuts {
                site: 1,
                first: seconds(15),
                lasts: seconds(10),
                every: seconds(60),
            }),
            connections: 3,
            seed,
            ..FleetConfig::new("mqtt://127.0.0.1")
        }
    }

    #[test]
    fn the_same_seed_is_the_same_story_and_another_seed_another() {
        let story = |seed| Plan::new(&config(seed)).take(200).collect::<Vec<_>>();
        assert_eq!(story(7), story(7));
        assert_ne!(story(7), story(8));
    }

    #[test]
    fn a_story_is_in_order_and_every_silence_has_its_return() {
        let mut silent = std::collections::BTreeSet::new();
        let mut power = Vec::new();
        let mut before = Duration::ZERO;
        for (at, event) in Plan::new(&config(1)).take_while(|(at, _)| *at < Duration::from_secs(200)) {
            assert!(at >= before, "{event:?} at {at:?} after {before:?}");
            before = at;
            match event {
                Event::FallsSilent(unit) => assert!(silent.insert(unit), "{unit} is silent already"),
                Event::IsBack(unit) => assert!(silent.remove(&unit), "{unit} was not silent"),
                Event::LosesPower(site) => power.push((at.as_secs(), site, false)),
                Event::HasPower(site) => power.push((at.as_secs(), site, true)),
            }
        }
        let cuts = [15, 75, 135, 195].into_iter().flat_map(|at| [(at, 1, false), (at + 10, 1, true)]);
        assert_eq!(power, cuts.take(7).collect::<Vec<_>>());
        assert!(!silent.is_empty(), "somebody is silent at any time");
    }
}
