//! The counts of the fleet over time, as the engine stores them: for the chart on the page of the fleet.
//!
//! Every few seconds each instance counts its units, which reads memory alone. It adds the first count of a minute to
//! the cell of the hour, and the worst one when the minute is over or the instance stops, if that is another one: an
//! outage of less than a minute is in the chart, and costs one write more. The owner of the first partition also
//! condenses the minutes of an hour that is over, and removes old cells.
//!
//! # How much that is
//! A cell of an hour has up to [`MINUTE_CELL`] bytes and 25 of them are stored; a cell of a day has up to
//! [`HOUR_CELL`] and 91 are stored: less than two megabytes. Where a cell would be larger, counts by label are left
//! out, and then the counts of this instance, so those minutes are unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::lasting_incident::LastingIncident;
use super::{Mirror, Ownership, Roll, mass_breaker};
use crate::clock::{Clock, Timestamp};
use crate::presence::{
    CountRange, CountedPart, FleetMoment, Hearing, HourCounts, IncidentMark, MinuteCounts, State,
    StateCounts, add_mark, floor, partitions_digest,
};
use crate::store::{Cells, Document, Documents, EngineError, MAX_CHANGES, Result, Table, TableValue};
use crate::telemetry::{Loop, Telemetry};

/// The most bytes of the minutes of an hour, and of the hours of a day.
const MINUTE_CELL: usize = 40_000;
const HOUR_CELL: usize = 10_000;

/// The most values of labels with offline units in a minute of an instance: the values with most of them.
const MAX_PLACES: usize = 16;

/// How often an instance counts its units; a shorter outage may be missed.
const TICK: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// How many hours keep their minutes, and how many days their hours, without the current ones.
const HOURS: u32 = 24;
const DAYS: u32 = 90;

impl TableValue for MinuteCounts {
    /// The hours since 1970.
    type Name = i64;
    const TABLE: Table = Table::MinuteCounts;
}

impl TableValue for HourCounts {
    /// The days since 1970.
    type Name = i64;
    const TABLE: Table = Table::HourCounts;
}

