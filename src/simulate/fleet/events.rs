//! The events of a fleet, computed from its seed.
//!
//! The fleet itself only sends heartbeats. The events come from the same schedule, so that the demo can show them
//! before Rollcall detects them.

use std::collections::VecDeque;
use std::time::Duration;

use super::FleetConfig;
use super::schedule::{Schedule, ScheduledHeartbeat, WaitCause};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// The unit with this number has sent its last heartbeat before a silence.
    FallsSilent(u32),
    IsBack(u32),
    /// The site with this number loses power, and all its units with it.
    LosesPower(usize),
    HasPower(usize),
}

/// The events of a fleet in order of time, each with its time since the start. Endless if any unit falls silent.
pub struct FleetEvents {
    parts: Vec<Schedule>,
    config: FleetConfig,
    /// How often the site has lost power, and whether it has none now.
    cuts: (u32, bool),
    /// Events of the current time that are not returned yet.
    waiting: VecDeque<(Duration, FleetEvent)>,
}

impl FleetEvents {
    pub fn new(config: &FleetConfig) -> FleetEvents {
        let parts = (0..config.connections()).map(|part| Schedule::new(config, part)).collect();
        FleetEvents { parts, config: config.clone(), cuts: (0, false), waiting: VecDeque::new() }
    }

    /// The next heartbeat of all schedules.
    fn heartbeat(&mut self) -> Option<ScheduledHeartbeat> {
        self.parts.iter_mut().min_by_key(|part| part.due().unwrap_or(Duration::MAX))?.next()
    }

    /// The next time at which the site loses power or has it again.
    fn next_change(&self) -> Option<(Duration, FleetEvent)> {
        let cuts = self.config.power_cuts?;
        let (number, is_dark) = self.cuts;
        Some(match is_dark {
            false => (cuts.nth(number), FleetEvent::LosesPower(cuts.site)),
            true => (cuts.nth(number) + cuts.lasts, FleetEvent::HasPower(cuts.site)),
        })
    }
}

impl Iterator for FleetEvents {
    type Item = (Duration, FleetEvent);

    fn next(&mut self) -> Option<(Duration, FleetEvent)> {
        while self.waiting.is_empty() {
            let heartbeat = self.heartbeat()?;
            while let Some(change) = self.next_change().filter(|change| change.0 <= heartbeat.at) {
                self.waiting.push_back(change);
                let (number, is_dark) = self.cuts;
                self.cuts = (number + u32::from(is_dark), !is_dark);
            }
            if heartbeat.before == WaitCause::Silence {
                self.waiting.push_back((heartbeat.at, FleetEvent::IsBack(heartbeat.unit)));
            }
            if heartbeat.after == WaitCause::Silence {
                self.waiting.push_back((heartbeat.at, FleetEvent::FallsSilent(heartbeat.unit)));
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
    fn events_depend_on_the_seed_alone() {
        let events = |seed| FleetEvents::new(&config(seed)).take(200).collect::<Vec<_>>();
        assert_eq!(events(7), events(7));
        assert_ne!(events(7), events(8));
    }

    #[test]
    fn events_are_in_order_and_every_silence_has_its_return() {
        let mut silent = std::collections::BTreeSet::new();
        let mut power = Vec::new();
        let mut before = Duration::ZERO;
        for (at, event) in FleetEvents::new(&config(1)).take_while(|(at, _)| *at < Duration::from_secs(200)) {
            assert!(at >= before, "{event:?} at {at:?} after {before:?}");
            before = at;
            match event {
                FleetEvent::FallsSilent(unit) => assert!(silent.insert(unit), "{unit} is silent already"),
                FleetEvent::IsBack(unit) => assert!(silent.remove(&unit), "{unit} was not silent"),
                FleetEvent::LosesPower(site) => power.push((at.as_secs(), site, false)),
                FleetEvent::HasPower(site) => power.push((at.as_secs(), site, true)),
            }
        }
        let cuts = [15, 75, 135, 195].into_iter().flat_map(|at| [(at, 1, false), (at + 10, 1, true)]);
        assert_eq!(power, cuts.take(7).collect::<Vec<_>>());
        assert!(!silent.is_empty(), "at any time a unit is silent");
    }
}
