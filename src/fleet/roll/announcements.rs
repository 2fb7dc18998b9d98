//! Announcements that units are gone: their deadlines are earlier, and those that are due now are checked at once.

use std::time::Duration;

use futures_util::future::join_all;
use hashbrown::HashMap;

use super::{ATTEMPTS, Roll};
use crate::clock::Timestamp;
use crate::fleet::mirror::Cursor;
use crate::presence::{self, Announced, Announcement, AnnouncementResult, Unit};
use crate::store::{MAX_STEP, Result};
use crate::telemetry::{AnnouncementOutcome, CheckSource};

/// Steps that are under way at once; no unit is in two of them.
const STEPS_AT_ONCE: usize = 4;

/// How long the devices of a node that is gone may wait until the mirror has read the fleet, and how often it is asked.
const FILLED_WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

impl Roll {
    /// Applies announcements. Of several of one unit, the newest counts. The devices of nodes that are gone are gone,
    /// too: those that this instance owns, which every instance does for its own. Safe to repeat.
    pub async fn announce(
        &self,
        announcements: &[Announcement],
        clock: impl Fn() -> Timestamp + Send + Sync,
    ) -> Result<()> {
        self.announce_units(announcements, &clock).await?;
        let with_devices = |one: &&Announcement| one.has_devices && !one.follows_birth;
        let nodes: HashMap<Unit, &Announcement> =
            announcements.iter().filter(with_devices).map(|one| (one.unit.clone(), one)).collect();
        if nodes.is_empty() {
            return Ok(());
        }
        // A process that has just started knows the devices of a node when it has read the fleet.
        let mut waited = Duration::ZERO;
        while !self.mirror.is_filled() && waited < FILLED_WITHIN {
            tokio::time::sleep(LOOK).await;
            waited += LOOK;
        }
        let (above, mut cursor) = (nodes.keys().cloned().collect(), Cursor::default());
        while let Some(below) = self.mirror.below(&mut cursor, &above) {
            let of_device = |(node, device): (Unit, Unit)| {
                let of_node = (*nodes[&node]).clone();
                Announcement { unit: device, has_devices: false, ..of_node }
            };
            let devices: Vec<Announcement> = below.into_iter().map(of_device).collect();
            self.announce_units(&devices, &clock).await?;
        }
        Ok(())
    }

    async fn announce_units(
        &self,
        announcements: &[Announcement],
        clock: &(impl Fn() -> Timestamp + Send + Sync),
    ) -> Result<()> {
        let mut newest: HashMap<&Unit, &Announcement> = HashMap::new();
        for one in announcements {
            let known = newest.entry(&one.unit).or_insert(one);
            if known.at <= one.at {
                *known = one;
            }
        }
        let newest: Vec<&Announcement> = newest.into_values().collect();
        for steps in newest.chunks(STEPS_AT_ONCE * MAX_STEP) {
            let steps = steps.chunks(MAX_STEP).map(|step| self.announce_step(step, clock()));
            let due: Vec<Vec<Unit>> = join_all(steps).await.into_iter().collect::<Result<_>>()?;
            let due: Vec<Unit> = due.into_iter().flatten().collect();
            // Units that cannot be decided yet are in the deadline index, where the sweep finds them.
            if !due.is_empty() {
                self.check_suspects(&due, CheckSource::Announcement, clock).await?;
            }
        }
        Ok(())
    }

    /// Returns the units whose announcement is proof.
    async fn announce_step(&self, step: &[&Announcement], now: Timestamp) -> Result<Vec<Unit>> {
        let (hearing, rules) = (self.hearing(), self.rules());
        let mut open: Vec<&Announcement> = step.to_vec();
        let mut due = Vec::new();
        for _ in 0..ATTEMPTS {
            let units: Vec<Unit> = open.iter().map(|one| one.unit.clone()).collect();
            let (mut decided, mut changes) = (Vec::new(), Vec::new());
            for (one, seen) in open.drain(..).zip(self.engine.read(&units).await?) {
                let Some(rules) = rules.get(&seen.unit.kind) else { continue };
                let believed = self.corrected_unit(&seen, now);
                let believed = believed.as_ref().unwrap_or(&seen);
                match presence::announce(believed, one, rules, &hearing, now) {
                    (result, Some(change)) => {
                        decided.push((one, result));
                        changes.push((seen, change));
                    }
                    (result, None) => self.telemetry.announcements(AnnouncementOutcome::of(result), 1),
                }
            }
            for ((one, result), applied) in decided.into_iter().zip(self.apply(&changes).await?) {
                if !applied {
                    open.push(one);
                    continue;
                }
                self.telemetry.announcements(AnnouncementOutcome::of(result), 1);
                if matches!(one.says, Announced::Gone { settle, .. } if settle.is_zero()) {
                    due.push(one.unit.clone());
                }
            }
            if open.is_empty() {
                return Ok(due);
            }
        }
        // Units that change so often are heard.
        let stale = AnnouncementOutcome::of(AnnouncementResult::Stale);
        self.telemetry.announcements(stale, open.len() as u64);
        Ok(due)
    }
}