/// Counts the units of this instance, minute by minute.
pub struct CountRecorder {
    pub mirror: Arc<Mirror>,
    pub roll: Arc<Roll>,
    pub ownership: Ownership,
    pub cells: Arc<dyn Cells>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

/// The counts of an instance in a minute that is not over.
#[derive(Default)]
pub struct WorstOfMinute {
    at: Option<Timestamp>,
    worst: CountedPart,
    written: CountedPart,
    /// The incidents and the trip of the breaker, as of the worst count.
    marks: Vec<IncidentMark>,
}

/// The counts over time of the whole fleet. Cheap to clone.
#[derive(Clone)]
pub struct PastCounts {
    documents: Documents,
}

impl CountRecorder {
    /// Counts until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut every = tokio::time::interval(TICK);
        let (mut minute, mut kept) = (WorstOfMinute::default(), None);
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            let now = self.clock.now();
            let hour = floor(now, HOUR);
            // Counts of an instance that has not read all of its units yet would be too small.
            if !self.mirror.is_filled() {
                continue;
            }
            let done = async {
                self.count(now, &mut minute).await?;
                if kept != Some(hour) {
                    self.keep(now).await?;
                }
                Ok::<_, EngineError>(())
            };
            match done.await {
                Ok(()) => {
                    kept = Some(hour);
                    self.telemetry.engine_answered(Loop::PastCounts, "");
                }
                Err(error) => self.telemetry.engine_failed(Loop::PastCounts, "", &error),
            }
        }
        // A part of the current minute would be lost, which correctness does not rest on.
        if let Err(error) = self.finish(&mut minute).await {
            self.telemetry.engine_failed(Loop::PastCounts, "", &error);
        }
        Ok(())
    }

    /// Writes the worst count of a minute, unless it is written.
    pub async fn finish(&self, minute: &mut WorstOfMinute) -> Result<()> {
        if let Some(at) = minute.at
            && minute.worst != minute.written
        {
            self.write(at, &minute.worst, &minute.marks, &self.ownership.view().instance).await?;
            minute.written = minute.worst.clone();
        }
        Ok(())
    }

    /// Counts the units of this instance. Writes the first count of a minute, and a worse one of the minute before.
    pub async fn count(&self, now: Timestamp, minute: &mut WorstOfMinute) -> Result<()> {
        let view = self.ownership.view();
        let (mirror, hearing) = (self.mirror.clone(), self.roll.hearing());
        let counting = tokio::task::spawn_blocking(move || counted(&mirror, &hearing, now));
        let counted = counting
            .await
            .map_err(|error| EngineError::Unavailable(format!("units were not counted: {error}")))?;
        let CountedUnits { states, offline, is_cut, unusual } = counted;
        let (count, digest) = (view.partitions.len() as u16, partitions_digest(&view.partitions));
        let part = CountedPart(count, states, offline, is_cut, unusual, digest);
        let at = floor(now, MINUTE);
        // Counts of other partitions are not of the same units: written beside these, they make the minute unknown.
        if minute.at == Some(at) && minute.worst.has_partitions_of(&part) {
            if part.gravity() > minute.worst.gravity() {
                // An incident may be over before the minute is.
                minute.marks = self.marks(&view.partitions).await?;
            }
            minute.worst = std::mem::take(&mut minute.worst).worse(part);
            return Ok(());
        }
        self.finish(minute).await?;
        let marks = self.marks(&view.partitions).await?;
        self.write(at, &part, &marks, &view.instance).await?;
        *minute = WorstOfMinute { at: Some(at), worst: part.clone(), written: part, marks };
        Ok(())
    }

    /// Adds the counts of this instance in a minute to those that it wrote before.
    async fn write(
        &self,
        at: Timestamp,
        part: &CountedPart,
        marks: &[IncidentMark],
        instance: &str,
    ) -> Result<()> {
        let labels = self.mirror.labels();
        let documents = Documents::new(self.cells.clone());
        let (hour, minute) = (number(at, HOUR), (at.since(floor(at, HOUR)).as_secs() / 60) as u8);
        for _ in 0..MAX_CHANGES {
            let stored = documents.one::<MinuteCounts>(&hour).await?;
            let mut after = stored.value.clone().unwrap_or_default();
            marks.iter().for_each(|mark| add_mark(&mut after.marks, mark.clone()));
            after.add(minute, instance, part.clone(), &labels);
            if after.encode()?.len() > MINUTE_CELL {
                after.remove_places(minute, instance);
            }
            if after.encode()?.len() > MINUTE_CELL {
                after.remove(minute, instance);
            }
            if documents.write(&[documents.change(&stored, Some(&after))?]).await? == [true] {
                return Ok(());
            }
        }
        Err(EngineError::contended("the counts of this hour"))
    }

    /// The incidents of these partitions that last, and the last trip of the mass-offline breaker.
    async fn marks(&self, partitions: &[u16]) -> Result<Vec<IncidentMark>> {
        let documents = Documents::new(self.cells.clone());
        let lasting = documents.all::<LastingIncident>(partitions).await?;
        let mut marks: Vec<IncidentMark> =
            lasting.values().map(|lasting| IncidentMark::of(&lasting.incident)).collect();
        let trip = mass_breaker::last_trip(&documents).await?.value.filter(|trip| trip.is_held());
        marks.extend(trip.map(|trip| IncidentMark {
            at: trip.at,
            place: String::new(),
            offline: trip.offline,
            units: trip.units,
        }));
        Ok(marks)
    }

    /// Condenses the minutes of hours that are over, and removes old cells. The owner of the first partition does it
    /// for the fleet.
    pub async fn keep(&self, now: Timestamp) -> Result<()> {
        if !self.ownership.owns(0) {
            return Ok(());
        }
        let documents = Documents::new(self.cells.clone());
        let (hour, day) = (number(now, HOUR), number(now, DAY));
        let minutes = documents.of_fleet::<MinuteCounts>().await?;
        let over: BTreeSet<i64> =
            minutes.keys().copied().filter(|of| *of < hour).map(|of| of.div_euclid(24)).collect();
        for of_day in over {
            let stored = documents.one::<HourCounts>(&of_day).await?;
            let after = with_hours(&stored, &minutes, hour, self.cells.partitions())?;
            // A lost race is harmless: the next call condenses these hours again.
            documents.write(&[documents.change(&stored, Some(&after))?]).await?;
        }
        let days = documents.of_fleet::<HourCounts>().await?;
        let mut sets = Vec::new();
        for old in minutes.keys().filter(|of| **of < hour - i64::from(HOURS)) {
            sets.push(documents.change(&documents.one::<MinuteCounts>(old).await?, None)?);
        }
        for old in days.keys().filter(|of| **of < day - i64::from(DAYS)) {
            sets.push(documents.change(&documents.one::<HourCounts>(old).await?, None)?);
        }
        documents.write(&sets).await?;
        Ok(())
    }
}

