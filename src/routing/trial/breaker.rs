//! The mass-offline breaker in a trial: `presence/mass_offline.rs` decides when it trips and when it is released.

use std::collections::VecDeque;

use super::past::FleetSizes;
use crate::clock::Timestamp;
use crate::presence::{Facts, FleetCount, Known, Lifecycle, MassOfflineRule, ReleaseReason, Trip, release};

pub(super) struct TrialBreaker<'a> {
    rule: Option<MassOfflineRule>,
    sizes: &'a FleetSizes,
    pub trips: Vec<Trip>,
    /// The silences since the moment from which they count, in the order of detection.
    newest: VecDeque<(Timestamp, u32)>,
    /// By the places of the silences.
    marks: Vec<SilenceMark>,
    counts: SilenceCounts,
    offline: u64,
}

/// How a silence counts.
#[derive(Clone, Copy, Debug, Default)]
struct SilenceMark {
    is_open: bool,
    is_newest: bool,
    /// Whether its unit is known for long enough.
    is_known: bool,
    is_covered: bool,
}

/// How many of the newest silences last.
#[derive(Clone, Copy, Debug, Default)]
struct SilenceCounts {
    all: u64,
    /// Silences of known units that no alert silence covered.
    counted: u64,
}

impl SilenceCounts {
    fn add(&mut self, mark: SilenceMark) {
        self.all += 1;
        self.counted += u64::from(mark.is_known && !mark.is_covered);
    }

    fn remove(&mut self, mark: SilenceMark) {
        self.all -= 1;
        self.counted -= u64::from(mark.is_known && !mark.is_covered);
    }
}

impl<'a> TrialBreaker<'a> {
    /// `silences`: how many there are in all. A fleet whose size is not on record trips no breaker.
    pub fn new(rule: Option<MassOfflineRule>, sizes: &'a FleetSizes, silences: usize) -> TrialBreaker<'a> {
        TrialBreaker {
            rule: rule.filter(|_| !sizes.is_unknown()),
            sizes,
            trips: Vec::new(),
            newest: VecDeque::new(),
            marks: vec![SilenceMark::default(); silences],
            counts: SilenceCounts::default(),
            offline: 0,
        }
    }

    /// The trip that holds notifications.
    pub fn held(&self) -> Option<&Trip> {
        self.trips.last().filter(|trip| trip.is_held())
    }

    /// Notes that a silence was detected. `known_since`: since when its unit is known. Answers whether that trips the
    /// breaker.
    pub fn detected(
        &mut self,
        silence: u32,
        (known_since, is_covered): (Option<Timestamp>, bool),
        now: Timestamp,
    ) -> bool {
        let Some(rule) = self.rule else { return false };
        let facts = Facts {
            known: known_since.map(Known::admitted),
            ..Facts::new(Lifecycle::Present, Timestamp::ZERO)
        };
        let is_known = rule.counts(&facts, now);
        let mark = SilenceMark { is_open: true, is_newest: true, is_known, is_covered };
        self.marks[silence as usize] = mark;
        self.newest.push_back((now, silence));
        self.counts.add(mark);
        self.offline += 1;
        if self.held().is_some() {
            return false;
        }
        let since = rule.counts_since(self.trips.last(), now);
        self.forget_before(since);
        let count =
            FleetCount { online: self.sizes.at(now).saturating_sub(self.offline), silent: self.counts.all };
        let before = self.sizes.at(now - rule.window);
        let counted = FleetCount { silent: self.counts.counted, ..count }.known(before);
        let is_mass = rule.is_mass(count.known(before)) && rule.is_mass(counted);
        if is_mass {
            self.trips.push(rule.trip(since, counted, now));
        }
        is_mass
    }

    fn forget_before(&mut self, since: Timestamp) {
        while let Some((_, silence)) = self.newest.pop_front_if(|(at, _)| *at < since) {
            let mark = &mut self.marks[silence as usize];
            mark.is_newest = false;
            if mark.is_open {
                self.counts.remove(*mark);
            }
        }
    }

    /// Notes that a silence is over.
    pub fn ended(&mut self, silence: u32) {
        let mark = &mut self.marks[silence as usize];
        if !std::mem::take(&mut mark.is_open) {
            return;
        }
        self.offline -= 1;
        if mark.is_newest {
            self.counts.remove(*mark);
        }
    }

    /// Updates the trip that holds: the rest of a mass belongs to it.
    pub fn settle(&mut self) {
        let counted = self.counts.counted;
        if let Some(trip) = self.trips.last_mut().filter(|trip| trip.is_held()) {
            *trip = trip.notified(counted);
        }
    }

    /// Releases the breaker if it is time, or if an operator does. Answers whether it held until now.
    pub fn release(&mut self, by_operator: bool, now: Timestamp) -> bool {
        let counted = self.counts.counted;
        let Some(trip) = self.trips.last_mut().filter(|trip| trip.is_held()) else { return false };
        let why = if by_operator { Some(ReleaseReason::Operator) } else { release(trip, counted, now) };
        if let Some(why) = why {
            *trip = trip.released(why, counted, now);
        }
        why.is_some()
    }
}
