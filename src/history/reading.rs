//! The units of history in a range: the parts from which availability is computed.

use std::collections::HashMap;

use futures_util::TryStreamExt;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, GenericClient};

use super::kept;
use super::rows::{moment, timestamp};
use crate::clock::Timestamp;
use crate::presence::{Interval, TimeSpent, UnitTimes};
use crate::reports::AvailabilityScope;

/// A unit by its kind and id.
pub(super) type KindAndId = (String, String);

/// The units to read; every unit by default.
#[derive(Default)]
pub(super) struct UnitSelection {
    pub kind: Option<String>,
    pub units: Option<Vec<String>>,
    pub label: Option<(String, String)>,
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
                let (kind, units) = (Some(unit.kind.to_string()), Some(vec![unit.id.to_string()]));
                UnitSelection { kind, units, ..all }
            }
        }
    }
}

/// A unit with its known time, outages and pauses.
pub(super) struct ReadUnit<'a> {
    pub kind: String,
    pub unit: String,
    /// JSON; the newest.
    pub labels: String,
    /// When it was in the fleet, in order.
    known: &'a [Interval],
    times: UnitTimes<'a>,
}

impl ReadUnit<'_> {
    /// How the unit spent a part of the range that was read.
    pub fn spent(&self, range: Interval) -> TimeSpent {
        self.known.iter().map(|known| TimeSpent::of(range, *known, self.times)).sum()
    }
}

/// A condition on kind and unit.
const SELECTED: &str = "($3::text IS NULL OR kind = $3) AND ($4::text[] IS NULL OR unit = ANY ($4))";

/// How many statements [`each_unit`] runs.
pub(super) const STATEMENTS: u32 = 6;

/// The units that were known in a range, one by one. Outages and pauses of these units are held in memory, units are not.
/// The time before the first heartbeat of a unit is no outage, though it may have a record. Answers `false`, and gives no
/// unit, if there are more than `most` outages, or pauses.
///
/// In one piece: its queries follow one another.
pub(super) async fn each_unit(
    client: &impl GenericClient,
    range: Interval,
    selection: &UnitSelection,
    most: usize,
    mut found: impl FnMut(ReadUnit<'_>),
) -> Result<bool, Error> {
    let (from, to) = (moment(range.from), moment(range.to));
    let UnitSelection { kind, units, label } = selection;
    let mut within: Vec<&(dyn ToSql + Sync)> = vec![&from, &to, kind, units];
    let (mut has_label, mut of_label) = ("", "");
    if let Some((name, value)) = label {
        within.extend([name as &(dyn ToSql + Sync), value]);
        has_label = "AND labels ->> $5::text = $6::text";
        of_label = "AND (kind, unit) IN (SELECT kind, unit FROM units WHERE labels ->> $5::text = $6::text)";
    }
    let known = format!(
        "FROM units WHERE known_since < $2 AND (removed_at IS NULL OR removed_at > $1) AND {SELECTED} {has_label}"
    );
    // First, because the outages of nobody may be those of the fleet to the planner.
    let are_there = client.query_one(&format!("SELECT EXISTS (SELECT {known})"), &within).await?;
    if !are_there.get::<_, bool>(0) {
        return Ok(true);
    }
    let outages = format!(
        "SELECT kind, unit, offline_since, at FROM transitions WHERE transition = 'online' AND at > $1 \
         AND offline_since < $2 AND cause <> 'never_seen' AND {SELECTED} {of_label} \
         UNION ALL SELECT kind, unit, offline_since, NULL FROM open WHERE offline_since < $2 \
         AND $1::timestamptz IS NOT NULL AND cause <> 'never_seen' AND {SELECTED} {of_label}"
    );
    let Some(outages) = by_unit(client, &outages, &within, most).await? else { return Ok(false) };
    // The longest outage is measured from its begin, so all else is read from the begin of the first one on.
    let begun = outages.values().flatten().map(|outage| outage.from).fold(range.from, Timestamp::min);
    let since = moment(begun);
    let of_outages: Vec<&(dyn ToSql + Sync)> =
        std::iter::once(&since as _).chain(within[1..].iter().copied()).collect();
    let pauses = format!(
        "SELECT kind, unit, from_at, until_at FROM pauses WHERE until_at > $1 AND from_at < $2 \
         AND {SELECTED} {of_label}"
    );
    let Some(pauses) = by_unit(client, &pauses, &of_outages, most).await? else { return Ok(false) };
    let blind = "SELECT kind, '', from_at, until_at FROM blind WHERE until_at > $1 AND from_at < $2";
    let blind = by_unit(client, blind, &of_outages[..2], usize::MAX).await?;
    let blind = Blind::new(blind.unwrap_or_default());
    let unknown = kept::unknown(client, Interval { from: begun, to: range.to }).await?;
    let statement = format!(
        "SELECT kind, unit, labels::text, known_since, removed_at {known} ORDER BY kind, unit, known_since"
    );
    let mut give = |name: KindAndId, labels: String, known: &[Interval]| {
        let times = UnitTimes {
            outages: outages.get(&name).map_or(&[], Vec::as_slice),
            pauses: pauses.get(&name).map_or(&[], Vec::as_slice),
            blind: blind.of(&name.0),
            unknown: unknown.intervals(),
        };
        found(ReadUnit { kind: name.0, unit: name.1, labels, known, times });
    };
    let rows = client.query_raw(&statement, within).await?;
    let mut rows = std::pin::pin!(rows);
    // The rows of a unit come one after the other.
    let (mut last, mut known) = (None::<(KindAndId, String)>, Vec::new());
    while let Some(row) = rows.try_next().await? {
        let name: KindAndId = (row.get(0), row.get(1));
        if let Some((before, labels)) = last.take_if(|(before, _)| *before != name) {
            give(before, labels, &known);
            known.clear();
        }
        let removed: Option<jiff::Timestamp> = row.get(4);
        known.push(Interval { from: timestamp(row.get(3)), to: removed.map_or(Timestamp::NEVER, timestamp) });
        last = Some((name, row.get(2)));
    }
    if let Some((name, labels)) = last {
        give(name, labels, &known);
    }
    Ok(true)
}

/// The times of each unit; `None` if there are more than `most`.
async fn by_unit(
    client: &impl GenericClient,
    select: &str,
    parameters: &[&(dyn ToSql + Sync)],
    most: usize,
) -> Result<Option<HashMap<KindAndId, Vec<Interval>>>, Error> {
    let (mut all, mut count) = (HashMap::<KindAndId, Vec<Interval>>::new(), 0);
    let mut rows = std::pin::pin!(client.query_raw(select, parameters.iter().copied()).await?);
    while let Some(row) = rows.try_next().await? {
        count += 1;
        if count > most {
            return Ok(None);
        }
        let until: Option<jiff::Timestamp> = row.get(3);
        let time = Interval { from: timestamp(row.get(2)), to: until.map_or(Timestamp::NEVER, timestamp) };
        all.entry((row.get(0), row.get(1))).or_default().push(time);
    }
    Ok(Some(all))
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
