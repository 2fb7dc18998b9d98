//! The states of units in partitions of other instances that do not reach the broker.
//!
//! The mirror has no such units, so they are read from the engine in rounds, some pages after each pass over the mirror.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::{Differing, Interrupted, PAUSE, Pass, StatePublisher, TICK};
use crate::clock::Stopwatch;
use crate::presence::{self, Snapshot, State};
use crate::store::Result;

/// Pages that are read at once.
const PAGES: u32 = 8;

/// One round over the partitions.
pub(super) struct Round {
    pass: Pass,
    partitions: Vec<u16>,
    /// The partitions whose pages are not read yet.
    left: Vec<u16>,
    pages: VecDeque<(u16, Range<u32>)>,
    /// The units so far, or those of the whole round before, if they were more.
    units: usize,
    found: usize,
}

impl Round {
    fn new(pass: Pass, partitions: Vec<u16>, units: usize) -> Round {
        let left = partitions.clone();
        Round { pass, partitions, left, pages: VecDeque::new(), units, found: 0 }
    }

    /// How many units the partitions have, as far as they were read.
    pub fn units(&self) -> usize {
        self.units.max(self.found)
    }
}

impl StatePublisher {
    /// Goes on with the round, for a twentieth of a tick, or begins one. After a failure the next call begins anew.
    pub(super) async fn read_elsewhere(&self, round: &mut Option<Round>) {
        let begin = |units| Round::new(Pass::begin(&self.published), self.elsewhere(), units);
        let mut current = round.take().unwrap_or_else(|| begin(0));
        let (mut read, mut is_over) = (Duration::ZERO, false);
        while read < TICK / PAUSE && !is_over {
            let began = Stopwatch::start();
            let Ok(units) = self.next_pages(&mut current).await else { return };
            read += began.elapsed();
            is_over = units.is_none();
            let differing = self.differing(&units.unwrap_or_default(), &mut current);
            for some in differing.chunks(self.config.batch()) {
                if self.publish(some, &mut current.pass).await.is_err() {
                    return;
                }
            }
            if self.publish_discovery(&mut current.pass).await.is_err() {
                return;
            }
        }
        if is_over {
            if current.partitions.is_empty() {
                return;
            }
            let is_read = |partition| current.partitions.binary_search(&partition).is_ok();
            if self.remove_gone(current.pass.number, is_read).await.is_err() {
                return;
            }
            current = begin(current.found);
        }
        *round = Some(current);
    }

    /// The partitions of other instances whose states this instance publishes.
    fn elsewhere(&self) -> Vec<u16> {
        let view = self.sources.ownership.view();
        let publishers = self.broker.as_ref().map(|broker| self.writer.roll.census().publishers(broker));
        let here = view.among(&publishers.unwrap_or_default(), self.sources.mirror.partition_count());
        here.into_iter().filter(|partition| view.partitions.binary_search(partition).is_err()).collect()
    }

    /// The units of the next pages; `None`: the round is over.
    async fn next_pages(&self, round: &mut Round) -> std::result::Result<Option<Vec<Snapshot>>, Interrupted> {
        let engine = &self.sources.engine;
        let next = async {
            loop {
                if let Some((partition, pages)) = round.pages.pop_front() {
                    let read = stream::iter(pages).map(|page| engine.walk(partition, page));
                    let pages: Vec<Vec<Snapshot>> =
                        read.buffer_unordered(PAGES as usize).try_collect().await?;
                    return Ok(Some(pages.into_iter().flatten().collect()));
                }
                let Some(partition) = round.left.pop() else { return Ok(None) };
                let pages = engine.occupied(partition, PAGES).await?;
                round.pages.extend(pages.into_iter().map(|pages| (partition, pages)));
            }
        };
        let next: Result<Option<Vec<Snapshot>>> = next.await;
        next.map_err(|error| self.engine_failed(&error))
    }

    /// The units whose states differ from what is published.
    fn differing(&self, units: &[Snapshot], round: &mut Round) -> Vec<Differing> {
        let (roll, now) = (&self.writer.roll, self.writer.clock.now());
        let (hearing, rules) = (roll.hearing(), roll.rules());
        let mut published = self.published.lock();
        let of_unit = |seen: &Snapshot| {
            let (unit, rules) = (&seen.unit, rules.get(&seen.unit.kind)?);
            let state = presence::state(seen, rules, &hearing, now)?;
            round.found += 1;
            let name = (unit.kind.as_str(), unit.id.as_str());
            let departure =
                seen.facts.as_ref().filter(|_| state == State::Late).and_then(|facts| facts.departure);
            let moment = seen.last_heard().max(departure.map(|departure| departure.at));
            let before = published.differs(name, state, moment, round.pass.number);
            let is_undiscovered = self.is_undiscovered(name, &published, &round.pass);
            round.pass.undiscovered.extend(is_undiscovered.then(|| unit.clone()));
            Some(Differing { unit: unit.clone(), before: before?, moment })
        };
        units.iter().filter_map(of_unit).collect()
    }
}
