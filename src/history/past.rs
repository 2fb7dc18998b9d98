//! The stored past of a fleet, to try a policy on it. Rows are read one by one, and only the fields that a trial needs
//! are kept.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, RowStream};

use super::database::{Database, HistoryError, Result};
use super::kept;
use super::past_silences::PastAlertSilences;
use super::rows::{moment, timestamp};
use crate::clock::Timestamp;
use crate::presence::{Closing, Interval, Kind, Ledger, Policy, RecordId, Unit};
use crate::routing::trial::{FleetSizes, PastFleet, PastPolicy, PastSilence, PastUnit};
use crate::store::Audited;

/// The most silences of a trial: they take about 300 megabytes.
const MAX_SILENCES: usize = 1_000_000;

/// Reads the past of a fleet in the time before `until`, or before now, as far as it is written.
///
/// # Errors
/// There are too many silences, or the database fails.
pub async fn past_fleet(
    database: &Database,
    kind: &Kind,
    (since, until): (Duration, Option<Timestamp>),
    now: Timestamp,
) -> Result<PastFleet> {
    let written = written_until(database).await?;
    let until = until.unwrap_or(now).min(written.unwrap_or(now)).min(now);
    let range = Interval { from: until - since, to: until };
    let past = PastFleet { written: written.unwrap_or(until), ..PastFleet::empty(kind.clone(), range) };
    let mut reading = PastReading { past, places: HashMap::new(), first: None, is_too_much: false };
    match kept::begins(database).await? {
        Some(begins) if begins >= until => reading.past.gaps.push(format!(
            "history begins at {begins}, which is after all of that time: nothing of it is on record"
        )),
        Some(begins) if begins > range.from => {
            let gap = format!("history begins at {begins}: silences before that are not on record");
            reading.past.gaps.push(gap);
        }
        _ => {}
    }
    if written.is_none() {
        reading.past.gaps.push("nothing is written yet: history begins in the first minute".to_owned());
    }
    let (client, doing) = (database.client(), "read the past of the fleet");
    database.limited(doing, reading.silences(client)).await?;
    if reading.is_too_much {
        return Err(HistoryError::Refused(format!(
            "there are more than {MAX_SILENCES} silences in that time; ask for a shorter one"
        )));
    }
    database.limited(doing, reading.units(client)).await?;
    database.limited(doing, reading.absences(client)).await?;
    database.limited(doing, reading.policies(client)).await?;
    database.limited(doing, reading.operations(client)).await?;
    database.limited(doing, reading.notifications(client)).await?;
    database.limited(doing, reading.losses(client)).await?;
    Ok(reading.past)
}

/// The moment up to which all openings and closings of records are written; `None` if nothing is written yet.
async fn written_until(database: &Database) -> Result<Option<Timestamp>> {
    let select = "SELECT min(at) FROM cursors WHERE source IN ('opened', 'closed')";
    let row = database.limited("read a cursor", database.client().query_one(select, &[])).await?;
    Ok(row.get::<_, Option<jiff::Timestamp>>(0).map(timestamp))
}

/// A past while it is read.
struct PastReading {
    past: PastFleet,
    /// The places of units, by kind and id. A unit has one place for each set of labels, whose text is stored as it was
    /// read.
    places: HashMap<(String, String), Vec<(u32, String)>>,
    /// The beginning of the first silence.
    first: Option<Timestamp>,
    is_too_much: bool,
}

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

async fn rows(client: &Client, select: &str, parameters: Parameters<'_>) -> Result<RowStream, Error> {
    client.query_raw(select, parameters.iter().copied()).await
}