impl PastCounts {
    pub fn new(cells: Arc<dyn Cells>) -> PastCounts {
        PastCounts { documents: Documents::new(cells) }
    }

    /// The stored counts of the range that ends now: moments of the fleet, in no order, and the incidents.
    pub async fn read(
        &self,
        range: CountRange,
        now: Timestamp,
    ) -> Result<(Vec<(Timestamp, FleetMoment)>, Vec<IncidentMark>)> {
        let within = range.at(now);
        let (hour, partitions) = (number(now, HOUR), self.documents.fleet());
        let first = if range.has_minutes() { number(within.from, HOUR) } else { hour - 1 };
        let hours: Vec<i64> = (first..=hour).collect();
        let (mut moments, mut marks) = (Vec::new(), Vec::new());
        let start =
            |number: i64, length: Duration| Timestamp::from_millis(number * length.as_millis() as i64);
        if !range.has_minutes() {
            let days: Vec<i64> = (number(within.from, DAY)..=number(now, DAY)).collect();
            for read in self.documents.read::<HourCounts>(&days).await? {
                let HourCounts { hours, marks: of_day } = read.value.unwrap_or_default();
                let begin = start(read.name, DAY);
                moments.extend(hours.into_iter().map(|(at, moment)| (begin + HOUR * u32::from(at), moment)));
                of_day.into_iter().for_each(|mark| marks.push(mark));
            }
        }
        // The current hour is not over, and the hour before may not be condensed yet.
        for read in self.documents.read::<MinuteCounts>(&hours).await? {
            let Some(minutes) = read.value else { continue };
            moments.extend(minutes.known(start(read.name, HOUR), partitions));
            marks.extend(minutes.marks);
        }
        let mut unique: BTreeMap<(Timestamp, String), IncidentMark> = BTreeMap::new();
        // The newest mark of an incident has its largest number of units.
        for mark in marks.into_iter().filter(|mark| within.contains(mark.at)) {
            let known = unique.entry((mark.at, mark.place.clone())).or_insert_with(|| mark.clone());
            known.offline = known.offline.max(mark.offline);
        }
        Ok((moments, unique.into_values().collect()))
    }
}

/// The stored hours of a day, and the hours that are over and whose minutes are known.
fn with_hours(
    stored: &Document<HourCounts>,
    minutes: &BTreeMap<i64, MinuteCounts>,
    hour: i64,
    partitions: u16,
) -> Result<HourCounts> {
    let mut after = stored.value.clone().unwrap_or_default();
    let first = stored.name * 24;
    for (of, minutes) in minutes.range(first..(first + 24).min(hour)) {
        if let Some(worst) = minutes.worst(partitions) {
            // Not only the first time: other instances may write the last minute of an hour when the next one has begun.
            after.hours.insert((of - first) as u8, worst);
        }
        minutes.marks.iter().for_each(|mark| add_mark(&mut after.marks, mark.clone()));
    }
    if after.encode()?.len() > HOUR_CELL {
        for moment in after.hours.values_mut() {
            (moment.offline, moment.is_cut) = (BTreeMap::new(), true);
        }
    }
    Ok(after)
}

/// The units of this instance at a moment.
struct CountedUnits {
    states: StateCounts,
    /// The offline units, by the worst values of labels.
    offline: BTreeMap<String, u64>,
    /// Whether values were left out.
    is_cut: bool,
    unusual: u64,
}

fn counted(mirror: &Mirror, hearing: &Hearing, now: Timestamp) -> CountedUnits {
    let summary = mirror.summary(hearing, now);
    let mut states = StateCounts::default();
    for (_, counts) in &summary.kinds {
        states.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let of_label =
        summary.worst.iter().flat_map(|(label, values)| values.iter().map(move |one| (label, one)));
    let mut places: Vec<(u64, String)> = of_label
        .filter(|(_, (_, counts))| counts[State::Offline as usize] > 0)
        .map(|(label, (value, counts))| (counts[State::Offline as usize], format!("{label}={value}")))
        .collect();
    places.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let is_cut = places.len() > MAX_PLACES;
    places.truncate(MAX_PLACES);
    let offline = places.into_iter().map(|(count, place)| (place, count)).collect();
    CountedUnits { states, offline, is_cut, unusual: summary.unusual.iter().sum() }
}

/// How many of these lengths have passed since 1970.
fn number(at: Timestamp, length: Duration) -> i64 {
    at.as_millis().div_euclid(length.as_millis() as i64)
}
