//! The units of history in a range: the parts from which availability is computed.

use std::collections::HashMap;

use futures_util::TryStreamExt;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row};

use super::rows::{moment, timestamp};
use crate::clock::Timestamp;
use crate::presence::{Interval, TimeSpent, UnitTimes};
use crate::reports::AvailabilityScope;

/// A unit by its kind and id.
type KindAndId = (String, String);

/// The units to read; every unit by default.
#[derive(Default)]
pub(super) struct UnitSelection {
    kind: Option<String>,
    unit: Option<String>,
    label: Option<(String, String)>,
}

impl From<&AvailabilityScope> for UnitSelection {
    fn from(scope: &AvailabilityScope) -> UnitSelection {
        let all = UnitSelection::default();
        match scope {
            AvailabilityScope::Fleet => all,
            AvailabilityScope::Kind(kind) => UnitSelection { kind: Some(kind.to_string()), ..all },
            AvailabilityScope::Label { name, value } => {
                UnitSelection { label: Some((name.clone(), value.clone())), ..all }
            }
            AvailabilityScope::Unit(unit) => {
                let (kind, unit) = (Some(unit.kind.to_string()), Some(unit.id.to_string()));
                UnitSelection { kind, unit, ..all }
            }
        }
    }
}

/// A unit with its known time, outages and pauses.
pub(super) struct ReadUnit<'a> {
    pub kind: String,
    pub unit: String,
    /// JSON.
    pub labels: String,
    known: Interval,
    times: UnitTimes<'a>,
}

impl ReadUnit<'_> {
    /// How the unit spent a part of the range that was read.
    pub fn spent(&self, range: Interval) -> TimeSpent {
        TimeSpent::of(range, self.known, self.times)
    }
}

/// A condition on kind and unit.
const SELECTED: &str = "($3::text IS NULL OR kind = $3) AND ($4::text IS NULL OR unit = $4)";

/// The units that were known in a range, one by one. Only the outages and pauses of the range are held in memory.
pub(super) async fn each_unit(
    client: &Client,
    range: Interval,
    selection: &UnitSelection,
    mut found: impl FnMut(ReadUnit<'_>),
) -> Result<(), Error> {
    let (from, to) = (moment(range.from), moment(range.to));
    let UnitSelection { kind, unit, label } = selection;
    let within: [&(dyn ToSql + Sync); 4] = [&from, &to, kind, unit];
    let outages = format!(
        "SELECT kind, unit, offline_since, at FROM transitions \
         WHERE transition = 'online' AND at > $1 AND offline_since < $2 AND {SELECTED} UNION ALL \
         SELECT t.kind, t.unit, t.offline_since, NULL FROM (SELECT * FROM open WHERE {SELECTED}) o JOIN transitions t \
         ON t.record = o.record AND t.transition = 'offline' AND t.at = o.detected_at \
         WHERE t.offline_since < $2 AND $1 IS NOT NULL"
    );
    let outages = by_unit(client.query(&outages, &within).await?);
    let pauses = format!(
        "SELECT kind, unit, from_at, until_at FROM pauses WHERE until_at > $1 AND from_at < $2 AND {SELECTED}"
    );
    let pauses = by_unit(client.query(&pauses, &within).await?);
    let blind = "SELECT kind, '', from_at, until_at FROM blind WHERE until_at > $1 AND from_at < $2";
    let blind = by_unit(client.query(blind, &within[..2]).await?);
    let blind = Blind::new(blind);
    let units = format!(
        "SELECT kind, unit, labels::text, known_since, removed_at FROM units \
         WHERE known_since < $2 AND (removed_at IS NULL OR removed_at > $1) AND {SELECTED} \
         AND ($5::text IS NULL OR labels ->> $5 = $6::text)"
    );
    let (label, value) = label.clone().unzip();
    let selected: [&(dyn ToSql + Sync); 6] = [&from, &to, kind, unit, &label, &value];
    let rows = client.query_raw(&units, selected).await?;
    let mut rows = std::pin::pin!(rows);
    while let Some(row) = rows.try_next().await? {
        let name: KindAndId = (row.get(0), row.get(1));
        let removed: Option<jiff::Timestamp> = row.get(4);
        let known = Interval { from: timestamp(row.get(3)), to: removed.map_or(Timestamp::NEVER, timestamp) };
        let times = UnitTimes {
            outages: outages.get(&name).map_or(&[], Vec::as_slice),
            pauses: pauses.get(&name).map_or(&[], Vec::as_slice),
            blind: blind.of(&name.0),
        };
        found(ReadUnit { kind: name.0, unit: name.1, labels: row.get(2), known, times });
    }
    Ok(())
}

fn by_unit(rows: Vec<Row>) -> HashMap<KindAndId, Vec<Interval>> {
    let mut all: HashMap<KindAndId, Vec<Interval>> = HashMap::new();
    for row in rows {
        let until: Option<jiff::Timestamp> = row.get(3);
        let time = Interval { from: timestamp(row.get(2)), to: until.map_or(Timestamp::NEVER, timestamp) };
        all.entry((row.get(0), row.get(1))).or_default().push(time);
    }
    all
}

/// Blind time of each kind, with that of the fleet.
struct Blind {
    fleet: Vec<Interval>,
    kinds: HashMap<String, Vec<Interval>>,
}

impl Blind {
    fn new(mut read: HashMap<KindAndId, Vec<Interval>>) -> Blind {
        let fleet = read.remove(&Default::default()).unwrap_or_default();
        let with_fleet = |own: Vec<Interval>| own.into_iter().chain(fleet.iter().copied()).collect();
        let kinds = read.into_iter().map(|((kind, _), own)| (kind, with_fleet(own))).collect();
        Blind { fleet, kinds }
    }

    fn of(&self, kind: &str) -> &[Interval] {
        self.kinds.get(kind).unwrap_or(&self.fleet)
    }
}