impl PastReading {
    /// Reads the silences that lasted in the range, by any timeout: one that began in the range was perhaps detected
    /// after it. A closing has all the columns of its opening.
    async fn silences(&mut self, client: &Client) -> Result<(), Error> {
        let (from, to) = (moment(self.past.range.from), moment(self.past.range.to));
        let select = "SELECT record, labels::text, cause, last_seen, offline_since, detected_at, at, closed_by \
                      FROM transitions WHERE transition = 'online' AND at >= $1 AND last_seen < $2 UNION ALL \
                      SELECT record, labels::text, cause, last_seen, offline_since, detected_at, NULL, NULL \
                      FROM open WHERE last_seen < $2";
        let mut found = std::pin::pin!(rows(client, select, &[&from, &to]).await?);
        while let Some(row) = found.try_next().await? {
            if self.past.silences.len() >= MAX_SILENCES {
                self.is_too_much = true;
                return Ok(());
            }
            if let Some(silence) = self.silence(&row) {
                self.first = Some(self.first.map_or(silence.last_seen, |first| first.min(silence.last_seen)));
                self.past.silences.push(silence);
            }
        }
        let units = &self.past.units;
        let order = |silence: &PastSilence| (silence.detected_at, &units[silence.unit as usize].unit);
        self.past.silences.sort_by(|a, b| order(a).cmp(&order(b)));
        Ok(())
    }

    fn silence(&mut self, row: &Row) -> Option<PastSilence> {
        let id: RecordId = row.get::<_, &str>(0).parse().ok()?;
        let at = |column: usize| timestamp(row.get(column));
        let word = |text: &str| serde_json::Value::String(text.to_owned());
        let back_at: Option<jiff::Timestamp> = row.get(6);
        let why: Option<&str> = row.get(7);
        let why = why.and_then(|by| serde_json::from_value::<Closing>(word(by)).ok());
        Some(PastSilence {
            unit: self.unit(id.unit, row.get(1)),
            cause: serde_json::from_value(word(row.get(2))).ok()?,
            last_seen: at(3),
            deadline: at(4),
            detected_at: at(5),
            // An end that is not known notifies of no return.
            closed: back_at.map(|at| (timestamp(at), why.unwrap_or(Closing::Removed))),
        })
    }

    /// The place of a unit with these labels; a new one if there is none.
    fn unit(&mut self, unit: Unit, labels: &str) -> u32 {
        let name = (unit.kind.to_string(), unit.id.to_string());
        let places = self.places.entry(name).or_default();
        if let Some((known, _)) = places.iter().find(|(_, known)| known == labels) {
            return *known;
        }
        let place = self.past.units.len() as u32;
        places.push((place, labels.to_owned()));
        let labels = serde_json::from_str(labels).unwrap_or_default();
        self.past.units.push(PastUnit { unit, labels, known_since: None, pauses: Vec::new() });
        place
    }

    fn places_of(&self, row: &Row) -> Vec<u32> {
        let places = self.places.get(&(row.get(0), row.get(1)));
        places.into_iter().flatten().map(|(place, _)| *place).collect()
    }

    /// Reads since when units are known, and how many there were.
    async fn units(&mut self, client: &Client) -> Result<(), Error> {
        let select = "SELECT kind, unit, known_since, removed_at FROM units ORDER BY known_since DESC";
        let mut found = std::pin::pin!(rows(client, select, &[]).await?);
        let mut sizes = Vec::new();
        while let Some(row) = found.try_next().await? {
            let removed: Option<jiff::Timestamp> = row.get(3);
            let known = timestamp(row.get(2));
            sizes.push((known, removed.map(timestamp)));
            for place in self.places_of(&row) {
                self.past.units[place as usize].known_since = Some(known).filter(|at| *at > Timestamp::ZERO);
            }
        }
        self.past.sizes = FleetSizes::new(sizes);
        Ok(())
    }

    /// Reads blind time and pauses, also from before the range and after it: a silence may have begun long before its
    /// deadline.
    async fn absences(&mut self, client: &Client) -> Result<(), Error> {
        let first = moment(self.first.unwrap_or(self.past.range.from));
        let kind = self.past.kind.to_string();
        let time = |row: &Row, at| Interval { from: timestamp(row.get(at)), to: timestamp(row.get(at + 1)) };
        let blind = "SELECT from_at, until_at FROM blind WHERE kind IN ('', $1) AND until_at > $2";
        let blind = client.query(blind, &[&kind, &first]).await?;
        self.past.ledger = Ledger::new(blind.iter().map(|row| time(row, 0)));
        let pauses = "SELECT kind, unit, from_at, until_at FROM pauses \
                      WHERE kind = $1 AND until_at > $2 ORDER BY 1, 2, 3";
        let mut found = std::pin::pin!(rows(client, pauses, &[&kind, &first]).await?);
        while let Some(row) = found.try_next().await? {
            for place in self.places_of(&row) {
                self.past.units[place as usize].pauses.push(time(&row, 2));
            }
        }
        Ok(())
    }

    /// The policies of the kind, also those after the range, which decided silences that began in it.
    async fn policies(&mut self, client: &Client) -> Result<(), Error> {
        let select = "SELECT since, timeout_ms, grace_ms FROM policies WHERE kind = $1 ORDER BY 1";
        let rows = client.query(select, &[&self.past.kind.to_string()]).await?;
        let span = |row: &Row, at| Duration::from_millis(row.get::<_, i64>(at).unsigned_abs());
        let policy = |row: &Row| PastPolicy {
            since: timestamp(row.get(0)),
            policy: Policy { timeout: span(row, 1), grace: span(row, 2) },
        };
        self.past.policies = rows.iter().map(policy).collect();
        Ok(())
    }

    /// Alert silences, and releases of the breaker.
    async fn operations(&mut self, client: &Client) -> Result<(), Error> {
        let range = self.past.range;
        let changes = [Audited::SilenceAdded, Audited::SilenceChanged, Audited::SilenceExpired];
        let changes: Vec<&str> = changes.iter().map(|change| change.as_str()).collect();
        let select =
            "SELECT at, subject, text FROM operations WHERE change = ANY ($1) AND at < $2 ORDER BY at, id";
        let mut found = std::pin::pin!(rows(client, select, &[&changes, &moment(range.to)]).await?);
        let mut silences = PastAlertSilences::since(self.first.unwrap_or(range.from));
        while let Some(row) = found.try_next().await? {
            silences.change(timestamp(row.get(0)), row.get(1), row.get(2));
        }
        let unreadable = silences.unreadable();
        if unreadable > 0 {
            self.past.gaps.push(format!("{unreadable} alert silences cannot be read, and are left out"));
        }
        self.past.alert_silences = silences.into_all().into();
        let released = "SELECT at FROM operations WHERE change = $1 AND at >= $2 AND at < $3 ORDER BY at";
        let change = Audited::BreakerReleased.as_str();
        let released = client.query(released, &[&change, &moment(range.from), &moment(range.to)]).await?;
        self.past.releases = released.iter().map(|row| timestamp(row.get(0))).collect();
        Ok(())
    }

    /// Reads the notifications that receivers took.
    async fn notifications(&mut self, client: &Client) -> Result<(), Error> {
        let Interval { from, to } = self.past.range;
        let select = "SELECT receiver, count(DISTINCT notification) FROM notifications WHERE at >= $1 \
                      AND sealed_at >= $1 AND sealed_at < $2 AND result = 'delivered' AND NOT is_reminder \
                      AND EXISTS (SELECT FROM unnest(records) one WHERE starts_with(one, $3)) GROUP BY receiver";
        let kind = format!("{}:", self.past.kind);
        let sent = client.query(select, &[&moment(from), &moment(to), &kind]).await?;
        let sent = sent.iter().map(|row| (row.get(0), row.get::<_, i64>(1) as u64));
        self.past.sent = sent.collect::<BTreeMap<String, u64>>();
        Ok(())
    }

    async fn losses(&mut self, client: &Client) -> Result<(), Error> {
        let Interval { from, to } = self.past.range;
        let select = "SELECT table_name, from_at, until_at FROM losses WHERE until_at > $1 AND from_at < $2 UNION ALL \
                      SELECT table_name, $1, since FROM kept WHERE table_name <> 'transitions' AND since > $1 ORDER BY 1, 2";
        for row in client.query(select, &[&moment(from), &moment(to)]).await? {
            let what = match row.get(0) {
                "transitions" => "records",
                "operations" => "alert silences",
                "notifications" => "messages that were sent",
                _ => continue,
            };
            let (from, until) = (timestamp(row.get(1)), timestamp(row.get(2)));
            self.past.gaps.push(format!("{what} may be missing from {from} until {until}"));
        }
        Ok(())
    }
}
